"""Curves, contrasts and findings of token patching (METHOD 5).

``delta_p_vs_placebo`` and ``flip_rate`` are over all rows, without selection by the outcome.
Pathways are split by flips from the clean P that is also the baseline of ΔP, so their gap is
descriptive.
"""

import numpy as np
import pandas as pd
from typing_extensions import override

from anchorlens.constants import FLIP, P
from anchorlens.protocols.patch_tokens.findings import CLAIMS, token_patch_findings
from anchorlens.protocols.probe_sweep.pathway_result import Array, PathwayResult
from anchorlens.protocols.probe_sweep.probe_analysis import ProbeAnalysis
from anchorlens.results.claims import Looks
from anchorlens.results.findings import Findings
from anchorlens.statistics.bands import Band
from anchorlens.statistics.contrasts import mean_of
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED, band_frame, gaps
from anchorlens.statistics.resamples import Estimate


class PatchTokensAnalysis(ProbeAnalysis):
    """Analysis of patched inputs against inputs with other replaced tokens."""

    name = "patch_tokens"
    title = "token patching"

    @override
    def estimates(self, result: PathwayResult) -> list[tuple[str, str, Estimate]]:
        """Return the contrasts of patch and control over all measured rows, paired by row, and
        descriptive levels.

        Returns:
            ``delta_p_vs_placebo`` and ``flip_rate`` (``size_matched`` minus ``random_tokens``, in
            points); the levels ``flip_rate_patched`` (controls ``none`` and ``size_matched``) and
            ``flip_rate_random``; ``gap`` (Q minus A) and ``placebo_gap``.
        """
        p = result.tables()
        flips = result.tables(FLIP)
        estimates: list[tuple[str, str, Estimate]] = []
        if RANDOM in p:
            # Flips are averaged over donors; a flip of the mean P is another quantity.
            for name, tables in (("delta_p_vs_placebo", p), ("flip_rate", flips)):
                less = tables[SIZE_MATCHED].delta - tables[RANDOM].delta
                estimates.append((name, RANDOM, mean_of(less, result.draws)))
        for control, table in flips.items():
            name = "flip_rate_random" if control == RANDOM else "flip_rate_patched"
            estimates.append((name, control, mean_of(table.delta, result.draws)))
        return estimates + [one for one in gaps(result.groups()) if one[0] != "gap_difference"]

    @override
    def differences(self, result: PathwayResult) -> dict[tuple[str, str], Array]:
        """Return the differences of patch and control, for one donor of each row."""
        if RANDOM not in result.tables():
            return {}
        found: dict[tuple[str, str], Array] = {}
        for name, metric in (("delta_p_vs_placebo", P), ("flip_rate", FLIP)):
            found[name, RANDOM] = result.differences_of_one_donor(SIZE_MATCHED, RANDOM, metric)
        return found

    def _effects(self, result: PathwayResult) -> dict[str, float]:
        """Return contrast -> effect of the patch alone at the shown layer, over the rows that have
        both arms; empty without a control.
        """
        if RANDOM not in result.tables():
            return {}
        at = result.layers.index(result.shown_layer)
        effects: dict[str, float] = {}
        for name, metric in (("delta_p_vs_placebo", P), ("flip_rate", FLIP)):
            tables = result.tables(metric)
            own = tables[SIZE_MATCHED].delta[at]
            both = ~np.isnan(own) & ~np.isnan(tables[RANDOM].delta[at])
            effects[name] = float(own[both].mean()) if both.any() else float("nan")
        return effects

    @override
    def auc_frames(self, result: PathwayResult) -> list[pd.DataFrame]:
        """Return the AUCs; if all measured rows have one label, the AUC of the clean probe over all
        test rows.
        """
        if len(set(result.labels)) == 2:
            return super().auc_frames(result)
        recorded = result.record["probe"]["test_auc"]
        # None, for missing values, becomes NaN.
        rows = [recorded["layers"][str(layer)] for layer in result.layers]
        value, low, high, sim_low, sim_high = np.array(rows, dtype=np.float64).T
        n = np.full(len(rows), int(recorded["questions"]), dtype=np.int64)
        made = Band(
            value=value,
            low=low,
            high=high,
            sim_low=sim_low,
            sim_high=sim_high,
            n=n,
            n_clusters=np.full(len(n), int(recorded["clusters"]), dtype=np.int64),
            n_effective=np.full(len(n), np.nan),
        )
        return [band_frame(result.layers, "auc", "none", made)]

    @override
    def findings(self, result: PathwayResult) -> Findings:
        at = np.array([result.layers.index(result.shown_layer)])
        claimed: dict[str, Estimate] = {}
        for name, control, one in self.estimates(result):
            if name in CLAIMS and control == RANDOM:
                claimed[name] = one.at(at)
        looks = Looks.of(
            claimed,
            CLAIMS,
            result.shown_layer,
            splits=self.split_values(result),
            flips=self.p_values(result),
        )
        return token_patch_findings(
            result.record,
            self.numbers(result),
            result.contrasts(all_columns=True),
            looks,
            effects=self._effects(result),
            unit=self.cluster_note(result, "delta_p_vs_placebo", RANDOM),
        )

    shown_values = (("auc", "auc", "none"),)
    shown_contrasts = (
        ("delta_p_vs_placebo", "delta_p_vs_placebo", RANDOM),
        ("flip_rate", "flip_rate", RANDOM),
    )
    shown_means = (
        ("", "", P, "none"),
        ("", f"_{RANDOM}", P, RANDOM),
        ("flips_", "", FLIP, "none"),
        ("flips_", f"_{RANDOM}", FLIP, RANDOM),
    )
    shown_settings = (
        "base={base}, donors={donors}, n_donors={n_donors}, answers={answers},"
        " distractor={distractor}, prompt={prompt}, seed={seed}"
    )
    table_title = (
        "Token patching at k*: patch / control, in points. delta_p_vs_placebo, flip_rate: patch"
        " less control, by row"
    )
    table_columns = (
        ("AUC", "{auc:.2f}"),
        ("n (Q, A)", "{n_all} ({n_q}, {n_a})"),
        (
            "delta_p_vs_placebo",
            (
                "{delta_p_vs_placebo:+.1f} [{delta_p_vs_placebo_low:+.1f},"
                " {delta_p_vs_placebo_high:+.1f}]"
            ),
        ),
        ("flip_rate", "{flip_rate:+.1f} [{flip_rate_low:+.1f}, {flip_rate_high:+.1f}]"),
        ("flips %", "{flips_all:.0f} / {flips_all_random_tokens:.0f}"),
        ("ΔP", "{all:+.1f} / {all_random_tokens:+.1f}"),
        ("ΔP Q", "{q:+.1f} / {q_random_tokens:+.1f}"),
        ("ΔP A", "{a:+.1f} / {a_random_tokens:+.1f}"),
    )


ANALYSIS = PatchTokensAnalysis()
