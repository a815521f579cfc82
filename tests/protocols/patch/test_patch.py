"""The patch protocol against plain TransformerLens hooks, and through resume, files and verification."""

import numpy as np
import pandas as pd
import pytest
import torch

import anchorlens as al
from anchorlens.errors import EmptySweepError
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.running.sweeps import patch_sweep
from anchorlens.runs.checksums import write_sums

# The small tokenizer knows single letters: both prompts of a pair have as many.
ROWS = [
    {"clean": "ab is in", "corrupted": "cd is in", "answer": "e", "wrong": "f"},
    {"clean": "The bag of ab is", "corrupted": "The bog of ef is", "answer": "c", "wrong": "d"},
]


def by_hooks(model, target, source, layer, position, answer, wrong):
    """Logit difference with one stream replaced, by TransformerLens's own forward pass."""
    target, source = torch.tensor([target]), torch.tensor([source])
    with torch.no_grad():
        _, cache = model.run_with_cache(source)
        name = f"blocks.{layer}.hook_resid_pre"

        def put(stream, hook):
            stream[:, position] = cache[name][:, position]
            return stream

        logits = model.run_with_hooks(target, fwd_hooks=[(name, put)])[0, -1]
    return float(logits[answer] - logits[wrong])


@pytest.fixture(scope="module")
def sweep(tiny_model):
    return patch_sweep(tiny_model("gpt2"), load_pairs(ROWS), progress=False)


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_every_cell_equals_a_hooked_forward_pass(tiny_model, sweep, direction):
    model = tiny_model("gpt2")
    result = sweep if direction == "denoising" else patch_sweep(model, load_pairs(ROWS), direction="noising", progress=False)
    examples = result.examples().set_index(["role", "example_id"])
    samples = result.samples()
    assert set(samples["unit"]) == {"logit"}
    hf = model.tokenizer
    for cell in samples.itertuples():
        base, donor = examples.loc[("base", cell.example_id)], examples.loc[("donor", cell.donor_id)]
        answer, wrong = (hf(text, add_special_tokens=False)["input_ids"][0] for text in (base["answer"], base["wrong_answer"]))
        wanted = by_hooks(model, list(base["token_ids"]), list(donor["token_ids"]), cell.layer, cell.position, answer, wrong)
        assert cell.value_after == pytest.approx(wanted, abs=1e-4)
    assert samples["position"].min() == 0
    assert (samples["effect"] == samples["value_after"] - samples["value_before"]).all()


def test_both_engines_agree(tiny_model, sweep):
    again = patch_sweep(tiny_model("gpt2"), load_pairs(ROWS), engine="reference", progress=False)
    np.testing.assert_allclose(again.samples()["value_after"], sweep.samples()["value_after"], atol=1e-4)


def test_the_last_stream_of_the_clean_run_gives_the_clean_metric(tiny_model):
    model = tiny_model("gpt2")
    layer = model.cfg.n_layers - 1
    put = patch_sweep(model, load_pairs(ROWS), site="resid_post", layers=[layer], progress=False).samples()
    clean = patch_sweep(model, load_pairs(ROWS), direction="noising", layers=[layer], progress=False).samples()
    before = clean.drop_duplicates("example_id").set_index("example_id")["value_before"]
    last = put.sort_values("position").groupby("example_id").tail(1)
    assert last["value_after"].to_numpy() == pytest.approx(before.loc[last["example_id"]].to_numpy(), abs=1e-4)


def test_a_saved_run_is_read_and_drawn_and_nothing_is_claimed_without_a_control(tmp_path, sweep):
    (read,) = al.load_run(sweep.save(tmp_path / "run"))
    assert read.verdict == sweep.verdict
    assert {one.status for one in read.findings.statements} == {"description"}
    assert torch.equal(read.delta_p.nan_to_num(), sweep.delta_p.nan_to_num())
    assert (tmp_path / "run" / "figure.html").is_file()


def test_jobs_and_resume_give_the_samples_of_one_sweep(small_shards, tmp_path, tiny_model, sweep):
    model, data, out = tiny_model("gpt2"), load_pairs(ROWS), tmp_path / "run"
    status = patch_sweep(model, data, batch_size=1, progress=False, out=out, job="1/2")
    (part,) = status.sweeps
    assert part.shards is not None and 0 < part.done < part.shards
    whole = patch_sweep(model, data, batch_size=1, progress=False, out=out, resume=True)
    assert whole.samples().drop(columns="run_id").equals(sweep.samples().drop(columns="run_id"))


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_verification_measures_the_cells_of_a_run_again(tmp_path, monkeypatch, tiny_model, direction):
    model, file = tiny_model("gpt2"), tmp_path / "pairs.csv"
    pd.DataFrame(ROWS).to_csv(file, index=False)
    run = patch_sweep(model, load_pairs(file), direction=direction, progress=False).save(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    verified = al.verify_run(run, model=model, cells=12, show_progress=False)
    assert {check.what.partition(":")[0]: check.status for check in verified.checks if check.what != "code"} == dict.fromkeys(
        ("files", "data", "weights", "tokenizer", "cells"), "match"
    )
    assert len(verified.cells()) == 12 and verified.cells()["max_abs_diff"].max() < 1e-3
    table = pd.read_parquet(run / "samples.parquet")
    table.assign(value_after=table["value_after"] + 0.02, effect=table["effect"] + 0.02).to_parquet(run / "samples.parquet")
    write_sums(run)
    (cells,) = [check for check in al.verify_run(run, model=model, show_progress=False).checks if check.what.startswith("cells")]
    assert cells.status == "mismatch" and "by 0.02 logit (allowed" in cells.detail


def test_a_data_set_without_a_usable_pair_is_refused(tiny_model):
    with pytest.raises(EmptySweepError, match="same_prompts 1"):
        patch_sweep(tiny_model("gpt2"), load_pairs([{**ROWS[0], "corrupted": ROWS[0]["clean"]}]), progress=False)
