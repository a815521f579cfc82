"""Findings of an answer-only sweep."""

from collections.abc import Mapping
from typing import Any

from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult
from anchorlens.results.estimates import FEW, LayerEstimate, name_layer
from anchorlens.results.findings import DESCRIPTION, OPEN, STANDS, Finding, Findings, empty_findings, text_warning
from anchorlens.statistics.pathways import A, Q

OTHER = "other_question"
"""Control: the answer after another row's question."""


def answer_only_findings(result: PathwayResult, here: Mapping[str, Any]) -> Findings:
    """Return what the missing question does and a wrong one does not; ``here`` has the numbers at the shown layer."""
    by = result.facts(result.shown_layer)
    gold = result.record["config"]["answers"] == "gold"
    if here["n_all"] < FEW:
        return empty_findings(f"Nothing is said: {here['n_all']} questions were measured, and {FEW} are needed.")
    warnings = text_warning(result.record["probe"], by.get(("auc_beyond_text", "none")))
    parts = [] if by["auc", "none"].low > 0.5 else ["No signal: nothing here speaks of truth."]
    parts.append(_finding(by["p_after", OTHER], here, name_layer(here["layer"], result.probe_layer)))
    delta = by["delta_p_vs_placebo", OTHER]
    said = f"Mean ΔP {here['all']:+.1f} against {here[f'all_{OTHER}']:+.1f} ({delta.to_text()})"
    said += f", flips {here['flips']:.0f} against {here[f'flips_{OTHER}']:.0f} %"
    parts.append(said + (": in balanced answers predicted right, both follow from the clean P." if gold else "."))
    if min(here["n_q"], here["n_a"]) >= FEW:
        groups = f"{Q} {here['q']:+.1f} (n {here['n_q']}), {A} {here['a']:+.1f} (n {here['n_a']})"
        parts.append(f"By pathway (selected by a flip): {groups}.")
    text = " ".join([*parts, _check(by, given=gold)])
    statements = [
        Finding.of(name, _status(name, by[name, OTHER]), by[name, OTHER], layers=(here["layer"],), control=OTHER)
        for name in ("p_after", "delta_p_vs_placebo", "flip_rate")
    ]
    return Findings(tuple(statements), text, warnings)


def _status(name: str, fact: LayerEstimate) -> str:
    """Return the status of a contrast; delta_p_vs_placebo and flip_rate follow from the clean P of balanced answers."""
    if name != "p_after":
        return DESCRIPTION
    return STANDS if fact.off_zero else OPEN


def _finding(fact: LayerEstimate, here: Mapping[str, Any], where: str) -> str:
    """Where P(hallucination) goes; a difference that is not shown is called so."""
    means = (
        f"At {where} P(hallucination) is {here['p_before']:.2f} clean, {here['p_after']:.2f} without a question and "
        f"{here[f'p_after_{OTHER}']:.2f} after another row's"
    )
    if not fact.off_zero:
        return f"{means}: a difference is not shown; the data allow {fact.range_text()} points."
    return f"{means}: difference {fact.to_text()} points."


def _check(by: Mapping[tuple[str, str], LayerEstimate], *, given: bool) -> str:
    """AUC before and after; that of the answer alone is a check where given answers are balanced."""
    clean, alone = by["auc", "none"], by["auc_after", "none"]
    said = f"AUC {clean.value:.2f}, answer only {alone.to_text(2, sign=False)}"
    if not (alone.low > 0.5 or alone.high < 0.5):
        return f"{said}."
    return f"{said}: beware, it excludes 0.5" + (" although answers are balanced." if given else ": the answer alone tells.")
