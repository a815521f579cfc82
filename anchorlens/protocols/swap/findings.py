"""Findings of a swap sweep: which anchors and layers exceed which null (METHOD 4).

The simultaneous band of ``delta_p_minus_null`` selects the layers to name; :func:`status_of` is the rule of all claims.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import isnan
from typing import Any, NamedTuple, TypeAlias

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM, MIN_QUESTIONS_FOR_LAYERS, NULL_CONTROLS
from anchorlens.protocols.swap.anchor_contrasts import LESS_NULL, Key, layers_by_construction
from anchorlens.results.estimates import (
    LayerEstimate,
    concentration_note,
    estimates_by_layer,
    format_layers,
    join_with_and,
    name_layers,
)
from anchorlens.results.findings import (
    CLAIMS,
    CONTENT,
    DESCRIPTION,
    LOCALISED,
    NOT_DETECTED,
    NULL_MOVES,
    STANDS,
    TOO_FEW,
    Finding,
    Findings,
    empty_findings,
    text_warning,
)
from anchorlens.results.sweep import SweepResult

_LEAST_SHARE = 0.5
"""Smallest share of curve minus null that the curve itself accounts for where the swap is named."""
_NULL_TAKES = 0.5
"""Smallest share of P before that a null takes where the verdict says so."""
# Largest numbers of anchors and of rows of the table that are listed.
_MOST_NAMED, _MOST_ROWS = 3, 8
_COLUMNS = ("anchor", "null", "curve minus null [joint 95 %]", "layer", "status", "layers")
_P = {
    "probability": "P of the answer", "confidence": "confidence in the clean prediction", "true_label": "P of the true label",
}  # fmt: skip
_READERS = {"probe": "the probe", "p_true": "P(True)"}
_SAME_ROLE, _NORM_MATCHED = NULL_CONTROLS["same_role"], NULL_CONTROLS["norm_matched"]
_NAMES = {control: name for name, control in NULL_CONTROLS.items()}


class _Claim(NamedTuple):
    """Claim of a curve that exceeds one null."""

    status: str
    lead: str  # start of its sentence
    than: str  # the null in words


_CLAIM_OF = {
    _SAME_ROLE: _Claim(LOCALISED, "Localised", "a swap of other positions"),
    _NORM_MATCHED: _Claim(CONTENT, "Content", "a random change of the same size"),
    NULL_CONTROLS["displaced"]: _Claim(STANDS, "Beyond displaced", "a swap of the same streams to other positions"),
}
Facts: TypeAlias = Mapping[Key, Mapping[int, LayerEstimate]]
"""Curve minus null by layer, for the layers in the simultaneous band."""
Statuses: TypeAlias = Mapping[Key, Mapping[int, str]]


def _facts(result: SweepResult) -> Facts:
    contrasts, facts = result.contrasts(all_columns=True), dict[Key, dict[int, LayerEstimate]]()
    less = contrasts[contrasts["quantity"] == LESS_NULL]
    for anchor, control in less[["anchor", "control"]].drop_duplicates().itertuples(index=False, name=None):
        along = estimates_by_layer(less[less["anchor"] == anchor], LESS_NULL, control)
        facts[anchor, control] = {layer: fact for layer, fact in along.items() if not isnan(fact.sim_low)}
    return {key: facts[key] for key in product(result.anchors, _CLAIM_OF) if key in facts}


def _controls(keys: Iterable[Key]) -> list[str]:
    """Return the measured nulls, in the order of their claims."""
    return [control for control in _CLAIM_OF if control in {control for _, control in keys}]


def status_of(fact: LayerEstimate, effect: float, floor: float, claim: str) -> str:
    """Return the status of one anchor at one layer against one null.

    The swap is named (``claim``) if the simultaneous band of curve minus null excludes 0, the difference exceeds the noise floor,
    and the curve itself accounts for at least half of it. Otherwise the null moves: if P falls by 2 points after the swap and by 25
    after the null, the difference is +23 although the swap did not raise P.
    """
    if fact.n < MIN_QUESTIONS_FOR_CLAIM:
        return TOO_FEW
    if abs(fact.value) <= floor or not any(fact.beyond(sign, everywhere=True) for sign in (-1, 1)):
        return NOT_DETECTED
    return claim if effect / fact.value >= _LEAST_SHARE else NULL_MOVES


def _statuses(curves: pd.DataFrame, facts: Facts, floor: float) -> Statuses:
    """Return the status of every layer. Content needs a localised effect at the same layer if ``same_role`` was measured."""
    effects = curves[curves["control"] == "none"].set_index(["anchor", "layer"])["effect"]
    statuses: dict[Key, dict[int, str]] = {
        (anchor, control): {
            k: status_of(fact, effects.loc[(anchor, k)], floor, _CLAIM_OF[control].status) for k, fact in along.items()
        }
        for (anchor, control), along in facts.items()
    }
    for (anchor, control), along in statuses.items():
        localised = statuses.get((anchor, _SAME_ROLE))
        if control == _NORM_MATCHED and localised is not None:
            along |= {k: DESCRIPTION for k, status in along.items() if status == CONTENT and localised.get(k) != LOCALISED}
    return statuses


def swap_findings(result: SweepResult) -> Findings:
    """Return one statement per anchor, null and status, a table of them, and notes on what is not claimed."""
    facts, curves, config = _facts(result), result.curves(controls=True, all_columns=True), result.record["config"]
    warnings, reason = text_warning(result.record.get("probe", {})), _reason_for_no_claim(config, curves, facts)
    if reason:
        return empty_findings(reason, warnings)
    statuses = _statuses(curves, facts, 0.0 if isnan(result.noise_floor) else result.noise_floor)
    found: list[tuple[Finding, tuple[str, ...]]] = []
    for key, along in statuses.items():
        others = [status for status in (DESCRIPTION, NOT_DETECTED, TOO_FEW) if status in along.values()]
        named = [status for status in (_CLAIM_OF[key[1]].status, NULL_MOVES) if status in along.values()]
        found += [_finding(key, one, {k: facts[key][k] for k in along if along[k] == one}) for one in named or others[:1]]
    statements = tuple(finding for finding, _ in found)
    n = max((fact.n for along in facts.values() for fact in along.values()), default=0)
    if n < MIN_QUESTIONS_FOR_CLAIM:
        few = f"swap and null can be compared in {n} questions, but {MIN_QUESTIONS_FOR_CLAIM} are needed"
        return Findings(statements, f"Nothing is claimed: {few}.", warnings)
    what = _P[config["delta_kind"]]
    noising = config.get("direction") != "denoising"  # P before of denoising is that of the corrupt input
    takes = _null_takes(curves, what, facts) if noising else []
    notes = [
        _few(n),
        _concentration(result.contrasts(all_columns=True)),
        *_null_moves(what, facts, statuses),
        *takes,
        _exclusions(curves, facts),
    ]
    notes += [_open(facts, statuses), _open_content(facts, statuses)]
    rows = [row for _, row in sorted(found, key=lambda one: one[0].status not in CLAIMS)]
    if len(rows) > _MOST_ROWS:
        rows[_MOST_ROWS:] = [(f"and {len(rows) - _MOST_ROWS} more: contrasts()", *[""] * (len(_COLUMNS) - 1))]
    headline = _headline(what, facts, statuses)
    used = [i for i in range(len(_COLUMNS)) if any(row[i] for row in rows)]  # too few questions have no numbers and no layers
    table, heads = tuple(tuple(row[i] for i in used) for row in rows), tuple(_COLUMNS[i] for i in used)
    return Findings(statements, headline, warnings, table, heads, tuple(note for note in notes if note))


def _reason_for_no_claim(config: Mapping[str, Any], curves: pd.DataFrame, facts: Facts) -> str:
    """Return the reason why nothing can be claimed; empty otherwise."""
    reader = _READERS.get(config["readout"])
    if reader and config.get("direction") != "denoising":  # denoising starts from the corrupt input
        auc, low, high = curves[["auc", "auc_low", "auc_high"]].iloc[0]
        if isnan(auc):
            return f"Nothing is claimed: the measured rows lack true or false answers, so {reader} has no AUC."
        if not low > 0.5:
            return f"Nothing is claimed: no signal of {reader} was detected, AUC {auc:.2f} [{low:.2f}, {high:.2f}]."
    if config["delta_kind"] == "signed":
        return "Nothing is claimed for delta_kind='signed': effects on true and false answers cancel."
    if not config["n_null_donors"]:
        return "Nothing is claimed: no null was measured, so the effect of a disturbance alone is unknown."
    first = _controls(facts)[:1]
    if not any(along for (_, control), along in facts.items() if control in first):
        name = _NAMES[first[0]] if first else "its null"
        return f"Nothing is claimed: at every measured layer the swap is fixed by construction, or {name} cannot act."
    return ""


def _finding(key: Key, status: str, along: Mapping[int, LayerEstimate]) -> tuple[Finding, tuple[str, ...]]:
    """Return the finding of the layers with one status, and its row of the table; few questions name no layers."""
    anchor, control = key
    layers = [k for k, fact in along.items() if fact.n >= MIN_QUESTIONS_FOR_LAYERS]
    layers = [_largest(along)] if status == NOT_DETECTED else layers
    if not layers:
        n = max(fact.n for fact in along.values())
        finding = Finding(LESS_NULL, status, n=n, anchor=anchor, control=control, sentence=f"{LESS_NULL}: {status}, n = {n}.")
        return finding, (anchor, _NAMES[control], "", "", status, "")
    most = _largest({k: along[k] for k in layers})
    fact = along[most]._replace(low=along[most].sim_low, high=along[most].sim_high)
    finding = Finding.of(LESS_NULL, status, fact, layers=tuple(layers), anchor=anchor, control=control)
    listed = "" if status == NOT_DETECTED else format_layers(layers)
    return finding, (anchor, _NAMES[control], fact.to_text(), str(most), status, listed)


def _where(facts: Facts, statuses: Statuses, control: str, status: str, sign: int) -> str:
    """Return anchors and layers with a status and a sign of the difference, such as ``subject (layers 3-8) and pre_answer``."""
    places: dict[str, list[int]] = {}
    for (anchor, null), along in statuses.items():
        for k, one in along.items():
            fact = facts[anchor, null][k]
            if (null, one) == (control, status) and fact.value * sign > 0:
                places.setdefault(anchor, []).extend([k] if fact.n >= MIN_QUESTIONS_FOR_LAYERS else [])
    return _at(places, len({anchor for anchor, _ in facts}))


def _headline(what: str, facts: Facts, statuses: Statuses) -> str:
    """Return a sentence for each null, on the anchors and layers at which the swap exceeds it."""
    subject, sentences, controls = what, list[str](), _controls(facts)
    for control in controls:
        claim = _CLAIM_OF[control]
        places = [(verb, _where(facts, statuses, control, claim.status, sign)) for verb, sign in (("falls", -1), ("rises", 1))]
        (verb, where), *others = [one for one in places if one[1]] or [("", "")]
        also = "".join(f"; at {there} it {other}" for other, there in others)
        found = f"{claim.lead} at {where}: {subject} {verb} more than after {claim.than}{also}."
        sentences.append(found if where else f"{claim.lead}: not detected.")
        subject = "it" if where else subject
    if subject == what:
        return f"No effect of the swap on {what} beyond {_NAMES[controls[0]]} was detected at any anchor and layer."
    return " ".join(sentences)


def _few(n: int) -> str:
    needed = MIN_QUESTIONS_FOR_LAYERS
    return f"With {n} questions no layers are named; {needed} are needed." if n < needed else ""


def _concentration(contrasts: pd.DataFrame) -> str:
    """Return a sentence on the nulls from which the curve differs in few questions."""
    less = contrasts[(contrasts["quantity"] == LESS_NULL) & contrasts["sim_low"].notna()]
    return concentration_note(less.assign(null=less["control"].map(_NAMES)), "null", "curve minus {}")


def _null_moves(what: str, facts: Facts, statuses: Statuses) -> list[str]:
    """Return a sentence for each null that accounts for most of its difference from the curve."""
    notes: list[str] = []
    for control in _controls(facts):
        places = [(verb, _where(facts, statuses, control, NULL_MOVES, sign)) for verb, sign in (("lowers", 1), ("raises", -1))]
        moves = [f"{verb} {what} at {where}" for verb, where in places if where]
        if moves:
            cause = "and accounts for most of its difference from the swap: nothing is claimed there"
            notes.append(f"The null {_NAMES[control]} itself {' and '.join(moves)} {cause}.")
    return notes


def _null_takes(curves: pd.DataFrame, what: str, facts: Facts) -> list[str]:
    """Return a sentence for each null that takes most of P at some layers, because curve minus null cannot be large there."""
    notes: list[str] = []
    taken = curves.assign(taken=-curves["effect"] / curves["p_before"]).query("taken >= 100 * @_NULL_TAKES")
    for control in _controls(facts):
        own = taken[taken["control"] == control].set_index(["anchor", "layer"])["taken"]
        layers = {a: [k for k in along if (a, k) in own.index] for (a, null), along in facts.items() if null == control}
        shares = [own[anchor, k] for anchor, found in layers.items() for k in found]
        if shares:
            least, most = f"{min(shares):.0f}", f"{max(shares):.0f}"
            share = most if least == most else f"{least} to {most}"
            where = _at({anchor: found for anchor, found in layers.items() if found}, len(layers))
            notes.append(f"The null {_NAMES[control]} itself takes {share} % of {what} at {where}.")
    return notes


def _exclusions(curves: pd.DataFrame, facts: Facts) -> str:
    """Return a sentence on the layers at which the swap holds by construction or a null cannot act."""
    fixed = layers_by_construction(curves)
    own = {anchor: layers for (anchor, control), layers in fixed.items() if control == "none" and layers}
    reasons = [("fixed by construction", own)]
    for control in _controls(facts):
        idle = {anchor: layers - own.get(anchor, set()) for (anchor, null), layers in fixed.items() if null == control}
        reasons.append((f"{_NAMES[control]} cannot act", {anchor: layers for anchor, layers in idle.items() if layers}))
    n = len({anchor for anchor, _ in facts})
    parts = [f"{_at({a: sorted(layers) for a, layers in of.items()}, n)}: {why}" for why, of in reasons if of]
    return f"Not tested: {'; '.join(parts)}." if parts else ""


def _open(facts: Facts, statuses: Statuses) -> str:
    """Return a sentence with the joint band of the layers at which no effect beyond the first null was detected."""
    first = _controls(facts)[0]
    left = {a: [f for k, f in along.items() if statuses[a, c][k] == NOT_DETECTED] for (a, c), along in facts.items() if c == first}
    is_any = any(status != NOT_DETECTED for (_, c), along in statuses.items() if c == first for status in along.values())
    start = "At other layers no effect was detected; effects" if is_any else "Effects"
    return f"{start} {_ranges(left)} remain compatible." if any(left.values()) else ""


def _open_content(facts: Facts, statuses: Statuses) -> str:
    """Return a sentence with the joint band of the localised layers at which no content was detected."""
    left: dict[str, list[LayerEstimate]] = {}
    for (anchor, control), along in facts.items():
        localised = [k for k, status in statuses.get((anchor, _SAME_ROLE), {}).items() if status == LOCALISED]
        if control == _NORM_MATCHED:
            left[anchor] = [along[k] for k in localised if statuses[anchor, control].get(k) == NOT_DETECTED]
    if not any(left.values()):
        return ""
    return f"At other localised layers no content was detected; effects {_ranges(left)} remain compatible."


def _ranges(left: Mapping[str, Sequence[LayerEstimate]]) -> str:
    """Return the range of simultaneous bands of each anchor: ``between -26.9 and +1.7 at subject, ...``."""
    left = {anchor: rest for anchor, rest in left.items() if rest}
    if len(left) > _MOST_NAMED:
        left = {"all anchors": [fact for rest in left.values() for fact in rest]}
    return join_with_and(
        [f"between {min(f.sim_low for f in rest):+.1f} and {max(f.sim_high for f in rest):+.1f} at {a}" for a, rest in left.items()]
    )


def _at(layers_of: Mapping[str, Sequence[int]], n_anchors: int) -> str:
    """Return text such as ``exact_question (layers 3-8) and pre_answer (layer 12)``; anchors without layers are named alone."""
    if len(layers_of) > _MOST_NAMED:
        return f"{len(layers_of)} of {n_anchors} anchors"
    named = [f"{a} ({name_layers(layers)})" if layers else a for a, layers in layers_of.items()]
    return join_with_and(named) if named else ""


def _largest(along: Mapping[int, LayerEstimate]) -> int:
    return max(along, key=lambda k: abs(along[k].value))
