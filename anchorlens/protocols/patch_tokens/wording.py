"""What token patching shows, in words: the finding first, at k*, which was chosen on validation rows (METHOD 5)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from anchorlens.protocols.knockout.cut_tokens import RANDOM
from anchorlens.statistics.pathways import MATCHED

FEW = 10
"""Questions that a group must have to be spoken of."""


class Fact(NamedTuple):
    """A value with its interval, and the number of questions behind it."""

    value: float
    low: float
    high: float
    n: int

    @property
    def stands(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def patch_words(record: Mapping[str, Any], summary: Mapping[str, Any], effects: pd.DataFrame) -> str:
    """One paragraph.

    Args:
        record: Of the sweep.
        summary: What stands at k*, as ``patch_summary`` gives it.
        effects: Of the same sweep.
    """
    here = effects[effects["layer"] == summary["layer"]]
    columns = here[["quantity", "control", "value", "ci_low", "ci_high", "n"]]
    facts = {(row[0], row[1]): Fact(*row[2:]) for row in columns.itertuples(index=False, name=None)}
    at, auc = f"k* = {summary['layer']}", facts["auc", "none"]
    if not auc.low > 0.5:
        return f"The probe shows no signal at {at} (AUC {auc.value:.2f} [{auc.low:.2f}, {auc.high:.2f}]): nothing is said of truth."
    if ("delta_all", RANDOM) not in facts:
        return "No question has tokens outside E_Q: there is no control, so nothing is said."
    delta, flips = facts["delta_all", RANDOM], facts["flip_rate", RANDOM]
    if delta.n < FEW:
        return f"Patch and control can be compared in {delta.n} questions: below {FEW} nothing is said."
    rates = [facts[name, control].value for name, control in (("flip_rate_patched", MATCHED), ("flip_rate_random", RANDOM))]
    whole = record["config"]["base"] == "all"
    of = "true and false answers" if whole else "true answers predicted true"
    parts = [
        _beware(record["probe"]),
        _finding(delta, at, f"({delta.n} questions, {of})"),
        f"Flips: {rates[0]:.0f} % against {rates[1]:.0f} %; {_difference(flips)}.",
        _groups(summary),
    ]
    return " ".join(part for part in parts if part)


def _beware(probe: Mapping[str, Any]) -> str:
    for name, what in (("pair_text", "question and answer as text reach"), ("text_only", "the answer's text alone reaches")):
        text = probe.get(name)
        if text and text["ci_low"] > 0.5:
            return f"Beware: {what} AUC {text['auc']:.2f}."
    return ""


def _finding(delta: Fact, at: str, over: str) -> str:
    control = "replacing as many other question tokens"
    if not delta.stands:
        return (
            f"Not shown at {at} {over}: that replacing E_Q changes ΔP otherwise than {control}; the data allow {delta.low:+.1f} .. "
            f"{delta.high:+.1f} points."
        )
    return f"At {at} replacing E_Q moves ΔP by {_with_interval(delta)} points beyond {control} {over}."


def _difference(flips: Fact) -> str:
    if not flips.stands:
        return f"a difference is not shown, the data allow {flips.low:+.1f} .. {flips.high:+.1f} points"
    return f"difference {_with_interval(flips)}"


def _groups(summary: Mapping[str, Any]) -> str:
    said = [
        f"{name} {summary[short]:+.1f} ({summary[f'n_{short}']})"
        for name, short in (("Q-Anchored", "q"), ("A-Anchored", "a"))
        if summary[f"n_{short}"] >= FEW
    ]
    if not said:
        return f"No pathway has {FEW} questions."
    return f"ΔP: {', '.join(said)}; pathways were split by a flip of the same clean P, so their difference is description."


def _with_interval(fact: Fact) -> str:
    return f"{fact.value:+.1f} [{fact.low:+.1f}, {fact.high:+.1f}]"


__all__ = ["FEW", "Fact", "patch_words"]
