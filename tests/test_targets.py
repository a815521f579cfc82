"""The target figures on random checkpoints in exactly the shapes of the four target models."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pytest

import anchorlens as al

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from targets import SHAPES, config_of, write_random  # noqa: E402

FIGURES = {
    "figure_llama32.py": ("Llama-3.2-1B", "Llama-3.2-3B"),
    "figure_qwen3.py": ("Qwen3-8B", "Qwen3-32B"),
}
# Billions of parameters, as the models' own cards say.
CARDS = {"Llama-3.2-1B": 1.24, "Llama-3.2-3B": 3.21, "Qwen3-8B": 8.19, "Qwen3-32B": 32.76}


def configuration(name, folder, **changes):
    """A directory with a model's configuration and a file without its weights: what can be told
    before anything is loaded.
    """
    folder.mkdir()
    config_of(name, **changes).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    # As large as weights, without using the disk.
    n_bytes = 100 * 10**9
    tensor = {"dtype": "U8", "shape": [n_bytes], "data_offsets": [0, n_bytes]}
    header = json.dumps({"nothing": tensor}).encode()
    weights = folder / "model.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(weights, 8 + len(header) + n_bytes)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_the_size_of_a_model_is_told_from_its_configuration(name, tmp_path):
    folder = configuration(name, tmp_path / "model")
    size = al.model_size(folder, "cpu", "bfloat16")
    assert size.n_params / 1e9 == pytest.approx(CARDS[name], abs=0.006)
    tied = (
        SHAPES[name]["vocab_size"]
        * SHAPES[name]["hidden_size"]
        * SHAPES[name]["tie_word_embeddings"]
    )
    assert size.weight_bytes == 2 * (size.n_params + tied)
    assert size.n_layers * size.layer_bytes < size.weight_bytes
    assert size.download_bytes == 0
    assert f"{CARDS[name]:.2f} billion" in str(size)
    assert al.model_size(folder, "cpu").weight_bytes == 2 * size.weight_bytes  # float32 on a CPU
    assert name != "Qwen3-32B" or not al.model_size(folder, "cpu", "float64").fits


def test_what_has_no_size_of_its_own(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(al.AnchorlensError):
        al.model_size(tmp_path / "model.gguf")
    with pytest.raises(al.AnchorlensError, match="No model has the name"):
        al.model_size("smollm3-nowhere")


def room_for(n_bytes):
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < n_bytes:
        pytest.skip(
            f"the weights take {n_bytes / 1e9:.0f} GB of disk, and {free / 1e9:.0f} GB are free"
        )


def figure(script, *options):
    command = [
        sys.executable,
        str(ROOT / "examples" / script),
        *map(str, options),
        "--dtype",
        "bfloat16",
        "--device",
        "cpu",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("script", FIGURES)
def test_a_target_figure_on_the_first_two_layers_of_its_models(script, tmp_path):
    """Estimate, measure streamed and draw; tests/test_examples.py has the second call, which reads
    what is there.
    """
    room_for(13e9)
    models = [
        write_random(
            config_of(name, num_hidden_layers=2, vocab_size=49_152),
            tmp_path / name,
        )
        for name in FIGURES[script]
    ]
    options = (
        "--models",
        *models,
        "--datasets",
        "popqa-sample",
        "--limit",
        40,
        "--stream",
        "always",
        "--max-memory",
        "4GB",
    )
    said = figure(script, *options, "--estimate")
    for name in FIGURES[script]:
        assert f"{name}, streamed" in said
    assert said.count("weights read") == 2
    said = figure(script, *options, "--out", tmp_path / "out")
    assert "k*" in said
    page = (tmp_path / "out" / "figure.html").read_text(encoding="utf8")
    for name in FIGURES[script]:
        (sweep,) = al.load_run(tmp_path / "out" / name)
        assert sweep.layers == (0, 1)
        assert sweep.record["plan"]["engine"] == "cone"
        assert sweep.record["plan"]["weight_reads"] > 0
        assert not sweep.record["checks"]["failed"]
        assert name in page
    shutil.rmtree(tmp_path)


@pytest.mark.slow
def test_four_layers_of_llama_3_2_1b_streamed_and_in_memory(tmp_path):
    room_for(4e9)
    model = write_random(config_of("Llama-3.2-1B", num_hidden_layers=4), tmp_path / "Llama-3.2-1B")
    options = (
        "--models",
        model,
        "--datasets",
        "popqa-sample",
        "--protocols",
        "swap",
        "--limit",
        4,
        "--layers",
        4,
    )
    options += ("--max-memory", "1GB")
    frames = {}
    for stream in ("always", "never"):
        figure("figure_llama32.py", *options, "--stream", stream, "--out", tmp_path / stream)
        frames[stream] = pd.read_parquet(tmp_path / stream / "Llama-3.2-1B" / "samples.parquet")
    key = ["example_id", "donor_id", "anchor", "control", "draw", "layer"]
    both = frames["always"].merge(frames["never"], on=key)
    assert len(both) == len(frames["never"]) > 0
    assert set(both["layer"]) == {0, 1, 2, 3}
    # In bfloat16, where other batches may move a P by some points; of random weights none is far
    # from 0.
    assert (both["effect_x"] - both["effect_y"]).abs().max() < 1
    assert (frames["always"]["logp_before"].nunique()) > 3
    shutil.rmtree(tmp_path)
