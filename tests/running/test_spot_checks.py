"""Cells that the oracle measures again, and the noise floor that they show."""

import pytest
import torch

import anchorlens as al
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import CheckError
from anchorlens.models.load import load_model
from tests.engine.replace_swaps import replace_swaps, right_swaps
from tests.running.small_sweeps import sweep


def falsify(monkeypatch, wrong, *, after=0):
    """P of every changed pass is off, from so many batches on."""
    batches = []

    def falsified(self, batch, **options):
        before, changed = right_swaps(self, batch, **options)
        batches.append(batch)
        by = wrong if len(batches) > after else 0.0
        return before, [
            Metrics.of(
                p=m.p + by, log_p=(m.p + by).log() if by else m.log_p, logit_diff=m.logit_diff
            )
            for m in changed
        ]

    replace_swaps(monkeypatch, falsified)
    return batches


@pytest.mark.slow
def test_a_number_that_only_the_cone_engine_lacks_is_its_fault(tiny_model, monkeypatch):
    batches = falsify(monkeypatch, float("nan"))
    with pytest.raises(CheckError, match="where the reference engine has a number"):
        sweep(tiny_model("llama"), n_spot_checks=3, batch_size=2)
    assert len(batches) == 1


@pytest.mark.slow
def test_an_engine_that_is_wrong_is_stopped_after_its_first_batch(tiny_model, monkeypatch):
    batches = falsify(monkeypatch, 0.01)
    with pytest.raises(CheckError) as told:
        sweep(tiny_model("llama"), n_spot_checks=3, batch_size=2)
    assert len(batches) == 1
    message = str(told.value)
    assert "by 1 points" in message
    for part in (
        "example ",
        "donor ",
        "anchor ",
        "layer ",
        "stopped after its first batch",
        "engine='reference'",
    ):
        assert part in message
    unchecked = sweep(tiny_model("llama"), n_spot_checks=0).record
    assert unchecked["checks"] == {"cells": 0, "known": 0, "largest_difference": None, "failed": []}
    assert unchecked["noise"] == {"floor": None, "cells": 0}


@pytest.mark.slow
def test_a_later_difference_marks_the_run_and_loses_nothing(tiny_model, monkeypatch, tmp_path):
    falsify(monkeypatch, 0.01, after=1)
    with pytest.warns(
        UserWarning, match=r"\d of 8 checked cells differ .*, by 1 points .* kept and marked"
    ):
        result = sweep(tiny_model("llama"), n_spot_checks=8, batch_size=2)
    failed = result.record["checks"]["failed"]
    assert 1 <= len(failed) <= 4
    assert all("points (allowed: 0.01) at example " in one for one in failed)
    assert result.noise_floor == pytest.approx(1.0, abs=1e-3)
    result.save(tmp_path / "run")
    assert al.load_run(tmp_path / "run")[0].record["checks"]["failed"] == failed


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 5, 10_000])
def test_checks_and_noise_are_recorded(tiny_model, k):
    """No more cells are checked than there are."""
    for batch_size in (None, 2):
        result = sweep(
            tiny_model("llama"), n_spot_checks=k, batch_size=batch_size, layers=(1,), n_donors=1
        )
        checks, n = result.record["checks"], min(k, len(result.samples()))
        assert (checks["cells"], checks["failed"]) == (n, [])
        assert 0 <= checks["largest_difference"] < 1e-3
        assert result.record["noise"] == {"floor": checks["largest_difference"], "cells": n}


@pytest.fixture
def passes(monkeypatch):
    """Rows and layers of every pass in which the oracle measures cells."""
    seen, right = [], ReferenceEngine.run_cells

    def run(self, batch, **how):
        seen.append((len(batch.tokens.ids), how["layers"]))
        return right(self, batch, **how)

    monkeypatch.setattr(ReferenceEngine, "run_cells", run)
    return seen


@pytest.mark.parametrize(
    "options",
    [
        {"site": "mlp_out", "window": 2},
        {"donors": "noise"},
        {"donors": "mean"},
        {"direction": "denoising"},
        {"readout": "answer_mean", "anchors": ("exact_question", "pre_answer_all")},
    ],
)
def test_cells_of_many_layers_are_measured_in_one_pass(tiny_model, passes, options):
    """And come out as the sweep's: the floor is that of rounding, though anchors, layers and donors
    are mixed.
    """
    result = sweep(tiny_model("qwen3"), n_spot_checks=8, n_donors=1, **options)
    assert sum(rows for rows, _ in passes) == 8
    assert len(passes) <= 2  # of the first batch, and of the rest
    assert {layer for _, layers in passes for layer in layers} == {0, 1, 2}
    assert 0 < result.noise_floor < 1e-3
    assert result.samples()["effect"].abs().max() > 0.01


@pytest.mark.slow
def test_little_memory_checks_few_cells_at_once(tiny_model, passes):
    plans = []
    sweep(
        tiny_model("llama"),
        batch_size=1,
        layers=(0,),
        anchors=("pre_answer",),
        on_plan=plans.append,
        n_spot_checks=1,
    )
    assert [rows for rows, _ in passes] == [1]
    passes.clear()
    result = sweep(
        tiny_model("llama"), max_memory=f"{int(plans[0].peak_bytes * 1.02)}B", n_spot_checks=32
    )
    rows = [rows for rows, _ in passes]
    assert sum(rows) == 32
    assert max(rows) < 16
    assert result.record["checks"]["largest_difference"] < 1e-3


@pytest.mark.slow
def test_half_precision_has_a_larger_noise_floor(tiny, plain):
    record = sweep(
        load_model(str(tiny("llama")), device="cpu", dtype="bfloat16"), n_spot_checks=16
    ).record
    assert record["plan"]["engine"] == "cone"
    assert record["noise"]["floor"] > 1000 * plain.record["noise"]["floor"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "allowed"), [("float32", 0.01), ("float16", 0.1), ("bfloat16", 0.5)]
)
def test_what_a_checked_cell_may_be_off_by(tiny, monkeypatch, dtype, allowed):
    model = load_model(str(tiny("llama")), device="cpu", dtype=dtype)
    assert model.cfg.dtype == getattr(torch, dtype)
    falsify(monkeypatch, 0.0)
    how = {"n_spot_checks": 4, "layers": (1,), "n_donors": 1}
    own = sweep(model, **how).noise_floor
    # In half precision the noise of the model's own results is allowed, too.
    factor = 1.1 if dtype == "float32" else 4.0
    for off, stops in ((0.9 * allowed - own, False), (factor * allowed + own, True)):
        monkeypatch.undo()
        falsify(monkeypatch, off / 100)
        if stops:
            with pytest.raises(CheckError, match="allowed: 0"):
                sweep(model, **how)
        else:
            assert sweep(model, **how).noise_floor <= allowed
