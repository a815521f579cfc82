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

CLAIMS = {"delta_p_vs_placebo": Claim(RANDOM, -1), "flip_rate": Claim(RANDOM, 1, alone="flip_rate_random")}
"""Contrasts with the control."""


def patch_findings(record: Mapping[str, Any], summary: Mapping[str, Any], contrasts: pd.DataFrame, looks: Looks) -> Findings:
    """Return the findings at the shown layer.

    Args:
        record: Record of the sweep.
        summary: Numbers at the shown layer.
        contrasts: Contrasts at all layers.
        looks: Contrasts of ``CLAIMS`` at the shown layer as several looks.
    """
    layer = int(summary["layer"])
    facts, at = estimates_at(contrasts, layer), name_layer(layer, record["probe"]["probe_layer"])
    warnings = text_warning(record["probe"], facts.get(("auc_beyond_text", "none")))
    if reason := claims.no_signal(facts["auc", "none"], at):
        return empty_findings(reason, warnings)
    statements = claims.claim_statements(CLAIMS, facts, looks, layer, record.get("noise", {}).get("floor") or 0.0)
    if not statements:
        return empty_findings("Nothing is claimed: no question has tokens outside exact_question, so there is no control.", warnings)
    n = statements[0].n or 0
    if reason := claims.too_few(n, "patch and control"):
        return Findings(statements, reason, warnings)
    what = claims.claim_sentence(statements, "replacing exact_question", "replacing as many other question tokens")
    over = "true and false answers" if record["config"]["base"] == "all" else "true answers predicted true"
    heads, rows = claims.claim_table(statements)
    notes = [
        *claims.stability_notes(statements, CLAIMS, record["probe"].get("probe_layers", ()), contrasts),
        f"Flips after the patch: {facts['flip_rate_patched', SIZE_MATCHED].value:.0f} %.",
        _groups(summary),
    ]
    notes += [claims.COMPATIBLE] if NOT_DETECTED in {one.status for one in statements} else []
    return Findings(statements, f"At {at} {what} ({n} questions, {over}).", warnings, rows, heads, tuple(notes))


def _groups(summary: Mapping[str, Any]) -> str:
    groups = [
        f"{name} {summary[short]:+.1f} ({summary[f'n_{short}']})"
        for name, short in (("Q-Anchored", "q"), ("A-Anchored", "a"))
        if summary[f"n_{short}"] >= MIN_QUESTIONS_FOR_CLAIM
    ]
    if not groups:
        return f"No pathway has {MIN_QUESTIONS_FOR_CLAIM} questions."
    return f"ΔP: {', '.join(groups)}; pathways are split by a flip of the same clean P, so their difference is descriptive."
