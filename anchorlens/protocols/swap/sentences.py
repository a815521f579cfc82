"""Sentences of the findings of a swap sweep: the headline, and notes on what limits it."""

from collections.abc import Mapping, Sequence
from itertools import chain

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_LAYERS
from anchorlens.display import three_digits
from anchorlens.protocols.swap.anchor_contrasts import layers_by_construction
from anchorlens.protocols.swap.claim_kinds import (
    CLAIM_KINDS,
    DONOR,
    NORM_MATCHED,
    SAME_ROLE,
    Facts,
    Statuses,
    SweepFacts,
    by_anchor,
    count_anchors,
    kinds_of,
)
from anchorlens.results.clusters_text import cluster_note
from anchorlens.results.estimates import (
    LayerEstimate,
    concentration_note,
    join_with_and,
    name_layers,
)
from anchorlens.results.findings import BEYOND_POSITIONS, CLAIMS, NOT_DETECTED, NULL_MOVES
from anchorlens.results.low_p import low_p_note

_NULL_TAKES = 0.5
"""Smallest share of P before that a null takes where the verdict says so."""
_MOST_NAMED = 3
"""Largest number of anchors that are named."""


def headline_of(sweep: SweepFacts, statuses: Statuses) -> str:
    """Return a sentence for each null, on the anchors and layers at which the swap exceeds it."""
    facts = sweep.facts
    names = kinds_of(facts)
    subject = sweep.what
    sentences: list[str] = []
    for name in names:
        if name == DONOR:
            sentences.append(_donor_sentence(sweep, statuses))
            continue
        kind = CLAIM_KINDS[name]
        effects: list[tuple[str, str]] = []
        for verb, sign in (("falls", -1), ("rises", 1)):
            where = _where(facts, statuses, name, kind.status, sign)
            if where:
                effects.append((verb, where))
        if not effects:
            sentences.append(f"{kind.lead}: not detected.")
            continue
        (verb, where), *others = effects
        also = "".join(f"; at {there} it {other}" for other, there in others)
        sentences.append(
            f"{kind.lead} at {where}: {subject} {verb} more than after {kind.than}{also}."
        )
        subject = "it"
    reached: set[str] = set()
    for along in statuses.values():
        reached.update(along.values())
    if reached.isdisjoint(CLAIMS):
        return (
            f"No effect of the swap on {sweep.what} beyond {names[0]} was detected at any anchor"
            " and layer."
        )
    return " ".join(sentences)


def _donor_sentence(sweep: SweepFacts, statuses: Statuses) -> str:
    """Return the sentence on the donor's answer, with the interchange accuracy."""
    kind = CLAIM_KINDS[DONOR]
    where = _where(sweep.facts, statuses, DONOR, kind.status, 1)
    if not where:
        return f"{kind.lead}: not detected."
    best: tuple[str, int, LayerEstimate] | None = None
    for anchor, along in by_anchor(sweep.facts, DONOR).items():
        for layer, fact in along.items():
            is_claimed = statuses[anchor, DONOR][layer] == kind.status
            if is_claimed and (best is None or fact.value > best[2].value):
                best = (anchor, layer, fact)
    assert best is not None  # a place is claimed
    anchor, layer, _ = best
    text = f"{kind.lead} at {where}: it becomes more likely than after {kind.than}"
    accuracy = sweep.interchange(anchor).get(layer)
    if accuracy is None:
        return f"{text}."
    at = f"{anchor}, layer {layer}" if best[2].names_layers else anchor
    return (
        f"{text}; interchange accuracy {accuracy.to_text(0, sign=False)} % at {at}, where it is"
        " largest."
    )


def notes_of(sweep: SweepFacts, statuses: Statuses, other: Statuses) -> tuple[str, ...]:
    """Return sentences on what limits the findings.

    Args:
        sweep: Facts of the sweep.
        statuses: Statuses in the metric of the claims.
        other: Statuses in the other metric; empty if it was not measured.
    """
    facts = sweep.facts
    notes = [
        cluster_note(sweep.clusters, _most(facts, "n"), sweep.correlations),
        sweep.both_bands,
        _few(facts),
        _concentration(sweep, statuses),
        *_null_moves(sweep, statuses),
        *_other_metric(sweep, statuses, other),
    ]
    # P before of denoising is that of the corrupt input.
    if sweep.config.get("direction") != "denoising" and sweep.metric == "prob":
        notes += _null_takes(sweep)
        notes.append(low_p_note(sweep.curves, sweep.config))
    notes += [
        _format_share(sweep),
        _selection(sweep),
        _exclusions(sweep.curves, facts),
        _open(facts, statuses),
        _open_change(facts, statuses),
    ]
    return tuple(filter(None, notes))


def _where(facts: Facts, statuses: Statuses, name: str, status: str, sign: int) -> str:
    """Return anchors and layers with a status and a sign of the difference, such as ``subject
    (layers 3-8) and pre_answer``.
    """
    places: dict[str, list[int]] = {}
    for anchor, along in by_anchor(facts, name).items():
        for layer, fact in along.items():
            if statuses[anchor, name][layer] != status or fact.value * sign <= 0:
                continue
            layers = places.setdefault(anchor, [])
            if fact.names_layers:
                layers.append(layer)
    return _at(places, count_anchors(facts))


def _most(facts: Facts, field: str) -> int:
    counts: list[int] = []
    for along in facts.values():
        counts += [getattr(fact, field) for fact in along.values()]
    return max(counts, default=0)


def _few(facts: Facts) -> str:
    needed = MIN_QUESTIONS_FOR_LAYERS
    clusters = _most(facts, "n_clusters")
    if clusters >= needed:
        return ""
    return f"No layers are named: {needed} independent clusters are needed, {clusters} are there."


def _concentration(sweep: SweepFacts, statuses: Statuses) -> str:
    """Return a sentence on the claimed differences that few questions carry."""
    contrasts = sweep.contrasts
    claimed: list[pd.DataFrame] = []
    for (anchor, name), along in statuses.items():
        kind = CLAIM_KINDS[name]
        layers = [layer for layer, status in along.items() if status in CLAIMS]
        is_own = (contrasts["quantity"] == sweep.quantity(kind)) & (
            contrasts["control"] == kind.control
        )
        here = (contrasts["anchor"] == anchor) & contrasts["layer"].isin(layers)
        what = "P of the donor's answer" if name == DONOR else "curve"
        null = NORM_MATCHED if name == DONOR else name
        claimed.append(contrasts[is_own & here].assign(what=f"{what} minus {null}"))
    return concentration_note(pd.concat(claimed), "what") if claimed else ""


def _null_moves(sweep: SweepFacts, statuses: Statuses) -> list[str]:
    """Return a sentence for each null that accounts for most of its difference from the curve."""
    cause = "and accounts for most of its difference from the swap: nothing is claimed there"
    notes: list[str] = []
    for name in kinds_of(sweep.facts):
        what = "P of the donor's answer" if name == DONOR else sweep.what
        moves: list[str] = []
        for verb, sign in (("lowers", 1), ("raises", -1)):
            where = _where(sweep.facts, statuses, name, NULL_MOVES, sign)
            if where:
                moves.append(f"{verb} {what} at {where}")
        if moves:
            null = NORM_MATCHED if name == DONOR else name
            notes.append(f"The null {null} itself {' and '.join(moves)} {cause}.")
    return notes


def _other_metric(sweep: SweepFacts, statuses: Statuses, other: Statuses) -> list[str]:
    """Return a sentence for each claim whose status differs in the other metric."""
    in_other = "P of the answer" if sweep.metric == "logit_diff" else "the logit difference"
    notes: list[str] = []
    for name in kinds_of(sweep.facts):
        gained: dict[str, list[int]] = {}
        lost: dict[str, list[int]] = {}
        kind = CLAIM_KINDS[name]
        for anchor in by_anchor(sweep.facts, name):
            theirs = other.get((anchor, name))
            if theirs is None:
                continue
            for layer, status in statuses[anchor, name].items():
                is_own = status == kind.status
                is_theirs = theirs.get(layer) == kind.status
                if is_own == is_theirs:
                    continue
                layers = (lost if is_own else gained).setdefault(anchor, [])
                if sweep.facts[anchor, name][layer].names_layers:
                    layers.append(layer)
        n = count_anchors(sweep.facts)
        told: list[str] = []
        if gained:
            also = "also " * any(kind.status in own.values() for own in _own(statuses, name))
            told.append(f"{also}holds at {_at(gained, n)}")
        if lost:
            told.append(f"is not shown at {_at(lost, n)}")
        if told:
            notes.append(f"By {in_other}, {kind.status} {' and '.join(told)}.")
    return notes


def _own(statuses: Statuses, name: str) -> list[Mapping[int, str]]:
    """Return layer -> status of a claim at each anchor."""
    return [own for (_, claim), own in statuses.items() if claim == name]


def _null_takes(sweep: SweepFacts) -> list[str]:
    """Return a sentence for each null that takes most of P at some layers (means), because curve
    minus null cannot be large there.
    """
    notes: list[str] = []
    curves = sweep.curves
    taken = curves.assign(taken=-curves["effect"] / curves["value_before"]).query(
        "taken >= 100 * @_NULL_TAKES"
    )
    for name in kinds_of(sweep.facts):
        if name == DONOR:
            continue
        control = CLAIM_KINDS[name].control
        own = taken[taken["control"] == control].set_index(["anchor", "layer"])["taken"]
        anchors = by_anchor(sweep.facts, name)
        places: dict[str, list[int]] = {}
        shares: list[float] = []
        for anchor, along in anchors.items():
            for layer in along:
                if (anchor, layer) in own.index:
                    places.setdefault(anchor, []).append(layer)
                    shares.append(own[anchor, layer])
        if shares:
            least = f"{min(shares):.0f}"
            most = f"{max(shares):.0f}"
            share = most if least == most else f"{least} to {most}"
            where = _at(places, len(anchors))
            notes.append(
                f"The null {name} itself takes {share} % of {sweep.what} at {where} (means), so"
                " curve minus null cannot be large there."
            )
    return notes


def _format_share(sweep: SweepFacts) -> str:
    """Return a sentence on the null's own mean, and how many of its positions are no words."""
    counts = sweep.counts.get("same_role_positions")
    if not counts or not counts.get("positions"):
        return ""
    own = sweep.curves[sweep.curves["control"] == CLAIM_KINDS[SAME_ROLE].control]
    if own.empty:
        return ""
    share = 100 * counts["format"] / counts["positions"]
    low, high = own["effect"].min(), own["effect"].max()
    unit = " points"
    return (
        f"The null {SAME_ROLE} itself changes P by {round(low, 1) + 0.0:+.1f} to"
        f" {round(high, 1) + 0.0:+.1f}{unit} (means);"
        f" {share:.0f} % of its positions are format or punctuation."
    )


def _selection(sweep: SweepFacts) -> str:
    if not sweep.config.get("known_only") or sweep.config.get("direction") == "denoising":
        return ""
    return (
        "known_only selects questions by the model's answer: some of the fall of P is regression to"
        " the mean, in the nulls as in the swap."
    )


def _exclusions(curves: pd.DataFrame, facts: Facts) -> str:
    """Return a sentence on the layers at which the swap holds by construction or a null
    cannot act.
    """
    fixed = layers_by_construction(curves)
    idle: dict[str, dict[str, list[int]]] = {}
    for (anchor, control), layers in fixed.items():
        if control != "none":
            layers = layers - fixed.get((anchor, "none"), set())
        if layers:
            idle.setdefault(control, {})[anchor] = sorted(layers)
    reasons = {"none": "fixed by construction"}
    for name in kinds_of(facts):
        if name != DONOR:
            reasons[CLAIM_KINDS[name].control] = f"{name} cannot act"
    n = count_anchors(facts)
    parts: list[str] = []
    for control, why in reasons.items():
        if control in idle:
            where = _at(idle[control], n)
            parts.append(f"{where}: {why}")
    return f"Not tested: {'; '.join(parts)}." if parts else ""


def _open(facts: Facts, statuses: Statuses) -> str:
    """Return a sentence with the joint band of the layers at which no effect beyond the first null
    was detected.
    """
    first = kinds_of(facts)[0]
    left: dict[str, list[LayerEstimate]] = {}
    is_any = False
    for anchor, along in by_anchor(facts, first).items():
        for layer, fact in along.items():
            if statuses[anchor, first][layer] == NOT_DETECTED:
                left.setdefault(anchor, []).append(fact)
            else:
                is_any = True
    if not left:
        return ""
    start = "At other layers no effect was detected; effects" if is_any else "Effects"
    return f"{start} {_ranges(left)} remain compatible."


def _open_change(facts: Facts, statuses: Statuses) -> str:
    """Return a sentence with the joint band of the layers beyond other positions at which nothing
    beyond a matched change was detected.
    """
    left: dict[str, list[LayerEstimate]] = {}
    for anchor, along in by_anchor(facts, NORM_MATCHED).items():
        change = statuses[anchor, NORM_MATCHED]
        for layer, status in statuses.get((anchor, SAME_ROLE), {}).items():
            if status == BEYOND_POSITIONS and change.get(layer) == NOT_DETECTED:
                left.setdefault(anchor, []).append(along[layer])
    if not left:
        return ""
    return (
        "At other layers beyond other positions, nothing beyond a matched change was detected;"
        f" differences {_ranges(left)} remain compatible."
    )


def _ranges(left: Mapping[str, Sequence[LayerEstimate]]) -> str:
    """Return the range of simultaneous bands of each anchor: ``between -26.9 and +1.7 at subject,
    ...``.
    """
    if len(left) > _MOST_NAMED:
        left = {"all anchors": list(chain.from_iterable(left.values()))}
    ranges: list[str] = []
    for anchor, rest in left.items():
        low = min(fact.sim_low for fact in rest)
        high = max(fact.sim_high for fact in rest)
        ranges.append(f"between {three_digits(low)} and {three_digits(high)} at {anchor}")
    return join_with_and(ranges)


def _at(layers_of: Mapping[str, Sequence[int]], n_anchors: int) -> str:
    """Return text such as ``exact_question (layers 3-8) and pre_answer (layer 12)``; anchors
    without layers are named alone.
    """
    if len(layers_of) > _MOST_NAMED:
        return f"{len(layers_of)} of {n_anchors} anchors"
    named: list[str] = []
    for anchor, layers in layers_of.items():
        where = f" ({name_layers(layers)})" if layers else ""
        named.append(f"{anchor}{where}")
    return join_with_and(named) if named else ""
