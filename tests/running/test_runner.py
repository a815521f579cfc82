"""What the driver does for every protocol."""

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch

import anchorlens as al
from anchorlens.engine.cone import Cone
from anchorlens.errors import InputError
from anchorlens.protocols.base import Measurement, Plan, Recheckable, SweepInputs
from anchorlens.protocols.planning import SweepPlan
from anchorlens.protocols.registry import measurement_of
from anchorlens.protocols.specification import QuestionSpecification
from anchorlens.questions.context import QUESTIONS
from anchorlens.questions.tokenised import make_rows
from anchorlens.results.findings import DESCRIPTION, Finding, Findings
from anchorlens.results.sweep import Analysis, SweepResult
from anchorlens.results.tables import InputTable
from anchorlens.running.runner import run
from anchorlens.runs.schema import CURVE_COLUMNS, EFFECT_COLUMNS
from tests.questions.make import capitals
from tests.running.small_sweeps import running_out, sweep


def test_the_plan_is_told_before_anything_is_measured(tiny_model, monkeypatch):
    events, right = [], Cone.run_swaps

    def run(self, batch, **options):
        events.append("measured")
        return right(self, batch, **options)

    monkeypatch.setattr(Cone, "run_swaps", run)
    result = sweep(tiny_model("llama"), on_plan=events.append)
    plan, *later = events
    assert set(later) == {"measured"}
    assert plan.cells == len(result.samples())
    assert plan.questions == 6
    assert plan.flops > 0
    assert plan.seconds > 0
    assert f"{plan.questions} rows, {plan.cells} cells in {len(plan.batches)} batches; engine cone; about" in str(plan)


def test_what_on_plan_raises_stops_the_sweep(tiny_model, monkeypatch):
    class Stop(Exception):  # noqa: N818
        pass

    def stop(plan):
        raise Stop

    through = running_out(monkeypatch, lambda rows, layers: False)
    with pytest.raises(Stop):
        sweep(tiny_model("llama"), on_plan=stop)
    assert through == []


def test_the_short_way_is_the_driver_with_a_specification(tiny_model, plain):
    spec = al.Swap(align="last", n_donors=2, seed=1, progress=False)
    long = run(measurement_of("swap"), tiny_model("llama"), capitals(6), spec)
    assert long.run_id == plain.run_id
    assert (long.delta_p == plain.delta_p).all()
    assert {name: long.record["config"][name] for name in spec.identity()} == spec.identity() | {
        "layers": [0, 1, 2], "add_bos": False, "delta_kind": "probability", "answers": "", "distractor": "",
    }  # fmt: skip


def test_a_wrong_layer_is_told_before_the_data_is_looked_at(tiny_model):
    with pytest.raises(InputError, match=r"layers must be different numbers from -3 to 2, got \(7,\)"):
        al.swap_sweep(tiny_model("llama"), "no-such-data", layers=7)
    with pytest.raises(InputError, match="swap has no argument 'layer'. Did you mean 'layers'"):
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
        result = sweep(model, layers=[0], n_donors=1, null_donors=0, check_cells=0, n_resamples=2, **own)
    ((what, code),) = result.record["config"]["own_code"].items()
    assert [what] == list(own)
    return result.run_id, code


PAIRS = {
    "donors": (lambda base, pool: pool, lambda base, pool: pool[:4]),
    "readout": (lambda log_probs, mask: log_probs[:, 0], lambda log_probs, mask: log_probs[:, 0] - 1),
    "site": (lambda layer: f"blocks.{layer}.hook_resid_pre", lambda layer: f"blocks.{layer}.hook_attn_out"),
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
    """``callable:<lambda>`` names both; their code tells them apart, and the same code is the same sweep."""
    model, (one, other) = tiny_model("llama"), PAIRS[what]
    first, second, again, alike = (named(model, **{what: own}) for own in (one, other, one, SAME[what]))
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert first == again == alike


def test_names_need_no_code(plain):
    assert "own_code" not in plain.record["config"]


# --- a protocol of ones own --------------------------------------------------------------------------------------------------


class Lens(QuestionSpecification):
    """Reads the answer's P from the stream of each layer."""

    NAME = "lens"


class LensAnalysis(Analysis):
    """No claims: what was read is described."""

    name, title, result = "lens", "logit lens", SweepResult

    def curves(self, result):
        means = result.samples().groupby("layer", as_index=False)["delta_p"].mean()
        return means.assign(control="none", metric="p").reindex(columns=list(CURVE_COLUMNS))

    def contrasts(self, result):
        return pd.DataFrame(columns=list(EFFECT_COLUMNS))

    def findings(self, result):
        return Findings((Finding("p", DESCRIPTION, result.layers, n=len(result.example_ids)),), "P was read.")

    def summary(self, result):
        return result.samples().groupby("layer", as_index=False)[["value_after"]].mean()

    def settings(self, result):
        return "readout first_token"


@dataclass(frozen=True)
class LensInputs(SweepInputs):
    """The rows that are read."""

    rows: tuple

    @property
    def max_tokens(self):
        return max(len(row.ids) for row in self.rows)

    def table(self):
        return InputTable({"base": self.rows})

    def record(self, spec):
        return {"config": {"anchors": ["answer_site"]}, "counts": {"evaluated": len(self.rows)}}


@dataclass(frozen=True)
class LensUnit:
    """Rows of a pass."""

    rows: tuple

    @property
    def work(self):
        return float(len(self.rows))

    def split(self):
        return [LensUnit((row,)) for row in self.rows] if len(self.rows) > 1 else ()


class LensMeasurement(Measurement):
    """Measures, and cannot measure single cells again."""

    spec, analysis, source = Lens, LensAnalysis(), QUESTIONS

    def check_model(self, spec, adapter):
        spec.layers_of(adapter.n_layers)

    def prepare(self, context, spec):
        made = make_rows(context.examples, context.tokenizer)
        layers = spec.layers_of(context.adapter.n_layers)
        return LensInputs((*context.dropped, *made.dropped), made.rows[0].ids, ("resid_post",), layers, made.rows)

    def plan(self, engine, inputs, spec):
        units = tuple(LensUnit(inputs.rows[i : i + 2]) for i in range(0, len(inputs.rows), 2))
        sizes = tuple(len(unit.rows) for unit in units)
        cost = SweepPlan(
            "cone", "", sizes, len(inputs.rows), len(inputs.rows) * len(inputs.layers), 1e12, 1.0, 10**6, 10**6, None
        )
        return Plan(units, cost, "row", engine.adapter.device)

    def measure(self, engine, inputs, spec, unit, on_work):
        if len(unit.rows) > 1 and unit.rows[0].id == "Italy":
            raise torch.OutOfMemoryError("out of memory")
        found = []
        for row in unit.rows:
            model, site, token = engine.adapter.model, row.positions["answer"][0] - 1, row.ids[row.positions["answer"][0]]
            with torch.no_grad():
                logits, cache = model.run_with_cache(torch.tensor([row.ids]), prepend_bos=False)
                before = float(logits[0, site].softmax(-1)[token])
                for layer in inputs.layers:
                    after = float(model.unembed(model.ln_final(cache["resid_post", layer]))[0, site].softmax(-1)[token])
                    delta = 100 * (after - before)
                    found.append((row.id, row.group, layer, before, after, delta))
            on_work(1.0)
        names = ["example_id", "question_id", "layer", "value_before", "value_after", "delta_p"]
        same = {"anchor": "answer_site", "donor_id": "", "control": "none", "metric": "p", "trivial": False}
        return pd.DataFrame(found, columns=names).assign(**same)


def test_a_measurement_that_is_not_recheckable_runs_without_spot_checks(tiny_model, tmp_path):
    measurement = LensMeasurement()
    assert not isinstance(measurement, Recheckable)
    assert isinstance(measurement_of("swap"), Recheckable)
    plans = []
    with pytest.warns(UserWarning, match="Memory ran out"):
        result = run(measurement, tiny_model("llama"), capitals(6), Lens(check_cells=8, progress=False, on_plan=plans.append))
    assert result.record["checks"] == {"cells": 0, "largest_difference": None, "failed": []}
    assert result.record["noise"] == {"floor": None, "cells": 0}
    assert np.isnan(result.noise_floor)
    assert result.record["plan"]["split"] == 1
    assert (plans[0].cells, len(result.samples())) == (18, 18)
    assert result.protocol is measurement.analysis
    # The last layer's lens is the model itself.
    assert result.delta_p.shape == (1, 3, 6)
    assert result.delta_p[0, 2].abs().max() < 1e-3 < result.delta_p[0, 0].abs().max()
    assert result.findings.to_frame()["layers"].tolist() == [(0, 1, 2)]
    assert "P was read." in repr(result)
    assert result.examples()["role"].tolist() == ["base"] * 6
