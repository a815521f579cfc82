"""Curves, contrasts and findings of an attention knockout."""

from typing import Any

import numpy as np
from typing_extensions import override

from anchorlens.protocols.knockout.findings import ROW_SPECIFIC, STANDS, knockout_findings
from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult, ProbeAnalysis
from anchorlens.results.claims import Looks
from anchorlens.results.findings import Findings
from anchorlens.statistics.pathways import CROSS_FOLD, RANDOM, SHUFFLED, SIZE_MATCHED, gaps
from anchorlens.statistics.resamples import Estimate


class KnockoutAnalysis(ProbeAnalysis):
    """Analysis of knockouts: cuts of E_Q against cuts of other question tokens."""

    name, title = "knockout", "attention knockout"

    @override
    def estimates(self, result: PathwayResult) -> list[tuple[str, str, Estimate]]:
        """Return ``delta_p_vs_placebo``, ``flip_rate``, ``auc_drop``, ``row_specific_vs_placebo``, and descriptions."""
        estimates: list[tuple[str, str, Estimate]] = []
        tables = result.tables()
        if RANDOM in tables:
            estimates += [
                (name, RANDOM, result.contrast(name, SIZE_MATCHED, RANDOM))
                for name in ("delta_p_vs_placebo", "flip_rate", "auc_drop")
            ]
        if result.record["config"]["readout"] == "probe":  # log-odds of p_true are not additive
            estimates += [(*which, one) for which, one in result.row_specific_effects(SIZE_MATCHED, RANDOM).items()]
        return estimates + gaps(result.groups())

    @override
    def findings(self, result: PathwayResult) -> Findings:
        layer = result.shown_layer
        looks = Looks.of(self._claim_estimates(result), STANDS, layer, self.split_values(result))
        return knockout_findings(result.record, layer, result.contrasts(all_columns=True), looks)

    def _claim_estimates(self, result: PathwayResult) -> dict[str, Estimate]:
        """Return the claimed contrasts at the shown layer; empty without a placebo."""
        layer = result.shown_layer
        if RANDOM not in result.tables():
            return {}
        estimates = {name: result.contrast(name, SIZE_MATCHED, RANDOM, layer=layer) for name in STANDS}
        if result.record["config"]["readout"] == "probe":
            specific = result.row_specific_effects(SIZE_MATCHED, RANDOM)[ROW_SPECIFIC, RANDOM]
            estimates[ROW_SPECIFIC] = specific.at(np.array([result.layers.index(layer)]))
        return estimates

    @override
    def numbers(self, result: PathwayResult) -> dict[str, Any]:
        pair = result.qa_text_auc
        texts = {"answer_text_auc": result.answer_text_auc["auc"], "qa_text_auc": np.nan if pair is None else pair["auc"]}
        return super().numbers(result) | texts

    shown_values = (
        ("auc", "auc", "none"), ("auc_cut", "auc_after", SIZE_MATCHED), ("auc_placebo", "auc_after", RANDOM),
        ("gap", "gap", "none"), ("gap_size_matched", "gap", SIZE_MATCHED), (f"gap_{RANDOM}", "placebo_gap", RANDOM),
        (f"gap_{SHUFFLED}", "placebo_gap", SHUFFLED), (f"gap_{CROSS_FOLD}", "cross_fold_gap", CROSS_FOLD),
    )  # fmt: skip
    shown_contrasts = (
        ("delta_p_vs_placebo", "delta_p_vs_placebo", RANDOM), ("flip_rate", "flip_rate", RANDOM), ("auc_drop", "auc_drop", RANDOM),
        ("row_specific_vs_placebo", "row_specific_vs_placebo", RANDOM),
    )  # fmt: skip
    shown_settings = (
        "edges={edges}, knockout_mode={knockout_mode}, readout={readout}, answers={answers}, distractor={distractor}, "
        "split={split}, prompt={prompt}, seed={seed}"
    )
    table_title = "Knockout at k*: AUC, contrasts with other question tokens cut, then the pathways (selected)"
    table_columns = (
        ("AUC", "{auc:.2f}"), ("cut", "{auc_cut:.2f}"), ("others cut", "{auc_placebo:.2f}"), ("text AUC", "{qa_text_auc:.2f}"),
        ("delta_p_vs_placebo", "{delta_p_vs_placebo:+.1f}"), ("flip_rate", "{flip_rate:+.1f}"), ("auc_drop", "{auc_drop:+.2f}"),
        ("row_specific_vs_placebo", "{row_specific_vs_placebo:+.1f}"), ("Q (n)", "{q:+.1f} ({n_q})"), ("A (n)", "{a:+.1f} ({n_a})"),
    )  # fmt: skip


ANALYSIS = KnockoutAnalysis()
