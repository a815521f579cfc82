"""What a knockout sweep shows, in words: the finding first, then a small table, then what was not shown (METHOD 5)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from anchorlens.results.facts import FEW, Fact, Facts, aligned, facts_along, facts_at, layers_told, listed_and, place
from anchorlens.statistics.pathways import MATCHED, RANDOM


class Claim(NamedTuple):
    """A contrast of a knockout: with what it is compared, on which side of 0 an effect lies, and whether its unit is a point."""

    control: str
    sign: int
    points: bool = True


STANDS = {"delta_all": Claim(RANDOM, -1), "flip_rate": Claim(RANDOM, 1), "auc_drop": Claim(RANDOM, -1, points=False)}
"""The contrasts that have to lie beyond the placebo, all of them."""
SPECIFIC = {"own_change": Claim(MATCHED, -1)}
"""What tells a row's own signal from mere disturbance."""
CLAIMS = STANDS | SPECIFIC


def knockout_verdict(record: Mapping[str, Any], layer: int, effects: pd.DataFrame) -> str:
    """A sentence, a table, and what the data allow.

    Args:
        record: Of the sweep.
        layer: The layer that it speaks of: k*, chosen on validation rows; the last one where no probe is read.
        effects: Of the sweep.
    """
    facts = facts_at(effects, layer)
    where = place(layer, record["probe"]["k_star"])
    auc = facts["auc", "none"]
    leak = beware(record["probe"], facts, _reader(record))
    silent = _nothing(record, facts, auc, where)
    if silent:
        return "\n".join(part for part in (leak, silent) if part)
    floor = record.get("noise", {}).get("floor") or 0.0
    states = {name: _state(facts[name, c.control], c, floor) for name, c in CLAIMS.items() if (name, c.control) in facts}
    finding = _finding(facts, states, where, _cut(record))
    parts = [leak, finding, _table(facts, states), _along(effects), _open(states)]
    return "\n".join(part for part in parts if part)


def _reader(record: Mapping[str, Any]) -> str:
    return "the probe" if record["config"]["readout"] == "probe" else "P(True)"


def _cut(record: Mapping[str, Any]) -> str:
    """What was cut: E_Q, or another source of edges."""
    anchor = record["config"]["anchors"][0]
    return "E_Q" if anchor == "question" else anchor


def _state(fact: Fact, claim: Claim, floor: float) -> str:
    """``stands``, ``reversed`` or ``open``; what lies within the noise floor is open."""
    if claim.points and abs(fact.value) <= floor:
        return "open"
    return "stands" if fact.beyond(claim.sign) else "reversed" if fact.beyond(-claim.sign) else "open"


def beware(probe: Mapping[str, Any], facts: Facts, reader: str = "the probe") -> str:
    """What the text alone tells, where its interval leaves 0.5 out; and what the probe tells beyond it."""
    pair, alone = (probe.get(name) for name in ("pair_text", "text_only"))
    if pair and pair["ci_low"] > 0.5:
        beyond = facts.get(("auc_beyond_text", "none"))
        more = "" if beyond is None else f"; {reader}'s AUC {beyond.said(2)} beyond it"
        return f"Beware: question and answer as text reach AUC {_auc(pair)}{more}."
    if alone and (alone["ci_low"] > 0.5 or alone["ci_high"] < 0.5):
        return f"Beware: the answer's text alone reaches AUC {_auc(alone)}."
    return ""


def _auc(text: Mapping[str, float]) -> str:
    return f"{text['auc']:.2f} [{text['ci_low']:.2f}, {text['ci_high']:.2f}]"


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
    contrast = facts.get(("delta_all", RANDOM))
    n = 0 if contrast is None else contrast.n
    if n < FEW:
        return f"Nothing is claimed: cut and placebo can be compared in {n} questions, and {FEW} are needed."
    return ""


def _finding(facts: Facts, states: Mapping[str, str], where: str, cut: str) -> str:
    standing = [name for name in STANDS if states[name] == "stands"]
    turned = [name for name in STANDS if states[name] == "reversed"]
    auc = {name: facts["auc_knocked_out", name].value for name in (MATCHED, RANDOM)}
    fell = f"AUC {facts['auc', 'none'].value:.2f}; {cut} cut {auc[MATCHED]:.2f}, others cut {auc[RANDOM]:.2f}"
    if len(standing) == len(STANDS):
        what = f"the effect of cutting {cut} stands beyond that of other question tokens"
        if "own_change" in states:
            specific = states["own_change"] == "stands"
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


def _table(facts: Facts, states: Mapping[str, str]) -> str:
    rows: list[tuple[str, str, str, str]] = []
    for name, state in states.items():
        fact = facts[name, CLAIMS[name].control]
        value, low, high = fact.said(fact.digits(1 if CLAIMS[name].points else 2)).split(" ", 2)
        rows.append((name, value, f"{low} {high}", state))
    return aligned(rows)


def _along(effects: pd.DataFrame) -> str:
    """Layers at which all three stand by the bands that hold for all layers at once, and the probe has signal."""
    signal = {layer for layer, fact in facts_along(effects, "auc", "none").items() if fact.low > 0.5}
    layers = sorted(layers_standing(effects) & signal)
    return f"Layers where it stands (simultaneous bands): {layers_told(layers) if layers else 'none shown'}."


def layers_standing(effects: pd.DataFrame) -> set[int]:
    """Layers at which ``delta_all``, ``flip_rate`` and ``auc_drop`` all lie beyond the placebo by their simultaneous bands."""
    found: list[set[int]] = []
    for name, claim in STANDS.items():
        along = facts_along(effects, name, claim.control)
        found.append({k for k, fact in along.items() if fact.n >= FEW and fact.beyond(claim.sign, everywhere=True)})
    return set.intersection(*found)


def _open(states: Mapping[str, str]) -> str:
    return "open: not shown, the data allow the interval." if "open" in states.values() else ""


__all__ = ["CLAIMS", "SPECIFIC", "STANDS", "beware", "knockout_verdict", "layers_standing"]
