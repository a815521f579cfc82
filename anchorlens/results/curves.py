"""Samples become curves: means over questions with bands, layer by layer, and the strongest point of each."""

from typing import Any

import numpy as np
import pandas as pd

from anchorlens.runs.schema import CURVE_COLUMNS, CURVE_KEYS, CURVE_TYPES
from anchorlens.statistics.resamples import bootstrap_mean


def curves_frame(samples: pd.DataFrame, *, n_resamples: int, seed: int) -> pd.DataFrame:
    """Curves of every group of a samples frame: donors averaged per example first, then a bootstrap over questions."""
    group_keys = [key for key in CURVE_KEYS if key != "layer"]
    frames: list[pd.DataFrame] = []
    for keys, group in samples.groupby(group_keys, sort=False, dropna=False):
        if group["delta_kind"].iloc[0] == "confidence":  # the confidence in the clean prediction, as ΔP is
            group = group.assign(value_before=np.maximum(group["value_before"], 1 - group["value_before"]))
        per_row = group.groupby(["example_id", "question_id", "layer"], sort=False)[["delta_p", "value_before"]].mean()
        wide = per_row["delta_p"].unstack("layer").sort_index(axis=1)
        before = per_row["value_before"].unstack("layer").reindex(index=wide.index, columns=wide.columns)
        ids = wide.index.get_level_values("question_id")
        band = bootstrap_mean(wide.to_numpy(), ids, n_resamples=n_resamples, seed=seed)
        trivial = group.groupby("layer")["trivial"].any().reindex(wide.columns)
        frame = pd.DataFrame(
            {
                "layer": wide.columns.astype(int), "delta_p": band.mean, "ci_low": band.low, "ci_high": band.high,
                "p_before": np.nanmean(before.to_numpy(), axis=0), "n": band.n, "trivial": trivial.to_numpy(),
            }
        )  # fmt: skip
        shared: dict[str, Any] = dict(zip(group_keys, keys, strict=True))
        frames.append(frame.assign(**shared))
    # Only a probe has an AUC, and only curves of an AUC can lack signal.
    return pd.concat(frames, ignore_index=True).reindex(columns=list(CURVE_COLUMNS)).astype(CURVE_TYPES)


def summary_of(curves: pd.DataFrame) -> pd.DataFrame:
    """The strongest point of every curve that is no control, with the null at the same layer; trivial points do not count."""
    records: list[dict[str, object]] = []
    own = curves[(curves["control"] == "none") & ~curves["trivial"].astype(bool)]
    for (model, dataset, anchor), curve in own.groupby(["model", "dataset", "anchor"], sort=False):
        if curve["delta_p"].isna().all():
            continue
        best = curve.loc[curve["delta_p"].abs().idxmax()]
        same = (curves["model"] == model) & (curves["dataset"] == dataset) & (curves["anchor"] == anchor)
        null = curves[same & (curves["control"] == "null") & (curves["layer"] == best["layer"])]
        records.append(
            {
                "model": model, "dataset": dataset, "anchor": anchor, "layer": int(best["layer"]), "delta_p": best["delta_p"],
                "ci_low": best["ci_low"], "ci_high": best["ci_high"],
                "null": null["delta_p"].iloc[0] if len(null) else np.nan, "p_before": best["p_before"], "n": int(best["n"]),
            }
        )  # fmt: skip
    return pd.DataFrame(records)


__all__ = ["curves_frame", "summary_of"]
