"""The labelled array of a sweep, and tables of a run that are read instead of computed."""

import importlib.util
import json

import numpy as np
import pandas as pd
import pytest

import anchorlens as al
from anchorlens.errors import InputError, RunError
from anchorlens.protocols.registry import analysis_of
from tests.questions.make import capitals

pytestmark = pytest.mark.filterwarnings("ignore:Few rows")
SMALL = {"layers": [0, 2], "n_resamples": 20, "progress": False}


@pytest.fixture(scope="module")
def sweeps(tiny_model):
    """One sweep of each protocol; two swaps that differ in one argument."""
    model, questions = tiny_model("llama"), al.load_qa("popqa-sample", limit=45)
    swaps = [al.swap_sweep(model, capitals(), align="last", n_donors=n, **SMALL) for n in (1, 2)]
    return [
        *swaps,
        al.knockout_sweep(model, questions, n_splits=1, **SMALL),
        al.patch_tokens_sweep(model, questions, base="all", **SMALL),
        al.answer_only_sweep(model, questions, **SMALL),
    ]


@pytest.fixture(scope="module")
def run(sweeps, tmp_path_factory):
    return al.save_run(sweeps, tmp_path_factory.mktemp("runs") / "all")


@pytest.mark.slow
def test_the_labelled_array_is_delta_p_with_its_controls(sweeps):
    for sweep in sweeps:
        array = sweep.to_xarray()
        assert array.dims == ("control", "anchor", "layer", "example")
        np.testing.assert_array_equal(array.sel(control="none").to_numpy(), sweep.delta_p.numpy())
        assert tuple(array["example"].to_numpy()) == sweep.example_ids
        assert (array.attrs["run_id"], array.attrs["units"]) == (sweep.run_id, "percentage points")
    null = (
        sweeps[1]
        .samples()
        .query(
            "control == 'same_role' and layer == 2 and anchor == 'exact_question' and metric == 'p'"
        )
    )
    one = null[null["example_id"] == sweeps[1].example_ids[3]]
    array = sweeps[1].to_xarray().sel(control="same_role", anchor="exact_question", layer=2)
    assert float(array[3]) == pytest.approx(one["effect"].mean())
    assert str(array[3]["question_id"].item()) == one["question_id"].iloc[0]


@pytest.mark.slow
def test_a_missing_xarray_names_the_extra(sweeps, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "anchorlens.results.labelled_arrays.find_spec",
        lambda name: None if name == "xarray" else there(name),
    )
    with pytest.raises(InputError, match=r"anchorlens\[labelled\]"):
        sweeps[0].to_xarray()


@pytest.mark.slow
def test_stored_tables_are_those_that_would_be_computed(sweeps, run):
    for made, loaded in zip(sweeps, al.load_run(run), strict=True):
        again = loaded.with_tables({})
        for other in (made, again):
            pd.testing.assert_frame_equal(loaded.curves(controls=True), other.curves(controls=True))
            pd.testing.assert_frame_equal(loaded.contrasts(), other.contrasts())
            pd.testing.assert_frame_equal(loaded.summary(), other.summary())
            assert loaded.findings == other.findings
        assert loaded.record == made.record


@pytest.mark.slow
def test_a_loaded_run_computes_no_curve_and_no_contrast(sweeps, run, monkeypatch):
    wanted = [(len(made.contrasts()), made.findings) for made in sweeps]
    for loaded, stored in zip(al.load_run(run), wanted, strict=True):
        analysis = type(analysis_of(loaded.protocol.name))
        for name in ("curves", "contrasts"):
            monkeypatch.setattr(analysis, name, lambda *_: pytest.fail("computed again"))
        assert len(loaded.summary()) and len(loaded.curves())
        assert (len(loaded.contrasts()), loaded.findings) == stored


@pytest.mark.slow
def test_the_record_has_findings_as_data(sweeps, run):
    entries = json.loads(
        (run / "run.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON")
    )["sweeps"]
    for entry, sweep in zip(entries, sweeps, strict=True):
        assert entry["findings"] == json.loads(json.dumps(sweep.findings.to_dict()))
        assert entry["verdict"] == sweep.verdict


@pytest.mark.slow
def test_probes_are_read_when_they_are_first_used(sweeps, run):
    (loaded,) = (one for one in al.load_run(run) if one.protocol.name == "knockout")
    assert "probes" not in loaded._memo
    assert loaded.probes is not None and loaded.probes.layers == sweeps[2].probes.layers
    assert set(loaded.placebo_probes) == set(sweeps[2].placebo_probes) != set()


def test_tables_that_contradict_the_record_are_refused(sweeps, tmp_path):
    run = sweeps[0].save(tmp_path / "run")
    pd.read_parquet(run / "curves.parquet").iloc[1:].to_parquet(run / "curves.parquet", index=False)
    with pytest.raises(RunError, match=r"curves\.parquet"):
        al.load_run(run)
