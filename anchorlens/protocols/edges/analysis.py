"""Curves, contrasts and findings of `edges`."""

from collections.abc import Sequence

import pandas as pd
from typing_extensions import override

from anchorlens.protocols.edges.edge_result import EdgeResult
from anchorlens.protocols.edges.spec import ATTRIBUTION_IG, IG_ACTIVATIONS
from anchorlens.protocols.patch.analysis import PatchAnalysis
from anchorlens.protocols.patch.patch_result import PatchResult

# Edges of the summary and of the command line's table.
_MOST_ROWS = 20


class EdgesAnalysis(PatchAnalysis):
    """Mean effects of edges."""

    name = "edges"
    title = "edges"
    result = EdgeResult

    @override
    def summary(self, result: PatchResult) -> pd.DataFrame:
        """Return the edges with the largest effects, and their control."""
        summary = super().summary(result)
        order = summary["effect"].abs().sort_values(ascending=False, kind="stable").index
        return summary.loc[order[:_MOST_ROWS]].reset_index(drop=True)

    @override
    def table(self, results: Sequence[PatchResult]) -> tuple[str, pd.DataFrame]:
        title, shown = super().table(results)
        renamed = shown.rename(columns={"place": "edge"}).drop(columns="max layer")
        return title.replace("Largest effect at each place", "Largest edges"), renamed

    @override
    def settings(self, result: PatchResult) -> str:
        config = result.record["config"]
        method = config["method"]
        if method in (ATTRIBUTION_IG, IG_ACTIVATIONS):
            method += f" ({config['steps']} steps)"
        controls = ", ".join(result.controls) or "none"
        return (
            f"method {method}, by {config['by']}, between {config['between']}, downstream"
            f" {config['downstream']}, metric {config['metric']}, {config['direction']}, controls"
            f" {controls}, seed {config['seed']}"
        )


ANALYSIS = EdgesAnalysis()
