"""Findings of an answer-only sweep."""

from collections.abc import Mapping
from typing import Any

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM
from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult
from anchorlens.results.estimates import LayerEstimate, name_layer
from anchorlens.results.findings import DESCRIPTION, NOT_DETECTED, STANDS, Finding, Findings, empty_findings, text_warning
from anchorlens.statistics.pathways import A, Q

OTHER = "other_question"
"""Name of the control: the answer after another row's question."""


def answer_only_findings(result: PathwayResult, here: Mapping[str, Any]) -> Findings:
    """Return the effect of a missing question against another row's question; ``here`` has the numbers at the shown layer."""
    by = result.facts(result.shown_layer)
    gold = result.record["config"]["answers"] == "gold"
    if here["n_all"] < MIN_QUESTIONS_FOR_CLAIM:
        n = here["n_all"]
        return empty_findings(f"Nothing is claimed: {n} questions were measured, but {MIN_QUESTIONS_FOR_CLAIM} are needed.")
    warnings = text_warning(result.record["probe"], by.get(("auc_beyond_text", "none")))
    parts = [] if by["auc", "none"].low > 0.5 else ["No signal of the probe was detected."]
    parts.append(_finding(by["p_after", OTHER], here, name_layer(here["layer"], result.probe_layer)))
    delta = by["delta_p_vs_placebo", OTHER]
    changes = f"Mean ΔP {here['all']:+.1f} against {here[f'all_{OTHER}']:+.1f} ({delta.to_text()})"
    changes += f", flips {here['flips']:.0f} against {here[f'flips_{OTHER}']:.0f} %"
    parts.append(changes + ("; with balanced answers both follow from the clean P." if gold else "."))
    if min(here["n_q"], here["n_a"]) >= MIN_QUESTIONS_FOR_CLAIM:
        groups = f"{Q} {here['q']:+.1f} (n {here['n_q']}), {A} {here['a']:+.1f} (n {here['n_a']})"
        parts.append(f"By pathway (split by a flip): {groups}.")
    text = " ".join([*parts, _auc_check(by, is_balanced=gold)])
    statements = [
        Finding.of(name, _status(name, by[name, OTHER]), by[name, OTHER], layers=(here["layer"],), control=OTHER)
        for name in ("p_after", "delta_p_vs_placebo", "flip_rate")
    ]
    return Findings(tuple(statements), text, warnings)


def _status(name: str, fact: LayerEstimate) -> str:
    """Return the status of a contrast; only ``p_after`` is a claim (:meth:`AnswerOnlyAnalysis.estimates`)."""
    if name != "p_after":
        return DESCRIPTION
    return STANDS if fact.off_zero else NOT_DETECTED


def _finding(fact: LayerEstimate, here: Mapping[str, Any], where: str) -> str:
    """Format P(hallucination) clean, without a question and after another row's, and the difference of the latter two."""
    means = (
        f"At {where} P(hallucination) is {here['p_before']:.2f} clean, {here['p_after']:.2f} without a question and "
        f"{here[f'p_after_{OTHER}']:.2f} after another row's"
    )
    if not fact.off_zero:
        return f"{means}: no difference was detected; {fact.interval()} points remain compatible."
    return f"{means}: difference {fact.to_text()} points."


def _auc_check(by: Mapping[tuple[str, str], LayerEstimate], *, is_balanced: bool) -> str:
    """Return the AUC before and after; with balanced answers, the AUC of the answer alone should include 0.5."""
    clean, alone = by["auc", "none"], by["auc_after", "none"]
    aucs = f"AUC {clean.value:.2f}, answer only {alone.to_text(2, sign=False)}"
    if not (alone.low > 0.5 or alone.high < 0.5):
        return f"{aucs}."
    why = "although answers are balanced" if is_balanced else "so the answer alone is informative"
    return f"{aucs}, which excludes 0.5 {why}."
