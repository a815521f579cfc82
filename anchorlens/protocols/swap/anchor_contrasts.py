"""Contrasts of a swap sweep: each anchor minus its nulls, the donor's answer, and differences
between anchors (METHOD 4 and 6).

Differences are taken within rows and averaged over rows; the bootstrap draws clusters. One
simultaneous 95 % band covers all anchors, layers and nulls of a quantity.

- ``delta_p_minus_null``: ΔP after the swap minus ΔP after a null.
- ``delta_logit_diff_minus_null``: the same for the logit difference of answer and donor's answer.
- ``delta_logit_diff``: change of the logit difference under the swap; a description.
- ``donor_p_minus_null``: P of the donor's answer after the swap minus that after ``norm_matched``.
- ``donor_p_change``: change of P of the donor's answer under the swap; a description.
- ``interchange_accuracy``: share of rows in which the donor's answer token becomes the most likely
  one; pointwise intervals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from anchorlens.constants import ANSWER_READOUTS, NULL_CONTROLS, TRUTH_READOUTS
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import CONTRAST_COLUMNS
from anchorlens.statistics.bands import RATE, band, within_share
from anchorlens.statistics.clusters import Clusters, find_clusters
from anchorlens.statistics.pathways import band_frame
from anchorlens.statistics.resamples import Resamples
from anchorlens.statistics.sign_flips import sign_flip_p

LESS_NULL = "delta_p_minus_null"
LOGIT_LESS_NULL = "delta_logit_diff_minus_null"
DONOR_LESS_NULL = "donor_p_minus_null"
DONOR_CHANGE = "donor_p_change"
LOGIT_CHANGE = "delta_logit_diff"
INTERCHANGE = "interchange_accuracy"
ANCHOR_DIFFERENCE = "anchor_difference"
NORM_MATCHED = NULL_CONTROLS["norm_matched"]
_SAME_ANSWER = NULL_CONTROLS["same_answer"]
_ROW = ["example_id", "question_id"]
_PAIR = ["anchor", *_ROW, "donor_id", "layer"]
Key: TypeAlias = tuple[str, str]
"""Anchor and control."""


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """Values of one contrast at one anchor.

    Attributes:
        quantity: Name of the contrast.
        control: Null, or ``none``.
        anchor: Anchor, or two of them.
        values: Values of the rows, [row layer].
        excluded: Layers outside the simultaneous band.
        flipped: Values of one donor and draw, of which the p-value is computed, [row layer]; None
            without a p-value.
    """

    quantity: str
    control: str
    anchor: str
    values: pd.DataFrame
    excluded: frozenset[int]
    flipped: pd.DataFrame | None = None


def swap_contrasts(result: SweepResult) -> pd.DataFrame:
    """Compute the contrasts of every anchor, null and layer.

    Layers at which the curve or its null holds by construction have a value and a pointwise
    interval, but are excluded from the simultaneous band.
    """
    samples = result.samples(all_columns=True)
    fixed = layers_by_construction(result.curves(controls=True, all_columns=True))
    clusters = contrast_clusters(samples)
    samples = _with_values(samples)
    less = _minus_nulls(samples, fixed, "effect", LESS_NULL)
    donor = _donor_minus_null(samples, fixed)
    in_logits: list[_Curve] = []
    if samples["logit_change"].notna().any():
        in_logits = _minus_nulls(samples, fixed, "logit_change", LOGIT_LESS_NULL)
    span = span_of_effects(result.record["config"])
    frames = [
        _joint(result, clusters, less, span=span),
        _joint(result, clusters, donor),
        _joint(result, clusters, in_logits, limit=np.inf),
    ]
    between = _between_anchors(result, samples, fixed)
    frames.append(_joint(result, clusters, between, span=span))
    described = (
        (LOGIT_CHANGE, "logit_change", np.inf),
        (DONOR_CHANGE, "donor_change", 100),
        (INTERCHANGE, "interchange", 100),
    )
    for quantity, column, limit in described:
        own = _without_null(samples, fixed, column, quantity)
        frames.append(_joint(result, clusters, own, limit=limit, rate=quantity == INTERCHANGE))
    whole = [frame for frame in frames if len(frame)]
    if not whole:
        return pd.DataFrame(columns=list(CONTRAST_COLUMNS))
    return pd.concat(whole, ignore_index=True)


def span_of_effects(config: Mapping[str, Any]) -> float:
    """Return by how much ΔP of a question that is not in the sample may differ from that of all
    others: a readout function may move in steps, as one that is 1 where P exceeds 0.5. 0 for named
    readouts, which have no steps.
    """
    return 0.0 if config["readout"] in (*ANSWER_READOUTS, *TRUTH_READOUTS) else RATE


def contrast_clusters(samples: pd.DataFrame) -> Clusters:
    """Find the clusters of the contrasts, which use the donors for which a null was measured."""
    is_null = ~samples["control"].isin(("none", _SAME_ANSWER))
    pairs = samples.loc[is_null, ["example_id", "donor_id"]].drop_duplicates()
    if not len(pairs):
        return find_clusters(samples)
    return find_clusters(samples.merge(pairs, on=["example_id", "donor_id"]))


def layers_by_construction(curves: pd.DataFrame) -> dict[Key, set[int]]:
    """Return (anchor, control) -> layers that hold by construction; for a null those at which it
    cannot act.
    """
    fixed: dict[Key, set[int]] = {}
    for (anchor, control), curve in curves.groupby(["anchor", "control"], sort=False):
        layers = curve.loc[curve["by_construction"].astype(bool), "layer"]
        fixed[str(anchor), str(control)] = set(map(int, layers))
    return fixed


def _with_values(samples: pd.DataFrame) -> pd.DataFrame:
    """Add the changes of logit difference and of P of the donor's answer, in logits and points."""
    donor_p = 100 * (samples["donor_p_after"] - samples["donor_p_before"]).astype("float64")
    logits = (samples["logit_diff_after"] - samples["logit_diff_before"]).astype("float64")
    # Log-odds of a truth readout are those of P.
    if samples["donor_logit_before"].isna().all():
        logits = logits * np.nan
    top = 100 * samples["donor_is_top_after"].astype("float64")
    return samples.assign(logit_change=logits, donor_change=donor_p, interchange=top)


def _minus_nulls(
    samples: pd.DataFrame, fixed: Mapping[Key, set[int]], column: str, quantity: str
) -> list[_Curve]:
    """Return the curves of a column minus each null."""
    curves: list[_Curve] = []
    measured = set(samples["control"])
    for control in NULL_CONTROLS.values():
        if control not in measured:
            continue
        if control == _SAME_ANSWER:
            if column != "effect":
                continue  # the logit difference of equal answers is undefined
            own = _row_means(samples, column, "none") - _row_means(samples, column, control)
            flipped = None
        else:
            own, flipped = _minus_null_by_row(samples, column, control)
        tables = _by_anchor(own.dropna())
        one_draw = {} if flipped is None else _by_anchor(flipped.dropna())
        for anchor, table in tables.items():
            curves.append(
                _Curve(
                    quantity=quantity,
                    control=control,
                    anchor=anchor,
                    values=table,
                    excluded=frozenset(fixed[anchor, "none"] | fixed[anchor, control]),
                    flipped=one_draw.get(anchor),
                )
            )
    return curves


def _minus_null_by_row(
    samples: pd.DataFrame, column: str, control: str
) -> tuple[pd.Series, pd.Series]:
    """Return a column minus a null by anchor, row and layer: averaged over donors and draws, and
    for the first donor and draw alone.
    """
    own = samples[samples["control"] == "none"].set_index(_PAIR)[column]
    null = samples[samples["control"] == control]
    means = null.groupby(_PAIR, sort=False)[column].mean()
    gaps = (own.reindex(means.index) - means).dropna()
    keys = ["anchor", *_ROW, "layer"]
    first_draw = null[null["draw"] == 0].set_index(_PAIR)[column]
    first = (own.reindex(first_draw.index) - first_draw).dropna()
    return (
        gaps.groupby(keys, sort=False).mean(),
        first.groupby(keys, sort=False).first(),
    )


def _donor_minus_null(samples: pd.DataFrame, fixed: Mapping[Key, set[int]]) -> list[_Curve]:
    """Return the change of P of the donor's answer minus that of ``norm_matched``."""
    is_known = samples["donor_change"].notna()
    if not (is_known & (samples["control"] == NORM_MATCHED)).any():
        return []
    one_null = samples[is_known & samples["control"].isin(("none", NORM_MATCHED))]
    return _minus_nulls(one_null, fixed, "donor_change", DONOR_LESS_NULL)


def _without_null(
    samples: pd.DataFrame, fixed: Mapping[Key, set[int]], column: str, quantity: str
) -> list[_Curve]:
    own = samples[(samples["control"] == "none") & samples[column].notna()]
    curves: list[_Curve] = []
    for anchor, table in _by_anchor(_row_means(own, column, "none")).items():
        excluded = frozenset(fixed[anchor, "none"])
        curves.append(
            _Curve(
                quantity=quantity, control="none", anchor=anchor, values=table, excluded=excluded
            )
        )
    return curves


def _between_anchors(
    result: SweepResult, samples: pd.DataFrame, fixed: Mapping[Key, set[int]]
) -> list[_Curve]:
    means = _by_anchor(_row_means(samples, "effect", "none"))
    # Other anchors have no reachable cell.
    anchors = [anchor for anchor in result.anchors if (anchor, "none") in fixed]
    curves: list[_Curve] = []
    for a, b in combinations(anchors, 2):
        excluded = frozenset(fixed[a, "none"] | fixed[b, "none"])
        curves.append(
            _Curve(
                quantity=ANCHOR_DIFFERENCE,
                control="none",
                anchor=f"{a} - {b}",
                values=means[a] - means[b],
                excluded=excluded,
            )
        )
    return curves


def _row_means(samples: pd.DataFrame, column: str, control: str) -> pd.Series:
    """Return a column of each row under a control, averaged over donors and draws."""
    own = samples[samples["control"] == control]
    return own.groupby(["anchor", *_ROW, "layer"], sort=False)[column].mean()


def _by_anchor(values: pd.Series) -> dict[str, pd.DataFrame]:
    """Return anchor -> values, [row layer]."""
    tables: dict[str, pd.DataFrame] = {}
    for anchor, one in values.groupby("anchor", sort=False):
        tables[str(anchor)] = one.droplevel("anchor").unstack("layer")
    return tables


def _joint(
    result: SweepResult,
    clusters: Clusters,
    curves: Sequence[_Curve],
    *,
    limit: float = 100,
    rate: bool = False,
    span: float = 0.0,
) -> pd.DataFrame:
    """Return the contrasts of several curves with one simultaneous band.

    ``span``: by how much a value may differ where the values move in steps.
    """
    if not curves:
        return pd.DataFrame()
    layers = list(result.layers)
    config = result.record["config"]
    whole = pd.concat([one.values.reindex(columns=layers) for one in curves], axis=1)
    values = whole.to_numpy(dtype=np.float64)
    ids = whole.index.get_level_values("question_id")
    draws = Resamples.of(
        ids, clusters=clusters.of(ids), n_resamples=config["n_resamples"], seed=config["seed"]
    )
    estimate = draws.means(values, ~np.isnan(values))
    used = np.array([layer not in one.excluded for one, layer in product(curves, layers)])
    # What holds by construction is certain.
    steps = np.full(len(used), RATE) if rate else np.where(used, span, 0.0)
    every = band(estimate, limit=limit, span=steps)
    joint = band(estimate.at(used), limit=limit, span=steps[used])
    low, high, n_effective = np.full((3, len(used)), np.nan)
    low[used] = joint.sim_low
    high[used] = joint.sim_high
    n_effective[used] = joint.n_effective
    whole_band = replace(every, sim_low=low, sim_high=high, n_effective=n_effective)
    if rate:
        whole_band = within_share(whole_band)
    p = _p_values(curves, layers, clusters, config["seed"])
    frames: list[pd.DataFrame] = []
    parts = whole_band.parts([len(layers)] * len(curves))
    for number, (one, part) in enumerate(zip(curves, parts, strict=True)):
        frame = band_frame(layers, one.quantity, one.control, part)
        frames.append(frame.assign(anchor=one.anchor, p=p[number]))
    return pd.concat(frames, ignore_index=True)


def _p_values(
    curves: Sequence[_Curve], layers: Sequence[int], clusters: Clusters, seed: int
) -> np.ndarray:
    """Return the p-values of each curve, adjusted over anchors and layers of its null, [curve
    layer]; NaN where a layer is excluded.
    """
    p = np.full((len(curves), len(layers)), np.nan)
    for control in dict.fromkeys((one.quantity, one.control) for one in curves):
        numbers: list[int] = []
        for i, one in enumerate(curves):
            is_own = (one.quantity, one.control) == control
            if is_own and one.flipped is not None:
                numbers.append(i)
        if not numbers:
            continue
        tables: list[pd.DataFrame] = []
        for i in numbers:
            flipped = curves[i].flipped
            assert flipped is not None  # selected above
            own = flipped.reindex(columns=list(layers)).copy()
            own[list(curves[i].excluded.intersection(layers))] = np.nan
            tables.append(own)
        whole = pd.concat(tables, axis=1)
        ids = whole.index.get_level_values("question_id")
        found = sign_flip_p(whole.to_numpy(dtype=np.float64), clusters.of(ids), seed=seed)
        p[numbers] = found.reshape(len(numbers), len(layers))
    return p
