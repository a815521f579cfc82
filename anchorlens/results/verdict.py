"""What a knockout sweep shows, in words: the finding first, then a small table, then what was not shown (METHOD 5)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from anchorlens.results.facts import FEW, Fact, Facts, aligned, facts_along, facts_at, listed_and, ranges
from anchorlens.statistics.pathways import MATCHED, RANDOM


class Claim(NamedTuple):
    """A contrast of a knockout: with what it is compared, on which side of 0 an effect lies, and decimals."""

    control: str
    sign: int
    digits: int


STANDS = {"delta_all": Claim(RANDOM, -1, 1), "flip_rate": Claim(RANDOM, 1, 1), "auc_drop": Claim(RANDOM, -1, 2)}
"""The contrasts that have to lie beyond the placebo, all of them."""
SPECIFIC = {"own_change": Claim(MATCHED, -1, 1)}
"""What tells a row's own signal from mere disturbance."""


def knockout_verdict(record: Mapping[str, Any], layer: int, effects: pd.DataFrame) -> str:
    """A sentence, a table, and what the data allow.

    Args:
        record: Of the sweep.
        layer: The layer that it speaks of: k*, chosen on validation rows; the last one where no probe is read.
        effects: Of the sweep.
    """
    facts = facts_at(effects, layer)
    where = f"k* = {layer}" if record["probe"]["k_star"] is not None else f"layer {layer}"
    auc = facts["auc", "none"]
    leak = beware(record["probe"], facts)
    silent = _nothing(record, facts, auc, where)
    if silent:
        return "\n".join(part for part in (leak, silent) if part)
    parts = [leak, _finding(facts, auc, where), _table(facts), _along(effects), _open(facts)]
    return "\n".join(part for part in parts if part)


def beware(probe: Mapping[str, Any], facts: Facts) -> str:
    """What the text alone tells, where its interval leaves 0.5 out; and what the probe tells beyond it."""
    pair, alone = (probe.get(name) for name in ("pair_text", "text_only"))
    if pair and pair["ci_low"] > 0.5:
        beyond = facts.get(("auc_beyond_text", "none"))
        more = "" if beyond is None else f"; the probe's AUC lies {beyond.said(2)} beyond it"
        return f"Beware: question and answer as text reach AUC {_auc(pair)}{more}."
    if alone and (alone["ci_low"] > 0.5 or alone["ci_high"] < 0.5):
        return f"Beware: the answer's text alone reaches AUC {_auc(alone)}."
    return ""


def _auc(text: Mapping[str, float]) -> str:
    return f"{text['auc']:.2f} [{text['ci_low']:.2f}, {text['ci_high']:.2f}]"


def _nothing(record: Mapping[str, Any], facts: Facts, auc: Fact, where: str) -> str:
    """Why nothing is claimed; empty where something can be."""
    reader = "the probe" if record["config"]["readout"] == "probe" else "P(True)"
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


def _finding(facts: Facts, auc: Fact, where: str) -> str:
    standing = [name for name, claim in STANDS.items() if facts[name, claim.control].beyond(claim.sign)]
    cut, placebo = facts["auc_knocked_out", MATCHED], facts["auc_knocked_out", RANDOM]
    fell = f"AUC {auc.value:.2f}; E_Q cut {cut.value:.2f}, others cut {placebo.value:.2f}"
    own = facts.get(("own_change", MATCHED))
    specific = own is not None and own.beyond(-1)
    if len(standing) == len(STANDS):
        what = "the effect of cutting E_Q stands beyond that of other question tokens"
        if own is not None:
            what += " and is specific to the row" if specific else "; that it is more than disturbance is not shown"
    elif standing:
        missing = [name for name in STANDS if name not in standing]
        verb = "stands" if len(standing) == 1 else "stand"
        what = f"{listed_and(standing)} {verb} beyond other question tokens, {listed_and(missing)} not"
    else:
        what = "no effect of cutting E_Q beyond other question tokens is shown"
    return f"At {where} {what} ({fell})."


def _table(facts: Facts) -> str:
    rows: list[tuple[str, str, str, str]] = []
    for name, claim in (STANDS | SPECIFIC).items():
        fact = facts.get((name, claim.control))
        if fact is None:
            continue
        state = "stands" if fact.beyond(claim.sign) else "reversed" if fact.beyond(-claim.sign) else "open"
        rows.append((name, f"{fact.value:+.{claim.digits}f}", fact.interval(claim.digits), state))
    return aligned(rows)


def _along(effects: pd.DataFrame) -> str:
    """Layers at which all three stand by the bands that hold for all layers at once, and the probe has signal."""
    signal = {layer for layer, fact in facts_along(effects, "auc", "none").items() if fact.low > 0.5}
    layers = layers_standing(effects) & signal
    return f"Layers where it stands, bands over all layers: {ranges(sorted(layers)) or 'none shown'}."


def layers_standing(effects: pd.DataFrame) -> set[int]:
    """Layers at which ``delta_all``, ``flip_rate`` and ``auc_drop`` all lie beyond the placebo by their simultaneous bands."""
    found: list[set[int]] = []
    for name, claim in STANDS.items():
        along = facts_along(effects, name, claim.control)
        found.append({k for k, fact in along.items() if fact.n >= FEW and fact.beyond(claim.sign, everywhere=True)})
    return set.intersection(*found)


def _open(facts: Facts) -> str:
    claims = (STANDS | SPECIFIC).items()
    left = any(not facts[name, c.control].beyond(c.sign) for name, c in claims if (name, c.control) in facts)
    return "open: not shown; the data allow the whole interval." if left else ""


__all__ = ["SPECIFIC", "STANDS", "beware", "knockout_verdict", "layers_standing"]
