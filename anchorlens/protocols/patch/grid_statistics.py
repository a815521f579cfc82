"""Statistics of a grid of layers and places: means over pairs with bands over groups, controls
subtracted, recovered shares.

All cells of one quantity share one simultaneous 95 % band (studentised max-t over the whole grid,
METHOD 6). Cells whose value holds by construction have a pointwise interval, but are excluded from
that band. Fewer than ten groups have values without intervals. The effect minus a control has a
p-value, adjusted over the grid, that alone claims nothing
(:mod:`~anchorlens.statistics.sign_flips`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.constants import METRIC_UNITS, MIN_QUESTIONS_FOR_CLAIM, POINTS
from anchorlens.runs.schema import (
    CONTRAST_COLUMNS,
    CURVE_COLUMNS,
    CURVE_KEYS,
    CURVE_TYPES,
    without_nulls,
)
from anchorlens.statistics.bands import Band, band
from anchorlens.statistics.clusters import Clusters, find_clusters, intraclass_correlation
from anchorlens.statistics.resamples import Array, Estimate, Resamples
from anchorlens.statistics.sign_flips import sign_flip_p

EFFECT = "effect"
LESS_CONTROL = "effect_minus_control"
SHARE = "recovered_share"
_ROW = ["example_id", "question_id"]
_CELL = ["anchor", "layer"]


@dataclass(frozen=True)
class GridStatistics:
    """Statistics of the samples of a patch sweep.

    Attributes:
        samples: Samples of one metric.
        anchors: Places in display order.
        n_resamples: Number of bootstrap resamples.
        seed: Random seed of the resamples.
    """

    samples: pd.DataFrame
    anchors: tuple[str, ...]
    n_resamples: int
    seed: int

    @cached_property
    def clusters(self) -> Clusters:
        """Clusters of the pairs: templates or groups."""
        # Another pair of the control is a measured pair itself: it joins no groups.
        return find_clusters(self.samples.assign(donor_id=""))

    @cached_property
    def _rank_of(self) -> dict[str, int]:
        """Anchor -> its number in display order."""
        return {anchor: number for number, anchor in enumerate(self.anchors)}

    @property
    def n_groups(self) -> int:
        """Number of groups of pairs."""
        return int(self.samples["question_id"].nunique())

    @property
    def limit(self) -> float:
        """Largest absolute effect of a pair."""
        return 100.0 if self.samples["unit"].iloc[0] == POINTS else np.inf

    @cached_property
    def scale(self) -> float:
        """Largest absolute value of a metric function, to which equality is relative; 1 for named
        metrics, whose scale is known.
        """
        if self.samples["unit"].iloc[0] != METRIC_UNITS:
            return 1.0
        values = self.samples[["value_before", "value_after"]].to_numpy(dtype=np.float64)
        return float(np.nanmax(np.abs(values))) or 1.0

    @cached_property
    def span(self) -> float:
        """Range of the effects of a metric function, which may move in steps, or of its values if
        there is no effect; 0 for named metrics.

        In a cell in which all pairs have the same effect, a pair that is not in the sample may
        differ by it.
        """
        if self.samples["unit"].iloc[0] != METRIC_UNITS:
            return 0.0
        effects = self.samples["effect"].to_numpy(dtype=np.float64)
        values = self.samples[["value_before", "value_after"]].to_numpy(dtype=np.float64)
        of_effects = float(np.nanmax(effects) - np.nanmin(effects))
        return of_effects or float(np.nanmax(values) - np.nanmin(values))

    def table(self, control: str, column: str = "effect") -> pd.DataFrame:
        """Return a column of the samples, [pair cell]; NaN where a pair lacks a cell."""
        own = self.samples[self.samples["control"] == control]
        wide = own.pivot_table(index=_ROW, columns=_CELL, values=column, sort=False, observed=True)
        # In order of anchors, then layers; an edge has one layer.
        ranks = wide.columns.get_level_values("anchor").map(self._rank_of)
        order = np.lexsort([wide.columns.get_level_values("layer").to_numpy(), ranks.to_numpy()])
        return wide.iloc[:, order]

    def by_construction(self, control: str) -> pd.Series:
        """Return, for every cell, whether more than half of the pairs hold by construction."""
        own = self.samples[self.samples["control"] == control]
        return own.groupby(_CELL, sort=False)["by_construction"].mean() > 0.5

    def bands(self, table: pd.DataFrame, excluded: npt.NDArray[np.bool_]) -> Band:
        """Return the means of a table with both bands; excluded cells have no simultaneous band."""
        scale = self.scale
        estimate = self._means(table / scale)
        unknown = np.full(len(excluded), np.nan)
        if estimate.n.max(initial=0) < MIN_QUESTIONS_FOR_CLAIM:
            return Band(
                value=estimate.value * scale,
                low=unknown,
                high=unknown,
                sim_low=unknown,
                sim_high=unknown,
                n=estimate.n_questions,
                n_clusters=estimate.n,
                n_effective=unknown,
            )
        span = np.where(excluded, 0.0, self.span / scale)  # what holds by construction is certain
        every = band(estimate, limit=self.limit, span=span)
        used = ~excluded & (estimate.n >= MIN_QUESTIONS_FOR_CLAIM)
        low = unknown.copy()
        high = unknown.copy()
        n_effective = unknown.copy()
        if used.any():
            joint = band(estimate.at(used), limit=self.limit, span=span[used])
            low[used] = joint.sim_low
            high[used] = joint.sim_high
            n_effective[used] = joint.n_effective
        return replace(
            every,
            value=every.value * scale,
            low=every.low * scale,
            high=every.high * scale,
            sim_low=low * scale,
            sim_high=high * scale,
            n_effective=n_effective,
        )

    def curves(self) -> pd.DataFrame:
        """Return the columns of ``curves.parquet``."""
        frames: list[pd.DataFrame] = []
        for control in self.samples["control"].unique():
            own = self.samples[self.samples["control"] == control]
            table = self.table(control)
            fixed = self.by_construction(control).reindex(table.columns).to_numpy(dtype=bool)
            points = self.bands(table, fixed)
            before = self.table(control, "value_before").mean().reindex(table.columns)
            frame = table.columns.to_frame(index=False).assign(
                effect=points.value,
                ci_low=points.low,
                ci_high=points.high,
                sim_low=points.sim_low,
                sim_high=points.sim_high,
                value_before=before.to_numpy(),
                n=points.n,
                n_clusters=points.n_clusters,
                n_effective=points.n_effective,
                by_construction=fixed,
            )
            places = own.drop_duplicates("anchor").set_index("anchor")[["position", "head"]]
            shared = [key for key in CURVE_KEYS if key not in (*_CELL, "position", "head")]
            same = {key: own[key].iloc[0] for key in shared}
            frames.append(frame.join(places, on="anchor").assign(**same))
        return (
            pd.concat(frames, ignore_index=True)
            .reindex(columns=list(CURVE_COLUMNS))
            .astype(CURVE_TYPES)
        )

    def contrasts(
        self, source_values: Mapping[str, float | None], *, denoising: bool
    ) -> pd.DataFrame:
        """Return the effect, the effect minus each control, and the recovered share of every cell.

        Args:
            source_values: Pair id -> metric of the source's own run.
            denoising: Whether the source is the clean run.
        """
        own = self.table("none")
        fixed = self.by_construction("none").reindex(own.columns)
        points = self.bands(own, fixed.to_numpy(dtype=bool))
        frames = [self._frame(EFFECT, "none", own, points)]
        for control in self.samples["control"].unique():
            if control == "none":
                continue
            less = (own - self.table(control).reindex(columns=own.columns)).dropna(how="all")
            idle = self.by_construction(control).reindex(own.columns, fill_value=True) | fixed
            excluded = idle.to_numpy(dtype=bool)
            frame = self._frame(LESS_CONTROL, control, less, self.bands(less, excluded))
            frames.append(frame.assign(p=self._p_values(less, excluded)))
        frames.append(self._shares(source_values, denoising=denoising))
        return pd.concat(frames, ignore_index=True).reindex(columns=list(CONTRAST_COLUMNS))

    def _p_values(self, less: pd.DataFrame, excluded: npt.NDArray[np.bool_]) -> Array:
        """Return the p-value of each cell, adjusted over the grid; NaN for excluded cells, and for
        fewer than ten groups.
        """
        groups = less.index.get_level_values("question_id")
        few = less.notna().groupby(groups).any().sum().to_numpy() < MIN_QUESTIONS_FOR_CLAIM
        values = less.to_numpy(dtype=np.float64) / self.scale
        values[:, excluded | few] = np.nan
        return sign_flip_p(values, self.clusters.of(groups), seed=self.seed)

    def correlation(self, control: str, cell: tuple[str, int]) -> float:
        """Compute the intraclass correlation of the effect minus a control at one cell over
        templates, of the means of groups; NaN if the data name none.
        """
        names = self.samples.drop_duplicates("question_id").set_index("question_id")["cluster"]
        own = self.table("none")
        other = self.table(control)
        if names.nunique() < 2 or cell not in own.columns or cell not in other.columns:
            return float("nan")
        means = (own[cell] - other[cell]).dropna().groupby("question_id").mean()
        clusters = names.reindex(means.index).to_numpy(dtype=str)
        return intraclass_correlation(means.to_numpy(dtype=np.float64), clusters)

    def totals(self, source_values: Mapping[str, float | None], *, denoising: bool) -> pd.Series:
        """Return the metric of the clean run minus that of the corrupted run of every pair."""
        samples = self.samples[self.samples["control"] == "none"].drop_duplicates("example_id")
        own = samples.set_index(_ROW)["value_before"]
        ids = own.index.get_level_values("example_id")
        source = ids.map(lambda name: source_values.get(name)).astype("float64")
        return (source - own) if denoising else (own - source)

    def _shares(
        self, source_values: Mapping[str, float | None], *, denoising: bool
    ) -> pd.DataFrame:
        """Compute the share of the difference between clean and corrupted run that each patch
        restores.
        """
        after = self.table("none", "value_after")
        if denoising:
            corrupted = self.table("none", "value_before")
        else:
            # None, for missing values, becomes NaN.
            source = pd.Series(dict(source_values), dtype="float64")
            own_source = source.reindex(after.index.get_level_values("example_id")).to_numpy()
            corrupted = _repeat_over_cells(own_source, after)
        moved = after - corrupted
        total = self.totals(source_values, denoising=denoising)
        if not total.mean():
            total = total * np.nan
        whole = _repeat_over_cells(total.reindex(after.index).to_numpy(), moved)
        ratio = self._means(moved).over(self._means(whole))
        mean = abs(float(total.mean()))
        points = band(ratio, span=self.span / mean if mean else 0.0)
        few = ratio.n < MIN_QUESTIONS_FOR_CLAIM
        unknown = np.full(len(few), np.nan)
        return self._frame(
            SHARE,
            "none",
            after,
            Band(
                value=ratio.value,
                low=np.where(few, np.nan, points.low),
                high=np.where(few, np.nan, points.high),
                sim_low=unknown,
                sim_high=unknown,
                n=ratio.n_questions,
                n_clusters=ratio.n,
                n_effective=unknown,
            ),
        )

    def _means(self, table: pd.DataFrame) -> Estimate:
        """Return the mean of every cell over pairs, [pair cell], with its resamples."""
        groups = table.index.get_level_values("question_id")
        draws = Resamples.of(
            groups,
            clusters=self.clusters.of(groups),
            n_resamples=self.n_resamples,
            seed=self.seed,
        )
        return draws.means(table.to_numpy(dtype=np.float64), table.notna().to_numpy())

    @staticmethod
    def _frame(quantity: str, control: str, table: pd.DataFrame, points: Band) -> pd.DataFrame:
        return table.columns.to_frame(index=False).assign(
            quantity=quantity,
            control=control,
            value=points.value,
            ci_low=points.low,
            ci_high=points.high,
            sim_low=points.sim_low,
            sim_high=points.sim_high,
            n=points.n,
            n_clusters=points.n_clusters,
            n_effective=points.n_effective,
        )


def statistics_of(samples: pd.DataFrame, config: Mapping[str, Any]) -> GridStatistics:
    """Return the statistics of a sweep.

    ``config``: that of run.json.
    """
    return GridStatistics(
        without_nulls(samples), tuple(config["anchors"]), config["n_resamples"], config["seed"]
    )


def _repeat_over_cells(of_rows: npt.NDArray[np.float64], table: pd.DataFrame) -> pd.DataFrame:
    """Return one value of each row in all cells of a table [row cell]; NaN where the table has no
    value.
    """
    return (table * 0).add(of_rows, axis=0)
