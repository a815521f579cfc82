"""Curves, contrasts and findings of a swap (METHOD 4 and 6)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from typing_extensions import override

from anchorlens.constants import TRUTH_READOUTS
from anchorlens.protocols.swap.findings import swap_contrasts, swap_findings
from anchorlens.results.curve_tables import curves_frame, summary_of
from anchorlens.results.findings import Findings
from anchorlens.results.sweep import Analysis, SweepResult
from anchorlens.runs.schema import CURVE_TYPES
from anchorlens.statistics.bands import auc_band
from anchorlens.statistics.resamples import Resamples

# Share of rows above which a null is called weaker than its anchor's swap.
_MOST = 0.5


class SwapAnalysis(Analysis):
    """Curves of anchors beside their nulls."""

    name, title, result = "swap", "activation swap", SweepResult

    @override
    def curves(self, result: SweepResult) -> pd.DataFrame:
        config, events = result.record["config"], _events(result)
        curves = curves_frame(result.samples(), n_resamples=config["n_resamples"], seed=config["seed"], event=events)
        return curves.assign(**_auc(result, events), noise_floor=result.noise_floor).astype(CURVE_TYPES)

    @override
    def contrasts(self, result: SweepResult) -> pd.DataFrame:
        return swap_contrasts(result)

    @override
    def summary(self, result: SweepResult) -> pd.DataFrame:
        """One row an anchor: ``max_layer``, where |ΔP| is largest, ΔP with the band over all layers, the null there, P before, n."""
        return summary_of(result.curves(controls=True))

    @override
    def findings(self, result: SweepResult) -> Findings:
        return swap_findings(result)

    @override
    def settings(self, result: SweepResult) -> str:
        config = result.record["config"]
        label = f", donor label {config['donor_label']}" if config.get("donor_label") else ""
        null = f", null {config['null_region']}" if config["n_null_donors"] and "null_region" in config else ""
        weaker = [f"{anchor} {100 * share:.0f} % of rows" for anchor, share in _weaker(result.curves()).items()]
        said = (
            f"readout {config['readout']}, site {config['site']}, window {config['window']}, {config['direction']}, "
            f"donors {config['donors']} (up to {config['n_donors']}){label}, align {config['align']}, prompt {config['prompt']}, "
            f"known_only {config['known_only']}{null}, seed {config['seed']}"
        )
        return f"{said}\nnull weaker (fewer slots than the anchor): {', '.join(weaker)}" if weaker else said

    @override
    def table(self, results: Sequence[SweepResult]) -> tuple[str, pd.DataFrame]:
        found = pd.concat([self.summary(result) for result in results], ignore_index=True)
        band = [f"[{low:+.1f}, {high:+.1f}]" for low, high in zip(found["sim_low"], found["sim_high"], strict=True)]
        null = [_format_null(*both) for both in zip(found["null"], found["frac_null_incomplete"], strict=True)]
        shown = pd.DataFrame(
            {
                "model": found["model"], "data set": found["dataset"], "anchor": found["anchor"], "max layer": found["max_layer"],
                "ΔP": found["effect"].map("{:+.1f}".format), "95 % band over all layers": band, "null": null,
                "P before": found["p_before"].map("{:.2f}".format), "n": found["n"],
            }
        )  # fmt: skip
        return "Largest |ΔP| of each curve (percentage points)", shown


def _weaker(curves: pd.DataFrame) -> dict[str, float]:
    """Anchor -> share of rows whose null has fewer slots, where it is most of them."""
    shares = curves.groupby("anchor", sort=False)["frac_null_incomplete"].first()
    return {str(anchor): float(share) for anchor, share in shares.items() if share > _MOST}


def _format_null(value: float, short: float) -> str:
    """ΔP of the null, and that it is weaker than its anchor's swap where it is in most rows."""
    if np.isnan(value):
        return "-"
    return f"{value:+.1f}" + (f" (weaker: {100 * short:.0f} % of rows have fewer slots)" if short > _MOST else "")


def _events(result: SweepResult) -> dict[str, float] | None:
    """Row id -> 1 where what P speaks of is the case; None for readouts of the answer."""
    readout = result.record["config"]["readout"]
    if readout not in TRUTH_READOUTS:
        return None
    examples = result.examples()
    base = examples[examples["role"] == "base"]
    false = base["label"].to_numpy(dtype=np.float64)
    return dict(zip(base["example_id"], 1 - false if readout == "p_true" else false, strict=True))


def _auc(result: SweepResult, events: Mapping[str, float] | None) -> dict[str, Any]:
    """Clean AUC of a truth readout over the measured rows, with its interval; nothing for other readouts."""
    config = result.record["config"]
    if events is None or config.get("direction") == "denoising":  # there P before is that of the corrupt input
        return {}
    before = result.samples().drop_duplicates("example_id")
    draws = Resamples.of(before["question_id"], n_resamples=config["n_resamples"], seed=config["seed"])
    auc, many = draws.aucs(before["value_before"].to_numpy(), before["example_id"].map(events).to_numpy(dtype=np.float64))
    found = auc_band(np.array([auc]), many[:, None], np.array([before["question_id"].nunique()]))
    low, high = float(found.low[0]), float(found.high[0])
    return {"auc": auc, "auc_low": low, "auc_high": high, "probe_above_chance": pd.NA if np.isnan(low) else low > 0.5}


ANALYSIS = SwapAnalysis()
