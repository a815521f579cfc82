"""The patch protocol against plain TransformerLens hooks, and through resume, files and verification."""

import numpy as np
import pytest
import torch

import anchorlens as al
from anchorlens.errors import EmptySweepError
from anchorlens.prompts.pairs import load_pairs
from anchorlens.running.sweeps import patch_sweep

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
    before = clean.drop_duplicates("donor_id").set_index("donor_id")["value_before"]
    last = put.sort_values("position").groupby("example_id").tail(1)
    assert last["value_after"].to_numpy() == pytest.approx(before.loc[last["example_id"]].to_numpy(), abs=1e-4)


def test_a_saved_run_is_read_and_drawn_and_nothing_is_claimed_without_a_control(tmp_path, sweep):
    (read,) = al.load_run(sweep.save(tmp_path / "run"))
    assert read.verdict == sweep.verdict
    assert {one.status for one in read.findings.statements} == {"description"}
    assert torch.equal(read.delta_p.nan_to_num(), sweep.delta_p.nan_to_num())
    assert (tmp_path / "run" / "figure.html").is_file()


def test_a_stopped_sweep_goes_on(tmp_path, tiny_model, sweep):
    model, data = tiny_model("gpt2"), load_pairs(ROWS)

    class Stop(Exception):  # noqa: N818
        pass

    def stop(plan):
        raise Stop

    with pytest.raises(Stop):
        patch_sweep(model, data, progress=False, out=tmp_path / "run", on_plan=stop)
    whole = patch_sweep(model, data, progress=False, out=tmp_path / "run", resume=True)
    assert whole.samples().drop(columns="run_id").equals(sweep.samples().drop(columns="run_id"))


def test_a_data_set_without_a_usable_pair_is_refused(tiny_model):
    with pytest.raises(EmptySweepError, match="answer_not_one_token"):
        patch_sweep(tiny_model("gpt2"), load_pairs([{**ROWS[0], "answer": " unquestionably so"}]), progress=False)
