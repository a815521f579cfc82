"""Contrasts of a swap sweep: each anchor minus its nulls, and differences between anchors (METHOD 4 and 6).

Differences are taken within rows and averaged over rows; the bootstrap resamples questions. All anchors and layers of
``delta_p_minus_null`` of one null share one simultaneous 95 % band. ``anchor_difference`` has its own band.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TypeAlias

import numpy as np
import pandas as pd

from anchorlens.constants import NULL_CONTROLS
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import CONTRAST_COLUMNS
from anchorlens.statistics.bands import band
from anchorlens.statistics.pathways import band_frame
from anchorlens.statistics.resamples import Resamples

LESS_NULL, DIFFERENCE = "delta_p_minus_null", "anchor_difference"
_ROW = ["example_id", "question_id"]
Key: TypeAlias = tuple[str, str]
"""Anchor and control."""


def swap_contrasts(result: SweepResult) -> pd.DataFrame:
    """Compute ``delta_p_minus_null`` of each anchor and ``anchor_difference`` of each pair (``anchor``: ``A - B``), by layer.

    Layers at which the curve or its null holds by construction have a value and a pointwise interval, but are excluded from the
    simultaneous band.
    """
    samples, fixed = result.samples(all_columns=True), layers_by_construction(result.curves(controls=True, all_columns=True))
    anchors = [anchor for anchor in result.anchors if (anchor, "none") in fixed]  # others have no reachable cell
    pairs = {f"{a} - {b}": fixed[a, "none"] | fixed[b, "none"] for a, b in combinations(anchors, 2)}
    between = _between(samples, anchors)
    frames: list[pd.DataFrame] = []
    for null, differences in _minus_nulls(samples).items():
        excluded = {anchor: fixed[anchor, "none"] | fixed[anchor, null] for anchor in differences}
        frames.append(_joint(result, differences, excluded, LESS_NULL, null))
    frames.append(_joint(result, between, pairs, DIFFERENCE, "none"))
    whole = [frame for frame in frames if len(frame)]
    return pd.concat(whole, ignore_index=True) if whole else pd.DataFrame(columns=list(CONTRAST_COLUMNS))


def layers_by_construction(curves: pd.DataFrame) -> dict[Key, set[int]]:
    """Return (anchor, control) -> layers that hold by construction; for a null those at which it cannot act."""
    groups = curves.groupby(["anchor", "control"], sort=False)
    return {(str(a), str(c)): {*map(int, one.loc[one["by_construction"].astype(bool), "layer"])} for (a, c), one in groups}


def _minus_nulls(samples: pd.DataFrame) -> dict[str, dict[str, pd.DataFrame]]:
    """Return control -> anchor -> ΔP minus that null, [row layer], over the donors that measured it."""
    cell = ["anchor", *_ROW, "donor_id", "layer"]
    sides = samples.pivot_table(index=cell, columns="control", values="effect", sort=False)
    differences: dict[str, dict[str, pd.DataFrame]] = {}
    for control in NULL_CONTROLS.values():
        if control not in sides.columns:
            continue
        gaps = (sides["none"] - sides[control]).dropna().groupby(["anchor", *_ROW, "layer"], sort=False).mean()
        differences[control] = {str(a): one.droplevel("anchor").unstack("layer") for a, one in gaps.groupby("anchor", sort=False)}
    return differences


def _between(samples: pd.DataFrame, anchors: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Return ``A - B`` -> difference of the ΔP of two anchors, [row layer]."""
    means = samples[samples["control"] == "none"].groupby(["anchor", *_ROW, "layer"], sort=False)["effect"].mean()
    wide = {str(anchor): one.droplevel("anchor").unstack("layer") for anchor, one in means.groupby("anchor", sort=False)}
    return {f"{a} - {b}": wide[a] - wide[b] for a, b in combinations(anchors, 2)}


def _joint(
    result: SweepResult, tables: Mapping[str, pd.DataFrame], excluded: Mapping[str, set[int]], quantity: str, control: str
) -> pd.DataFrame:
    """Return the contrasts of several curves over the same rows with one simultaneous band."""
    if not tables:
        return pd.DataFrame()
    layers, config = list(result.layers), result.record["config"]
    whole = pd.concat([table.reindex(columns=layers) for table in tables.values()], axis=1)
    values = whole.to_numpy(dtype=np.float64)
    ids = whole.index.get_level_values("question_id")
    draws = Resamples.of(ids, n_resamples=config["n_resamples"], seed=config["seed"])
    estimate = draws.means(values, ~np.isnan(values))
    used = np.array([layer not in excluded[name] for name in tables for layer in layers])
    every, joint = band(estimate, limit=100), band(estimate.at(used), limit=100)
    low, high, n_effective = np.full((3, len(used)), np.nan)
    low[used], high[used], n_effective[used] = joint.sim_low, joint.sim_high, joint.n_effective
    parts = replace(every, sim_low=low, sim_high=high, n_effective=n_effective).parts([len(layers)] * len(tables))
    frames = [band_frame(layers, quantity, control, one).assign(anchor=name) for name, one in zip(tables, parts, strict=True)]
    return pd.concat(frames, ignore_index=True)
