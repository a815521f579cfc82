"""The table of known models."""

import subprocess
import sys
from pathlib import Path

import pytest

from anchorlens.models.names import (
    TABLE,
    KnownModel,
    find_official_name,
    known_models,
    nearest_names,
)

TARGETS = {
    "Qwen/Qwen3-8B": 36,
    "Qwen/Qwen3-32B": 64,
    "meta-llama/Llama-3.2-1B": 16,
    "meta-llama/Llama-3.2-3B": 28,
}


def test_the_table_holds_the_target_models_and_the_packaged_one():
    layers = {model.name: model.n_layers for model in known_models()}
    assert {name: layers[name] for name in TARGETS} == TARGETS
    assert known_models()[0].name == "smollm2-135m-instruct"
    assert len(layers) == len(TABLE), "no name twice"


def test_all_adds_what_transformer_lens_registers():
    everything = known_models(all_registered=True)
    assert everything[: len(TABLE)] == TABLE
    assert KnownModel("facebook/opt-125m", "", None, "registered by TransformerLens") in everything
    assert len({model.name for model in everything}) == len(everything)
    notes = {model.name: model.note for model in everything}
    assert "pass the live model" in notes["NeelNanda/Attn_Only_2L512W_C4_Code"]
    assert not {"google-bert/bert-base-cased", "google-t5/t5-small", "bigcode/santacoder"} & set(
        notes
    ), "these cannot be loaded"


def test_aliases_in_any_case():
    assert find_official_name("gpt2-small") == "gpt2"
    assert find_official_name("PYTHIA-70M") == "EleutherAI/pythia-70m"
    assert find_official_name("Qwen/Qwen3-32B") is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("LLAMA-3.2-1B", "meta-llama/Llama-3.2-1B"),
        ("llama-3.2-1b-instruct", "meta-llama/Llama-3.2-1B-Instruct"),
        (" llama-3.2-1b ", "meta-llama/Llama-3.2-1B"),
        ("meta-llama/Lama-3.2-3B", "meta-llama/Llama-3.2-3B"),
        ("QWEN/QWEN3-32B", "Qwen/Qwen3-32B"),
        ("someone/Qwen3-32B", "Qwen/Qwen3-32B"),
        ("qwen-3-32b", "Qwen/Qwen3-32B"),
        ("SmolLM2-135M-Instruct", "smollm2-135m-instruct"),
        ("smollm-135m-instruct", "smollm2-135m-instruct"),
    ],
)
def test_the_name_that_was_meant(written, meant):
    assert nearest_names(written) == f"Did you mean '{meant}'?"


def test_names_that_are_known_or_far_from_all():
    assert nearest_names("zzzzzzzz") == "No known name is similar; `anchorlens models` lists some."
    assert nearest_names("Qwen/Qwen3-32B") == ""


def test_the_table_needs_no_torch():
    heavy = "{'torch', 'transformers', 'transformer_lens', 'huggingface_hub', 'gguf', 'numpy'}"
    code = (
        f"import sys, anchorlens.models.names as n; n.known_models(); sys.exit(bool({heavy} &"
        " set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
