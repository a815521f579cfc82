"""Curves, contrasts and findings of an attention knockout."""

from typing import Any

import numpy as np
from typing_extensions import override

from anchorlens.protocols.knockout.findings import ROW_SPECIFIC, STANDS, knockout_findings
from anchorlens.protocols.probe_sweep.pathway_result import Array, PathwayResult
from anchorlens.protocols.probe_sweep.probe_analysis import ProbeAnalysis
from anchorlens.results.claims import Looks
from anchorlens.results.findings import Findings
from anchorlens.statistics.pathways import CROSS_FOLD, RANDOM, SHUFFLED, SIZE_MATCHED, gaps
from anchorlens.statistics.resamples import Estimate


class KnockoutAnalysis(ProbeAnalysis):
    """Analysis of knockouts: cuts of E_Q against cuts of other question tokens."""

    name = "knockout"
    title = "attention knockout"

    @override
    def estimates(self, result: PathwayResult) -> list[tuple[str, str, Estimate]]:
        """Return ``delta_p_vs_placebo``, ``flip_rate``, ``auc_drop``, ``row_specific_vs_placebo``,
        and descriptions.
        """
        estimates: list[tuple[str, str, Estimate]] = []
        tables = result.tables()
        if RANDOM in tables:
            for name in ("delta_p_vs_placebo", "flip_rate", "auc_drop"):
                less = result.contrast(name, SIZE_MATCHED, RANDOM)
                estimates.append((name, RANDOM, less))
        if result.record["config"]["readout"] == "probe":  # log-odds of p_true are not additive
            specific = result.row_specific_effects(SIZE_MATCHED, RANDOM)
            for (name, control), one in specific.items():
                estimates.append((name, control, one))
        return estimates + gaps(result.groups())

    @override
    def differences(self, result: PathwayResult) -> dict[tuple[str, str], Array]:
        """Return the differences of cut and placebo of ``delta_p_vs_placebo``, ``flip_rate``,
        ``auc_drop`` and ``row_specific_vs_placebo``.
        """
        if RANDOM not in result.tables():
            return {}
        by_name = result.arm_differences(SIZE_MATCHED, RANDOM)
        found = {(name, RANDOM): values for name, values in by_name.items()}
        if result.record["config"]["readout"] == "probe":
            own, other = (result.row_specific_changes(name) for name in (SIZE_MATCHED, RANDOM))
            found[ROW_SPECIFIC, RANDOM] = (own - other).T
        return found

    @override
    def findings(self, result: PathwayResult) -> Findings:
        layer = result.shown_layer
        looks = Looks.of(
            self._claim_estimates(result),
            STANDS,
            layer,
            splits=self.split_values(result),
            flips=self.p_values(result),
        )
        return knockout_findings(
            result.record,
            layer,
            result.contrasts(all_columns=True),
            looks,
            effects=self._effects(result),
            unit=self.cluster_note(result, "delta_p_vs_placebo", RANDOM),
        )

    def _effects(self, result: PathwayResult) -> dict[str, dict[int, float]]:
        """Return contrast -> layer -> effect of the cut alone; empty without a placebo."""
        if RANDOM not in result.tables():
            return {}
        effects = result.effects_of_cut(SIZE_MATCHED, RANDOM)
        if result.record["config"]["readout"] == "probe":
            specific = result.row_specific_effects(SIZE_MATCHED, RANDOM)
            effects[ROW_SPECIFIC] = specific["row_specific_effect", SIZE_MATCHED].value
        along: dict[str, dict[int, float]] = {}
        for name, values in effects.items():
            along[name] = dict(zip(result.layers, map(float, values), strict=True))
        return along

    def _claim_estimates(self, result: PathwayResult) -> dict[str, Estimate]:
        """Return the claimed contrasts at the shown layer; empty without a placebo."""
        layer = result.shown_layer
        if RANDOM not in result.tables():
            return {}
        estimates: dict[str, Estimate] = {}
        for name in STANDS:
            estimates[name] = result.contrast(name, SIZE_MATCHED, RANDOM, layer=layer)
        if result.record["config"]["readout"] == "probe":
            specific = result.row_specific_effects(SIZE_MATCHED, RANDOM)[ROW_SPECIFIC, RANDOM]
            estimates[ROW_SPECIFIC] = specific.at(np.array([result.layers.index(layer)]))
        return estimates

    @override
    def numbers(self, result: PathwayResult) -> dict[str, Any]:
        pair = result.qa_text_auc
        texts = {
            "answer_text_auc": result.answer_text_auc["auc"],
            "qa_text_auc": np.nan if pair is None else pair["auc"],
        }
        return super().numbers(result) | texts

    shown_values = (
        ("auc", "auc", "none"),
        ("auc_cut", "auc_after", SIZE_MATCHED),
        ("auc_placebo", "auc_after", RANDOM),
        ("gap", "gap", "none"),
        ("gap_size_matched", "gap", SIZE_MATCHED),
        (f"gap_{RANDOM}", "placebo_gap", RANDOM),
        (f"gap_{SHUFFLED}", "placebo_gap", SHUFFLED),
        (f"gap_{CROSS_FOLD}", "cross_fold_gap", CROSS_FOLD),
    )
    shown_contrasts = (
        ("delta_p_vs_placebo", "delta_p_vs_placebo", RANDOM),
        ("flip_rate", "flip_rate", RANDOM),
        ("auc_drop", "auc_drop", RANDOM),
        ("row_specific_vs_placebo", "row_specific_vs_placebo", RANDOM),
    )
    shown_settings = (
        "edges={edges}, knockout_mode={knockout_mode}, readout={readout}, answers={answers},"
        " distractor={distractor}, split={split}, prompt={prompt}, seed={seed}"
    )
    table_title = (
        "Knockout at k*: AUC, contrasts with other question tokens cut, then the pathways"
        " (selected)"
    )
    table_columns = (
        ("AUC", "{auc:.2f}"),
        ("cut", "{auc_cut:.2f}"),
        ("others cut", "{auc_placebo:.2f}"),
        ("text AUC", "{qa_text_auc:.2f}"),
        ("delta_p_vs_placebo", "{delta_p_vs_placebo:+.1f}"),
        ("flip_rate", "{flip_rate:+.1f}"),
        ("auc_drop", "{auc_drop:+.2f}"),
        ("row_specific_vs_placebo", "{row_specific_vs_placebo:+.1f}"),
        ("Q (n)", "{q:+.1f} ({n_q})"),
        ("A (n)", "{a:+.1f} ({n_a})"),
    )


ANALYSIS = KnockoutAnalysis()
