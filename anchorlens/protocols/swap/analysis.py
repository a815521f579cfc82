"""Curves, contrasts and findings of a swap (METHOD 4 and 6)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from typing_extensions import override

from anchorlens.constants import NULL_CONTROLS, TRUTH_READOUTS
from anchorlens.display import drop_zero_signs
from anchorlens.protocols.swap.anchor_contrasts import span_of_effects, swap_contrasts
from anchorlens.protocols.swap.findings import swap_findings
from anchorlens.results.curve_tables import curves_frame, event_of_rows, summary_of
from anchorlens.results.findings import Findings
from anchorlens.results.sweep import Analysis, SweepResult
from anchorlens.runs.schema import CURVE_TYPES
from anchorlens.statistics.bands import auc_band
from anchorlens.statistics.clusters import find_clusters
from anchorlens.statistics.resamples import Resamples

# Fraction of rows with fewer null slots above which a null is reported as weaker than the swap.
_WEAKER_ABOVE = 0.5


class SwapAnalysis(Analysis):
    """Analysis of swaps: curves of anchors and their nulls."""

    name = "swap"
    title = "activation swap"
    result = SweepResult

    @override
    def curves(self, result: SweepResult) -> pd.DataFrame:
        config = result.record["config"]
        events = _events(result)
        curves = curves_frame(
            result.samples(all_columns=True),
            n_resamples=config["n_resamples"],
            seed=config["seed"],
            event=events,
            span=span_of_effects(config),
        )
        curves = curves.assign(**_auc(result, events), noise_floor=result.noise_floor)
        return curves.astype(CURVE_TYPES)

    @override
    def contrasts(self, result: SweepResult) -> pd.DataFrame:
        return swap_contrasts(result)

    @override
    def summary(self, result: SweepResult) -> pd.DataFrame:
        """Return one row per anchor: ``max_layer`` (largest |ΔP|), ΔP there with simultaneous band,
        its nulls, P before and n.
        """
        return summary_of(result.curves(controls=True, all_columns=True))

    @override
    def findings(self, result: SweepResult) -> Findings:
        return swap_findings(result)

    @override
    def settings(self, result: SweepResult) -> str:
        config = result.record["config"]
        label = f", donor label {config['donor_label']}" if config.get("donor_label") else ""
        null = ""
        if config["n_null_donors"] and "null" in config:
            null += f", null {', '.join(config['null'])}"
        if config.get("null_region") == "prompt":
            null += " in the whole prompt"
        if config["n_null_donors"] and "norm_matched" in config.get("null", ()):
            null += f" ({config.get('n_null_draws', 1)} draws)"
        if config.get("metric", "prob") != "prob":
            null += f", metric {config['metric']}"
        settings = (
            f"readout {config['readout']}, site {config['site']}, window {config['window']},"
            f" {config['direction']}, donors {config['donors']} (up to"
            f" {config['n_donors']}){label}, align {config['align']}, prompt {config['prompt']},"
            f" known_only {config['known_only']}{null}, seed {config['seed']}"
        )
        weaker: list[str] = []
        for (anchor, name), share in _weaker(result).items():
            percent = f"{100 * share:.0f} %"
            weaker.append(f"{anchor} {name} {percent} of rows")
        if not weaker:
            return settings
        return f"{settings}\nnull weaker (fewer slots than the anchor): {', '.join(weaker)}"

    @override
    def table(self, results: Sequence[SweepResult]) -> tuple[str, pd.DataFrame]:
        summaries = pd.concat([self.summary(result) for result in results], ignore_index=True)
        ends = zip(summaries["sim_low"], summaries["sim_high"], strict=True)
        band = [drop_zero_signs(f"[{low:+.1f}, {high:+.1f}]") for low, high in ends]
        weaker: list[dict[tuple[str, str], float]] = []
        for result in results:
            weaker += [_weaker(result)] * len(self.summary(result))
        nulls: dict[str, list[str]] = {}
        for name, control in NULL_CONTROLS.items():
            if summaries[control].isna().all():
                continue
            texts = nulls[name] = []
            rows = zip(summaries["anchor"], summaries[control], weaker, strict=True)
            for anchor, value, shares in rows:
                texts.append(_format_null(value, shares.get((anchor, name), 0)))
        shown = pd.DataFrame(
            {
                "model": summaries["model"],
                "data set": summaries["dataset"],
                "anchor": summaries["anchor"],
                "max layer": summaries["max_layer"],
                "ΔP": [drop_zero_signs(f"{value:+.1f}") for value in summaries["effect"]],
                "95 % band over all layers": band,
                **nulls,
                "P before": summaries["value_before"].map("{:.2f}".format),
                "n": summaries["n"],
            }
        )
        return "Largest |ΔP| of each curve (percentage points)", shown


def _weaker(result: SweepResult) -> dict[tuple[str, str], float]:
    """Return (anchor, null) -> fraction of rows in which that null has fewer slots, where it has in
    more than half of them.
    """
    curves = result.curves(controls=True, all_columns=True).groupby(
        ["anchor", "control"], sort=False
    )
    shares = curves["frac_null_incomplete"].first()
    weaker: dict[tuple[str, str], float] = {}
    for anchor in result.anchors:
        for name, control in NULL_CONTROLS.items():
            share = shares.get((anchor, control), 0.0)
            if share > _WEAKER_ABOVE:
                weaker[anchor, name] = float(share)
    return weaker


def _format_null(value: float, short: float) -> str:
    """Format ΔP of a null; "weaker" if it has fewer slots in most rows."""
    if np.isnan(value):
        return "-"
    return drop_zero_signs(f"{value:+.1f}") + (" (weaker)" if short > _WEAKER_ABOVE else "")


def _events(result: SweepResult) -> dict[str, float] | None:
    """Return row id -> 1 if the event of P is the case, else 0; None for answer readouts."""
    readout = result.record["config"]["readout"]
    if readout not in TRUTH_READOUTS:
        return None
    return event_of_rows(result.examples(all_columns=True), readout)


def _auc(result: SweepResult, events: Mapping[str, float] | None) -> dict[str, Any]:
    """Return the clean AUC of a truth readout over the measured rows, with its interval; {} for
    other readouts.
    """
    config = result.record["config"]
    # Denoising starts from the corrupt input.
    if events is None or config.get("direction") == "denoising":
        return {}
    before = result.samples(all_columns=True).drop_duplicates("example_id")
    # No donor takes part in a clean AUC, so rows that share one are not drawn together.
    clusters = find_clusters(before.assign(donor_id=""))
    draws = Resamples.of(
        before["question_id"],
        clusters=clusters.of(before["question_id"]),
        n_resamples=config["n_resamples"],
        seed=config["seed"],
    )
    labels = before["example_id"].map(events).to_numpy(dtype=np.float64)
    cross_fitted = len(result.record["probe"].get("probe_layers", ())) > 1
    interval = auc_band(
        draws.aucs(before["value_before"].to_numpy(dtype=np.float64)[None], labels),
        cross_fitted=cross_fitted,
    )
    low = float(interval.low[0])
    return {
        "auc": float(interval.value[0]),
        "auc_low": low,
        "auc_high": float(interval.high[0]),
        "probe_above_chance": pd.NA if np.isnan(low) else low > 0.5,
    }


ANALYSIS = SwapAnalysis()
