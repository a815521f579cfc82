"""Findings of an answer-only sweep."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM
from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult
from anchorlens.results import claims
from anchorlens.results.claims import Claim, Looks
from anchorlens.results.estimates import LayerEstimate, name_layer
from anchorlens.results.findings import DESCRIPTION, NOT_DETECTED, Finding, Findings, empty_findings, text_warning
from anchorlens.statistics.pathways import A, Q

OTHER = "other_question"
"""Name of the control: the answer after another row's question."""
CLAIMS = {"p_after": Claim(OTHER, 0)}
"""The only contrast that is claimed (:meth:`AnswerOnlyAnalysis.estimates`)."""


def answer_only_findings(result: PathwayResult, here: Mapping[str, Any], looks: Looks) -> Findings:
    """Return the effect of a missing question against another row's question.

    Args:
        result: Result of the sweep.
        here: Numbers at the shown layer.
        looks: Contrasts of ``CLAIMS`` there as several looks.
    """
    by, layer = result.facts(result.shown_layer), int(here["layer"])
    at = name_layer(layer, result.probe_layer)
    warnings = text_warning(result.record["probe"], by.get(("auc_beyond_text", "none")))
    if reason := claims.no_signal(by["auc", "none"], at):
        return empty_findings(reason, warnings)
    floor = result.record.get("noise", {}).get("floor") or 0.0
    (claim,) = claims.claim_statements(CLAIMS, by, looks, layer, floor)
    claim = replace(claim, control_value=100 * here[f"p_after_{OTHER}"])
    statements = (
        claim,
        *(
            Finding.of(name, DESCRIPTION, by[name, OTHER], layers=(layer,), control=OTHER)
            for name in ("delta_p_vs_placebo", "flip_rate")
        ),
    )
    if reason := claims.too_few(claim.n or 0, "both inputs"):
        return Findings((claim,), reason, warnings)
    gold = result.record["config"]["answers"] == "gold"
    heads, rows = claims.claim_table(statements)
    notes = [
        *claims.stability_notes(statements, CLAIMS, result.probe_layers, result.contrasts(all_columns=True)),
        _changes(by, here, is_balanced=gold),
        _pathways(here),
        _auc_check(by, is_balanced=gold),
    ]
    notes += [claims.COMPATIBLE] if claim.status == NOT_DETECTED else []
    return Findings(statements, _headline(claim, here, at), warnings, rows, heads, tuple(note for note in notes if note))


def _headline(claim: Finding, here: Mapping[str, Any], where: str) -> str:
    """Format P(hallucination) without a question, after another row's and clean."""
    values = f"({here['p_after']:.2f} and {here[f'p_after_{OTHER}']:.2f}; clean {here['p_before']:.2f})"
    sides = f"without a question and after another row's {values}"
    if claim.status == NOT_DETECTED:
        return f"At {where} no difference of P(hallucination) {sides} was detected."
    return f"At {where} P(hallucination) differs {sides}."


def _changes(by: Mapping[tuple[str, str], LayerEstimate], here: Mapping[str, Any], *, is_balanced: bool) -> str:
    changes = f"Mean ΔP {here['all']:+.1f} against {here[f'all_{OTHER}']:+.1f} ({by['delta_p_vs_placebo', OTHER].to_text()})"
    changes += f", flips {here['flips']:.0f} against {here[f'flips_{OTHER}']:.0f} %"
    return changes + ("; with balanced answers both follow from the clean P." if is_balanced else ".")


def _pathways(here: Mapping[str, Any]) -> str:
    if min(here["n_q"], here["n_a"]) < MIN_QUESTIONS_FOR_CLAIM:
        return ""
    return f"By pathway (split by a flip): {Q} {here['q']:+.1f} (n {here['n_q']}), {A} {here['a']:+.1f} (n {here['n_a']})."


def _auc_check(by: Mapping[tuple[str, str], LayerEstimate], *, is_balanced: bool) -> str:
    """Return the AUC before and after; with balanced answers, the AUC of the answer alone should include 0.5."""
    clean, alone = by["auc", "none"], by["auc_after", "none"]
    aucs = f"AUC {clean.value:.2f}, answer only {alone.to_text(2, sign=False)}"
    if not (alone.low > 0.5 or alone.high < 0.5):
        return f"{aucs}."
    why = "although answers are balanced" if is_balanced else "so the answer alone is informative"
    return f"{aucs}, which excludes 0.5 {why}."
