"""Loading on each backend: parity, weights held once, and refusals by name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anchorlens as al
from anchorlens.errors import InputError, UnsupportedModelError
from anchorlens.models.adapter import HAS_HOOKED, TRANSFORMER_LENS, check_version
from anchorlens.models.load import adapt, load_model
from anchorlens.models.source import check_model
from tests.contract.models import (
    BACKENDS,
    NO_BRIDGE,
    TINY,
    adapter_of,
    hugging_face,
    needs_hooked,
    tokenizer,
)
from tests.models.tiny import save_model

TOKENS = torch.randint(8, 400, (2, 40), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("family", TINY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_family_loads_with_the_log_probabilities_of_hugging_face(family, backend):
    if backend == "bridge" and family in NO_BRIDGE:
        with pytest.raises(UnsupportedModelError, match="cannot make or run a bridge"):
            adapter_of(family, backend)
        return
    adapter = adapter_of(family, backend)
    with torch.no_grad():
        ours, theirs = adapter.model(TOKENS), hugging_face(family)(input_ids=TOKENS).logits
    assert float((ours.log_softmax(-1) - theirs.log_softmax(-1)).abs().max()) < 1e-3
    card = al.model_card(adapter.model)
    assert (card.backend, card.weights_processed) == (backend, False)
    assert card.parity is not None
    assert card.parity < 1e-3


def test_the_default_backend_is_hooked_where_there_is_one(tmp_path):
    model = load_model(save_model(hugging_face("llama"), tmp_path / "llama"), device="cpu")
    assert adapt(model).backend == ("hooked" if HAS_HOOKED else "bridge")


def test_a_bridge_holds_the_weights_once(tmp_path):
    hf = hugging_face("llama")
    model = load_model(save_model(hf, tmp_path / "llama"), device="cpu", backend="bridge")
    tensors = [
        *model.parameters(),
        *model.buffers(),
        *model.original_model.parameters(),
        *model.original_model.buffers(),
    ]
    held = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors
    }
    wanted = sum(
        parameter.nbytes for parameter in hf.parameters()
    )  # tied embeddings are counted once
    assert wanted <= sum(held.values()) < 1.01 * wanted


@pytest.mark.parametrize(("option", "value"), [("stream", True), ("n_devices", 2)])
def test_a_bridge_is_neither_streamed_nor_spread(option, value, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "anchorlens.models.source.check_n_devices", lambda *_: None
    )  # this machine may have one device
    path = save_model(hugging_face("llama"), tmp_path / "llama")
    for backend in ("bridge",) if HAS_HOOKED else ("bridge", None):
        with pytest.raises(
            InputError, match=rf"{option}={value}: only a HookedTransformer .*3\.9"
        ) as caught:
            check_model(path, backend=backend, **{option: value})
        assert caught.value.arguments == (option,)


@pytest.mark.skipif(HAS_HOOKED, reason="transformer-lens 3.9 has HookedTransformer")
def test_transformer_lens_4_has_no_hooked_backend():
    for call in (load_model, check_model):
        with pytest.raises(
            InputError,
            match=f"backend='hooked': transformer-lens {TRANSFORMER_LENS} has no HookedTransformer",
        ):
            call(hugging_face("llama"), tokenizer=tokenizer(), backend="hooked")


@needs_hooked
def test_a_live_model_of_the_other_backend_is_refused():
    with pytest.raises(InputError, match="backend='bridge': this model is a HookedTransformer"):
        load_model(adapter_of("llama", "hooked").model, backend="bridge")


@pytest.mark.parametrize("version", ["3.8.1", "2.16.0", "5.0.0"])
def test_other_versions_are_refused(version):
    with pytest.raises(
        InputError,
        match=rf"transformer-lens {version} is installed; anchorlens works with 3\.9 and 4\.x",
    ):
        check_version(version)


@pytest.mark.parametrize("version", ["3.9.0", "3.10.2", "4.0.0", "4.3.0", "4.99.1"])
def test_versions_that_work(version):
    check_version(version)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            ["swap", "--model", "gpt2", "--dataset", "popqa-sample", "--dry-run"],
            marks=pytest.mark.slow,
        ),
        ["models", "--all"],
    ],
)
def test_a_command_names_the_version_once_and_exits_with_2(command, tmp_path):
    """The metadata of another version stand before the installed ones."""
    info = tmp_path / "transformer_lens-5.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: transformer-lens\nVersion: 5.0.0\n", encoding="utf8"
    )
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([str(tmp_path), root, os.environ.get("PYTHONPATH", "")])
    run = [sys.executable, "-m", "anchorlens", *command]
    done = subprocess.run(
        run, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stderr.count("transformer-lens 5.0.0 is installed") == 1
    assert "Traceback" not in done.stderr


def test_registered_names_are_listed():
    names = [model.name for model in al.known_models(all_registered=True)]
    assert len(names) > 200
    assert "gpt2" in names
    assert len(set(names)) == len(names)
