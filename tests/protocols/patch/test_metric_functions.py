"""Functions of the user as metrics: what they may not depend on, and what identifies them."""

import warnings

import pytest
import torch

import anchorlens as al
from anchorlens.errors import InputError, RunError
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.running.sweeps import edge_sweep, patch_sweep
from tests.protocols.patch.test_cells import ROWS
from tests.raised import raises

TARGET = torch.tensor(3)


def of_global(logits):
    return logits[0, -1, TARGET]


def random(logits):
    return logits[0, -1, 3] + torch.rand(())


@pytest.mark.parametrize("engine", ["cone", "reference"])
def test_a_metric_that_draws_at_random_is_refused(tiny_model, engine):
    with raises(InputError, "metric", word="for the same logits"):
        patch_sweep(
            tiny_model("gpt2"), load_pairs(ROWS), metric=random, engine=engine, progress=False
        )


def test_edges_refuse_a_metric_that_draws_at_random(tiny_model):
    with raises(InputError, "metric", word="for the same logits"):
        edge_sweep(tiny_model("gpt2"), load_pairs(ROWS), metric=random, progress=False)


@pytest.mark.parametrize("sweep", [patch_sweep, edge_sweep])
def test_a_metric_with_one_value_in_all_runs_is_named(tiny_model, sweep):
    """Its grid was one of zeros, with the interval [0, 0]."""

    def never(logits):
        return (logits[0, -1].max() > 1e6).float()

    pairs = load_pairs(ROWS, limit=1)
    found = sweep(tiny_model("gpt2"), pairs, metric=never, progress=False)
    assert found.verdict.startswith("Nothing is claimed: never is 0 in every run")
    assert not found.findings.claims
    title = al.plot_heatmap(found).layout.title.text
    assert "never is 0 in every run" in title


def test_a_metric_that_counts_its_calls_is_warned_of(tiny_model):
    counter = {"calls": 0}

    def late(logits):
        counter["calls"] += 1
        return logits[0, -1, 3] + 0.5 * (counter["calls"] > 1e6)

    with pytest.warns(UserWarning, match="keeps between calls"):
        patch_sweep(tiny_model("gpt2"), load_pairs(ROWS), metric=late, progress=False)


def test_a_value_that_is_computed_once_is_no_state(tiny_model):
    known = {}

    def lazy(logits):
        token = known.setdefault("token", 3)
        return logits[0, -1, token]

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*keeps between calls")
        patch_sweep(tiny_model("gpt2"), load_pairs(ROWS), metric=lazy, progress=False)


def test_a_run_is_not_continued_with_another_value_that_its_metric_reads(
    tiny_model, tmp_path, monkeypatch
):
    model = tiny_model("gpt2")
    out = tmp_path / "run"
    patch_sweep(model, load_pairs(ROWS), metric=of_global, out=out, progress=False)
    monkeypatch.setitem(globals(), "TARGET", torch.tensor(4))
    with pytest.raises(RunError, match="own_code"):
        patch_sweep(model, load_pairs(ROWS), metric=of_global, out=out, resume=True, progress=False)


def test_what_a_metric_collects_does_not_change_the_run(tiny_model, tmp_path):
    """The fingerprint is taken before the first call, so a growing list is no other metric."""
    seen = []

    def collecting(logits):
        seen.append(1)
        return logits[0, -1, 3]

    with pytest.warns(UserWarning, match="keeps between calls"):
        found = patch_sweep(
            tiny_model("gpt2"),
            load_pairs(ROWS),
            metric=collecting,
            out=tmp_path / "run",
            progress=False,
        )
    assert seen
    assert len(found.samples())
