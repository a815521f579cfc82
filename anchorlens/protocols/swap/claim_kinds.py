"""Claims that a swap can make, and the estimates that they are made of (METHOD 4)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from anchorlens.constants import NULL_CONTROLS
from anchorlens.protocols.swap.anchor_contrasts import (
    DONOR_CHANGE,
    DONOR_LESS_NULL,
    INTERCHANGE,
    LESS_NULL,
    LOGIT_CHANGE,
    LOGIT_LESS_NULL,
    contrast_clusters,
)
from anchorlens.results.estimates import LayerEstimate, estimates_by_layer
from anchorlens.results.findings import BEYOND_CHANGE, BEYOND_POSITIONS, DONORS_ANSWER, STANDS
from anchorlens.results.sweep import SweepResult
from anchorlens.statistics.bands import band
from anchorlens.statistics.clusters import Clusters, intraclass_correlation
from anchorlens.statistics.resamples import Resamples

SAME_ROLE = "same_role"
NORM_MATCHED = "norm_matched"
DISPLACED = "displaced"
DONOR = "donor"
_SMALLEST_SHARE = 2.0
"""Smallest claimable change of P, in points for a P before of 1."""
_SMALLEST = 0.05
"""Smallest claimable change in the unit of the metric."""
_AROUND_TEN = range(8, 13)
"""Numbers of clusters at which intervals of both kinds are printed."""
_METRICS = {"prob": LESS_NULL, "logit_diff": LOGIT_LESS_NULL}
_P = {
    "probability": "P of the answer",
    "confidence": "confidence in the clean prediction",
    "true_label": "P of the true label",
}
Key: TypeAlias = tuple[str, str]
"""Anchor and name of a claim."""
Facts: TypeAlias = Mapping[Key, Mapping[int, LayerEstimate]]
"""Curve minus null by layer, for the layers in the simultaneous band."""
Statuses: TypeAlias = Mapping[Key, Mapping[int, str]]


@dataclass(frozen=True, kw_only=True)
class ClaimKind:
    """Claim of a curve that exceeds one null.

    Attributes:
        status: Status of the claim.
        lead: Start of its sentence.
        than: The null in words.
        control: Value of the column ``control``.
        sign: Sign of the expected difference; 0 if either is one.
    """

    status: str
    lead: str
    than: str
    control: str
    sign: int = 0


_TURNED = "a change of the same norm and angle in another direction"
CLAIM_KINDS = {
    SAME_ROLE: ClaimKind(
        status=BEYOND_POSITIONS,
        lead="Beyond other positions",
        than="a swap of other positions",
        control=NULL_CONTROLS[SAME_ROLE],
    ),
    NORM_MATCHED: ClaimKind(
        status=BEYOND_CHANGE,
        lead="Beyond a matched change",
        than=_TURNED,
        control=NULL_CONTROLS[NORM_MATCHED],
    ),
    DISPLACED: ClaimKind(
        status=STANDS,
        lead="Beyond displaced",
        than="a swap of the same streams to other positions",
        control=NULL_CONTROLS[DISPLACED],
    ),
    DONOR: ClaimKind(
        status=DONORS_ANSWER,
        lead="Donor's answer",
        than=_TURNED,
        control=NULL_CONTROLS[NORM_MATCHED],
        sign=1,
    ),
}
"""Name -> claim, in the order in which they are told."""


@dataclass(frozen=True, kw_only=True)
class SweepFacts:
    """Estimates of a swap sweep.

    Attributes:
        config: Configuration of the sweep.
        metric: Metric of the claims: ``prob`` or ``logit_diff``.
        noise_floor: Noise floor of ΔP in points; 0 if unknown.
        curves: Curves with their controls.
        contrasts: Contrasts with all columns.
        clusters: Clusters of the contrasts.
        facts: Curve minus null, in the metric of the claims.
        other_facts: The same in the other metric; empty if it was not measured.
        p_values: P-values of ``facts``.
        correlations: Intraclass correlation of curve minus null at its largest layer.
        both_bands: Pointwise intervals of the largest difference, drawn by question and by
            cluster, where the data name about ten clusters; empty elsewhere.
        counts: Counts of the record.
    """

    config: Mapping[str, Any]
    metric: str
    noise_floor: float
    curves: pd.DataFrame
    contrasts: pd.DataFrame
    clusters: Clusters
    facts: Facts
    other_facts: Facts
    p_values: Mapping[Key, Mapping[int, float]]
    correlations: Mapping[Key, float]
    both_bands: str
    counts: Mapping[str, Any]

    @property
    def what(self) -> str:
        """Quantity that is claimed to change, in words."""
        return "the logit difference" if self.metric == "logit_diff" else _P[self.kind_of_delta]

    @property
    def kind_of_delta(self) -> str:
        """Kind of ΔP."""
        return str(self.config["delta_kind"])

    def quantity(self, kind: ClaimKind, *, is_other: bool = False) -> str:
        """Return the contrast of a claim, in the metric of the claims or in the other one."""
        if kind.status == DONORS_ANSWER:
            return DONOR_LESS_NULL
        metric = _other(self.metric) if is_other else self.metric
        return _METRICS[metric]

    def effect(
        self, kind: ClaimKind, anchor: str, layer: int, *, is_other: bool = False
    ) -> float | None:
        """Return the effect of the swap itself; None if it is unknown."""
        if kind.status == DONORS_ANSWER:
            own = self._estimates(anchor, DONOR_CHANGE)
            return own[layer].value if layer in own else None
        metric = _other(self.metric) if is_other else self.metric
        if metric == "logit_diff":
            own = self._estimates(anchor, LOGIT_CHANGE)
            return own[layer].value if layer in own else None
        return self._swapped[anchor, layer][0]

    def value_before(self, anchor: str, layer: int) -> float:
        """Return P before the swap."""
        return self._swapped[anchor, layer][1]

    def interchange(self, anchor: str) -> Mapping[int, LayerEstimate]:
        """Return the interchange accuracy by layer, in percent."""
        return self._estimates(anchor, INTERCHANGE)

    def _estimates(self, anchor: str, quantity: str) -> Mapping[int, LayerEstimate]:
        return self._of_the_swap.get((anchor, quantity), {})

    @cached_property
    def _swapped(self) -> dict[tuple[str, int], tuple[float, float]]:
        """Anchor and layer -> effect and P before of the swap."""
        own = self.curves[self.curves["control"] == "none"]
        rows = own[["anchor", "layer", "effect", "value_before"]].itertuples(index=False)
        swapped: dict[tuple[str, int], tuple[float, float]] = {}
        for anchor, layer, effect, before in rows:
            cell = (str(anchor), int(layer))
            swapped[cell] = (float(effect), float(before))
        return swapped

    @cached_property
    def _of_the_swap(self) -> dict[tuple[str, str], Mapping[int, LayerEstimate]]:
        """Anchor and quantity -> estimates of the swap itself, without those of its nulls."""
        own = self.contrasts[self.contrasts["control"] == "none"]
        groups = own.groupby(["anchor", "quantity"], observed=True)
        found: dict[tuple[str, str], Mapping[int, LayerEstimate]] = {}
        for (anchor, quantity), frame in groups:
            key = (str(anchor), str(quantity))
            found[key] = estimates_by_layer(frame, str(quantity), "none")
        return found


def collect_facts(result: SweepResult) -> SweepFacts:
    """Collect the estimates of a sweep."""
    contrasts = result.contrasts(all_columns=True)
    config = result.record["config"]
    metric = str(config.get("metric", "prob"))
    samples = result.samples(all_columns=True)
    facts, p_values = _facts_of(result, contrasts, metric)
    other_facts: Facts = {}
    if (contrasts["quantity"] == LOGIT_LESS_NULL).any():
        other_facts, _ = _facts_of(result, contrasts, _other(metric))
        other_facts = {key: along for key, along in other_facts.items() if key[1] != DONOR}
    floor = result.noise_floor
    clusters = contrast_clusters(samples)
    less = _largest_differences(samples, facts)
    return SweepFacts(
        config=config,
        metric=metric,
        noise_floor=0.0 if isnan(floor) else floor,
        curves=result.curves(controls=True, all_columns=True),
        contrasts=contrasts,
        clusters=clusters,
        facts=facts,
        other_facts=other_facts,
        p_values=p_values,
        correlations=_correlations(samples, less),
        both_bands=_both_bands(clusters, samples, less, config),
        counts=result.record.get("counts", {}),
    )


def _facts_of(
    result: SweepResult, contrasts: pd.DataFrame, metric: str
) -> tuple[Facts, dict[Key, dict[int, float]]]:
    facts: dict[Key, dict[int, LayerEstimate]] = {}
    p_values: dict[Key, dict[int, float]] = {}
    is_noising = result.record["config"].get("direction") != "denoising"
    for anchor in result.anchors:
        for name, kind in CLAIM_KINDS.items():
            quantity = DONOR_LESS_NULL if name == DONOR else _METRICS[metric]
            own = contrasts[
                (contrasts["anchor"] == anchor)
                & (contrasts["quantity"] == quantity)
                & (contrasts["control"] == kind.control)
            ]
            if own.empty or (name == DONOR and not is_noising):
                continue
            along = estimates_by_layer(own, quantity, kind.control)
            facts[anchor, name] = {k: fact for k, fact in along.items() if not isnan(fact.sim_low)}
            p = own["p"].astype("float64")
            p_values[anchor, name] = dict(zip(own["layer"].astype(int), p, strict=True))
    return facts, p_values


def _largest_differences(samples: pd.DataFrame, facts: Facts) -> dict[Key, pd.Series]:
    """Return ΔP minus a null of each question, at the layer of the largest mean."""
    found: dict[Key, pd.Series] = {}
    for (anchor, name), along in facts.items():
        if not along or name == DONOR:
            continue
        layer = max(along, key=lambda k: abs(along[k].value))
        here = samples[(samples["anchor"] == anchor) & (samples["layer"] == layer)]
        cells = here.pivot_table(
            index=["question_id", "donor_id"], columns="control", values="effect", observed=True
        )
        less = (cells["none"] - cells[CLAIM_KINDS[name].control]).dropna()
        found[anchor, name] = less.groupby("question_id").mean()
    return found


def _correlations(samples: pd.DataFrame, less: Mapping[Key, pd.Series]) -> dict[Key, float]:
    """Return the intraclass correlation of the largest differences."""
    named = _cluster_of_question(samples)
    if named.nunique() < 2:
        return {}
    found: dict[Key, float] = {}
    for key, values in less.items():
        clusters = named.reindex(values.index).to_numpy()
        found[key] = intraclass_correlation(values.to_numpy(dtype="float64"), clusters)
    return found


def _both_bands(
    clusters: Clusters,
    samples: pd.DataFrame,
    less: Mapping[Key, pd.Series],
    config: Mapping[str, Any],
) -> str:
    """Return the pointwise intervals of the largest difference by question and by cluster, where
    the data name about ten clusters.
    """
    if clusters.n_named not in _AROUND_TEN or not less:
        return ""
    (anchor, name), values = max(less.items(), key=lambda one: abs(one[1].mean()))
    named = _cluster_of_question(samples).reindex(values.index)
    texts: list[str] = []
    for unit, drawn in (("question", None), ("relation", named.to_numpy(dtype=str))):
        draws = Resamples.of(
            values.index, clusters=drawn, n_resamples=config["n_resamples"], seed=config["seed"]
        )
        table = values.to_numpy(dtype="float64")[:, None]
        made = band(draws.means(table, ~np.isnan(table)), limit=100)
        texts.append(f"[{made.low[0]:+.1f}, {made.high[0]:+.1f}] by {unit}")
    return (
        f"{anchor} minus {name}, largest mean {values.mean():+.1f}: pointwise 95 %"
        f" {' and '.join(texts)}."
    )


def _cluster_of_question(samples: pd.DataFrame) -> pd.Series:
    rows = samples.drop_duplicates("question_id").set_index("question_id")
    return rows["cluster"].fillna("")


def smallest_claimable(
    sweep: SweepFacts, kind: ClaimKind, anchor: str, layer: int, *, is_other: bool = False
) -> float:
    """Return the size that a difference has to exceed: the noise floor, 0.05 of the unit and, for P
    of the answer, 2 % of P before.
    """
    metric = _other(sweep.metric) if is_other else sweep.metric
    if metric == "logit_diff" and kind.status != DONORS_ANSWER:
        return _SMALLEST
    if kind.status == DONORS_ANSWER:
        return max(sweep.noise_floor, _SMALLEST)
    before = sweep.value_before(anchor, layer)
    return max(sweep.noise_floor, _SMALLEST, _SMALLEST_SHARE * before)


def kinds_of(keys: Iterable[Key]) -> list[str]:
    """Return the names of the measured claims, in the order in which they are told."""
    measured = {name for _, name in keys}
    return [name for name in CLAIM_KINDS if name in measured]


def by_anchor(facts: Facts, name: str) -> dict[str, Mapping[int, LayerEstimate]]:
    """Return anchor -> curve minus one null by layer."""
    return {anchor: along for (anchor, own), along in facts.items() if own == name}


def count_anchors(facts: Facts) -> int:
    """Return the number of anchors."""
    return len({anchor for anchor, _ in facts})


def _other(metric: str) -> str:
    return "prob" if metric == "logit_diff" else "logit_diff"
