"""What the protocols on questions share: one matrix over them, on small sweeps of a tiny model."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

import anchorlens as al
from anchorlens.engine.choose_engine import choose_engine
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import InputError
from anchorlens.models.load import adapt
from anchorlens.protocols.base import Measurement, Recheckable
from anchorlens.protocols.registry import (
    PROTOCOLS,
    analysis_of,
    class_of,
    measurement_of,
    specification_of,
)
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.questions.tokens import set_up_questions
from anchorlens.runs.schema import CELL
from tests.engine.replace_swaps import replace_swaps, right_swaps
from tests.protocols.sweeps import assert_close, measured, questions, run, spec_of, swept
from tests.raised import raises
from tests.tiers import choose_cases

NAMES = ("swap", "knockout", "patch_tokens", "answer_only")  # those on questions
FILES = ("samples", "curves", "examples", "contrasts")


@pytest.fixture(scope="session")
def saved(tiny_model, tmp_path_factory):
    """``saved(name)``: the run directory of a protocol's small sweep."""
    root, made = tmp_path_factory.mktemp("protocols"), {}

    def path(name):
        if name not in made:
            made[name] = swept(tiny_model("llama"), name).save(root / name)
        return made[name]

    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", choose_cases(("swap", "answer_only"), NAMES))
def test_layers_may_count_from_the_end(tiny_model, name):
    model = tiny_model("llama")
    sweep = measured(model, name, layers=[-1])
    assert sweep.layers == (model.cfg.n_layers - 1,)
    assert set(sweep.samples()["layer"]) == set(sweep.curves()["layer"]) == set(sweep.layers)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_is_found_by_its_name(name):
    measurement, analysis = measurement_of(name), analysis_of(name)
    assert isinstance(measurement, Measurement) and isinstance(measurement, Recheckable)
    assert measurement.analysis is analysis and measurement.name == analysis.name == name
    assert (
        measurement.spec is specification_of(name) is getattr(al, class_of(name), measurement.spec)
    )


def test_specifications_need_no_torch():
    code = (
        "import sys; from anchorlens.protocols.registry import PROTOCOLS, specification_of\nfor"
        " name in PROTOCOLS: spec = specification_of(name); assert"
        " spec.from_toml(spec(seed=1).to_toml()) == spec(seed=1)\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", choose_cases(("swap",), NAMES))
def test_the_same_seed_gives_the_same_bytes(tiny_model, saved, tmp_path, name):
    again = measured(tiny_model("llama"), name).save(tmp_path / "again")
    for file in FILES:
        assert (saved(name) / f"{file}.parquet").read_bytes() == (
            again / f"{file}.parquet"
        ).read_bytes()


@pytest.mark.slow
def test_another_seed_draws_other_donors(tiny_model):
    one, other = (swept(tiny_model("llama"), "swap", **seed) for seed in ({}, {"seed": 7}))
    assert other.run_id != one.run_id
    assert not other.samples()[CELL].equals(one.samples()[CELL])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_run_is_the_sweep(tiny_model, saved, name):
    sweep, (loaded,), analysis = (
        swept(tiny_model("llama"), name),
        al.load_run(saved(name)),
        analysis_of(name),
    )
    assert type(loaded) is type(sweep) is analysis.result
    assert loaded.protocol is sweep.protocol is analysis
    title, table = analysis.table([sweep, loaded])
    assert title
    assert len(table) == 2 * len(analysis.summary(sweep))
    for frame in ("samples", "contrasts", "summary"):
        pd.testing.assert_frame_equal(getattr(loaded, frame)(), getattr(sweep, frame)())
    pd.testing.assert_frame_equal(loaded.curves(controls=True), sweep.curves(controls=True))
    pd.testing.assert_frame_equal(
        al.load_curves(saved(name)), sweep.curves(controls=True, all_columns=True)
    )
    assert (loaded.anchors, loaded.layers, loaded.example_ids) == (
        sweep.anchors,
        sweep.layers,
        sweep.example_ids,
    )
    assert torch.equal(loaded.delta_p.nan_to_num(), sweep.delta_p.nan_to_num())
    assert loaded.findings == sweep.findings
    assert repr(loaded) == repr(sweep)
    (record,) = json.loads((saved(name) / "run.json").read_text())["sweeps"]
    assert record["verdict"] == sweep.verdict == str(sweep.findings)
    resolved = {"layers": (0, 1, 2), "add_bos": False, "progress": True}
    resolved |= {"cut_layers": (0, 2)} if name == "knockout" else {}
    assert specification_of(name).from_config(record["config"]) == spec_of(name, **resolved)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_reference_engine_gives_the_same(tiny_model, name):
    sweep, reference = (
        swept(tiny_model("llama"), name, engine=engine) for engine in ("cone", "reference")
    )
    assert_close(sweep, reference)
    assert sweep.samples()["effect"].abs().max() > 0.05
    assert (reference.record["plan"]["engine"], reference.record["checks"]["cells"]) == (
        "reference",
        0,
    )
    assert reference.record["noise"]["cells"] > 0
    assert sweep.record["checks"]["cells"] == 4
    assert 0 <= sweep.record["checks"]["largest_difference"] < 1e-2
    assert sweep.noise_floor == sweep.record["noise"]["floor"]
    assert set(sweep.curves(controls=True)["noise_floor"]) == {sweep.noise_floor}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_memory_that_runs_out_changes_no_number(tiny_model, name, monkeypatch):
    is_swap = name == "swap"
    right = right_swaps if is_swap else ConeEngine.knockout_states_all_layers

    def limited(self, batch, **options):
        if len(batch.tokens.ids) > (3 if is_swap else 5):
            raise torch.OutOfMemoryError("out of memory")
        return right(self, batch, **options)

    if is_swap:
        replace_swaps(monkeypatch, limited)
    else:
        monkeypatch.setattr(ConeEngine, "knockout_states_all_layers", limited)
    with pytest.warns(UserWarning, match="Memory ran out") as told:
        split = run(measurement_of(name), tiny_model("llama"), questions(name), spec_of(name))
    assert sum("Memory ran out" in str(one.message) for one in told) == 1
    assert split.record["plan"]["split"] > 0
    monkeypatch.undo()  # the whole sweep is kept for other tests
    assert_close(split, swept(tiny_model("llama"), name))


class Planned(Exception):  # noqa: N818
    """Ends a sweep before anything is measured."""


@pytest.mark.slow
@pytest.mark.parametrize("name", choose_cases(("swap", "answer_only"), NAMES))
def test_little_memory_makes_more_batches_or_one_error(tiny_model, name):
    model, whole, peaks = tiny_model("llama"), swept(tiny_model("llama"), name), []

    def stop(plan):
        peaks.append(plan.peak_bytes)
        raise Planned

    with pytest.raises(Planned):
        measured(model, name, batch_size=1, on_plan=stop)
    (least,), most = peaks, whole.record["plan"]["peak_bytes"]
    limit = least + (most - least) // 2
    little = measured(model, name, max_memory=limit)
    assert_close(little, whole)
    assert len(little.record["plan"]["batches"]) > len(whole.record["plan"]["batches"])
    assert little.record["plan"]["peak_bytes"] <= limit == little.record["plan"]["max_memory"]
    with raises(InputError, "max_memory"):
        measured(model, name, max_memory="1MB")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_units_cover_the_plan_and_cells_are_measured_again(tiny_model, saved, name):
    """Every unit with its work; then samples again, from what was prepared and from the run
    directory.
    """
    spec, measurement, adapter = (
        spec_of(name, batch_size=16),
        measurement_of(name),
        adapt(tiny_model("llama")),
    )
    context = set_up_questions(adapter, questions(name), spec)
    prepared = measurement.prepare(context, spec)
    engine = choose_engine(adapter, spec.engine, prepared.trial, prepared.sites)
    plan = measurement.plan(engine, prepared, spec)
    assert len(plan.units) > 1 or name == "swap"
    done: list[float] = []
    fitted = measurement.fit(engine, prepared, spec, plan, done.append)
    samples = pd.concat(
        [measurement.measure(engine, fitted, spec, unit, done.append) for unit in plan.units]
    )
    assert sum(done) == pytest.approx(plan.work)
    p = samples[samples["metric"] == "p"]
    assert len(p) == plan.cost.cells
    assert not p.duplicated(CELL).any()
    stored = StoredInputs(al.load_run(saved(name))[0])
    rebuilt = measurement.from_run(adapter, spec, stored)
    cells = p.sample(20, random_state=0)
    for again in (fitted, rebuilt):
        found = measurement.remeasure(
            ReferenceEngine(adapter), again, spec, cells.to_dict("records")
        )
        both = cells.merge(found, on=CELL, suffixes=("", "_again"))
        assert len(both) >= len(cells)
        for column in ("value_before", "value_after", "effect"):
            np.testing.assert_allclose(
                both[column], both[f"{column}_again"], atol=1e-2 if column == "effect" else 1e-5
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_layers_in_any_order_are_one_sweep_and_given_probes_are_read(tiny_model, name):
    """Some layers, read by the probes of all: the same numbers there, and no cell is checked where
    none is asked for.
    """
    model, whole = tiny_model("llama"), swept(tiny_model("llama"), name)
    given = {} if name == "swap" else {"probes": whole.probes.at([0, 2])}
    sweep = measured(model, name, layers=(2, 0), n_spot_checks=0, **given)
    assert sweep.layers == (0, 2)
    ours, theirs = (one.samples().query("layer != 1").set_index(CELL) for one in (sweep, whole))
    assert list(dict.fromkeys(ours.index.get_level_values("layer"))) == [0, 2]
    columns = ["value_before", "value_after"]
    np.testing.assert_allclose(
        ours.loc[theirs.index, columns], theirs[columns], atol=1e-5 if name == "swap" else 1e-9
    )
    assert np.isnan(sweep.noise_floor)
    assert sweep.curves(all_columns=True)["noise_floor"].isna().all()
    assert sweep.record["checks"] == {
        "cells": 0,
        "known": 0,
        "largest_difference": None,
        "failed": [],
    }
    if given:
        with raises(InputError, "probe_site"):
            spec_of(name, probe_site="mlp_out", **given)
        with raises(InputError, "layers"):
            measured(model, name, **given)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_curves_and_tensor_are_means_of_the_samples_and_flips_those_of_p(tiny_model, name):
    sweep = swept(tiny_model("llama"), name)
    points = ["metric", "control", "anchor", "layer"]
    curves = (
        sweep.curves(controls=True, all_columns=True)
        .fillna({"pathway": ""})
        .set_index([*points, "pathway"])
    )
    assert set(sweep.curves()["control"]) == {"none"} < set(sweep.samples()["control"])
    samples = sweep.samples(all_columns=True).query(
        "control != 'shuffled_labels'"
    )  # draws have pathways of their own
    by_row = samples.groupby([*points, "example_id"]).agg(  # donors first, then rows
        delta=("effect", "mean"), pathway=("pathway", "first"), question=("question_id", "first")
    )
    for key, rows in by_row.groupby(points):
        for pathway, group in dict(
            [("" if name == "swap" else "All", rows), *rows.groupby("pathway")]
        ).items():
            point = curves.loc[(*key, pathway)]
            assert point["effect"] == pytest.approx(group["delta"].mean(), abs=1e-9)
            assert point["n"] == group["question"].nunique()
            assert point["ci_low"] <= point["effect"] <= point["ci_high"] or point["n"] < 2
    for i, anchor in enumerate(sweep.anchors):
        means = by_row.loc["p", "none", anchor]["delta"].unstack()[list(sweep.example_ids)]
        np.testing.assert_allclose(sweep.delta_p[i].numpy(), means.to_numpy())
    if name in ("patch_tokens", "answer_only"):
        p, flip = (
            samples[samples["metric"] == one].set_index(CELL[:-1]).sort_index()
            for one in ("p", "flip")
        )
        np.testing.assert_array_equal(
            flip["effect"], 100.0 * ((p["value_before"] >= 0.5) != (p["value_after"] >= 0.5))
        )


@pytest.mark.parametrize(
    ("name", "own", "placebo"),
    [
        ("knockout", "size_matched", "random_tokens"),
        ("patch_tokens", "size_matched", "random_tokens"),
        ("answer_only", "none", "other_question"),
    ],
)
def test_contrasts_are_paired_by_row(tiny_model, name, own, placebo):
    sweep = swept(tiny_model("llama"), name)
    contrasts = sweep.contrasts().query(f"control == {placebo!r}").set_index(["quantity", "layer"])
    samples = sweep.samples().set_index(["metric", "control", "layer"])
    wanted = {
        "delta_p_vs_placebo": ("p", "effect", 1),
        "flip_rate": ("flip", "effect", 1),
        "p_after": ("p", "value_after", 100),
    }
    seen = 0
    for quantity, (of, column, unit) in wanted.items():
        for layer in sweep.layers if quantity in contrasts.index and of in samples.index else ():
            both = [
                samples.loc[(of, control, layer)].groupby("example_id")[column].mean()
                for control in (own, placebo)
            ]
            row = contrasts.loc[(quantity, layer)]
            assert row["value"] == pytest.approx(
                unit * (both[0] - both[1]).dropna().mean(), abs=1e-9
            )
            assert row["ci_low"] <= row["value"] <= row["ci_high"]
            seen += 1
    assert seen == {"knockout": 3, "patch_tokens": 6, "answer_only": 9}[name]


@pytest.mark.parametrize("name", ["patch_tokens", "answer_only"])
def test_pathways_are_those_of_the_knockout(tiny_model, name):
    sweep, knockout = (swept(tiny_model("llama"), one) for one in (name, "knockout"))
    assert sweep.probe_layer == knockout.probe_layer
    cut = knockout.samples().query("control == 'none'").set_index(["example_id", "layer"])
    for (example_id, layer), cells in sweep.samples().groupby(["example_id", "layer"]):
        assert set(cells["pathway"]) == {
            cut.loc[(example_id, layer), "pathway"]
        }  # under every control, donor and metric
        clean = cells.loc[cells["metric"] == "p", "value_before"]
        np.testing.assert_allclose(clean, cut.loc[(example_id, layer), "value_before"], atol=1e-5)
    assert set(sweep.samples()["pathway"]) == {"Q-Anchored", "A-Anchored"}


@pytest.mark.slow
def test_negative_layers_are_recorded_as_those_of_the_model(tiny_model):
    model = tiny_model("llama")
    assert (
        measured(model, "swap", layers=[-1, 0]).run_id
        == measured(model, "swap", layers=[0, 2]).run_id
    )
    config = measured(model, "knockout", layers="-2:", cut_layers=[-1], heads=[-1]).record["config"]
    assert {name: config[name] for name in ("layers", "cut_layers", "heads")} == {
        "layers": [1, 2],
        "cut_layers": [2, 2],
        "heads": [3],
    }


@pytest.mark.parametrize(
    ("name", "change", "phrase"),
    [
        ("swap", {"prompt": "chat"}, "the tokenizer has no chat template"),
        ("knockout", {"heads": [99]}, "the model has 4 heads; 99 is the first that it lacks"),
        ("knockout", {"edges": "answer -> exact_question"}, "cut nothing in any row"),
        ("knockout", {"edges": "answer -> later"}, "cut nothing in any row"),
        (
            "knockout",
            {"cut_layers": (0, 99)},
            "cut_layers=(0, 99): the model has 3 layers; 99 is the first that it lacks",
        ),
        (
            "knockout",
            {"cut_layers": [-4]},
            "cut_layers=(-4, -4): the model has 3 layers; -4 is the first that it lacks",
        ),
        *(
            (
                name,
                {"layers": [0, 99]},
                "layers=(0, 99): the model has 3 layers; 99 is the first that it lacks",
            )
            for name in NAMES
        ),
    ],
)
def test_what_this_model_cannot_do_is_named(tiny_model, name, change, phrase):
    with pytest.raises(InputError) as told:
        measured(tiny_model("llama"), name, **change)
    assert phrase in str(told.value)
