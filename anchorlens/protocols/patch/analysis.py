"""Curves and descriptive findings of `patch`; this protocol has no controls yet."""

from typing import Any

import pandas as pd
from typing_extensions import override

from anchorlens.results.curve_tables import curves_frame, summary_of
from anchorlens.results.findings import DESCRIPTION, Finding, Findings
from anchorlens.results.sweep import Analysis, SweepResult
from anchorlens.runs.schema import CONTRAST_COLUMNS, CURVE_TYPES


class PatchAnalysis(Analysis):
    """Mean effects at every layer and position."""

    name, title, result = "patch", "activation patching", SweepResult

    @override
    def curves(self, result: SweepResult) -> pd.DataFrame:
        config = result.record["config"]
        curves = curves_frame(result.samples(all_columns=True), n_resamples=config["n_resamples"], seed=config["seed"])
        return curves.assign(noise_floor=result.noise_floor).astype(CURVE_TYPES)

    @override
    def contrasts(self, result: SweepResult) -> pd.DataFrame:
        return pd.DataFrame(columns=list(CONTRAST_COLUMNS))

    @override
    def findings(self, result: SweepResult) -> Findings:
        table = self.summary(result)
        n = len(result.example_ids)
        best = table.iloc[int(table["effect"].abs().to_numpy().argmax())]
        layer, value = int(best["max_layer"]), float(best["effect"])
        headline = f"Largest mean effect: {value:+.2f} logits at {best['anchor']}, layer {layer} ({n} pair{'s' if n != 1 else ''})."
        where = {"layers": (layer,), "anchor": str(best["anchor"]), "sentence": headline}
        finding = Finding(result.record["config"]["metric"], DESCRIPTION, value=value, n=n, **where)
        return Findings((finding,), f"{headline} No control was measured, so nothing is claimed.")

    @override
    def summary(self, result: SweepResult) -> pd.DataFrame:
        return summary_of(result.curves(controls=True, all_columns=True))

    @override
    def settings(self, result: SweepResult) -> str:
        config: dict[str, Any] = result.record["config"]
        return f"metric {config['metric']}, site {config['site']}, {config['direction']}, seed {config['seed']}"


ANALYSIS = PatchAnalysis()
