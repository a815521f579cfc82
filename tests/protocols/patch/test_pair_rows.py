"""Metric functions that take the row of their pair, such as the year of the greater-than task."""

import numpy as np
import pytest
import torch

import anchorlens as al
from anchorlens.errors import InputError, RunError
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.running.sweeps import patch_sweep

ROWS = [
    {"id": "one", "clean": "The ab is", "corrupted": "The ae is", "year": "4"},
    {"id": "two", "clean": "The cd of is", "corrupted": "The ce of is", "year": "9"},
    {"id": "three", "clean": "The ab of is", "corrupted": "The ad of is", "year": "17"},
]
COLUMNS = {"year": "year"}
OPTIONS = {"progress": False, "controls": "none"}


def mass_above(logits, row):
    """Probability of the tokens above the year of the row."""
    return logits[:, -1].softmax(-1)[:, int(row["year"]) :].sum(-1)


def mass_above_four(logits):
    return logits[:, -1].softmax(-1)[:, 4:].sum(-1)


def values_of(sweep):
    samples = sweep.samples().set_index(["example_id", "layer", "anchor"])
    return samples[["value_before", "value_after"]]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["cone", "reference"])
def test_every_cell_gets_the_row_of_its_pair(tiny_model, engine):
    model = tiny_model("gpt2")
    options = {**OPTIONS, "engine": engine}
    together = patch_sweep(
        model, load_pairs(ROWS, columns=COLUMNS), metric=mass_above, batch_size=3, **options
    )
    for row in ROWS:
        year = int(row["year"])
        alone = patch_sweep(
            model,
            load_pairs([row], columns=COLUMNS),
            metric=lambda logits, year=year: logits[:, -1].softmax(-1)[:, year:].sum(-1),
            **options,
        )
        own = values_of(together).loc[[row["id"]]]
        expected = values_of(alone).loc[own.index]
        np.testing.assert_allclose(own, expected, atol=1e-6)
    befores = values_of(together)["value_before"].groupby("example_id").first()
    assert befores.nunique() == len(ROWS)


@pytest.mark.slow
def test_a_function_of_the_logits_alone_gets_no_row(tiny_model):
    def scaled(logits, scale=2.0):
        return scale * mass_above_four(logits)

    model = tiny_model("gpt2")
    pairs = load_pairs(ROWS, columns=COLUMNS)
    once = patch_sweep(model, pairs, metric=mass_above_four, **OPTIONS)
    twice = patch_sweep(model, pairs, metric=scaled, **OPTIONS)
    np.testing.assert_allclose(2 * values_of(once), values_of(twice), rtol=1e-5)
    assert "row" not in once.record["pairs"]["one"]
    with pytest.raises(InputError, match="takes another number of arguments"):
        patch_sweep(model, pairs, metric=lambda logits, row, more: 0.0, **OPTIONS)


@pytest.mark.slow
def test_a_metric_that_changes_its_row_changes_no_other_cell(tiny_model):
    def greedy(logits, row):
        row["year"] = int(row["year"]) + 1
        return mass_above(logits, row)

    pairs = load_pairs(ROWS, columns=COLUMNS)
    sweep = patch_sweep(tiny_model("gpt2"), pairs, metric=greedy, **OPTIONS)
    later = [{**row, "year": int(row["year"]) + 1} for row in ROWS]
    expected = patch_sweep(
        tiny_model("gpt2"), load_pairs(later, columns=COLUMNS), metric=mass_above, **OPTIONS
    )
    np.testing.assert_allclose(values_of(sweep), values_of(expected), atol=1e-6)


def test_a_missing_column_is_named_by_the_metrics_error(tiny_model):
    with pytest.raises(InputError, match=r"metric=mass_above raised KeyError\('year'\)"):
        pairs = load_pairs([{name: row[name] for name in list(row)[:3]} for row in ROWS])
        patch_sweep(tiny_model("gpt2"), pairs, metric=mass_above, **OPTIONS)


@pytest.mark.slow
def test_rows_belong_to_the_data_set_and_are_saved_with_the_run(tmp_path, tiny_model):
    model = tiny_model("gpt2")
    pairs = load_pairs(ROWS, columns=COLUMNS)
    other = load_pairs([{**row, "year": "5"} for row in ROWS], columns=COLUMNS)
    assert pairs.sha256 != other.sha256
    out = tmp_path / "run"
    sweep = patch_sweep(model, pairs, metric=mass_above, out=out, **OPTIONS)
    assert sweep.record["pairs"]["two"]["row"]["year"] == "9"
    assert sweep.record["data"]["reading"] == {"columns": COLUMNS}
    verified = al.verify_run(
        out, model=model, cells=6, callables={"metric": mass_above}, show_progress=False
    )
    (cells,) = [check for check in verified.checks if check.what.startswith("cells")]
    assert cells.status == "match"
    with pytest.raises(RunError):
        patch_sweep(model, other, metric=mass_above, out=out, resume=True, **OPTIONS)


@pytest.mark.slow
@pytest.mark.usefixtures("small_shards")
def test_jobs_give_the_values_of_one_process(tmp_path, tiny_model):
    model = tiny_model("gpt2")
    pairs = load_pairs(ROWS, columns=COLUMNS)
    whole = patch_sweep(model, pairs, metric=mass_above, **OPTIONS)
    out = tmp_path / "run"
    own = {**OPTIONS, "metric": mass_above, "out": out, "batch_size": 1}
    for job in ("1/2", "2/2"):
        patch_sweep(model, pairs, job=job, **own)
    patch_sweep(model, pairs, resume=True, **own)
    (sweep,) = al.load_run(out)
    expected = values_of(whole)
    np.testing.assert_allclose(values_of(sweep).loc[expected.index], expected, atol=1e-6)


def test_the_greater_than_columns_run_as_they_are(tmp_path, tiny_model):
    file = tmp_path / "greater_than.csv"
    file.write_text("clean,corrupted,label\nThe ab is 15,The ae is 15,04\nThe cd is,The ce is,09\n")
    pairs = load_pairs(file, columns={"label": "label"})
    assert [pair.row()["label"] for pair in pairs.pairs] == ["04", "09"]

    def above(logits, row):
        return logits[0, -1].softmax(-1)[torch.arange(logits.shape[-1]) > int(row["label"])].sum()

    sweep = patch_sweep(tiny_model("gpt2"), pairs, metric=above, **OPTIONS)
    assert len(sweep.example_ids) == 2
