"""Findings of token patching at k*, which is chosen on validation rows (METHOD 5)."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM
from anchorlens.results import claims
from anchorlens.results.claims import Claim, Looks
from anchorlens.results.estimates import estimates_at, name_layer
from anchorlens.results.findings import NOT_DETECTED, Findings, empty_findings, text_warning
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED

CLAIMS = {
    "delta_p_vs_placebo": Claim(RANDOM, -1),
    "flip_rate": Claim(RANDOM, 1, alone="flip_rate_random"),
}
"""Contrasts with the control."""


def token_patch_findings(
    record: Mapping[str, Any],
    summary: Mapping[str, Any],
    contrasts: pd.DataFrame,
    looks: Looks,
    *,
    effects: Mapping[str, float],
    unit: str = "",
) -> Findings:
    """Return the findings at the shown layer.

    Args:
        record: Record of the sweep.
        summary: Numbers at the shown layer.
        contrasts: Contrasts at all layers.
        looks: Contrasts of ``CLAIMS`` at the shown layer as several looks.
        effects: Effect of the patch alone in each contrast, at the shown layer.
        unit: Sentence on the clusters that are drawn; empty where questions are.
    """
    layer = int(summary["layer"])
    facts = estimates_at(contrasts, layer)
    at = name_layer(layer, record["probe"]["probe_layer"])
    warnings = text_warning(record["probe"], facts.get(("auc_beyond_text", "none")))
    if reason := claims.no_signal(facts["auc", "none"], at):
        return empty_findings(reason, warnings)
    floor = record.get("noise", {}).get("floor") or 0.0
    statements = claims.claim_statements(CLAIMS, facts, looks, layer, effects=effects, floor=floor)
    if not record["config"]["placebos"]:
        return empty_findings(claims.NO_PLACEBO, warnings)
    if not statements:
        return empty_findings(
            "Nothing is claimed: no question has tokens outside exact_question, so there is no"
            " control.",
            warnings,
        )
    n = statements[0].n or 0
    if reason := claims.too_few(n, "patch and control"):
        return Findings(statements, reason, warnings)
    what = claims.claim_sentence(
        statements,
        "replacing exact_question",
        "replacing as many other question tokens",
        effects,
    )
    over = "true answers predicted true"
    if record["config"]["base"] == "all":
        over = "true and false answers"
    heads, rows = claims.claim_table(statements)
    flips = facts["flip_rate_patched", SIZE_MATCHED]
    notes = [
        unit,
        *claims.stability_notes(
            statements, CLAIMS, record["probe"].get("probe_layers", ()), contrasts
        ),
        claims.concentration_of_claims(contrasts, statements),
        claims.note_on_sign_flips(statements, looks),
        f"Flips after the patch: {flips.to_text(flips.digits(0), sign=False)} %.",
        _groups(summary),
    ]
    if any(one.status == NOT_DETECTED for one in statements):
        notes.append(claims.COMPATIBLE)
    return Findings(
        statements,
        f"At {at} {what} ({n} questions, {over}).",
        warnings,
        rows,
        heads,
        tuple(filter(None, notes)),
    )


def _groups(summary: Mapping[str, Any]) -> str:
    groups: list[str] = []
    for name, short in (("Q-Anchored", "q"), ("A-Anchored", "a")):
        n = summary[f"n_{short}"]
        if n >= MIN_QUESTIONS_FOR_CLAIM:
            groups.append(f"{name} {summary[short]:+.1f} ({n})")
    if not groups:
        return f"No pathway has {MIN_QUESTIONS_FOR_CLAIM} questions."
    return (
        f"ΔP: {', '.join(groups)}; pathways are split by a flip of the same clean P, so their"
        " difference is descriptive."
    )
