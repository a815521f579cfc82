"""Findings of a knockout: contrasts with the placebo, and the layers at which they stand (METHOD
5).

Contrasts are claimed by the rule of :mod:`anchorlens.results.claims`: where the cut itself accounts
for less than half of its difference from the placebo, the placebo moves, and nothing is claimed. An
effect is specific to the row only where all contrasts of ``STANDS`` stand.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_LAYERS
from anchorlens.results import claims
from anchorlens.results.claims import Claim, Looks
from anchorlens.results.estimates import (
    LayerEstimates,
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
    claim_status,
    empty_findings,
    text_warning,
)
from anchorlens.results.findings import STANDS as STANDING
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED

STANDS = {
    "delta_p_vs_placebo": Claim(RANDOM, -1),
    "flip_rate": Claim(RANDOM, 1),
    "auc_drop": Claim(RANDOM, -1, alone="auc_after"),
}
"""Contrasts that must all lie beyond the placebo."""
ROW_SPECIFIC = "row_specific_vs_placebo"
CLAIMS = STANDS | {ROW_SPECIFIC: Claim(RANDOM, -1, alone="row_specific_effect")}
"""The last contrast separates the row's own signal from disturbance."""
PARTIAL_LEVEL = claims.level_of(len(STANDS))
"""Level of the intervals of a claim on one or two of the contrasts of ``STANDS``."""


Effects: TypeAlias = Mapping[str, Mapping[int, float]]
"""Contrast -> layer -> effect of the cut alone."""


def knockout_findings(
    record: Mapping[str, Any],
    layer: int,
    contrasts: pd.DataFrame,
    looks: Looks,
    *,
    effects: Effects,
    unit: str = "",
) -> Findings:
    """Return the status of each contrast at ``layer`` (k*, else the last), and the layers at which
    all contrasts stand.

    Args:
        record: Record of the sweep.
        layer: Layer of the claims.
        contrasts: Contrasts at all layers.
        looks: Contrasts of ``STANDS`` at ``layer`` as several looks, with the p-values of all
            contrasts.
        effects: Effect of the cut alone in each contrast.
        unit: Sentence on the clusters that are drawn; empty where questions are.
    """
    facts = estimates_at(contrasts, layer)
    where = name_layer(layer, record["probe"]["probe_layer"])
    reader = "the probe" if record["config"]["readout"] == "probe" else "P(True)"
    warnings = text_warning(record["probe"], facts.get(("auc_beyond_text", "none")), reader)
    no_signal = claims.no_signal(facts["auc", "none"], where, reader)
    if reason := no_signal or _reason_for_no_claim(record["config"]):
        return empty_findings(reason, warnings)
    floor = record.get("noise", {}).get("floor") or 0.0
    here = {name: along[layer] for name, along in effects.items() if layer in along}
    contrast = claims.claim_statements(STANDS, facts, looks, layer, effects=here, floor=floor)
    statements = (*contrast, *_row_specific(facts, contrast, looks, layer, here, floor))
    n = min((one.n or 0 for one in contrast), default=0)
    if reason := claims.too_few(n, "cut and placebo"):
        return Findings(statements, reason, warnings)
    aucs = estimates_by_layer(contrasts, "auc", "none")
    signal = {layer for layer, auc in aucs.items() if auc.low > 0.5}
    n_clusters = min((one.n_clusters or 0 for one in contrast), default=0)
    layers = sorted(layers_standing(contrasts, effects) & signal)
    everywhere = _all_contrasts(layers, n, n_clusters)
    headline = _headline(facts, statements, where, record["config"]["anchors"][0], here)
    probe_layers = record["probe"].get("probe_layers", ())
    notes = [
        unit,
        everywhere.sentence,
        *claims.stability_notes(statements, CLAIMS, probe_layers, contrasts),
        claims.concentration_of_claims(contrasts, statements),
        claims.note_on_sign_flips(statements, looks),
    ]
    if any(one.status == NOT_DETECTED for one in statements):
        notes.append(claims.COMPATIBLE)
    heads, rows = claims.claim_table(statements)
    return Findings(
        (*statements, everywhere), headline, warnings, rows, heads, tuple(filter(None, notes))
    )


def _reason_for_no_claim(config: Mapping[str, Any]) -> str:
    """Return the reason why nothing can be claimed with these arguments; empty otherwise."""
    if config["delta_kind"] == "signed":
        return (
            "Nothing is claimed for delta_kind='signed': effects on true and false answers cancel."
        )
    if not config["placebos"]:
        return claims.NO_PLACEBO
    return ""


def _row_specific(
    facts: LayerEstimates,
    contrast: tuple[Finding, ...],
    looks: Looks,
    layer: int,
    effects: Mapping[str, float],
    floor: float,
) -> tuple[Finding, ...]:
    """Return the statement of the row-specific effect: a claim where all contrasts stand, else a
    description.
    """
    claim = CLAIMS[ROW_SPECIFIC]
    key = (ROW_SPECIFIC, RANDOM)
    if key not in facts:
        return ()
    stand = all(one.status == STANDING for one in contrast)
    status = DESCRIPTION
    if stand:
        status = claim_status(
            facts[key],
            sign=claim.sign,
            floor=floor,
            claim=SPECIFIC,
            effect=effects.get(ROW_SPECIFIC),
        )
    # The claim is that all four contrasts differ, so its p-value is the largest of theirs.
    p = max(claims.joint_p(STANDS, facts, looks.p), looks.p.get(ROW_SPECIFIC, 1.0))
    alone = claims.value_alone(facts, claim)
    return (
        Finding.of(
            ROW_SPECIFIC,
            status,
            facts[key],
            layers=(layer,),
            layer=layer,
            control=RANDOM,
            p=p,
            control_value=alone,
            split_values=looks.splits.get(key, ()),
        ),
    )


def _all_contrasts(layers: list[int], n: int, n_clusters: int) -> Finding:
    """Return the statement on the layers at which all contrasts stand by simultaneous bands."""
    if min(n, n_clusters) < MIN_QUESTIONS_FOR_LAYERS:
        of = "questions" if n < MIN_QUESTIONS_FOR_LAYERS else "relations"
        text = f"No layers are named: {MIN_QUESTIONS_FOR_LAYERS} {of} are needed."
        return Finding(
            "all_contrasts", TOO_FEW, n=n, n_clusters=n_clusters, control=RANDOM, sentence=text
        )
    status = NOT_DETECTED
    text = "No layer has all three contrasts"
    if layers:
        status = STANDING
        text = f"All three contrasts stand at {name_layers(layers)}"
    return Finding(
        "all_contrasts",
        status,
        tuple(layers),
        n=n,
        n_clusters=n_clusters,
        control=RANDOM,
        sentence=f"{text} (simultaneous bands).",
    )


def _headline(
    facts: LayerEstimates,
    statements: tuple[Finding, ...],
    where: str,
    anchor: str,
    effects: Mapping[str, float],
) -> str:
    contrast = [one for one in statements if one.quantity in STANDS]
    others = "cutting other question tokens"
    what = claims.claim_sentence(contrast, f"cutting {anchor}", others, effects)
    if all(one.status == STANDING for one in contrast) and len(statements) > len(contrast):
        if statements[-1].status == SPECIFIC:
            what += ", specific to the row"
        else:
            what += "; a row-specific effect was not shown"
    aucs: list[str] = []
    for key in (("auc", "none"), ("auc_after", SIZE_MATCHED), ("auc_after", RANDOM)):
        fact = facts[key]
        aucs.append(fact.to_text(fact.digits(2), sign=False))
    clean, cut, other = aucs
    return f"At {where} {what}. AUC: clean {clean}, cut {cut}, others cut {other}."


def layers_standing(contrasts: pd.DataFrame, effects: Effects) -> set[int]:
    """Return the layers at which all contrasts of ``STANDS`` stand by their simultaneous bands.

    Args:
        contrasts: Contrasts at all layers.
        effects: Effect of the cut alone in each contrast.
    """
    standing: list[set[int]] = []
    for name, claim in STANDS.items():
        layers: set[int] = set()
        for layer, fact in estimates_by_layer(contrasts, name, claim.control).items():
            status = claim_status(
                fact, sign=claim.sign, joint=True, effect=effects.get(name, {}).get(layer)
            )
            if status == STANDING and fact.names_layers:
                layers.add(layer)
        standing.append(layers)
    return set.intersection(*standing)
