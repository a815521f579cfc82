"""What the driver does for every protocol."""

import warnings

import numpy as np
import pytest
import torch

import anchorlens as al
from anchorlens.errors import InputError
from anchorlens.protocols.base import Measurement, Recheckable
from anchorlens.protocols.registry import measurement_of
from anchorlens.questions.tokens import QUESTIONS
from anchorlens.results.findings import DESCRIPTION, Finding, Findings
from tests.protocols.sweeps import run
from tests.questions.make import capitals
from tests.raised import raises
from tests.running.small_sweeps import OPTIONS, delta_p, running_out, sweep

SWAP = measurement_of("swap")


def test_the_plan_is_told_before_anything_is_measured_and_what_on_plan_raises_stops_the_sweep(
    tiny_model, monkeypatch
):
    through, told = running_out(monkeypatch, lambda rows, layers: False), []

    def stop(plan):
        raise ArithmeticError("too much")

    with pytest.raises(ArithmeticError, match="too much"):
        sweep(tiny_model("llama"), on_plan=stop)
    assert through == []
    result = sweep(tiny_model("llama"), on_plan=lambda plan: told.append((plan, len(through))))
    ((plan, before),) = told
    assert before == 0 < len(through)
    assert plan.cells == len(result.samples())
    assert plan.questions == 6
    assert plan.flops > 0
    assert plan.seconds > 0
    assert (
        f"{plan.questions} rows, {plan.cells} cells in {len(plan.batches)} batches; engine cone;"
        " about" in str(plan)
    )


@pytest.mark.slow
def test_the_short_way_is_the_driver_with_a_specification(tiny_model, plain):
    spec = al.Swap(**OPTIONS)
    long = run(SWAP, tiny_model("llama"), capitals(6), spec)
    assert long.run_id == plain.run_id
    assert (long.delta_p == plain.delta_p).all()
    assert {name: long.record["config"][name] for name in spec.identity()} == spec.identity() | {
        "layers": [0, 1, 2],
        "add_bos": False,
        "delta_kind": "probability",
        "answers": "",
        "distractor": "",
    }


def test_a_wrong_layer_is_told_before_the_data_is_looked_at(tiny_model):
    with raises(InputError, "layers"):
        al.swap_sweep(tiny_model("llama"), "no-such-data", layers=7)
    with raises(InputError, "layer", word="'layers'"):
        al.swap_sweep("no-such-model", "no-such-data", layer=7)


class Asked:
    """A prompt of the user's own: several go by one name."""

    name = "mine"

    def __init__(self, before):
        self.before = before

    def render(self, question, tokenizer):
        return al.PromptText(f"{self.before}{question}\nA:", len(self.before), " ")


def named(model, **own):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a site of one's own takes the oracle
        result = sweep(
            model, layers=[0], n_donors=1, n_null_donors=0, n_spot_checks=0, n_resamples=2, **own
        )
    ((what, code),) = result.record["config"]["own_code"].items()
    assert [what] == list(own)
    return result.run_id, code


PAIRS = {
    "donors": (lambda base, pool: pool, lambda base, pool: pool[:4]),
    "readout": (
        lambda log_probs, mask: log_probs[:, 0],
        lambda log_probs, mask: log_probs[:, 0] - 1,
    ),
    "site": (
        lambda layer: f"blocks.{layer}.hook_resid_pre",
        lambda layer: f"blocks.{layer}.hook_attn_out",
    ),
    "prompt": (Asked("Q: "), Asked("Question: ")),
}
SAME = {
    "donors": lambda base, pool: pool,
    "readout": lambda log_probs, mask: log_probs[:, 0],
    "site": lambda layer: f"blocks.{layer}.hook_resid_pre",
    "prompt": Asked("Q: "),
}


@pytest.mark.parametrize("what", PAIRS)
def test_two_functions_of_one_name_are_two_sweeps(tiny_model, what):
    """``callable:<lambda>`` names both; their code tells them apart, and the same code is the same
    sweep.
    """
    model, (one, other) = tiny_model("llama"), PAIRS[what]
    first, second, again, alike = (
        named(model, **{what: own}) for own in (one, other, one, SAME[what])
    )
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert first == again == alike


def test_names_need_no_code(plain):
    assert "own_code" not in plain.record["config"]


# --- a protocol of ones own
# --------------------------------------------------------------------------------------------------


class Own(al.Swap):
    """A specification that the registry does not know."""

    NAME = "own"


class OwnAnalysis(type(SWAP.analysis)):
    """No claims: what was read is described."""

    name, title = "own", "own swap"

    def findings(self, result):
        return Findings(
            (Finding("p", DESCRIPTION, result.layers, n=len(result.example_ids)),), "P was read."
        )


class OwnMeasurement(Measurement):
    """Measures as swaps do; cells cannot be measured again, and there is no memory for two rows."""

    spec, analysis, source = Own, OwnAnalysis(), QUESTIONS
    check_model, prepare, plan = SWAP.check_model, SWAP.prepare, SWAP.plan

    def measure(self, engine, inputs, spec, unit, on_work):
        if any(len(batch.pairs) > 1 for batch in unit.parts):
            raise torch.OutOfMemoryError("out of memory")
        return SWAP.measure(engine, inputs, spec, unit, on_work)


@pytest.mark.slow
def test_a_measurement_that_is_not_recheckable_runs_without_spot_checks(tiny_model, plain):
    measurement, plans = OwnMeasurement(), []
    assert not isinstance(measurement, Recheckable)
    assert isinstance(SWAP, Recheckable)
    spec = Own(**OPTIONS, n_spot_checks=8, batch_size=2, on_plan=plans.append)
    with pytest.warns(UserWarning, match="Memory ran out"):
        result = run(measurement, tiny_model("llama"), capitals(6), spec)
    assert result.record["checks"] == {
        "cells": 0,
        "known": 0,
        "largest_difference": None,
        "failed": [],
    }
    assert result.record["noise"] == {"floor": None, "cells": 0}
    assert np.isnan(result.noise_floor)
    assert result.record["plan"]["split"] == len(plans[0].batch_sizes)
    assert plans[0].cells == len(result.samples())
    assert (delta_p(result) - delta_p(plain)).abs().max() <= 1e-3
    assert result.protocol is measurement.analysis
    assert result.findings.to_frame()["layers"].tolist() == [(0, 1, 2)]
    assert "P was read." in repr(result)
    assert result.examples()["role"].tolist().count("base") == 6
