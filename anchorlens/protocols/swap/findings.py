"""Contrasts and findings of a swap sweep: each anchor minus its null, and differences between anchors (METHOD 4 and 6).

Differences are taken within rows and averaged over rows; the bootstrap resamples questions. All anchors and layers of
``delta_p_minus_null`` share one simultaneous 95 % band, which selects the layers to name. ``anchor_difference`` has its own band.

A layer belongs to the swap if the band excludes 0 and the curve itself accounts for at least half of the difference; otherwise the
null moves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import isnan
from typing import NamedTuple

import numpy as np
import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM, NULL_CONTROLS
from anchorlens.results.estimates import LayerEstimate, estimates_by_layer, format_layers, join_with_and
from anchorlens.results.findings import NOT_DETECTED, NULL_MOVES, STANDS, Finding, Findings, empty_findings, text_warning
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import CONTRAST_COLUMNS
from anchorlens.statistics.bands import band
from anchorlens.statistics.pathways import band_frame
from anchorlens.statistics.resamples import Resamples

NULL = NULL_CONTROLS["displaced"]
"""Control that the verdict speaks of."""
LESS_NULL, DIFFERENCE = "delta_p_minus_null", "anchor_difference"
_ROW = ["example_id", "question_id"]
_LEAST_SHARE = 0.5
"""Smallest share of curve minus null that the curve itself accounts for where the swap is named."""
_NULL_TAKES = 0.5
"""Smallest share of P before that the null takes where the verdict says so."""
# Largest number of anchors that are listed by name.
_MOST_NAMED = 3
_COLUMNS = ("anchor", "delta_p_minus_null", "layer", "beyond null", "null larger")
_P = {
    "probability": "P of the answer", "confidence": "confidence in the clean prediction", "true_label": "P of the true label",
}  # fmt: skip
_READERS = {"probe": "the probe", "p_true": "P(True)"}


class _Side(NamedTuple):
    """Layers off the null, by anchor, with the same larger effect."""

    status: str  # STANDS if the swap has the larger effect, NULL_MOVES if the null has
    sign: int  # 1 if that effect raises P, -1 if it lowers P
    layers: dict[str, list[int]]


def swap_contrasts(result: SweepResult) -> pd.DataFrame:
    """Compute ``delta_p_minus_null`` of each anchor and ``anchor_difference`` of each pair (``anchor``: ``A - B``), by layer.

    Layers that hold by construction have a value and a pointwise interval, but are excluded from the simultaneous band.
    """
    samples, curves = result.samples(all_columns=True), result.curves(all_columns=True)
    excluded = {
        str(a): set(one.loc[one["by_construction"].astype(bool), "layer"]) for a, one in curves.groupby("anchor", sort=False)
    }
    anchors = [anchor for anchor in result.anchors if anchor in excluded]  # others have no reachable cell
    pairs = {f"{a} - {b}": excluded[a] | excluded[b] for a, b in combinations(anchors, 2)}
    between = _between(samples, anchors)
    frames = [_joint(result, differences, excluded, LESS_NULL, null) for null, differences in _minus_nulls(samples).items()]
    frames.append(_joint(result, between, pairs, DIFFERENCE, "none"))
    whole = [frame for frame in frames if len(frame)]
    return pd.concat(whole, ignore_index=True) if whole else pd.DataFrame(columns=list(CONTRAST_COLUMNS))


def _minus_nulls(samples: pd.DataFrame) -> dict[str, dict[str, pd.DataFrame]]:
    """Return control -> anchor -> ΔP minus that null, [row layer], over the donors that measured it; the default null first."""
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
    low, high = np.full((2, len(used)), np.nan)
    low[used], high[used] = joint.sim_low, joint.sim_high
    parts = replace(every, sim_low=low, sim_high=high).parts([len(layers)] * len(tables))
    frames = [band_frame(layers, quantity, control, one).assign(anchor=name) for name, one in zip(tables, parts, strict=True)]
    return pd.concat(frames, ignore_index=True)


def layers_off_null(result: SweepResult) -> dict[str, list[int]]:
    """Return anchor -> layers at which ΔP differs from its null by the simultaneous band and by more than the noise floor.

    Layers that hold by construction, and layers with too few questions, are excluded.
    """
    floor = 0.0 if isnan(result.noise_floor) else result.noise_floor
    return {
        anchor: [k for k, fact in along.items() if fact.n >= MIN_QUESTIONS_FOR_CLAIM and abs(fact.value) > floor and _off(fact)]
        for anchor, along in _facts(result).items()
    }


def _facts(result: SweepResult) -> dict[str, dict[int, LayerEstimate]]:
    """Return anchor -> layer -> ΔP minus null, for the layers in the simultaneous band."""
    contrasts, facts = result.contrasts(all_columns=True), dict[str, dict[int, LayerEstimate]]()
    for anchor in result.anchors:
        along = estimates_by_layer(contrasts[contrasts["anchor"] == anchor], LESS_NULL, NULL)
        facts[anchor] = {layer: fact for layer, fact in along.items() if not isnan(fact.sim_low)}
    return {anchor: along for anchor, along in facts.items() if along}


def _off(fact: LayerEstimate) -> bool:
    return any(fact.beyond(sign, everywhere=True) for sign in (-1, 1))


def swap_findings(result: SweepResult) -> Findings:
    """Return a statement for each anchor and direction, a table with a row per anchor, and intervals of undetected effects."""
    facts = _facts(result)
    warnings, reason = text_warning(result.record.get("probe", {})), _reason_for_no_claim(result, facts)
    if reason:
        return empty_findings(reason, warnings)
    named, sides = layers_off_null(result), _sides(result, facts)
    statements: list[Finding] = []
    for anchor, along in facts.items():
        shown = [(side.status, side.layers[anchor]) for side in sides if anchor in side.layers]
        for status, layers in shown or [(NOT_DETECTED, [_largest(along)])]:
            fact = _over_all(along[_largest({k: along[k] for k in layers})])
            statements.append(Finding.of(LESS_NULL, status, fact, layers=tuple(layers), anchor=anchor, control=NULL))
    headline, more = _headline(_P[result.record["config"]["delta_kind"]], sides, len(named))
    notes = tuple(part for part in (more, _null_takes(result, facts), _open(facts, named)) if part)
    return Findings(tuple(statements), headline, warnings, _table(facts, sides), _COLUMNS, notes)


def _reason_for_no_claim(result: SweepResult, facts: Mapping[str, Mapping[int, LayerEstimate]]) -> str:
    """Return the reason why nothing can be claimed; empty otherwise."""
    config = result.record["config"]
    reader = _READERS.get(config["readout"])
    if reader and config.get("direction") != "denoising":  # denoising starts from the corrupt input
        auc, low, high = result.curves(all_columns=True)[["auc", "auc_low", "auc_high"]].iloc[0]
        if isnan(auc):
            return f"Nothing is claimed: the measured rows lack true or false answers, so {reader} has no AUC."
        if not low > 0.5:
            return f"Nothing is claimed: no signal of {reader} was detected, AUC {auc:.2f} [{low:.2f}, {high:.2f}]."
    if config["delta_kind"] == "signed":
        return "Nothing is claimed for delta_kind='signed': effects on true and false answers cancel."
    if not config["n_null_donors"]:
        return "Nothing is claimed: no null was measured, so the effect of the same streams elsewhere is unknown."
    if "displaced" not in config.get("null", ["displaced"]):
        return "Nothing is claimed: the null 'displaced' was not measured; contrasts() has the others."
    if not facts:
        return "Nothing is claimed: every measured layer holds by construction."
    n = max((fact.n for along in facts.values() for fact in along.values()), default=0)
    if n < MIN_QUESTIONS_FOR_CLAIM:
        return f"Nothing is claimed: swap and null can be compared in {n} questions, but {MIN_QUESTIONS_FOR_CLAIM} are needed."
    return ""


def _sides(result: SweepResult, facts: Mapping[str, Mapping[int, LayerEstimate]]) -> tuple[_Side, ...]:
    """Return the layers off the null, grouped by the larger effect (swap or null) and its direction.

    A layer belongs to the swap if ΔP itself is at least half of the difference, else to the null: if P falls by 2 points under the
    swap and by 25 under the null, the contrast is +23 although the swap did not raise P.
    """
    effects = result.curves(all_columns=True).set_index(["anchor", "layer"])["effect"]
    swap, null = ((_Side(status, -1, {}), _Side(status, 1, {})) for status in (STANDS, NULL_MOVES))
    for anchor, layers in layers_off_null(result).items():
        for k in layers:
            difference = facts[anchor][k].value
            is_up = difference > 0
            side = swap[is_up] if effects.loc[(anchor, k)] / difference >= _LEAST_SHARE else null[not is_up]
            side.layers.setdefault(anchor, []).append(k)
    return *swap, *null


def _headline(what: str, sides: Sequence[_Side], n_anchors: int) -> tuple[str, str]:
    """Return sentences on the layers at which the swap changes P more than its null, and those at which the null does."""

    def join(status: str, verbs: tuple[str, str], forms: Sequence[str]) -> str:
        parts = [(verbs[side.sign > 0], _at(side.layers, n_anchors)) for side in sides if side.status == status and side.layers]
        return " and ".join(f"{verb} {forms[min(i, 1)]} at {where}" for i, (verb, where) in enumerate(parts))

    swap = join(STANDS, ("lowers", "raises"), (what, "it"))
    null = join(NULL_MOVES, ("lower", "raise"), ("it more", "it more"))
    return (
        f"Beyond its null, the swap {swap}."
        if swap
        else f"No effect of the swap on {what} beyond its null was detected at any anchor and layer.",
        f"The same states at other tokens (the null) {null}; no effect of the anchor was detected there." if null else "",
    )


def _null_takes(result: SweepResult, facts: Mapping[str, Mapping[int, LayerEstimate]]) -> str:
    """Return a sentence on the layers at which the null takes most of P, so that curve minus null cannot be large."""
    if result.record["config"].get("direction") == "denoising":  # P before is that of the corrupt input
        return ""
    curves = result.curves(controls=True, all_columns=True)
    null = curves[(curves["control"] == NULL) & (curves["effect"] <= -100 * _NULL_TAKES * curves["p_before"])]
    layers = {a: sorted(set(null.loc[null["anchor"] == a, "layer"]) & set(along)) for a, along in facts.items()}
    layers = {anchor: found for anchor, found in layers.items() if found}
    inside = null[[layer in layers.get(anchor, ()) for anchor, layer in zip(null["anchor"], null["layer"], strict=True)]]
    if not layers:
        return ""
    most = (-inside["effect"] / inside["p_before"]).max()
    what = _P[result.record["config"]["delta_kind"]]
    return f"The null itself takes up to {most:.0f} % of {what} at {_at(layers, len(facts))}."


def _at(layers_of: Mapping[str, list[int]], n_anchors: int) -> str:
    """Return text such as ``exact_question (layers 3-8) and pre_answer (layer 12)``."""
    if len(layers_of) > _MOST_NAMED:
        return f"{len(layers_of)} of {n_anchors} anchors"
    return join_with_and([f"{anchor} ({_layers(format_layers(layers))})" for anchor, layers in layers_of.items()])


def _layers(text: str) -> str:
    """Return text such as ``layer 12``, ``layers 3-8`` or ``9 layers of 2-27``."""
    return text.replace(" of ", " layers of ") if " of " in text else f"layer{'' if text.isdecimal() else 's'} {text}"


def _table(facts: Mapping[str, Mapping[int, LayerEstimate]], sides: Sequence[_Side]) -> tuple[tuple[str, ...], ...]:
    """Return the largest contrast of each anchor and its layers off the null; anchors with such layers first."""
    shown = {
        status: {a: sorted(k for side in sides if side.status == status for k in side.layers.get(a, [])) for a in facts}
        for status in (STANDS, NULL_MOVES)
    }
    rows: list[tuple[str, ...]] = []
    for anchor in sorted(facts, key=lambda one: not any(layers[one] for layers in shown.values())):
        most = _largest(facts[anchor])
        layers = (format_layers(of[anchor]) for of in shown.values())
        rows.append((anchor, _over_all(facts[anchor][most]).to_text(), str(most), *layers))
    if len(rows) > _MOST_NAMED:
        rows[_MOST_NAMED:] = [(f"and {len(rows) - _MOST_NAMED} more: contrasts()", *[""] * (len(_COLUMNS) - 1))]
    return tuple(rows)


def _largest(along: Mapping[int, LayerEstimate]) -> int:
    return max(along, key=lambda k: abs(along[k].value))


def _over_all(fact: LayerEstimate) -> LayerEstimate:
    """Return the fact with the simultaneous band in place of its interval."""
    return fact._replace(low=fact.sim_low, high=fact.sim_high)


def _open(facts: Mapping[str, Mapping[int, LayerEstimate]], named: Mapping[str, list[int]]) -> str:
    """Return a sentence with the simultaneous band of the layers at which no effect was detected."""
    left = {anchor: [fact for k, fact in along.items() if k not in named[anchor]] for anchor, along in facts.items()}
    if len(left) > _MOST_NAMED:
        left = {"": [fact for rest in left.values() for fact in rest]}
    spans = [
        f"{anchor} {rest[0]._replace(low=min(f.sim_low for f in rest), high=max(f.sim_high for f in rest)).interval()}".strip()
        for anchor, rest in left.items() if rest
    ]  # fmt: skip
    start = "At other layers no effect was detected; effects" if any(named.values()) else "Effects"
    return f"{start} in {', '.join(spans)} remain compatible." if spans else ""
