"""Curves, contrasts and findings of an attention knockout."""

import pandas as pd
from typing_extensions import override

from anchorlens.protocols.knockout.contrasts import cut_contrasts, pathway_summary
from anchorlens.protocols.knockout.findings import knockout_findings
from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult, ProbeAnalysis
from anchorlens.results.findings import Findings


class KnockoutAnalysis(ProbeAnalysis):
    """Cuts of E_Q beside cuts of other question tokens."""

    name, title = "knockout", "attention knockout"

    @override
    def contrasts(self, result: PathwayResult) -> pd.DataFrame:
        return cut_contrasts(result)

    @override
    def findings(self, result: PathwayResult) -> Findings:
        return knockout_findings(result.record, result.shown_layer, result.effects())

    @override
    def summary(self, result: PathwayResult) -> pd.DataFrame:
        return pathway_summary(result)

    shown_settings = (
        "cut {edges}, mode {mode}, readout {readout}, {answers} answers, distractor {distractor}, split {split}, prompt {prompt}, "
        "seed {seed}"
    )
    table_title = "Knockout at k*: AUC, contrasts with other question tokens cut, then the pathways (selected)"
    table_columns = (
        ("AUC", "{auc:.2f}"), ("cut", "{auc_cut:.2f}"), ("others cut", "{auc_placebo:.2f}"), ("pair text", "{pair_text_auc:.2f}"),
        ("delta_all", "{delta_all:+.1f}"), ("flip_rate", "{flip_rate:+.1f}"), ("auc_drop", "{auc_drop:+.2f}"),
        ("own_change", "{own_change:+.1f}"), ("Q (n)", "{q:+.1f} ({n_q})"), ("A (n)", "{a:+.1f} ({n_a})"),
    )  # fmt: skip


ANALYSIS = KnockoutAnalysis()
