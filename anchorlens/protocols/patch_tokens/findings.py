"""Findings of token patching at k*, which is chosen on validation rows (METHOD 5)."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM
from anchorlens.results.estimates import LayerEstimate, estimates_at, name_layer
from anchorlens.results.findings import NOT_DETECTED, REVERSED, STANDS, Finding, Findings, empty_findings, text_warning
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED


def patch_findings(record: Mapping[str, Any], summary: Mapping[str, Any], contrasts: pd.DataFrame) -> Findings:
    """Return the findings at the shown layer; ``summary`` has its numbers."""
    facts, layers = estimates_at(contrasts, summary["layer"]), (int(summary["layer"]),)
    at, auc = name_layer(int(summary["layer"]), record["probe"]["probe_layer"]), facts["auc", "none"]
    if not auc.low > 0.5:
        return empty_findings(f"Nothing is claimed: at {at} no signal of the probe was detected, AUC {auc.to_text(2, sign=False)}.")
    if ("delta_p_vs_placebo", RANDOM) not in facts:
        return empty_findings("Nothing is claimed: no question has tokens outside exact_question, so there is no control.")
    delta, flips = facts["delta_p_vs_placebo", RANDOM], facts["flip_rate", RANDOM]
    if delta.n < MIN_QUESTIONS_FOR_CLAIM:
        few = f"patch and control can be compared in {delta.n} questions, but {MIN_QUESTIONS_FOR_CLAIM} are needed"
        return empty_findings(f"Nothing is claimed: {few}.")
    rates = [facts[name, control].value for name, control in (("flip_rate_patched", SIZE_MATCHED), ("flip_rate_random", RANDOM))]
    whole = record["config"]["base"] == "all"
    of = "true and false answers" if whole else "true answers predicted true"
    parts = [
        _finding(delta, at, f"({delta.n} questions, {of})"),
        f"Flips: {rates[0]:.0f} % against {rates[1]:.0f} %; {_difference(flips)}.",
        _groups(summary),
    ]
    statements = [
        Finding.of(
            name, STANDS if fact.beyond(sign) else REVERSED if fact.off_zero else NOT_DETECTED, fact, layers=layers, control=RANDOM
        )
        for name, fact, sign in (("delta_p_vs_placebo", delta, -1), ("flip_rate", flips, 1))
    ]
    warnings = text_warning(record["probe"], facts.get(("auc_beyond_text", "none")))
    return Findings(tuple(statements), " ".join(part for part in parts if part), warnings)


def _finding(delta: LayerEstimate, at: str, over: str) -> str:
    control = "replacing as many other question tokens"
    if not delta.off_zero:
        return (
            f"At {at} no difference in ΔP between replacing exact_question and {control} was detected {over}; differences in "
            f"{delta.interval()} points remain compatible."
        )
    if delta.value > 0:
        return (
            f"At {at} ΔP after replacing exact_question is {delta.to_text()} points above that after {control} {over}; no larger "
            "effect of exact_question was detected."
        )
    return f"At {at} replacing exact_question changes ΔP by {delta.to_text()} points beyond {control} {over}."


def _difference(flips: LayerEstimate) -> str:
    if not flips.off_zero:
        return f"no difference was detected, {flips.interval()} points remain compatible"
    return f"difference {flips.to_text()}"


def _groups(summary: Mapping[str, Any]) -> str:
    groups = [
        f"{name} {summary[short]:+.1f} ({summary[f'n_{short}']})"
        for name, short in (("Q-Anchored", "q"), ("A-Anchored", "a"))
        if summary[f"n_{short}"] >= MIN_QUESTIONS_FOR_CLAIM
    ]
    if not groups:
        return f"No pathway has {MIN_QUESTIONS_FOR_CLAIM} questions."
    return f"ΔP: {', '.join(groups)}; pathways are split by a flip of the same clean P, so their difference is descriptive."
