"""Curves, contrasts and findings of `patch`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from typing_extensions import override

from anchorlens.constants import METRIC_UNITS, PATCH_CONTROLS, UNITS
from anchorlens.display import join_words, three_digits
from anchorlens.protocols.patch.findings import patch_findings
from anchorlens.protocols.patch.grid_statistics import SHARE
from anchorlens.protocols.patch.patch_result import ESTIMATE, PatchResult
from anchorlens.results.analysis import Analysis
from anchorlens.results.findings import Findings
from anchorlens.results.vocabulary import leading_labels
from anchorlens.runs.schema import CURVE_TYPES

_SUMMARY = (
    "model",
    "dataset",
    "anchor",
    "max_layer",
    "effect",
    SHARE,
    *PATCH_CONTROLS,
    "sim_low",
    "sim_high",
    "value_before",
    "n",
)


_OF_BEST = ("model", "dataset", "effect", "sim_low", "sim_high", "value_before")
"""Columns of the summary that are those of the largest cell."""


class PatchAnalysis(Analysis):
    """Mean effects at every layer and place."""

    name = "patch"
    title = "activation patching"
    result = PatchResult

    @override
    def unit(self, config: Mapping[str, Any]) -> str:
        return UNITS.get(config["metric"], METRIC_UNITS)

    @override
    def curves(self, result: PatchResult) -> pd.DataFrame:
        curves = result.statistics.curves().assign(noise_floor=result.noise_floor)
        curves = curves.astype(CURVE_TYPES)
        # An empty table has the types of its columns.
        return curves.iloc[:0] if result.no_mean else curves

    @override
    def contrasts(self, result: PatchResult) -> pd.DataFrame:
        contrasts = result.statistics.contrasts(result.source_values, denoising=result.is_denoising)
        return contrasts.iloc[:0] if result.no_mean else contrasts

    @override
    def findings(self, result: PatchResult) -> Findings:
        return patch_findings(result)

    @override
    def summary(self, result: PatchResult) -> pd.DataFrame:
        """Return, for every place, the layer with the largest |effect| that does not follow by
        construction, and its controls.
        """
        curves = result.curves(controls=True, all_columns=True)
        contrasts = result.contrasts(all_columns=True)
        is_share = contrasts["quantity"] == SHARE
        shares = contrasts[is_share].set_index(["anchor", "layer"])["value"].to_dict()
        effects = curves.set_index(["control", "anchor", "layer"])["effect"].to_dict()
        own = curves[(curves["control"] == "none") & ~curves["by_construction"].astype(bool)]
        records: list[dict[str, Any]] = []
        for anchor, curve in own.groupby("anchor", sort=False):
            best = curve.iloc[int(curve["effect"].abs().to_numpy().argmax())]
            cell = (anchor, int(best["layer"]))
            beside = {name: effects.get((name, *cell), np.nan) for name in PATCH_CONTROLS}
            same = best[list(_OF_BEST)].to_dict()
            records.append(
                {
                    **same,
                    **beside,
                    "anchor": anchor,
                    "max_layer": cell[1],
                    SHARE: shares.get(cell, np.nan),
                    "n": int(best["n"]),
                }
            )
        return pd.DataFrame(records, columns=list(_SUMMARY))

    @override
    def table(self, results: Sequence[PatchResult]) -> tuple[str, pd.DataFrame]:
        summaries = pd.concat([self.summary(result) for result in results], ignore_index=True)
        names: dict[str, None] = {}
        for result in results:
            names[leading_labels(result.samples(all_columns=True)).name_in_unit] = None
        effects = summaries["effect"]
        bands: list[str] = []
        for low, high in zip(summaries["sim_low"], summaries["sim_high"], strict=True):
            bands.append("" if np.isnan(low) else f"[{three_digits(low)}, {three_digits(high)}]")
        shown = summaries[["model", "dataset", "anchor", "max_layer"]].rename(
            columns={"dataset": "data set", "anchor": "place", "max_layer": "max layer"}
        )
        shown["effect"] = effects.map(three_digits)
        if any(bands):
            shown["joint 95 %"] = bands
        shown["recovered"] = summaries[SHARE].map(_format_or_dash("{:.2f}".format))
        for control in PATCH_CONTROLS:
            if not summaries[control].isna().all():
                shown[control] = summaries[control].map(_format_or_dash(three_digits))
        shown["before"] = [three_digits(value, sign=False) for value in summaries["value_before"]]
        shown["n"] = summaries["n"]
        title = f"Largest effect at each place: {join_words(names)}"
        if any(result.is_estimate and result.has_layers for result in results):
            title += f"; {ESTIMATE}"
        return title, shown

    @override
    def settings(self, result: PatchResult) -> str:
        config = result.record["config"]
        controls = ", ".join(result.controls) or "none"
        method = f"{ESTIMATE}, " if result.is_estimate else ""
        return (
            f"{method}by {config['by']}, site {config['site']}, window {config['window']}, metric"
            f" {config['metric']}, {config['direction']}, controls {controls}, seed"
            f" {config['seed']}"
        )


def _format_or_dash(form: Callable[[float], str]) -> Callable[[float], str]:
    """Return a function that formats a number, and a missing one as a dash."""

    def to_text(value: float) -> str:
        if np.isnan(value):
            return "-"
        text = form(value)
        return text if float(text) else form(0.0)  # no -0.00

    return to_text


ANALYSIS = PatchAnalysis()
