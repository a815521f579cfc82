"""Findings of a knockout: contrasts with the placebo, and the layers at which they stand (METHOD 5).

All three contrasts of ``STANDS`` beyond their 95 % intervals are one claim. Without all three, one or two of them are claimed by
98.3 % intervals, which hold jointly at 95 % (Bonferroni). An effect is specific to the row only where all three stand.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM
from anchorlens.results.estimates import (
    LayerEstimate,
    LayerEstimates,
    estimates_at,
    estimates_by_layer,
    format_layers,
    join_with_and,
    name_layer,
)
from anchorlens.results.findings import DESCRIPTION, NOT_DETECTED, Finding, Findings, empty_findings, text_warning
from anchorlens.results.findings import STANDS as STANDING
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED


class Claim(NamedTuple):
    """Claim of a contrast: control, sign of an expected effect, and whether the unit is percentage points."""

    control: str
    sign: int
    points: bool = True


STANDS = {"delta_p_vs_placebo": Claim(RANDOM, -1), "flip_rate": Claim(RANDOM, 1), "auc_drop": Claim(RANDOM, -1, points=False)}
"""Contrasts that must all lie beyond the placebo."""
SPECIFIC = {"row_specific_vs_placebo": Claim(RANDOM, -1)}
"""Contrast that separates the row's own signal from disturbance; the placebo's ``row_specific_effect`` is printed beside it."""
CLAIMS = STANDS | SPECIFIC
PARTIAL_LEVEL = 1 - 0.05 / len(STANDS)
"""Level of the intervals of a claim on one or two of the contrasts of ``STANDS``."""


def knockout_findings(record: Mapping[str, Any], layer: int, contrasts: pd.DataFrame, partial: pd.DataFrame) -> Findings:
    """Return the status of each contrast at ``layer`` (k*, else the last), and the layers at which all contrasts stand.

    Args:
        record: Record of the sweep.
        layer: Layer of the claims.
        contrasts: Contrasts at all layers.
        partial: Contrasts of ``STANDS`` at ``layer`` with intervals of :data:`PARTIAL_LEVEL`.
    """
    facts = estimates_at(contrasts, layer)
    where = name_layer(layer, record["probe"]["probe_layer"])
    auc = facts["auc", "none"]
    warnings = text_warning(record["probe"], facts.get(("auc_beyond_text", "none")), _reader(record))
    reason = _reason_for_no_claim(record, facts, auc, where)
    if reason:
        return empty_findings(reason, warnings)
    floor = record.get("noise", {}).get("floor") or 0.0
    states = {name: _state(facts[name, c.control], c, floor) for name, c in CLAIMS.items() if (name, c.control) in facts}
    is_partial = any(states[name] != "stands" for name in STANDS)
    if is_partial:
        facts = {**facts, **estimates_at(partial, layer)}
        states |= {name: _state(facts[name, c.control], c, floor) for name, c in STANDS.items()}
        states |= dict.fromkeys(states.keys() & SPECIFIC.keys(), DESCRIPTION)
    statements = [
        Finding.of(name, state, facts[name, CLAIMS[name].control], layers=(layer,), control=CLAIMS[name].control)
        for name, state in states.items()
    ]
    signal = {k for k, fact in estimates_by_layer(contrasts, "auc", "none").items() if fact.low > 0.5}
    layers = tuple(sorted(layers_standing(contrasts) & signal))
    notes = [f"Layers with all contrasts (simultaneous bands): {format_layers(layers)}."]
    statements.append(Finding("all_contrasts", STANDING if layers else NOT_DETECTED, layers, control=RANDOM, sentence=notes[0]))
    notes += ["not detected: effects in the interval remain compatible."] if NOT_DETECTED in states.values() else []
    notes += [f"{100 * PARTIAL_LEVEL:.1f} % intervals: not all contrasts stand."] if is_partial else []
    headline = _headline(facts, states, where, record["config"]["anchors"][0])
    return Findings(tuple(statements), headline, warnings, _table(facts, states), (), tuple(notes))


def _reader(record: Mapping[str, Any]) -> str:
    return "the probe" if record["config"]["readout"] == "probe" else "P(True)"


def _state(fact: LayerEstimate, claim: Claim, floor: float) -> str:
    """Return ``stands``, ``reversed`` or ``open``; values within the noise floor are open."""
    if claim.points and abs(fact.value) <= floor:
        return NOT_DETECTED
    return "stands" if fact.beyond(claim.sign) else "reversed" if fact.beyond(-claim.sign) else NOT_DETECTED


def _reason_for_no_claim(record: Mapping[str, Any], facts: LayerEstimates, auc: LayerEstimate, where: str) -> str:
    """Return the reason why nothing can be claimed; empty otherwise."""
    reader = _reader(record)
    if auc.value != auc.value:
        return f"Nothing is claimed: the measured rows lack true or false answers, so {reader} has no AUC."
    if not auc.low > 0.5:
        return f"Nothing is claimed: at {where} no signal of {reader} was detected, AUC {auc.to_text(2, sign=False)}."
    if record["config"]["delta_kind"] == "signed":
        return "Nothing is claimed for delta_kind='signed': effects on true and false answers cancel."
    if not record["config"]["placebos"]:
        return "Nothing is claimed: no placebo was measured, so the effect of other cuts is unknown."
    contrast = facts.get(("delta_p_vs_placebo", RANDOM))
    n = 0 if contrast is None else contrast.n
    if n < MIN_QUESTIONS_FOR_CLAIM:
        return f"Nothing is claimed: cut and placebo can be compared in {n} questions, but {MIN_QUESTIONS_FOR_CLAIM} are needed."
    return ""


def _headline(facts: LayerEstimates, states: Mapping[str, str], where: str, anchor: str) -> str:
    standing, missing, turned = ([n for n in STANDS if states[n] == state] for state in ("stands", NOT_DETECTED, "reversed"))
    auc = {name: facts["auc_after", name].value for name in (SIZE_MATCHED, RANDOM)}
    fall = f"AUC {facts['auc', 'none'].value:.2f} falls to {auc[SIZE_MATCHED]:.2f}, with others cut to {auc[RANDOM]:.2f}"
    larger = f"cutting {anchor} has a larger effect than cutting other question tokens"
    if len(standing) == len(STANDS):
        what = larger
        if "row_specific_vs_placebo" in states:
            specific = states["row_specific_vs_placebo"] == "stands"
            what += ", specific to the row" if specific else "; a row-specific effect was not detected"
    elif standing:
        what = f"{larger} by {join_with_and(standing)}"
        what += f", not by {join_with_and(missing)}" if missing else ""
    else:
        what = f"no larger effect of cutting {anchor} than of cutting other question tokens was detected"
    what += f"; by {join_with_and(turned)} cutting other tokens has the larger effect" if turned else ""
    return f"At {where} {what} ({fall})."


def _table(facts: LayerEstimates, states: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    rows: list[tuple[str, ...]] = []
    for name, state in states.items():
        if state == DESCRIPTION:
            continue
        fact = facts[name, CLAIMS[name].control]
        beside = facts.get(("row_specific_effect", RANDOM)) if name in SPECIFIC else None
        own = "" if beside is None else f" (placebo {beside.to_text(beside.digits(1))})"
        rows.append((name, *fact.to_text(fact.digits(1 if CLAIMS[name].points else 2)).split(" ", 1), state + own))
    return tuple(rows)


def layers_standing(contrasts: pd.DataFrame) -> set[int]:
    """Return the layers at which all contrasts of ``STANDS`` lie beyond the placebo by their simultaneous bands."""
    return set.intersection(
        *(
            {
                k
                for k, fact in estimates_by_layer(contrasts, name, c.control).items()
                if fact.n >= MIN_QUESTIONS_FOR_CLAIM and fact.beyond(c.sign, everywhere=True)
            }
            for name, c in STANDS.items()
        )
    )
