"""What a swap sweep shows: each anchor less its null, anchors against each other, and words (METHOD 4 and 6).

Every difference is taken within a row and averaged over rows; whole questions are drawn again. ``delta_p_minus_null`` of all anchors and
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

from anchorlens.results.estimates import FEW, LayerEstimate, estimates_by_layer, format_layers, join_with_and
from anchorlens.results.findings import OPEN, STANDS, Finding, Findings, empty_findings, text_warning
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import CONTRAST_COLUMNS
from anchorlens.statistics.bands import band
from anchorlens.statistics.pathways import band_frame
from anchorlens.statistics.resamples import Resamples

NULL = "null"
LESS_NULL, DIFFERENCE = "delta_p_minus_null", "anchor_difference"
NULL_MOVES = "null_moves"
"""Status of layers at which the null moves P further than the swap."""
_ROW = ["example_id", "question_id"]
# Measured (benchmarks/null_rates_swap.py, 60 points, 40 questions): a sup-t band of 95 % holds in 94 % of null sweeps, since the
# sample's own correlations are taken for the true ones; one of 96 % holds in 95 %.
_JOINT_LEVEL = 0.96
# So many anchors are named one by one.
_APART = 3
_COLUMNS = ("anchor", "most, less null", "layer", "beyond null", "null more")
_P = {
    "probability": "P of the answer", "confidence": "confidence in the clean prediction", "true_label": "P of the true label",
}  # fmt: skip
_READERS = {"probe": "the probe", "p_true": "P(True)"}


class _Side(NamedTuple):
    """Layers off the null by anchor, at which the swap (``stands``) or its null (``null_moves``) raises (1) or lowers (-1) P."""

    status: str
    sign: int
    layers: dict[str, list[int]]


def swap_contrasts(result: SweepResult) -> pd.DataFrame:
    """``delta_p_minus_null`` of each anchor (control ``null``) and ``anchor_difference`` of each two (``anchor``: ``A - B``), by layer.

    Trivial layers have a value and a pointwise interval, but no part in the simultaneous band.
    """
    samples, curves = result.samples(all_columns=True), result.curves(all_columns=True)
    trivial = {
        str(a): set(one.loc[one["by_construction"].astype(bool), "layer"]) for a, one in curves.groupby("anchor", sort=False)
    }
    less = _less_null(samples)
    there = [anchor for anchor in result.anchors if anchor in trivial]  # the others have no cell that is reached
    pairs = {f"{a} - {b}": trivial[a] | trivial[b] for a, b in combinations(there, 2)}
    between = _between(samples, there)
    frames = [_joint(result, less, trivial, LESS_NULL, NULL), _joint(result, between, pairs, DIFFERENCE, "none")]
    whole = [frame for frame in frames if len(frame)]
    return pd.concat(whole, ignore_index=True) if whole else pd.DataFrame(columns=list(CONTRAST_COLUMNS))


def _less_null(samples: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Anchor -> curve less null, [row layer]; only donors that measured the null too are compared with it."""
    cell = ["anchor", *_ROW, "donor_id", "layer"]
    sides = samples.pivot_table(index=cell, columns="control", values="effect", sort=False)
    if NULL not in sides.columns:
        return {}
    gaps = (sides["none"] - sides[NULL]).dropna().groupby(["anchor", *_ROW, "layer"], sort=False).mean()
    return {str(anchor): one.droplevel("anchor").unstack("layer") for anchor, one in gaps.groupby("anchor", sort=False)}


def _between(samples: pd.DataFrame, anchors: Sequence[str]) -> dict[str, pd.DataFrame]:
    """``A - B`` -> the one's curve less the other's, [row layer]."""
    own = samples[samples["control"] == "none"].groupby(["anchor", *_ROW, "layer"], sort=False)["effect"].mean()
    wide = {str(anchor): one.droplevel("anchor").unstack("layer") for anchor, one in own.groupby("anchor", sort=False)}
    return {f"{a} - {b}": wide[a] - wide[b] for a, b in combinations(anchors, 2)}


def _joint(
    result: SweepResult, tables: Mapping[str, pd.DataFrame], trivial: Mapping[str, set[int]], quantity: str, control: str
) -> pd.DataFrame:
    """Return several curves over the same rows with one simultaneous band."""
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
    low, high = np.full((2, len(value)), np.nan)
    low[told], high[told] = joint.sim_low, joint.sim_high
    parts = replace(every, sim_low=low, sim_high=high).parts([len(layers)] * len(tables))
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


def _facts(result: SweepResult) -> dict[str, dict[int, LayerEstimate]]:
    """Anchor -> layer -> curve less null, where it takes part in the band over all anchors and layers."""
    contrasts, found = result.contrasts(all_columns=True), dict[str, dict[int, LayerEstimate]]()
    for anchor in result.anchors:
        along = estimates_by_layer(contrasts[contrasts["anchor"] == anchor], LESS_NULL, NULL)
        found[anchor] = {layer: fact for layer, fact in along.items() if not isnan(fact.sim_low)}
    return {anchor: along for anchor, along in found.items() if along}


def _off(fact: LayerEstimate) -> bool:
    return any(fact.beyond(sign, everywhere=True) for sign in (-1, 1))


def swap_findings(result: SweepResult) -> Findings:
    """Return a statement for each anchor and side, a table with an anchor a line, and what is not shown."""
    facts = _facts(result)
    warnings, silent = text_warning(result.record.get("probe", {})), _nothing(result, facts)
    if silent:
        return empty_findings(silent, warnings)
    named, sides = layers_off_null(result), _sides(result, facts)
    statements: list[Finding] = []
    for anchor, along in facts.items():
        found = [(side.status, side.layers[anchor]) for side in sides if anchor in side.layers]
        for status, layers in found or [(OPEN, [_largest(along)])]:
            fact = _over_all(along[_largest({k: along[k] for k in layers})])
            statements.append(Finding.of(LESS_NULL, status, fact, layers=tuple(layers), anchor=anchor, control=NULL))
    headline, more = _headline(_P[result.record["config"]["delta_kind"]], sides, len(named))
    notes = tuple(part for part in (more, _open(facts, named)) if part)
    return Findings(tuple(statements), headline, warnings, _table(facts, sides), _COLUMNS, notes)


def _nothing(result: SweepResult, facts: Mapping[str, Mapping[int, LayerEstimate]]) -> str:
    """Why nothing is claimed; empty where something can be."""
    config = result.record["config"]
    reader = _READERS.get(config["readout"])
    if reader and config.get("direction") != "denoising":  # there P before is that of the corrupt input
        auc, low, high = result.curves(all_columns=True)[["auc", "auc_low", "auc_high"]].iloc[0]
        if isnan(auc):
            return f"Nothing is claimed: the measured rows lack true or false answers, so {reader} has no AUC."
        if not low > 0.5:
            return f"Nothing is claimed: no signal of {reader} is shown, AUC {auc:.2f} [{low:.2f}, {high:.2f}]."
    if config["delta_kind"] == "signed":
        return "Nothing is claimed of delta_kind='signed': true and false answers move against each other."
    if not config["n_null_donors"]:
        return "Nothing is claimed: no null was measured, so it is not known what the same streams do elsewhere."
    if not facts:
        return "Nothing is claimed: every measured layer is trivial by construction."
    n = max((fact.n for along in facts.values() for fact in along.values()), default=0)
    if n < FEW:
        return f"Nothing is claimed: curve and null can be compared in {n} questions, and {FEW} are needed."
    return ""


def _sides(result: SweepResult, facts: Mapping[str, Mapping[int, LayerEstimate]]) -> tuple[_Side, ...]:
    """Return the layers off the null, apart by which of the two moves P further, and by the side to which it moves P.

    A layer is the swap's where the curve itself is shown to move to the side on which it lies off its null; else the null's: where
    P falls by 2 points and by 25 under the null, less null is +23; P has not risen, and the null has lowered it.
    """
    ends = result.curves(all_columns=True).set_index(["anchor", "layer"])[["sim_low", "sim_high"]]
    swap, null = ((_Side(status, -1, {}), _Side(status, 1, {})) for status in (STANDS, NULL_MOVES))
    for anchor, layers in layers_off_null(result).items():
        for k in layers:
            is_up = facts[anchor][k].value > 0
            low, high = ends.loc[(anchor, k)]
            side = swap[is_up] if (low > 0 if is_up else high < 0) else null[not is_up]
            side.layers.setdefault(anchor, []).append(k)
    return *swap, *null


def _headline(what: str, sides: Sequence[_Side], n_anchors: int) -> tuple[str, str]:
    """Return where the swap moves P further than its null, and where the null moves it as far or further."""

    def join(status: str, verbs: tuple[str, str], forms: Sequence[str]) -> str:
        found = [
            (verbs[side.sign > 0], _at(side.layers, n_anchors)) for side in sides if side.status == status and side.layers
        ]
        return " and ".join(f"{verb} {forms[min(i, 1)]} at {where}" for i, (verb, where) in enumerate(found))

    own = join(STANDS, ("lowers", "raises"), (what, "it"))
    null = join(NULL_MOVES, ("lower", "raise"), ("it more", "it more"))
    return (
        f"Beyond its null, the swap {own}."
        if own
        else f"That a swap moves {what} beyond its null is shown at no anchor and layer.",
        f"The same states at other tokens (the null) {null}: no effect of the anchor is shown there." if null else "",
    )


def _at(layers_of: Mapping[str, list[int]], n_anchors: int) -> str:
    """``question (layers 3-8) and pre_answer (layer 12)``."""
    if len(layers_of) > _APART:
        return f"{len(layers_of)} of {n_anchors} anchors"
    return join_with_and([f"{anchor} ({_layers(format_layers(layers))})" for anchor, layers in layers_of.items()])


def _layers(told: str) -> str:
    """``layer 12``; ``layers 3-8``; ``9 layers of 2-27``."""
    return told.replace(" of ", " layers of ") if " of " in told else f"layer{'' if told.isdecimal() else 's'} {told}"


def _table(facts: Mapping[str, Mapping[int, LayerEstimate]], sides: Sequence[_Side]) -> tuple[tuple[str, ...], ...]:
    """Return each anchor's largest difference and its layers off the null; anchors with such layers first."""
    shown = {
        status: {a: sorted(k for side in sides if side.status == status for k in side.layers.get(a, [])) for a in facts}
        for status in (STANDS, NULL_MOVES)
    }
    rows: list[tuple[str, ...]] = []
    for anchor in sorted(facts, key=lambda one: not any(layers[one] for layers in shown.values())):
        most = _largest(facts[anchor])
        layers = (format_layers(of[anchor]) for of in shown.values())
        rows.append((anchor, _over_all(facts[anchor][most]).to_text(), str(most), *layers))
    if len(rows) > _APART:
        rows[_APART:] = [(f"and {len(rows) - _APART} more: contrasts()", *[""] * (len(_COLUMNS) - 1))]
    return tuple(rows)


def _largest(along: Mapping[int, LayerEstimate]) -> int:
    return max(along, key=lambda k: abs(along[k].value))


def _over_all(fact: LayerEstimate) -> LayerEstimate:
    """The fact with the band over all anchors and layers in place of its interval."""
    return fact._replace(low=fact.sim_low, high=fact.sim_high)


def _open(facts: Mapping[str, Mapping[int, LayerEstimate]], named: Mapping[str, list[int]]) -> str:
    """Return what the band over all anchors and layers leaves open where nothing is named."""
    left = {anchor: [fact for k, fact in along.items() if k not in named[anchor]] for anchor, along in facts.items()}
    if len(left) > _APART:
        left = {"": [fact for rest in left.values() for fact in rest]}
    spans = [
        f"{anchor} {rest[0]._replace(low=min(f.sim_low for f in rest), high=max(f.sim_high for f in rest)).range_text()}".strip()
        for anchor, rest in left.items() if rest
    ]  # fmt: skip
    return f"Elsewhere not shown; the data allow {', '.join(spans)} (simultaneous bands)." if spans else ""
