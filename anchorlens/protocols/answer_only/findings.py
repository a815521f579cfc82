"""Findings of an answer-only sweep."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM
from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult
from anchorlens.results import claims
from anchorlens.results.claims import Claim, Looks
from anchorlens.results.estimates import LayerEstimate, name_layer
from anchorlens.results.findings import (
    DESCRIPTION,
    NOT_DETECTED,
    Finding,
    Findings,
    empty_findings,
    text_warning,
)
from anchorlens.statistics.pathways import A, Q

OTHER = "other_question"
"""Name of the control: the answer after another row's question."""
CLAIMS = {"p_after": Claim(OTHER, 0)}
"""The only contrast that is claimed (:meth:`AnswerOnlyAnalysis.estimates`)."""


def answer_only_findings(
    result: PathwayResult, here: Mapping[str, Any], looks: Looks, *, unit: str = ""
) -> Findings:
    """Return the effect of a missing question against another row's question.

    Args:
        result: Result of the sweep.
        here: Numbers at the shown layer.
        looks: Contrasts of ``CLAIMS`` there as several looks.
        unit: Sentence on the clusters that are drawn; empty where questions are.
    """
    by = result.facts(result.shown_layer)
    layer = int(here["layer"])
    at = name_layer(layer, result.probe_layer)
    warnings = text_warning(result.record["probe"], by.get(("auc_beyond_text", "none")))
    if reason := claims.no_signal(by["auc", "none"], at):
        return empty_findings(reason, warnings)
    if not result.record["config"]["placebos"]:
        return empty_findings(claims.NO_PLACEBO, warnings)
    floor = result.record.get("noise", {}).get("floor") or 0.0
    (claim,) = claims.claim_statements(CLAIMS, by, looks, layer, floor=floor)
    claim = replace(claim, control_value=100 * here[f"p_after_{OTHER}"])
    statements = [claim]
    for name in ("delta_p_vs_placebo", "flip_rate"):
        fact = by[name, OTHER]
        statements.append(
            Finding.of(name, DESCRIPTION, fact, layers=(layer,), layer=layer, control=OTHER)
        )
    if reason := claims.too_few(claim.n or 0, "both inputs"):
        return Findings((claim,), reason, warnings)
    gold = result.record["config"]["answers"] == "gold"
    heads, rows = claims.claim_table(statements)
    notes = [
        unit,
        _levels(here),
        *claims.stability_notes(
            statements, CLAIMS, result.probe_layers, result.contrasts(all_columns=True)
        ),
        _changes(by, here, is_balanced=gold),
        _pathways(here),
        _auc_check(by, is_balanced=gold),
    ]
    if claim.status == NOT_DETECTED:
        notes.append(claims.COMPATIBLE)
    return Findings(
        tuple(statements),
        _headline(claim, at),
        warnings,
        rows,
        heads,
        tuple(filter(None, notes)),
    )


def _headline(claim: Finding, where: str) -> str:
    """Return whether P(hallucination) without a question differs from that after another row's,
    with the difference and its interval.
    """
    sides = "without a question and after another row's"
    assert claim.value is not None and claim.low is not None and claim.high is not None
    fact = LayerEstimate(
        claim.value,
        claim.low,
        claim.high,
        claim.low,
        claim.high,
        n=claim.n or 0,
        n_clusters=claim.n_clusters or 0,
    )
    points = f"{fact.to_text(fact.digits(1))} points"
    if claim.status == NOT_DETECTED:
        return (
            f"At {where} no difference of P(hallucination) {sides} was detected; difference"
            f" {points}."
        )
    return f"At {where} P(hallucination) differs {sides} by {points}."


def _levels(here: Mapping[str, Any]) -> str:
    """Return mean P(hallucination) without a question, after another row's and clean."""
    return (
        f"Mean P(hallucination): {here['p_after']:.2f} without a question,"
        f" {here[f'p_after_{OTHER}']:.2f} after another row's, {here['p_before']:.2f} clean."
    )


def _changes(
    by: Mapping[tuple[str, str], LayerEstimate], here: Mapping[str, Any], *, is_balanced: bool
) -> str:
    difference = by["delta_p_vs_placebo", OTHER].to_text()
    effects = f"Mean ΔP {here['all']:+.1f} against {here[f'all_{OTHER}']:+.1f} ({difference})"
    flips = f"flips {here['flips']:.0f} against {here[f'flips_{OTHER}']:.0f} %"
    end = "; with balanced answers both follow from the clean P." if is_balanced else "."
    return f"{effects}, {flips}{end}"


def _pathways(here: Mapping[str, Any]) -> str:
    if min(here["n_q"], here["n_a"]) < MIN_QUESTIONS_FOR_CLAIM:
        return ""
    return (
        f"By pathway (split by a flip): {Q} {here['q']:+.1f} (n {here['n_q']}), {A}"
        f" {here['a']:+.1f} (n {here['n_a']})."
    )


def _auc_check(by: Mapping[tuple[str, str], LayerEstimate], *, is_balanced: bool) -> str:
    """Return the AUC before and after; with balanced answers, the AUC of the answer alone should
    include 0.5.
    """
    clean = by["auc", "none"]
    alone = by["auc_after", "none"]
    aucs = f"AUC {clean.value:.2f}, answer only {alone.to_text(2, sign=False)}"
    if not (alone.low > 0.5 or alone.high < 0.5):
        return f"{aucs}."
    why = "although answers are balanced" if is_balanced else "so the answer alone is informative"
    return f"{aucs}, which excludes 0.5 {why}."
