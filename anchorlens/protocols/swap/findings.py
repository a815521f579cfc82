"""What a swap sweep shows: each anchor less its null, anchors against each other, and words (METHOD 4 and 6).

Every difference is taken within a row and averaged over rows; whole questions are drawn again. ``less_null`` of all anchors and
layers of a sweep shares one simultaneous band, so a layer may be named by it whichever anchor it belongs to.
``anchor_difference`` has its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import isnan
from typing import NamedTuple

import numpy as np
import pandas as pd

from anchorlens.protocols.swap.pairing import NULL
from anchorlens.results.facts import FEW, Fact, aligned, facts_along, layers_told, listed_and
from anchorlens.results.sweep import SweepResult
from anchorlens.results.verdict import beware
from anchorlens.runs.schema import EFFECT_COLUMNS
from anchorlens.statistics.bands import band
from anchorlens.statistics.pathways import band_frame
from anchorlens.statistics.resamples import Resamples

LESS_NULL, DIFFERENCE = "less_null", "anchor_difference"
_ROW = ["example_id", "question_id"]
# Measured (benchmarks/null_rates_swap.py, 60 points, 40 questions): a sup-t band of 95 % holds in 94 % of null sweeps, since the
# sample's own correlations are taken for the true ones; one of 96 % holds in 95 %.
_JOINT_LEVEL = 0.96
# So many anchors are told one by one.
_APART = 3
_MOST_ROWS, _WIDE = 5, 5  # rows of the table; with so many columns it has fewer
_P = {
    "probability": "P of the answer", "confidence": "confidence in the clean prediction", "true_label": "P of the true label",
}  # fmt: skip
_READERS = {"probe": "the probe", "p_true": "P(True)"}


def swap_contrasts(result: SweepResult) -> pd.DataFrame:
    """``less_null`` of each anchor (control ``null``) and ``anchor_difference`` of each two (``anchor``: ``A - B``), by layer.

    Trivial layers have a value and a pointwise interval, but no part in the simultaneous band.
    """
    samples, curves = result.samples(), result.curves()
    trivial = {str(a): set(one.loc[one["trivial"].astype(bool), "layer"]) for a, one in curves.groupby("anchor", sort=False)}
    less = _less_null(samples)
    there = [anchor for anchor in result.anchors if anchor in trivial]  # the others have no cell that is reached
    pairs = {f"{a} - {b}": trivial[a] | trivial[b] for a, b in combinations(there, 2)}
    between = _between(samples, there)
    frames = [_joint(result, less, trivial, LESS_NULL, NULL), _joint(result, between, pairs, DIFFERENCE, "none")]
    whole = [frame for frame in frames if len(frame)]
    return pd.concat(whole, ignore_index=True) if whole else pd.DataFrame(columns=list(EFFECT_COLUMNS))


def _less_null(samples: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Anchor -> curve less null, [row layer]; only donors that measured the null too are compared with it."""
    cell = ["anchor", *_ROW, "donor_id", "layer"]
    sides = samples.pivot_table(index=cell, columns="control", values="delta_p", sort=False)
    if NULL not in sides.columns:
        return {}
    gaps = (sides["none"] - sides[NULL]).dropna().groupby(["anchor", *_ROW, "layer"], sort=False).mean()
    return {str(anchor): one.droplevel("anchor").unstack("layer") for anchor, one in gaps.groupby("anchor", sort=False)}


def _between(samples: pd.DataFrame, anchors: Sequence[str]) -> dict[str, pd.DataFrame]:
    """``A - B`` -> the one's curve less the other's, [row layer]."""
    own = samples[samples["control"] == "none"].groupby(["anchor", *_ROW, "layer"], sort=False)["delta_p"].mean()
    wide = {str(anchor): one.droplevel("anchor").unstack("layer") for anchor, one in own.groupby("anchor", sort=False)}
    return {f"{a} - {b}": wide[a] - wide[b] for a, b in combinations(anchors, 2)}


def _joint(
    result: SweepResult, tables: Mapping[str, pd.DataFrame], trivial: Mapping[str, set[int]], quantity: str, control: str
) -> pd.DataFrame:
    """Several curves over the same rows with one simultaneous band."""
    if not tables:
        return pd.DataFrame()
    layers, config = list(result.layers), result.record["config"]
    whole = pd.concat([table.reindex(columns=layers) for table in tables.values()], axis=1)
    values = whole.to_numpy(dtype=np.float64)
    ids = whole.index.get_level_values("question_id")
    draws = Resamples.of(ids, n_resamples=config["n_resamples"], seed=config["seed"])
    value, many, n = draws.means(values, ~np.isnan(values))
    told = np.array([layer not in trivial[name] for name in tables for layer in layers])
    every, joint = band(value, many, n), band(value[told], many[:, told], n[told], level=_JOINT_LEVEL)
    sides = {"sim_low": joint.sim_low, "sim_high": joint.sim_high}
    both = {name: np.full(len(value), np.nan) for name in sides}
    for name, side in sides.items():
        both[name][told] = side
    parts = replace(every, **both).parts([len(layers)] * len(tables))
    frames = [band_frame(layers, quantity, control, one).assign(anchor=name) for name, one in zip(tables, parts, strict=True)]
    return pd.concat(frames, ignore_index=True)


def layers_off_null(result: SweepResult) -> dict[str, list[int]]:
    """Anchor -> layers at which its curve lies off its null: by the band over all anchors and layers, and beyond rounding.

    Trivial layers, and layers with fewer than ten questions, are never among them.
    """
    floor = 0.0 if isnan(result.noise_floor) else result.noise_floor
    return {
        anchor: [layer for layer, fact in along.items() if fact.n >= FEW and abs(fact.value) > floor and _off(fact)]
        for anchor, along in _facts(result).items()
    }


def _facts(result: SweepResult) -> dict[str, dict[int, Fact]]:
    """Anchor -> layer -> curve less null, where it takes part in the band over all anchors and layers."""
    effects, found = result.effects(), dict[str, dict[int, Fact]]()
    for anchor in result.anchors:
        along = facts_along(effects[effects["anchor"] == anchor], LESS_NULL, NULL)
        found[anchor] = {layer: fact for layer, fact in along.items() if not isnan(fact.sim_low)}
    return {anchor: along for anchor, along in found.items() if along}


def _off(fact: Fact) -> bool:
    return any(fact.beyond(sign, everywhere=True) for sign in (-1, 1))


def swap_words(result: SweepResult) -> str:
    """A sentence or two, a table with an anchor a line, and what the data allow where nothing is shown."""
    facts = _facts(result)
    leak, silent = beware(result.record.get("probe", {}), {}), _nothing(result, facts)
    if silent:
        return "\n".join(part for part in (leak, silent) if part)
    named = layers_off_null(result)
    sides = _sides(result, facts, named)
    finding = _finding(_P[result.record["config"]["delta_kind"]], sides, len(named))
    parts = [leak, finding, _table(facts, named, sides), _open(facts, named)]
    return "\n".join(part for part in parts if part)


def _nothing(result: SweepResult, facts: Mapping[str, Mapping[int, Fact]]) -> str:
    """Why nothing is claimed; empty where something can be."""
    config = result.record["config"]
    reader = _READERS.get(config["readout"])
    if reader and config.get("direction") != "denoising":  # there P before is that of the corrupt input
        auc, low, high = result.curves()[["auc", "auc_low", "auc_high"]].iloc[0]
        if isnan(auc):
            return f"Nothing is claimed: the measured rows lack true or false answers, so {reader} has no AUC."
        if not low > 0.5:
            return f"Nothing is claimed: no signal of {reader} is shown, AUC {auc:.2f} [{low:.2f}, {high:.2f}]."
    if config["delta_kind"] == "signed":
        return "Nothing is claimed of delta_kind='signed': true and false answers move against each other."
    if not config["null_donors"]:
        return "Nothing is claimed: no null was measured, so it is not known what the same streams do elsewhere."
    if not facts:
        return "Nothing is claimed: every measured layer is trivial by construction."
    n = max((fact.n for along in facts.values() for fact in along.values()), default=0)
    if n < FEW:
        return f"Nothing is claimed: curve and null can be compared in {n} questions, and {FEW} are needed."
    return ""


class _Sides(NamedTuple):
    """Layers off the null by anchor, apart by which of the two moves P further, and to which side (-1: it is lowered)."""

    swap: dict[int, dict[str, list[int]]]
    null: dict[int, dict[str, list[int]]]

    @property
    def in_words(self) -> bool:
        """Whether a sentence can name every anchor with its layers."""
        return all(len(of) <= _APART for side in self for of in side.values())


def _sides(result: SweepResult, facts: Mapping[str, Mapping[int, Fact]], named: Mapping[str, list[int]]) -> _Sides:
    """A layer is the swap's where the curve itself is shown to move to the side on which it lies off its null; else the null's.

    Where P falls by 2 points and by 25 under the null, less null is +23; P has not risen, and the null has lowered it.
    """
    ends = result.curves().set_index(["anchor", "layer"])[["sim_low", "sim_high"]]
    sides = _Sides({-1: {}, 1: {}}, {-1: {}, 1: {}})
    for anchor, layers in named.items():
        for k in layers:
            sign = 1 if facts[anchor][k].value > 0 else -1
            low, high = ends.loc[(anchor, k)]
            moved = low > 0 if sign > 0 else high < 0
            of = sides.swap[sign] if moved else sides.null[-sign]
            of.setdefault(anchor, []).append(k)
    return sides


def _finding(what: str, sides: _Sides, of: int) -> str:
    """Where the swap moves P further than its null, and where the null moves it as far or further."""

    def told(side: Mapping[int, Mapping[str, list[int]]], lowers: str, raises: str) -> list[tuple[str, str]]:
        return [(verb, _at(side[sign], of)) for verb, sign in ((lowers, -1), (raises, 1)) if side[sign]]

    own, others = told(sides.swap, "lowers", "raises"), told(sides.null, "lower", "raise")
    said = " and ".join(f"{verb} {'it' if i else what} at {where}" for i, (verb, where) in enumerate(own))
    first = (
        f"Beyond its null, the swap {said}"
        if own
        else f"That a swap moves {what} beyond its null is shown at no anchor and layer"
    )
    if not others:
        return f"{first}."
    said = " and ".join(f"{verb} it more at {where}" for verb, where in others)
    return f"{first}.\nThe same states at other tokens (the null) {said}: no effect of the anchor is shown there."


def _at(layers_of: Mapping[str, list[int]], of: int) -> str:
    """``question (layers 3-8) and answer_site (layer 12)``."""
    if len(layers_of) > _APART:
        return f"{len(layers_of)} of {of} anchors"
    return listed_and([f"{anchor} ({_layers(layers)})" for anchor, layers in layers_of.items()])


def _layers(layers: Sequence[int]) -> str:
    told = layers_told(layers)
    return told.replace(" of ", " layers of ") if " of " in told else f"layer{'' if len(layers) == 1 else 's'} {told}"


def _table(facts: Mapping[str, Mapping[int, Fact]], named: Mapping[str, list[int]], sides: _Sides) -> str:
    """The largest difference of each anchor; its layers too where the sentence does not have them."""
    rows: list[tuple[str, ...]] = [("anchor", "most, less null", "layer", *_layer_columns("", sides))]
    for anchor in sorted(named, key=lambda one: not named[one]):  # those with a layer first
        most = max(facts[anchor], key=lambda k, along=facts[anchor]: abs(along[k].value))
        rows.append((anchor, _over_all(facts[anchor][most]).said(), str(most), *_layer_columns(anchor, sides)))
    most_rows = _MOST_ROWS if len(rows[0]) < _WIDE else _APART
    if len(rows) > 1 + most_rows:
        rest = f"and {len(rows) - 1 - most_rows} more: effects()"
        rows[1 + most_rows :] = [(rest, *[""] * (len(rows[0]) - 1))]
    return aligned(rows)


def _layer_columns(anchor: str, sides: _Sides) -> list[str]:
    """Layers beyond the null, and those at which the null does more, where there are any; without an anchor the heads."""
    if sides.in_words:
        return []
    shown = [("beyond null", sides.swap), ("null more", sides.null)]
    shown = [(head, side) for head, side in shown if any(side.values())]
    return [
        layers_told(sorted(k for of in side.values() for k in of.get(anchor, []))) if anchor else head for head, side in shown
    ]


def _over_all(fact: Fact) -> Fact:
    """The fact with the band over all anchors and layers in place of its interval."""
    return fact._replace(low=fact.sim_low, high=fact.sim_high)


def _open(facts: Mapping[str, Mapping[int, Fact]], named: Mapping[str, list[int]]) -> str:
    """What the band over all anchors and layers leaves open where nothing is named."""
    left = {anchor: [fact for k, fact in facts[anchor].items() if k not in layers] for anchor, layers in named.items()}
    left = {anchor: rest for anchor, rest in left.items() if rest}
    if not left:
        return ""
    if len(left) > _APART:
        left = {"": [fact for rest in left.values() for fact in rest]}
    spans = [f"{anchor} {_span(rest)}".strip() for anchor, rest in left.items()]
    return f"Elsewhere not shown; the data allow {', '.join(spans)} (simultaneous bands)."


def _span(rest: list[Fact]) -> str:
    low, high = min(fact.sim_low for fact in rest), max(fact.sim_high for fact in rest)
    return rest[0]._replace(low=low, high=high).allows()


__all__ = ["DIFFERENCE", "LESS_NULL", "layers_off_null", "swap_contrasts", "swap_words"]
