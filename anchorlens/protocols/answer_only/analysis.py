"""Curves, contrasts and findings of an answer-only sweep."""

import pandas as pd
from typing_extensions import override

from anchorlens.protocols.answer_only.findings import OTHER, contrasts, findings, summary
from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult, ProbeAnalysis
from anchorlens.results.findings import Findings

ANCHOR = "whole_question"
"""What is changed: the anchor ``question`` is E_Q alone."""


class AnswerOnlyAnalysis(ProbeAnalysis):
    """Inputs without a question beside inputs with another row's."""

    name, title = "answer_only", "answer only"

    @override
    def contrasts(self, result: PathwayResult) -> pd.DataFrame:
        return contrasts(result)

    @override
    def findings(self, result: PathwayResult) -> Findings:
        return findings(result)

    @override
    def summary(self, result: PathwayResult) -> pd.DataFrame:
        return summary(result)

    shown_settings = (
        "readout probe, {answers} answers, distractor {distractor}, "
        "pathways by knockout ({mode}), prompt {prompt}, seed {seed}"
    )
    table_title = f"Answer only at k*, ΔP and difference in points; after | that of {OTHER}; P is P(hallucination)"
    table_columns = (
        ("AUC", "{auc:.2f}"), ("answer only", "{auc_answer_only:.2f}"), ("Q (n)", "{q:+.1f} ({n_q})"), ("A (n)", "{a:+.1f} ({n_a})"),
        ("All", "{all:+.1f} | {all_other_question:+.1f}"), ("flips %", "{flips:.0f} | {flips_other_question:.0f}"),
        ("clean P", "{p_before:.2f}"), ("P after", "{p_after:.2f} | {p_after_other_question:.2f}"),
        ("difference", "{p_difference:+.1f} [{p_difference_low:+.1f}, {p_difference_high:+.1f}]"),
    )  # fmt: skip


ANALYSIS = AnswerOnlyAnalysis()
