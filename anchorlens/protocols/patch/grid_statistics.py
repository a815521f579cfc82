"""Statistics of a grid of layers and places: means over pairs with bands over groups, controls subtracted, recovered shares.

All cells of one quantity share one simultaneous 95 % band (studentised max-t over the whole grid, METHOD 6). Cells whose value holds
by construction have a pointwise interval, but are excluded from that band. Fewer than ten groups have values without intervals.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM
from anchorlens.missing_values import without_nulls
from anchorlens.runs.schema import CONTRAST_COLUMNS, CURVE_COLUMNS, CURVE_KEYS, CURVE_TYPES, POINTS
from anchorlens.statistics.bands import Band, band
from anchorlens.statistics.resamples import Resamples

EFFECT, LESS_CONTROL, SHARE = "effect", "effect_minus_control", "recovered_share"
_ROW, _CELL = ["example_id", "question_id"], ["anchor", "layer"]
_NO_BAND = ("low", "high", "sim_low", "sim_high", "n_effective")


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

    @property
    def n_groups(self) -> int:
        """Number of groups of pairs."""
        return int(self.samples["question_id"].nunique())

    @property
    def limit(self) -> float:
        """Largest absolute effect of a pair."""
        return 100.0 if self.samples["unit"].iloc[0] == POINTS else np.inf

    def table(self, control: str, column: str = "effect") -> pd.DataFrame:
        """Return a column of the samples, [pair cell]; NaN where a pair lacks a cell."""
        own = self.samples[self.samples["control"] == control]
        wide = own.pivot_table(index=_ROW, columns=_CELL, values=column, sort=False, observed=True)
        layers = sorted(own["layer"].unique())
        cells = pd.MultiIndex.from_product([self.anchors, layers], names=_CELL)
        return wide.reindex(columns=cells[cells.isin(wide.columns)])

    def by_construction(self, control: str) -> pd.Series:
        """Return, for every cell, whether more than half of the pairs hold by construction."""
        own = self.samples[self.samples["control"] == control]
        return own.groupby(_CELL, sort=False)["by_construction"].mean() > 0.5

    def bands(self, table: pd.DataFrame, excluded: npt.NDArray[np.bool_]) -> Band:
        """Return the means of a table with both bands; excluded cells have no simultaneous band."""
        estimate = self._draws(table).means(table.to_numpy(dtype=np.float64), table.notna().to_numpy())
        unknown = np.full(len(excluded), np.nan)
        if estimate.n.max(initial=0) < MIN_QUESTIONS_FOR_CLAIM:
            return Band(estimate.value, unknown, unknown, unknown, unknown, estimate.n, unknown)
        every, used = band(estimate, limit=self.limit), ~excluded & (estimate.n >= MIN_QUESTIONS_FOR_CLAIM)
        low, high, n_effective = unknown.copy(), unknown.copy(), unknown.copy()
        if used.any():
            joint = band(estimate.at(used), limit=self.limit)
            low[used], high[used], n_effective[used] = joint.sim_low, joint.sim_high, joint.n_effective
        return replace(every, sim_low=low, sim_high=high, n_effective=n_effective)

    def curves(self) -> pd.DataFrame:
        """Return the columns of ``curves.parquet``."""
        frames: list[pd.DataFrame] = []
        for control in self.samples["control"].unique():
            table, fixed = self.table(control), self.by_construction(control)
            fixed = fixed.reindex(table.columns).to_numpy(dtype=bool)
            points, own = self.bands(table, fixed), self.samples[self.samples["control"] == control]
            before = self.table(control, "value_before").mean().reindex(table.columns)
            frame = table.columns.to_frame(index=False).assign(
                effect=points.value, ci_low=points.low, ci_high=points.high, sim_low=points.sim_low, sim_high=points.sim_high,
                p_before=before.to_numpy(), n=points.n, n_effective=points.n_effective, by_construction=fixed,
            )  # fmt: skip
            places = own.drop_duplicates("anchor").set_index("anchor")[["position", "head"]]
            same = {key: own[key].iloc[0] for key in CURVE_KEYS if key not in (*_CELL, "position", "head")}
            frames.append(frame.join(places, on="anchor").assign(**same))
        return pd.concat(frames, ignore_index=True).reindex(columns=list(CURVE_COLUMNS)).astype(CURVE_TYPES)

    def contrasts(self, source_values: Mapping[str, float | None], *, denoising: bool) -> pd.DataFrame:
        """Return the effect, the effect minus each control, and the recovered share of every cell.

        Args:
            source_values: Pair id -> metric of the source's own run.
            denoising: Whether the source is the clean run.
        """
        own, fixed = self.table("none"), self.by_construction("none")
        frames = [self._frame(EFFECT, "none", own, self.bands(own, fixed.reindex(own.columns).to_numpy(dtype=bool)))]
        for control in self.samples["control"].unique():
            if control == "none":
                continue
            less = (own - self.table(control).reindex(columns=own.columns)).dropna(how="all")
            idle = self.by_construction(control).reindex(own.columns, fill_value=True) | fixed.reindex(own.columns)
            frames.append(self._frame(LESS_CONTROL, control, less, self.bands(less, idle.to_numpy(dtype=bool))))
        frames.append(self._shares(source_values, denoising=denoising))
        return pd.concat(frames, ignore_index=True).reindex(columns=list(CONTRAST_COLUMNS))

    def totals(self, source_values: Mapping[str, float | None], *, denoising: bool) -> pd.Series:
        """Return the metric of the clean run minus that of the corrupted run of every pair."""
        own = self.samples[self.samples["control"] == "none"].drop_duplicates("example_id").set_index(_ROW)["value_before"]
        source = own.index.get_level_values("example_id").map(lambda name: source_values.get(name)).astype("float64")
        return (source - own) if denoising else (own - source)

    def _shares(self, source_values: Mapping[str, float | None], *, denoising: bool) -> pd.DataFrame:
        after, total = self.table("none", "value_after"), self.totals(source_values, denoising=denoising)
        source = pd.Series({name: np.nan if value is None else value for name, value in source_values.items()}, dtype="float64")
        corrupted = self.table("none", "value_before") if denoising else after * 0
        if not denoising:
            corrupted = corrupted.add(source.reindex(after.index.get_level_values("example_id")).to_numpy(), axis=0)
        moved = after - corrupted
        total = total if total.mean() else total * np.nan
        whole = (moved * 0).add(total.reindex(after.index).to_numpy(), axis=0)
        draws = self._draws(after)
        parts = (draws.means(one.to_numpy(dtype=np.float64), one.notna().to_numpy()) for one in (moved, whole))
        ratio = next(parts).over(next(parts))
        points = band(ratio)
        few = ratio.n < MIN_QUESTIONS_FOR_CLAIM
        low, high = (np.where(few, np.nan, end) for end in (points.low, points.high))
        unknown = np.full(len(few), np.nan)
        return self._frame(SHARE, "none", after, Band(ratio.value, low, high, unknown, unknown, ratio.n, unknown))

    def _draws(self, table: pd.DataFrame) -> Resamples:
        groups = table.index.get_level_values("question_id")
        return Resamples.of(groups, n_resamples=self.n_resamples, seed=self.seed)

    @staticmethod
    def _frame(quantity: str, control: str, table: pd.DataFrame, points: Band) -> pd.DataFrame:
        return table.columns.to_frame(index=False).assign(
            quantity=quantity, control=control, value=points.value, ci_low=points.low, ci_high=points.high,
            sim_low=points.sim_low, sim_high=points.sim_high, n=points.n, n_effective=points.n_effective,
        )  # fmt: skip


def statistics_of(samples: pd.DataFrame, config: Mapping[str, Any]) -> GridStatistics:
    """Return the statistics of a sweep; ``config``: that of run.json."""
    return GridStatistics(without_nulls(samples), tuple(config["anchors"]), config["n_resamples"], config["seed"])
