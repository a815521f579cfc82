"""Compute the effect of samples, and curves from them: the mean over questions with its band at
each layer, and the strongest point of each curve.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.constants import LOGIT_DIFF, NULL_CONTROLS, POINTS, SHARE, TRUTH_READOUTS, P
from anchorlens.errors import InputError, did_you_mean
from anchorlens.runs.schema import CURVE_COLUMNS, CURVE_KEYS, CURVE_TYPES, without_nulls
from anchorlens.statistics.bands import band
from anchorlens.statistics.clusters import find_clusters
from anchorlens.statistics.delta import delta_p, support
from anchorlens.statistics.resamples import Resamples


def curves_frame(
    samples: pd.DataFrame,
    *,
    n_resamples: int,
    seed: int,
    event: Mapping[str, float] | None = None,
    share: bool = False,
    span: float = 0.0,
) -> pd.DataFrame:
    """Compute the curve of every group of a samples frame: mean over donors per example, then a
    bootstrap over clusters.

    Args:
        samples: Columns of ``samples.parquet``.
        n_resamples: Number of resamples.
        seed: Seed of the resamples.
        event: ``example_id`` -> 1 if the predicted event holds, else 0. Only for truth readouts.
        share: Whether to divide mean ΔP by mean P before: metric ``share``, with pointwise
            intervals only.
        span: By how much an effect may differ where the values move in steps
            (:func:`~anchorlens.statistics.bands.band`); 0 at layers that hold by construction.

    Returns:
        Columns of ``curves.parquet``, one row per curve and layer. ``value_before``: mean P of the
        clean run (π of a truth readout). ``by_construction``: more than half of the rows hold by
        construction. ``frac_null_incomplete``: fraction of rows whose null has fewer slots than the
        anchor.
    """
    group_keys = [key for key in CURVE_KEYS if key != "layer"]
    clusters = find_clusters(samples)
    frames: list[pd.DataFrame] = []
    for keys, group in without_nulls(samples).groupby(group_keys, sort=False, dropna=False):
        shared: dict[str, Any] = dict(zip(group_keys, keys, strict=True))
        own = group.assign(_before=clean_values(group, event))
        per_row = own.groupby(["example_id", "question_id", "layer"], sort=False)[
            ["effect", "_before"]
        ].mean()
        wide = per_row["effect"].unstack("layer").sort_index(axis=1)
        before = per_row["_before"].unstack("layer").reindex(index=wide.index, columns=wide.columns)
        questions = wide.index.get_level_values("question_id")
        draws = Resamples.of(
            questions, clusters=clusters.of(questions), n_resamples=n_resamples, seed=seed
        )
        effects = wide.to_numpy()
        values = before.to_numpy()
        effect = draws.means(effects, ~np.isnan(effects))
        value_before = draws.means(values, ~np.isnan(values))
        limit = 100 if shared["unit"] == POINTS and not share else np.inf
        by_construction = (
            group.groupby("layer")["by_construction"].mean().reindex(wide.columns) > 0.5
        )
        steps = np.where(by_construction.to_numpy(), 0.0, span)
        curve = band(effect.over(value_before) if share else effect, limit=limit, span=steps)
        sim_low, sim_high = (np.nan, np.nan) if share else (curve.sim_low, curve.sim_high)
        frame = pd.DataFrame(
            {
                "layer": wide.columns.astype(int),
                "effect": curve.value,
                "ci_low": curve.low,
                "ci_high": curve.high,
                "sim_low": sim_low,
                "sim_high": sim_high,
                "value_before": value_before.value,
                "n": curve.n,
                "n_clusters": curve.n_clusters,
                "n_effective": curve.n_effective,
                "by_construction": by_construction.to_numpy(),
                "frac_null_incomplete": _frac_null_incomplete(group),
            }
        )
        frames.append(
            frame.assign(**shared | ({"metric": SHARE, "unit": "% of P before"} if share else {}))
        )
    # Columns that only probes have (AUC, signal) are NaN.
    return (
        pd.concat(frames, ignore_index=True)
        .reindex(columns=list(CURVE_COLUMNS))
        .astype(CURVE_TYPES)
    )


def clean_values(group: pd.DataFrame, event: Mapping[str, float] | None) -> npt.NDArray[np.float64]:
    """Return the clean value of each row: P, or π of a truth readout.

    Args:
        group: Samples of one metric.
        event: Example id -> label, of a truth readout; else None.
    """
    p = group["value_before"].to_numpy(dtype=np.float64)
    kind = str(group["delta_kind"].iloc[0])
    if event is None or kind == "probability":
        return p
    return support(p, p, group["example_id"].map(event).to_numpy(dtype=np.float64), kind)


def _frac_null_incomplete(group: pd.DataFrame) -> float:
    """Return the fraction of rows whose null has fewer slots than the anchor; NaN if no null was
    measured.
    """
    known = group.loc[
        group["n_null_patched"].notna(), ["example_id", "donor_id", "n_patched", "n_null_patched"]
    ].drop_duplicates()
    short = known["n_null_patched"].astype("float64") < known["n_patched"].astype("float64")
    return float(short.groupby(known["example_id"]).mean().mean())


def select_metric(frame: pd.DataFrame, metric: str | None) -> pd.DataFrame:
    """Return the rows of a metric; if None, all.

    Raises:
        InputError: If the frame has no such metric.
    """
    there = list(frame["metric"].unique())
    if metric not in (None, *there):
        raise InputError(
            f"metric={metric!r}: not in this sweep. {did_you_mean(str(metric), there)}",
            argument="metric",
        )
    return frame if metric is None else frame[frame["metric"] == metric]


def samples_from_p(samples: pd.DataFrame, metric: str | None, readout: str | None) -> pd.DataFrame:
    """Return the samples of a metric that is computed from those of P of an answer, whose share is
    computed from them as they are; empty for other metrics and readouts.
    """
    is_answer = metric in (LOGIT_DIFF, SHARE) and readout not in (*TRUTH_READOUTS, None)
    if not is_answer or metric in set(samples["metric"]):
        samples = samples.iloc[:0]
    return logit_diff_samples(samples) if metric == LOGIT_DIFF else samples


def text_aucs(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the AUCs of classifiers of the text alone; NaN without true and false answers.

    ``record``: that of the sweep.
    """
    probe = record.get("probe") or {}
    alone = probe.get("answer_text_auc") or {}
    pair = probe.get("qa_text_auc") or {}
    aucs = {
        "answer_text_auc": alone.get("auc"),
        "qa_text_auc": pair.get("auc"),
        "qa_text_auc_low": pair.get("ci_low"),
    }
    return {name: float("nan") if value is None else float(value) for name, value in aucs.items()}


def logit_diff_samples(samples: pd.DataFrame) -> pd.DataFrame:
    """Return samples of the metric ``logit_diff``, made from the logit differences beside P; empty
    if there are none.
    """
    own = samples[(samples["metric"] == P) & samples["logit_diff_before"].notna()]
    before, after = own["logit_diff_before"], own["logit_diff_after"]
    return own.assign(
        metric=LOGIT_DIFF,
        unit="logit",
        value_before=before,
        value_after=after,
        effect=after - before,
    )


_SUMMARY = (
    "model",
    "dataset",
    "anchor",
    "max_layer",
    "effect",
    *NULL_CONTROLS.values(),
    "sim_low",
    "sim_high",
    "value_before",
    "n",
)


def summary_of(curves: pd.DataFrame) -> pd.DataFrame:
    """Return, for every curve but controls, the layer with the largest |ΔP|, its simultaneous band
    and the nulls at that layer.

    The layer is selected from the data, so a pointwise interval would not be valid. Points that
    hold by construction are ignored.
    """
    records: list[dict[str, object]] = []
    own = curves[(curves["control"] == "none") & ~curves["by_construction"].astype(bool)]
    for (model, dataset, anchor), curve in own.groupby(["model", "dataset", "anchor"], sort=False):
        if curve["effect"].isna().all():
            continue
        best = curve.loc[curve["effect"].abs().idxmax()]
        same = (
            (curves["model"] == model)
            & (curves["dataset"] == dataset)
            & (curves["anchor"] == anchor)
        )
        here = curves[same & (curves["layer"] == best["layer"])]
        nulls = dict.fromkeys(NULL_CONTROLS.values(), np.nan) | dict(
            zip(here["control"], here["effect"], strict=True)
        )
        records.append(
            {
                "model": model,
                "dataset": dataset,
                "anchor": anchor,
                "max_layer": int(best["layer"]),
                "effect": best["effect"],
                "sim_low": best["sim_low"],
                "sim_high": best["sim_high"],
                **nulls,
                "value_before": best["value_before"],
                "n": int(best["n"]),
            }
        )
    return pd.DataFrame(records, columns=list(_SUMMARY))


__all__ = ["curves_frame", "logit_diff_samples", "summary_of"]


Array = npt.NDArray[np.float64]


def recompute_effects(
    samples: pd.DataFrame, examples: pd.DataFrame, config: Mapping[str, Any]
) -> Array:
    """Return the effect of every sample as the measuring code computes it.

    Args:
        samples: Samples of one sweep.
        examples: Inputs of the sweep, whose labels a truth readout needs.
        config: Configuration of the sweep, as in run.json.

    Returns:
        Value after minus value before, in percentage points if they are probabilities; of a truth
        readout the change of π (:func:`~anchorlens.statistics.delta.delta_p`).
    """
    before = samples["value_before"].to_numpy(dtype=np.float64)
    after = samples["value_after"].to_numpy(dtype=np.float64)
    effects = np.where(samples["unit"] == POINTS, 100.0, 1.0) * (after - before)
    kind = config.get("delta_kind")
    if config.get("readout") in TRUTH_READOUTS and kind is not None:
        of_p = (samples["metric"] == P).to_numpy(dtype=bool)
        events = (
            samples["example_id"]
            .map(event_of_rows(examples, config["readout"]))
            .to_numpy(dtype=np.float64)
        )
        effects[of_p] = delta_p(before[of_p], after[of_p], events[of_p], kind)
    return effects


def event_of_rows(examples: pd.DataFrame, readout: str) -> dict[str, float]:
    """Return row id -> 1 if the event of P is the case, else 0: a false answer for ``probe``, a
    true one for ``p_true``.
    """
    base = examples[examples["role"] == "base"]
    false = base["label"].to_numpy(dtype=np.float64)
    return dict(zip(base["example_id"], 1 - false if readout == "p_true" else false, strict=True))
