"""Curves, contrasts and findings of an answer-only sweep."""

from typing import Any

import numpy as np
from typing_extensions import override

from anchorlens.constants import FLIP, P
from anchorlens.protocols.answer_only.findings import CLAIMS, OTHER, answer_only_findings
from anchorlens.protocols.probe_sweep.pathway_result import Array, PathwayResult
from anchorlens.protocols.probe_sweep.probe_analysis import ProbeAnalysis
from anchorlens.results.claims import Looks
from anchorlens.results.findings import Findings
from anchorlens.statistics.contrasts import mean_of
from anchorlens.statistics.pathways import ALL
from anchorlens.statistics.resamples import Estimate

ANCHOR = "whole_question"
"""Name of the changed segment; the anchor ``exact_question`` is E_Q only."""
_NUMBERS = ("all", "flips", "p_after")
"""Numbers that are shown without a question and under the control."""


class AnswerOnlyAnalysis(ProbeAnalysis):
    """Analysis of inputs without a question against inputs with another row's question."""

    name = "answer_only"
    title = "answer only"

    @override
    def estimates(self, result: PathwayResult) -> list[tuple[str, str, Estimate]]:
        """Return ``delta_p_vs_placebo``, ``flip_rate`` and ``p_after`` minus those of the control,
        paired by row.

        ``p_after`` is the mean P(hallucination) after the change, in points. With balanced answers,
        ``delta_p_vs_placebo`` and ``flip_rate`` are near 0 for any two inputs without label
        information; ``p_after`` can differ. The reason: an answer is true in one row and false in
        another, and both rows have the same P after the change. If both are predicted correctly,
        the sum of their ΔP is the difference of their clean P, and exactly one of them flips.
        """
        estimates: list[tuple[str, str, Estimate]] = []
        if OTHER not in result.tables():
            return estimates
        for name, metric in (("delta_p_vs_placebo", P), ("flip_rate", FLIP), ("p_after", P)):
            empty = result.tables(metric)["none"]
            other = result.tables(metric)[OTHER]
            if name == "p_after":
                gap = 100 * (empty.after - other.after)
            else:
                gap = empty.delta - other.delta
            estimates.append((name, OTHER, mean_of(gap, result.draws)))
        return estimates

    @override
    def differences(self, result: PathwayResult) -> dict[tuple[str, str], Array]:
        """Return the differences of P(hallucination) after both inputs, for one donor of each
        row.
        """
        tables = result.tables()
        if OTHER not in tables:
            return {}
        gap = 100 * (tables["none"].after - tables[OTHER].after)
        return {("p_after", OTHER): gap.T}

    @override
    def numbers(self, result: PathwayResult) -> dict[str, Any]:
        at = result.layers.index(result.shown_layer)
        tables = result.tables()
        record = super().numbers(result)
        record["p_before"] = _mean(tables["none"].before[at])
        for control, suffix in (("none", ""), (OTHER, f"_{OTHER}")):
            if control not in tables:
                record |= dict.fromkeys((f"{name}{suffix}" for name in _NUMBERS), np.nan)
                continue
            record[f"all{suffix}"] = result.group_means()[control, ALL].mean
            record[f"flips{suffix}"] = result.group_means(FLIP)[control, ALL].mean
            record[f"p_after{suffix}"] = _mean(tables[control].after[at])
        return record

    @override
    def findings(self, result: PathwayResult) -> Findings:
        at = np.array([result.layers.index(result.shown_layer)])
        claimed = {name: one.at(at) for name, _, one in self.estimates(result) if name in CLAIMS}
        looks = Looks.of(
            claimed,
            CLAIMS,
            result.shown_layer,
            splits=self.split_values(result),
            flips=self.p_values(result),
        )
        unit = self.cluster_note(result, "p_after", OTHER)
        return answer_only_findings(result, self.numbers(result), looks, unit=unit)

    shown_values = (("auc", "auc", "none"), ("auc_answer_only", "auc_after", "none"))
    shown_contrasts = (
        ("delta_p_vs_placebo", "delta_p_vs_placebo", OTHER),
        ("flip_rate", "flip_rate", OTHER),
        ("p_difference", "p_after", OTHER),
    )
    shown_settings = (
        "readout=probe, answers={answers}, distractor={distractor}, knockout_mode={knockout_mode},"
        " prompt={prompt}, seed={seed}"
    )
    table_title = (
        f"Answer only at k*, ΔP and difference in points; after | that of {OTHER}; P is"
        " P(hallucination)"
    )
    table_columns = (
        ("AUC", "{auc:.2f}"),
        ("answer only", "{auc_answer_only:.2f}"),
        ("Q (n)", "{q:+.1f} ({n_q})"),
        ("A (n)", "{a:+.1f} ({n_a})"),
        ("All", "{all:+.1f} | {all_other_question:+.1f}"),
        ("flips %", "{flips:.0f} | {flips_other_question:.0f}"),
        ("clean P", "{p_before:.2f}"),
        ("P after", "{p_after:.2f} | {p_after_other_question:.2f}"),
        ("difference", "{p_difference:+.1f} [{p_difference_low:+.1f}, {p_difference_high:+.1f}]"),
    )


def _mean(values: Array) -> float:
    return float(values[~np.isnan(values)].mean())


ANALYSIS = AnswerOnlyAnalysis()
