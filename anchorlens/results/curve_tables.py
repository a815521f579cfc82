"""Samples become curves: means over questions with bands, layer by layer, and the strongest point of each."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.constants import LOGIT_DIFF, P
from anchorlens.missing_values import without_nulls
from anchorlens.runs.schema import CURVE_COLUMNS, CURVE_KEYS, CURVE_TYPES
from anchorlens.statistics.bands import bootstrap_mean
from anchorlens.statistics.delta import support


def curves_frame(
    samples: pd.DataFrame, *, n_resamples: int, seed: int, event: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """Curves of every group of a samples frame: donors averaged per example first, then a bootstrap over questions.

    Args:
        samples: Columns of ``samples.parquet``.
        n_resamples: Number of resamples.
        seed: Of the resamples.
        event: ``example_id`` -> 1 where what P speaks of is the case; for truth readouts alone.

    Returns:
        Columns of ``curves.parquet``. ``p_before`` is the mean of what ΔP starts from (π of a truth readout); ``by_construction`` marks
        points at which most rows hold by construction; ``frac_null_incomplete`` is the share of rows whose null has fewer slots than the
        anchor.
    """
    group_keys = [key for key in CURVE_KEYS if key != "layer"]
    frames: list[pd.DataFrame] = []
    for keys, group in without_nulls(samples).groupby(group_keys, sort=False, dropna=False):
        shared: dict[str, Any] = dict(zip(group_keys, keys, strict=True))
        own = group.assign(_before=_started_from(group, event))
        per_row = own.groupby(["example_id", "question_id", "layer"], sort=False)[["effect", "_before"]].mean()
        wide = per_row["effect"].unstack("layer").sort_index(axis=1)
        before = per_row["_before"].unstack("layer").reindex(index=wide.index, columns=wide.columns)
        ids = wide.index.get_level_values("question_id")
        band = bootstrap_mean(wide.to_numpy(), ids, n_resamples=n_resamples, seed=seed)
        trivial = group.groupby("layer")["by_construction"].mean().reindex(wide.columns) > 0.5
        frame = pd.DataFrame(
            {
                "layer": wide.columns.astype(int), "effect": band.value, "ci_low": band.low, "ci_high": band.high,
                "sim_low": band.sim_low, "sim_high": band.sim_high, "p_before": np.nanmean(before.to_numpy(), axis=0),
                "n": band.n, "by_construction": trivial.to_numpy(), "frac_null_incomplete": _null_short(group),
            }
        )  # fmt: skip
        frames.append(frame.assign(**shared))
    # Only a probe has an AUC, and only curves of an AUC can lack signal.
    return pd.concat(frames, ignore_index=True).reindex(columns=list(CURVE_COLUMNS)).astype(CURVE_TYPES)


def _started_from(group: pd.DataFrame, event: Mapping[str, float] | None) -> npt.NDArray[np.float64]:
    """What ΔP of each row starts from: P, or π of a truth readout."""
    p = group["value_before"].to_numpy(dtype=np.float64)
    kind = str(group["delta_kind"].iloc[0])
    if event is None or kind == "probability":
        return p
    return support(p, p, group["example_id"].map(event).to_numpy(dtype=np.float64), kind)


def _null_short(group: pd.DataFrame) -> float:
    """Share of rows whose null has fewer slots than the anchor; NaN where no null was measured."""
    known = group.loc[
        group["n_null_patched"].notna(), ["example_id", "donor_id", "n_patched", "n_null_patched"]
    ].drop_duplicates()
    short = known["n_null_patched"].astype("float64") < known["n_patched"].astype("float64")
    return float(short.groupby(known["example_id"]).mean().mean())


def logit_diff_samples(samples: pd.DataFrame) -> pd.DataFrame:
    """Return samples of the metric ``logit_diff``, made from the logit differences beside P; empty if there are none."""
    own = samples[(samples["metric"] == P) & samples["logit_diff_before"].notna()]
    before, after = own["logit_diff_before"], own["logit_diff_after"]
    return own.assign(metric=LOGIT_DIFF, unit="logit", value_before=before, value_after=after, effect=after - before)


_SUMMARY = (
    "model", "dataset", "anchor", "max_layer", "effect", "sim_low", "sim_high", "null", "frac_null_incomplete", "p_before", "n",
)  # fmt: skip


def summary_of(curves: pd.DataFrame) -> pd.DataFrame:
    """Of every curve that is no control the layer where |ΔP| is largest, with the band over all layers and the null there.

    That layer was chosen by looking, so its pointwise interval would say nothing. Trivial points do not count.
    """
    records: list[dict[str, object]] = []
    own = curves[(curves["control"] == "none") & ~curves["by_construction"].astype(bool)]
    for (model, dataset, anchor), curve in own.groupby(["model", "dataset", "anchor"], sort=False):
        if curve["effect"].isna().all():
            continue
        best = curve.loc[curve["effect"].abs().idxmax()]
        same = (curves["model"] == model) & (curves["dataset"] == dataset) & (curves["anchor"] == anchor)
        null = curves[same & (curves["control"] == "null") & (curves["layer"] == best["layer"])]
        records.append(
            {
                "model": model, "dataset": dataset, "anchor": anchor, "max_layer": int(best["layer"]), "effect": best["effect"],
                "sim_low": best["sim_low"], "sim_high": best["sim_high"],
                "null": null["effect"].iloc[0] if len(null) else np.nan, "frac_null_incomplete": best["frac_null_incomplete"],
                "p_before": best["p_before"], "n": int(best["n"]),
            }
        )  # fmt: skip
    return pd.DataFrame(records, columns=list(_SUMMARY))


__all__ = ["curves_frame", "logit_diff_samples", "summary_of"]
