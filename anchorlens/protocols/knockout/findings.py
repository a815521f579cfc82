"""Findings of a knockout: the contrasts that stand beyond the placebo, and where (METHOD 5)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from anchorlens.results.estimates import FEW, Fact, Facts, facts_along, facts_at, layers_told, listed_and, place
from anchorlens.results.findings import OPEN, Finding, Findings, nothing_claimed, text_warning
from anchorlens.results.findings import STANDS as STANDING
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED


class Claim(NamedTuple):
    """A contrast of a knockout: with what it is compared, on which side of 0 an effect lies, and whether its unit is a point."""

    control: str
    sign: int
    points: bool = True


STANDS = {"delta_p_vs_placebo": Claim(RANDOM, -1), "flip_rate": Claim(RANDOM, 1), "auc_drop": Claim(RANDOM, -1, points=False)}
"""The contrasts that have to lie beyond the placebo, all of them."""
SPECIFIC = {"row_specific_effect": Claim(SIZE_MATCHED, -1)}
"""What tells a row's own signal from mere disturbance."""
CLAIMS = STANDS | SPECIFIC


def knockout_findings(record: Mapping[str, Any], layer: int, contrasts: pd.DataFrame) -> Findings:
    """Return the contrasts with their status at ``layer`` (k*, else the last), and the layers at which all of them stand."""
    facts = facts_at(contrasts, layer)
    where = place(layer, record["probe"]["probe_layer"])
    auc = facts["auc", "none"]
    warnings = text_warning(record["probe"], facts.get(("auc_beyond_text", "none")), _reader(record))
    silent = _nothing(record, facts, auc, where)
    if silent:
        return nothing_claimed(silent, warnings)
    floor = record.get("noise", {}).get("floor") or 0.0
    states = {name: _state(facts[name, c.control], c, floor) for name, c in CLAIMS.items() if (name, c.control) in facts}
    statements = [
        Finding.of(name, state, facts[name, CLAIMS[name].control], layers=(layer,), control=CLAIMS[name].control)
        for name, state in states.items()
    ]
    signal = {k for k, fact in facts_along(contrasts, "auc", "none").items() if fact.low > 0.5}
    layers = tuple(sorted(layers_standing(contrasts) & signal))
    statements.append(Finding("all_contrasts", STANDING if layers else OPEN, layers, control=RANDOM))
    notes = [f"Layers where it stands (simultaneous bands): {layers_told(layers) if layers else 'none shown'}."]
    notes += ["open: not shown, the data allow the interval."] if OPEN in states.values() else []
    headline = _finding(facts, states, where, _cut(record))
    return Findings(tuple(statements), headline, warnings, _table(facts, states), (), tuple(notes))


def _reader(record: Mapping[str, Any]) -> str:
    return "the probe" if record["config"]["readout"] == "probe" else "P(True)"


def _cut(record: Mapping[str, Any]) -> str:
    anchor = record["config"]["anchors"][0]
    return "E_Q" if anchor == "exact_question" else anchor


def _state(fact: Fact, claim: Claim, floor: float) -> str:
    """Return ``stands``, ``reversed`` or ``open``; what lies within the noise floor is open."""
    if claim.points and abs(fact.value) <= floor:
        return "open"
    return "stands" if fact.beyond(claim.sign) else "reversed" if fact.beyond(-claim.sign) else "open"


def _nothing(record: Mapping[str, Any], facts: Facts, auc: Fact, where: str) -> str:
    """Why nothing is claimed; empty where something can be."""
    reader = _reader(record)
    if auc.value != auc.value:
        return f"Nothing is claimed: the measured rows lack true or false answers, so {reader} has no AUC."
    if not auc.low > 0.5:
        return f"Nothing is claimed: at {where} no signal of {reader} is shown, AUC {auc.said(2, sign=False)}."
    if record["config"]["delta_kind"] == "signed":
        return "Nothing is claimed of delta_kind='signed': true and false answers move against each other."
    if not record["config"]["placebos"]:
        return "Nothing is claimed: no placebo was measured, so it is not known what any other cut does."
    contrast = facts.get(("delta_p_vs_placebo", RANDOM))
    n = 0 if contrast is None else contrast.n
    if n < FEW:
        return f"Nothing is claimed: cut and placebo can be compared in {n} questions, and {FEW} are needed."
    return ""


def _finding(facts: Facts, states: Mapping[str, str], where: str, cut: str) -> str:
    standing = [name for name in STANDS if states[name] == "stands"]
    turned = [name for name in STANDS if states[name] == "reversed"]
    auc = {name: facts["auc_after", name].value for name in (SIZE_MATCHED, RANDOM)}
    fell = f"AUC {facts['auc', 'none'].value:.2f}; {cut} cut {auc[SIZE_MATCHED]:.2f}, others cut {auc[RANDOM]:.2f}"
    if len(standing) == len(STANDS):
        what = f"the effect of cutting {cut} stands beyond that of other question tokens"
        if "row_specific_effect" in states:
            specific = states["row_specific_effect"] == "stands"
            what += " and is specific to the row" if specific else "; that it is more than disturbance is not shown"
    elif standing:
        missing = [name for name in STANDS if states[name] == "open"]
        left = [f"{listed_and(missing)} not"] if missing else []
        left += [f"by {listed_and(turned)} cutting these does more"] if turned else []
        verb = "stands" if len(standing) == 1 else "stand"
        what = f"{listed_and(standing)} {verb} beyond other question tokens, {', '.join(left)}"
    else:
        what = f"no effect of cutting {cut} beyond other question tokens is shown"
        what += f"; by {listed_and(turned)} cutting these does more" if turned else ""
    return f"At {where} {what} ({fell})."


def _table(facts: Facts, states: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    rows: list[tuple[str, ...]] = []
    for name, state in states.items():
        fact = facts[name, CLAIMS[name].control]
        rows.append((name, *fact.said(fact.digits(1 if CLAIMS[name].points else 2)).split(" ", 1), state))
    return tuple(rows)


def layers_standing(contrasts: pd.DataFrame) -> set[int]:
    """Layers at which ``delta_p_vs_placebo``, ``flip_rate`` and ``auc_drop`` all lie beyond the placebo by their simultaneous bands."""
    return set.intersection(
        *(
            {
                k
                for k, fact in facts_along(contrasts, name, c.control).items()
                if fact.n >= FEW and fact.beyond(c.sign, everywhere=True)
            }
            for name, c in STANDS.items()
        )
    )
