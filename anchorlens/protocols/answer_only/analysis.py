"""Curves, contrasts and findings of an answer-only sweep."""

from typing import Any

import numpy as np
from typing_extensions import override

from anchorlens.protocols.answer_only.findings import OTHER, answer_only_findings
from anchorlens.protocols.probe_sweep.pathway_result import Array, PathwayResult, ProbeAnalysis
from anchorlens.results.findings import Findings
from anchorlens.runs.schema import FLIP, P
from anchorlens.statistics.contrasts import Estimate, mean_of
from anchorlens.statistics.pathways import ALL

ANCHOR = "whole_question"
"""What is changed: the anchor ``question`` is E_Q alone."""


class AnswerOnlyAnalysis(ProbeAnalysis):
    """Inputs without a question beside inputs with another row's."""

    name, title = "answer_only", "answer only"

    @override
    def estimates(self, result: PathwayResult) -> list[tuple[str, str, Estimate]]:
        """Return ``delta_p_vs_placebo``, ``flip_rate`` and ``p_after`` less those of the control, paired by row.

        ``p_after`` is the mean P(hallucination) after the change, in points. Take an answer that is once true and once false, both
        rows predicted right, and one P after the change for both: the sum of their ΔP is the difference of their clean P, whatever
        P became, and exactly one of them flips. So with balanced answers ``delta_p_vs_placebo`` and ``flip_rate`` lie near 0 for any two
        inputs that carry no label; ``p_after`` tells such inputs apart.
        """
        found: list[tuple[str, str, Estimate]] = []
        for name, metric in (("delta_p_vs_placebo", P), ("flip_rate", FLIP), ("p_after", P)):
            own, other = (result.tables(metric)[control] for control in ("none", OTHER))
            gap = 100 * (own.after - other.after) if name == "p_after" else own.delta - other.delta
            found.append((name, OTHER, mean_of(gap, result.draws)))
        return found

    @override
    def numbers(self, result: PathwayResult) -> dict[str, Any]:
        at, tables, record = result.layers.index(result.shown_layer), result.tables(), super().numbers(result)
        record["p_before"] = _mean(tables["none"].before[at])
        for control, suffix in (("none", ""), (OTHER, f"_{OTHER}")):
            record[f"all{suffix}"] = result.group_means()[control, ALL].mean
            record[f"flips{suffix}"] = result.group_means(FLIP)[control, ALL].mean
            record[f"p_after{suffix}"] = _mean(tables[control].after[at])
        return record

    @override
    def findings(self, result: PathwayResult) -> Findings:
        return answer_only_findings(result, self.numbers(result))

    shown_values = (("auc", "auc", "none"), ("auc_answer_only", "auc_after", "none"))
    shown_contrasts = (
        ("delta_p_vs_placebo", "delta_p_vs_placebo", OTHER), ("flip_rate", "flip_rate", OTHER), ("p_difference", "p_after", OTHER),
    )  # fmt: skip
    shown_settings = (
        "readout probe, {answers} answers, distractor {distractor}, "
        "pathways by knockout ({knockout_mode}), prompt {prompt}, seed {seed}"
    )
    table_title = f"Answer only at k*, ΔP and difference in points; after | that of {OTHER}; P is P(hallucination)"
    table_columns = (
        ("AUC", "{auc:.2f}"), ("answer only", "{auc_answer_only:.2f}"), ("Q (n)", "{q:+.1f} ({n_q})"), ("A (n)", "{a:+.1f} ({n_a})"),
        ("All", "{all:+.1f} | {all_other_question:+.1f}"), ("flips %", "{flips:.0f} | {flips_other_question:.0f}"),
        ("clean P", "{p_before:.2f}"), ("P after", "{p_after:.2f} | {p_after_other_question:.2f}"),
        ("difference", "{p_difference:+.1f} [{p_difference_low:+.1f}, {p_difference_high:+.1f}]"),
    )  # fmt: skip


def _mean(values: Array) -> float:
    return float(values[~np.isnan(values)].mean())


ANALYSIS = AnswerOnlyAnalysis()
