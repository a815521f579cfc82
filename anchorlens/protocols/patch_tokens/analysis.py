"""Curves, contrasts and findings of token patching."""

import pandas as pd
from typing_extensions import override

from anchorlens.protocols.patch_tokens.contrasts import patch_contrasts, patch_summary
from anchorlens.protocols.patch_tokens.findings import patch_findings
from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult, ProbeAnalysis
from anchorlens.results.findings import Findings


class PatchTokensAnalysis(ProbeAnalysis):
    """Patched inputs beside inputs in which other tokens are replaced."""

    name, title = "patch_tokens", "token patching"

    @override
    def contrasts(self, result: PathwayResult) -> pd.DataFrame:
        return patch_contrasts(result)

    @override
    def findings(self, result: PathwayResult) -> Findings:
        (numbers,) = self.summary(result).to_dict("records")
        return patch_findings(result.record, {str(name): value for name, value in numbers.items()}, result.effects())

    @override
    def summary(self, result: PathwayResult) -> pd.DataFrame:
        return patch_summary(result)

    shown_settings = (
        "base {base}, donors {donors} (up to {n_donors}), {answers} answers, "
        "distractor {distractor}, prompt {prompt}, seed {seed}"
    )
    table_title = "Token patching at k*: patch / control, in points. delta_all, flip_rate: patch less control, by row"
    table_columns = (
        ("AUC", "{auc:.2f}"), ("n (Q, A)", "{n_all} ({n_q}, {n_a})"),
        ("delta_all", "{delta_all:+.1f} [{delta_all_low:+.1f}, {delta_all_high:+.1f}]"),
        ("flip_rate", "{flip_rate:+.1f} [{flip_rate_low:+.1f}, {flip_rate_high:+.1f}]"),
        ("flips %", "{flips_all:.0f} / {flips_all_random_tokens:.0f}"), ("ΔP", "{all:+.1f} / {all_random_tokens:+.1f}"),
        ("ΔP Q", "{q:+.1f} / {q_random_tokens:+.1f}"), ("ΔP A", "{a:+.1f} / {a_random_tokens:+.1f}"),
    )  # fmt: skip


ANALYSIS = PatchTokensAnalysis()
