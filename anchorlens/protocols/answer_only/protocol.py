"""The answer-only protocol: the same answer after an empty question, read by a truth probe (METHOD 5).

Scope: one model, one data set in each call. ΔP = 100 * (confidence after - before) in what was predicted before; negative where the
missing question takes confidence away. The whole question is missing, not E_Q alone, and so t* stands at another position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from anchorlens.engine.engine import Engine
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.answer_only.findings import contrasts, summary, words
from anchorlens.protocols.answer_only.inputs import OTHER, PreparedAnswerOnly, changed_inputs, read_of, without_question
from anchorlens.protocols.answer_only.measuring import RowUnit, measured_rows, plan_answer_only
from anchorlens.protocols.answer_only.spec import AnswerOnly
from anchorlens.protocols.plug import Bench, OnWork, Plan
from anchorlens.protocols.sweeps import short_way
from anchorlens.protocols.truth_probing import TruthPlan, TruthProtocol, fitted_probes, labelled_rows, probe_record
from anchorlens.protocols.written import Written
from anchorlens.questions.tokenised import check_not_empty
from anchorlens.results.pathways import PathwayResult, pathway_samples

# What is changed: E_Q alone is the anchor `question`.
ANCHOR = "whole_question"


class AnswerOnlyProtocol(TruthProtocol[AnswerOnly, PreparedAnswerOnly]):
    """The question is taken away."""

    name, title, spec = "answer_only", "answer only", AnswerOnly

    def prepare(self, bench: Bench, spec: AnswerOnly) -> PreparedAnswerOnly:
        """See :class:`SweepProtocol`."""
        empty = without_question(bench.tokenizer)  # before answers are generated
        truth, dropped = labelled_rows(bench, spec)
        made = changed_inputs(truth, bench.tokenizer, empty, spec.seed)
        gone = (*dropped, *made.dropped)
        check_not_empty(made.test, gone, f"in {bench.data.name}")
        return PreparedAnswerOnly(
            gone, truth.rows[0].ids, (spec.probe_site,), spec.layers_of(bench.adapter.n_layers), truth, made.test, bench.model_name,
            bench.data.name, {}, made.empty, made.other, made.donors,
        )  # fmt: skip

    def plan(self, engine: Engine, ready: PreparedAnswerOnly, spec: AnswerOnly) -> TruthPlan:
        """See :class:`SweepProtocol`."""
        return plan_answer_only(engine, ready, spec)

    def fit(
        self, engine: Engine, ready: PreparedAnswerOnly, spec: AnswerOnly, plan: Plan, on_work: OnWork
    ) -> PreparedAnswerOnly:
        """See :class:`SweepProtocol`."""
        assert isinstance(plan, TruthPlan)  # what plan() gave
        allowed = range(engine.adapter.n_layers)
        return replace(ready, probes=fitted_probes(engine, ready, spec, plan, on_work, placebos=False, allowed=allowed))

    def measure(
        self, engine: Engine, ready: PreparedAnswerOnly, spec: AnswerOnly, unit: RowUnit, on_work: OnWork
    ) -> pd.DataFrame:
        """See :class:`SweepProtocol`."""
        measured = measured_rows(engine, ready, spec, unit, on_work)
        rows = [ready.row(j) for j in unit.tests]
        return pathway_samples(ANCHOR, spec.delta_kind, ready.layers, rows, measured, event_is_true=False, flips=True)

    def cells(self, ready: PreparedAnswerOnly, samples: Sequence[Mapping[str, Any]]) -> tuple[PreparedAnswerOnly, RowUnit]:
        """Their rows, at all layers and with both inputs."""
        wanted = {cell["example_id"] for cell in samples}
        return ready, RowUnit(tuple(j for j in range(len(ready.test)) if ready.row(j).row_id in wanted))

    def restored(self, adapter: Adapter, spec: AnswerOnly, written: Written) -> PreparedAnswerOnly:  # noqa: ARG002
        """See :class:`SweepProtocol`."""
        names = [row.row_id for row in written.of("base")]
        donors = tuple(written.donor_ids[name][0] for name in names)
        empty = tuple(written.row("corrupt", f"{name}~") for name in names)
        other = tuple(written.row("corrupt", f"{name}~{donor}") for name, donor in zip(names, donors, strict=True))
        return PreparedAnswerOnly(**written.truth(spec.probe_site), empty=empty, other=other, donors=donors)

    def keys(self, spec: AnswerOnly) -> dict[str, object]:
        """See :class:`SweepProtocol`. ``mode`` is that of the knockout that decides the pathways."""
        return {
            "site": "", "probe_site": spec.probe_site, "window": 0, "direction": "noising", "mode": spec.mode, "readout": "probe",
            "delta_kind": spec.delta_kind,
        }  # fmt: skip

    def record(self, ready: PreparedAnswerOnly, spec: AnswerOnly) -> dict[str, Any]:
        """See :class:`SweepProtocol`."""
        return {
            "config": {"anchors": [ANCHOR], "readout": "probe"},
            "counts": {
                "evaluated": len(ready.test), "rows": ready.truth.sizes, "distinct_answers": len(set(map(read_of, ready.empty)))
            },
            "probe": probe_record(ready, spec),
        }  # fmt: skip

    def inputs(self, ready: PreparedAnswerOnly) -> dict[str, Any]:
        """Changed inputs as ``corrupt``: EXAMPLE_ID~ without a question, EXAMPLE_ID~DONOR_ID after that of another row."""
        rows = ready.truth.rows
        base = [rows[i] for i in ready.test]
        fitted = {name: [rows[i] for i in ready.truth.of(name)] for name in ("train", "validation")}
        donors = {row.row_id: [donor] for row, donor in zip(base, ready.donors, strict=True)}
        return {
            "inputs": {"base": base, **fitted, "corrupt": [*ready.empty, *ready.other]},
            "donor_ids": donors,
            "positions": {},
        }

    def contrasts(self, result: PathwayResult) -> pd.DataFrame:
        """``delta_all``, ``flip_rate`` and ``p_after`` less those of ``other_question``, and AUCs, at each layer."""
        return contrasts(result)

    def summary(self, result: PathwayResult) -> pd.DataFrame:
        """What stands at k*, in one row."""
        return summary(result)

    def words(self, result: PathwayResult) -> str:
        """What stands beyond the control, and what does not."""
        return words(result)

    def settings(self, result: PathwayResult) -> str:
        """See :class:`SweepProtocol`."""
        config, rows = result.record["config"], result.record["counts"]["rows"]
        return (
            f"readout probe, {config['answers']} answers, distractor {config['distractor']}, pathways by knockout "
            f"({config['mode']}), prompt {config['prompt']}, seed {config['seed']}\n"
            f"rows: {', '.join(f'{name} {n}' for name, n in rows.items())}"
        )

    def table(self, results: Sequence[PathwayResult]) -> tuple[str, pd.DataFrame]:
        """AUC, groups and contrasts at k*."""
        found = pd.concat([self.summary(result) for result in results], ignore_index=True)

        def shown(form: str) -> list[str]:
            return [form.format_map(row) for row in found.to_dict("records")]

        table = pd.DataFrame(
            {
                "model": found["model"], "data set": found["dataset"], "layer": found["layer"], "AUC": shown("{auc:.2f}"),
                "answer only": shown("{auc_answer_only:.2f}"), "Q (n)": shown("{q:+.1f} ({n_q})"),
                "A (n)": shown("{a:+.1f} ({n_a})"), "All": shown("{all:+.1f} | {all_other_question:+.1f}"),
                "flips %": shown("{flips:.0f} | {flips_other_question:.0f}"), "clean P": shown("{p_before:.2f}"),
                "P after": shown("{p_after:.2f} | {p_after_other_question:.2f}"),
                "difference": shown("{p_difference:+.1f} [{p_difference_low:+.1f}, {p_difference_high:+.1f}]"),
            }
        )  # fmt: skip
        return f"Answer only at k*, ΔP and difference in points; after | that of {OTHER}; P is P(hallucination)", table


PROTOCOL = AnswerOnlyProtocol()
answer_only_sweep = short_way(PROTOCOL, AnswerOnly, PathwayResult)

__all__ = ["PROTOCOL", "AnswerOnlyProtocol", "answer_only_sweep"]
