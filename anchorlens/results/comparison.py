"""Result of a comparison of two runs: the difference of their curves."""

from dataclasses import dataclass

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_LAYERS
from anchorlens.display import escape_hidden
from anchorlens.results.estimates import concentration_note, format_ranges
from anchorlens.results.vocabulary import MetricLabels
from anchorlens.runs.schema import answer_first, summary_order


@dataclass(frozen=True, repr=False)
class Comparison:
    """Difference of two runs at every layer; frozen.

    Examples:
        >>> import anchorlens as al
        >>> found = al.compare("runs/first", "runs/second")  # doctest: +SKIP
        >>> print(found)  # doctest: +SKIP
        >>> found.table()[["layer", "difference", "sim_low", "sim_high"]]  # doctest: +SKIP

    Attributes:
        labels: Names of the first and the second run.
        units: Sentence on the clusters of each pair of sweeps; none where questions are drawn and
            the data name no relation.
        notes: Sentences on settings that differ, and on the metric before the intervention.
    """

    labels: tuple[str, str]
    _table: pd.DataFrame
    _curves: pd.DataFrame
    _metric: MetricLabels
    units: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def table(self) -> pd.DataFrame:
        """Return the difference at every layer.

        Returns:
            ``model dataset protocol anchor layer``; ``difference`` (second minus first, in the unit
            of the metric) with its pointwise 95 % interval ``ci_low ci_high`` and its band
            ``sim_low sim_high``, which holds at 95 % jointly over all layers, anchors and sweeps;
            ``p`` (two-sided, by sign flips of whole clusters, adjusted over all of them too; a
            difference is named by its band, and p says whether the runs could be exchanged);
            ``n`` (shared questions), ``n_clusters`` (clusters that are drawn) and ``n_effective``
            (effective number of those that carry the difference); ``first second`` (mean effect of
            the shared rows in each run); ``only_first only_second`` (rows in one run only).
        """
        return self._table[summary_order(self._table)].copy()

    def curves(self, *, controls: bool = False) -> pd.DataFrame:  # noqa: ARG002
        """Return the differences as curves for ``plot_curves(comparison, metric="difference")``."""
        return self._curves[answer_first(self._curves)].copy()

    def __repr__(self) -> str:
        table = self._table
        names = ["model", "dataset", "protocol", "anchor"]
        best = table.loc[
            table["difference"]
            .abs()
            .fillna(-1)
            .groupby([table[name] for name in names], sort=False)
            .idxmax()
        ]
        drawn = table[["n", "n_clusters"]].min(axis=1)
        stands = table[
            (drawn >= MIN_QUESTIONS_FOR_LAYERS) & ((table["sim_low"] > 0) | (table["sim_high"] < 0))
        ]
        shared = [name for name in names if table[name].nunique() == 1]
        told = [*(name for name in names[:3] if name not in shared), "anchor"]
        where = _list_places(stands, told)
        verdict = (
            f"Curves differ: {'; '.join(where)}."
            if where
            else "No difference was detected at any layer."
        )
        if drawn.max() < MIN_QUESTIONS_FOR_LAYERS:
            few_questions = table["n"].max() < MIN_QUESTIONS_FOR_LAYERS
            of = "shared questions" if few_questions else "clusters of questions"
            verdict = (
                f"Nothing is claimed: {MIN_QUESTIONS_FOR_LAYERS} {of} are needed to name layers,"
                f" and here are {drawn.max():.0f}."
            )
        few = concentration_note(stands, "dataset", "the difference on {}")
        shown = best[
            [
                *(name for name in names if name not in shared),
                "layer",
                "difference",
                "sim_low",
                "sim_high",
                "n",
            ]
        ]
        what = self._metric.name_in_unit
        n = len(table[names[:3]].drop_duplicates())
        over = "layers and anchors" if n == 1 else f"layers, anchors and {n} sweeps"
        head = (
            f"Comparison: {self.labels[1]} minus {self.labels[0]}, {what}; largest difference, 95 %"
            f" band over all {over}"
        )
        whose = "  " + ", ".join(f"{name} {table[name].iloc[0]}" for name in shared)
        text = shown.to_string(index=False, float_format=_format)
        lines = [
            verdict,
            *self.units,
            *self.notes,
            *([few] if few else []),
            head,
            *([whose] if shared else []),
            text,
        ]
        return escape_hidden("\n".join(lines))


def _list_places(stands: pd.DataFrame, names: list[str]) -> list[str]:
    """Return the layers at which curves differ, with the values of ``names``."""
    places: list[str] = []
    for key, own in stands.groupby(names, sort=False):
        curve = ", ".join(map(str, key))
        plural = "s" * (len(own) > 1)
        layers = format_ranges(sorted(own["layer"]))
        places.append(f"{curve} at layer{plural} {layers}")
    return places


def _format(value: float) -> str:
    """Format a number with two decimals, or with two digits if it is smaller."""
    return f"{value:.2f}" if abs(value) >= 0.05 or not value else f"{value:.2g}"
