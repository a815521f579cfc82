"""Spot checks by the oracle, and the noise floor."""

import math

import pytest
import torch

from anchorlens.engine.cone import Cone
from anchorlens.engine.readouts import Metrics
from anchorlens.errors import CheckError
from anchorlens.models.adapter import Adapter
from anchorlens.models.load import load_model
from anchorlens.protocols.trust import check_gap
from tests.protocols.small_sweeps import delta_p, sweep


@pytest.mark.parametrize("wrong", [0.01, float("nan")])
def test_a_spot_check_finds_an_engine_that_is_wrong(tiny_model, monkeypatch, wrong):
    right = Cone.run_swaps

    def falsified(self, batch, **options):
        before, after = right(self, batch, **options)
        return before, [Metrics(m.p + wrong, m.log_p, m.logit_diff) for m in after]

    monkeypatch.setattr(Cone, "run_swaps", falsified)
    with pytest.raises(CheckError) as told:
        sweep(tiny_model("llama"), check_cells=3)
    message = str(told.value)
    assert ("nan points" if math.isnan(wrong) else "differ by 1 points") in message
    for part in ("example ", "donor ", "anchor ", "layer ", "This sweep was not saved", "engine='reference'"):
        assert part in message
    assert sweep(tiny_model("llama"), check_cells=0).record["checks"] == {"cells": 0, "largest_difference": None}


@pytest.mark.parametrize("k", [1, 5])
def test_checks_and_noise_are_recorded(tiny_model, k):
    record = sweep(tiny_model("llama"), check_cells=k).record
    assert record["checks"]["cells"] == k
    assert 0 <= record["checks"]["largest_difference"] < 1e-3
    assert 0 < record["noise"]["floor"] < 1e-2
    assert record["noise"]["floor"] >= record["checks"]["largest_difference"]
    assert record["noise"]["cells"] > 0


def test_no_more_cells_are_checked_than_there_are(tiny_model):
    result = sweep(tiny_model("llama"), check_cells=10_000, layers=(1,), anchors=("answer_site",), n_donors=1)
    assert result.record["checks"]["cells"] == len(result.samples())
    assert result.record["checks"]["largest_difference"] < 1e-3


def test_the_oracle_has_nothing_to_check(tiny_model, plain):
    result = sweep(tiny_model("llama"), engine="reference")
    assert result.record["checks"] == {"cells": 0, "largest_difference": None}
    assert result.record["plan"]["engine"] == "reference"
    assert plain.record["plan"]["engine"] == "cone"
    assert (delta_p(result) - delta_p(plain)).abs().max() <= 1e-3


def test_half_precision_has_a_larger_noise_floor(tiny, plain):
    record = sweep(load_model(str(tiny("llama")), device="cpu", dtype="bfloat16")).record
    assert record["plan"]["engine"] == "cone"
    assert record["noise"]["floor"] > 10 * plain.record["noise"]["floor"]
    assert record["noise"]["floor"] > 1e-3


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 1e-3), ("float16", 1.0), ("bfloat16", 5.0)])
def test_what_a_checked_cell_may_be_off_by(tiny_model, monkeypatch, dtype, allowed):
    adapter = Adapter(tiny_model("llama"))
    monkeypatch.setattr(adapter.model.cfg, "dtype", getattr(torch, dtype))
    for floor, limit in ((0.0, allowed), (allowed, 3 * allowed)):
        check_gap(0.99 * limit, adapter, floor, "here")
        with pytest.raises(CheckError, match="points .* at here"):
            check_gap(1.01 * limit, adapter, floor, "here")
