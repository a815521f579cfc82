"""Findings of a knockout: contrasts with the placebo, and the layers at which they stand (METHOD 5).

Contrasts are claimed by the rule of :mod:`anchorlens.results.claims`. An effect is specific to the row only where all contrasts of
``STANDS`` stand.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_LAYERS
from anchorlens.results import claims
from anchorlens.results.claims import Claim, Looks
from anchorlens.results.estimates import (
    LayerEstimates,
    concentration_note,
    estimates_at,
    estimates_by_layer,
    name_layer,
    name_layers,
)
from anchorlens.results.findings import (
    DESCRIPTION,
    NOT_DETECTED,
    SPECIFIC,
    TOO_FEW,
    Finding,
    Findings,
    empty_findings,
    status_of,
    text_warning,
)
from anchorlens.results.findings import STANDS as STANDING
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED

STANDS = {
    "delta_p_vs_placebo": Claim(RANDOM, -1), "flip_rate": Claim(RANDOM, 1), "auc_drop": Claim(RANDOM, -1, alone="auc_after"),
}  # fmt: skip
"""Contrasts that must all lie beyond the placebo."""
ROW_SPECIFIC = "row_specific_vs_placebo"
CLAIMS = STANDS | {ROW_SPECIFIC: Claim(RANDOM, -1, alone="row_specific_effect")}
"""The last contrast separates the row's own signal from disturbance."""
PARTIAL_LEVEL = claims.level_of(len(STANDS))
"""Level of the intervals of a claim on one or two of the contrasts of ``STANDS``."""


def knockout_findings(record: Mapping[str, Any], layer: int, contrasts: pd.DataFrame, looks: Looks) -> Findings:
    """Return the status of each contrast at ``layer`` (k*, else the last), and the layers at which all contrasts stand.

    Args:
        record: Record of the sweep.
        layer: Layer of the claims.
        contrasts: Contrasts at all layers.
        looks: Contrasts of ``STANDS`` at ``layer`` as several looks, with the p-values of all contrasts.
    """
    facts = estimates_at(contrasts, layer)
    where = name_layer(layer, record["probe"]["probe_layer"])
    reader = "the probe" if record["config"]["readout"] == "probe" else "P(True)"
    warnings = text_warning(record["probe"], facts.get(("auc_beyond_text", "none")), reader)
    if reason := claims.no_signal(facts["auc", "none"], where, reader) or _reason_for_no_claim(record["config"]):
        return empty_findings(reason, warnings)
    floor = record.get("noise", {}).get("floor") or 0.0
    contrast = claims.claim_statements(STANDS, facts, looks, layer, floor)
    statements = (*contrast, *_row_specific(facts, contrast, looks, layer, floor))
    n = min((one.n or 0 for one in contrast), default=0)
    if reason := claims.too_few(n, "cut and placebo"):
        return Findings(statements, reason, warnings)
    signal = {k for k, fact in estimates_by_layer(contrasts, "auc", "none").items() if fact.low > 0.5}
    everywhere = _all_contrasts(sorted(layers_standing(contrasts) & signal), n)
    headline = _headline(facts, statements, where, record["config"]["anchors"][0])
    notes = [everywhere.sentence, *claims.stability_notes(statements, CLAIMS, record["probe"].get("probe_layers", ()), contrasts)]
    few = concentration_note(contrasts[contrasts["quantity"].isin(STANDS) & (contrasts["control"] == RANDOM)], "quantity")
    notes += [few] if few else []
    notes += [claims.COMPATIBLE] if NOT_DETECTED in {one.status for one in statements} else []
    heads, rows = claims.claim_table(statements)
    return Findings((*statements, everywhere), headline, warnings, rows, heads, tuple(notes))


def _reason_for_no_claim(config: Mapping[str, Any]) -> str:
    """Return the reason why nothing can be claimed with these arguments; empty otherwise."""
    if config["delta_kind"] == "signed":
        return "Nothing is claimed for delta_kind='signed': effects on true and false answers cancel."
    if not config["placebos"]:
        return "Nothing is claimed: no placebo was measured, so the effect of other cuts is unknown."
    return ""


def _row_specific(
    facts: LayerEstimates, contrast: tuple[Finding, ...], looks: Looks, layer: int, floor: float
) -> tuple[Finding, ...]:
    """Return the statement of the row-specific effect: a claim where all contrasts stand, else a description."""
    claim, key = CLAIMS[ROW_SPECIFIC], (ROW_SPECIFIC, RANDOM)
    if key not in facts:
        return ()
    stand = all(one.status == STANDING for one in contrast)
    status = status_of(facts[key], claim.sign, floor, SPECIFIC) if stand else DESCRIPTION
    # The claim is that all four contrasts differ, so its p-value is the largest of theirs.
    p = max(claims.joint_p(STANDS, facts, looks.p), looks.p.get(ROW_SPECIFIC, 1.0))
    alone = claims.value_alone(facts, claim)
    return (Finding.of(ROW_SPECIFIC, status, facts[key], layers=(layer,), control=RANDOM, p=p, control_value=alone,
                       split_values=looks.splits.get(key, ())),)  # fmt: skip


def _all_contrasts(layers: list[int], n: int) -> Finding:
    """Return the statement on the layers at which all contrasts stand by simultaneous bands."""
    if n < MIN_QUESTIONS_FOR_LAYERS:
        text = f"No layers are named: {MIN_QUESTIONS_FOR_LAYERS} questions are needed."
        return Finding("all_contrasts", TOO_FEW, n=n, control=RANDOM, sentence=text)
    text = f"All three contrasts stand at {name_layers(layers)}" if layers else "No layer has all three contrasts"
    status = STANDING if layers else NOT_DETECTED
    return Finding("all_contrasts", status, tuple(layers), n=n, control=RANDOM, sentence=f"{text} (simultaneous bands).")


def _headline(facts: LayerEstimates, statements: tuple[Finding, ...], where: str, anchor: str) -> str:
    contrast = [one for one in statements if one.quantity in STANDS]
    what = claims.claim_sentence(contrast, f"cutting {anchor}", "cutting other question tokens")
    if all(one.status == STANDING for one in contrast) and len(statements) > len(contrast):
        what += ", specific to the row" if statements[-1].status == SPECIFIC else "; a row-specific effect was not detected"
    clean, cut, others = (f"{facts[key].value:.2f}" for key in (("auc", "none"), ("auc_after", SIZE_MATCHED), ("auc_after", RANDOM)))
    moved = f"falls from {clean} to {cut}" if cut < clean else f"is {clean}, with the cut {cut}"
    return f"At {where} {what}. AUC {moved}; with other tokens cut it is {others}."


def layers_standing(contrasts: pd.DataFrame) -> set[int]:
    """Return the layers at which all contrasts of ``STANDS`` lie beyond the placebo by their simultaneous bands."""
    return set.intersection(
        *(
            {
                k
                for k, fact in estimates_by_layer(contrasts, name, c.control).items()
                if fact.n >= MIN_QUESTIONS_FOR_LAYERS and fact.beyond(c.sign, everywhere=True)
            }
            for name, c in STANDS.items()
        )
    )
