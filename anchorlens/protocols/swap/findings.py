"""Findings of a swap sweep: which anchors and layers exceed which null (METHOD 4).

A status says what was shown:

- *beyond other positions*: the curve minus ``same_role`` excludes 0;
- *beyond a matched change*: the curve minus ``norm_matched`` does too;
- *donor's answer*: the donor's answer becomes more likely than after ``norm_matched``.

The simultaneous band over anchors, layers and nulls selects the layers to name;
:func:`~anchorlens.results.findings.claim_status` is the rule of all claims. The sentences are in
:mod:`~anchorlens.protocols.swap.sentences`.
"""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_SWAP_CLAIM
from anchorlens.protocols.swap.claim_kinds import (
    CLAIM_KINDS,
    DONOR,
    NORM_MATCHED,
    SAME_ROLE,
    ClaimKind,
    Facts,
    Key,
    Statuses,
    SweepFacts,
    by_anchor,
    collect_facts,
    kinds_of,
    smallest_claimable,
)
from anchorlens.protocols.swap.sentences import headline_of, notes_of
from anchorlens.results.estimates import LayerEstimate, format_layers
from anchorlens.results.findings import (
    ALPHA,
    BEYOND_CHANGE,
    BEYOND_POSITIONS,
    CLAIMS,
    DESCRIPTION,
    NOT_DETECTED,
    NULL_MOVES,
    TOO_FEW,
    Finding,
    Findings,
    claim_status,
    empty_findings,
    text_warning,
)
from anchorlens.results.sweep import SweepResult

_MOST_ROWS = 8
"""Largest number of rows of the table."""
_COLUMNS = ("anchor", "null", "curve minus null [joint 95 %]", "layer", "p", "status", "layers")
_READERS = {"probe": "the probe", "p_true": "P(True)"}
TableRow = tuple[str, ...]


def swap_findings(result: SweepResult) -> Findings:
    """Return one statement per anchor, null and status, a table of them, and notes on what is not
    claimed.
    """
    sweep = collect_facts(result)
    warnings = text_warning(result.record.get("probe", {}))
    reason = _reason_for_no_claim(sweep, result)
    if reason:
        return empty_findings(reason, warnings)
    statuses = statuses_of(sweep, sweep.facts)
    found: list[tuple[Finding, TableRow]] = []
    for key, along in statuses.items():
        found += _findings_of_curve(sweep, key, along)
    statements = tuple(finding for finding, _ in found)
    n = _most_questions(sweep.facts)
    if n < MIN_QUESTIONS_FOR_SWAP_CLAIM:
        return Findings(statements, _too_few(n, result), warnings)
    table, heads = _table(found)
    other = statuses_of(sweep, sweep.other_facts, is_other=True)
    return Findings(
        statements,
        headline_of(sweep, statuses),
        warnings,
        table,
        heads,
        (*notes_of(sweep, statuses, other), *note_on_p_values(statements)),
    )


def note_on_p_values(statements: Sequence[Finding]) -> list[str]:
    """Return a sentence if a statement that is not detected has a small p-value."""
    for one in statements:
        if one.status == NOT_DETECTED and one.p is not None and one.p <= ALPHA:
            return [f"A p-value of at most {ALPHA} alone claims nothing: the joint band decides."]
    return []


def _too_few(n: int, result: SweepResult) -> str:
    """Return that ``n`` questions are too few for a claim, and the cure."""
    compared = "1 question" if n == 1 else f"{n} questions"
    return (
        f"Nothing is claimed: swap and null can be compared in {compared}, but"
        f" {MIN_QUESTIONS_FOR_SWAP_CLAIM} are needed. {_more_rows(result)}"
    )


def _more_rows(result: SweepResult) -> str:
    """Return how a sweep comes to more questions."""
    said = "Use more questions (a larger limit= or another set)."
    without = result.dropped_counts.get("no_donor", 0)
    config = result.record["config"]
    keeps = {"donors": "random", "align": "last"}
    cures = [f"{name}={value!r}" for name, value in keeps.items() if config.get(name) != value]
    if without and cures:
        said += f" {without} rows have no donor; {' or '.join(cures)} finds some."
    return said


def statuses_of(sweep: SweepFacts, facts: Facts, *, is_other: bool = False) -> Statuses:
    """Return the status of every layer of every curve minus a null.

    *Beyond a matched change* needs *beyond other positions* at the same layer if ``same_role`` was
    measured.

    Args:
        sweep: Facts of the sweep.
        facts: Curve minus null by layer, in the metric of the claims or in the other one.
        is_other: Whether ``facts`` are in the metric that claims nothing.
    """
    statuses: dict[Key, dict[int, str]] = {}
    for (anchor, name), along in facts.items():
        kind = CLAIM_KINDS[name]
        own = statuses[anchor, name] = {}
        for layer, fact in along.items():
            own[layer] = claim_status(
                fact,
                sign=kind.sign,
                floor=smallest_claimable(sweep, kind, anchor, layer, is_other=is_other),
                claim=kind.status,
                joint=True,
                effect=sweep.effect(kind, anchor, layer, is_other=is_other),
                least=MIN_QUESTIONS_FOR_SWAP_CLAIM,
            )
    for (anchor, name), own in statuses.items():
        positions = statuses.get((anchor, SAME_ROLE))
        if name != NORM_MATCHED or positions is None:
            continue
        for layer, status in own.items():
            if status == BEYOND_CHANGE and positions.get(layer) != BEYOND_POSITIONS:
                own[layer] = DESCRIPTION
    return statuses


def _findings_of_curve(
    sweep: SweepFacts, key: Key, statuses: Mapping[int, str]
) -> list[tuple[Finding, TableRow]]:
    """Return the findings of a curve minus one null, with their rows of the table: its claims, for
    falls and rises apart, and what the null itself moves, else the first other status.
    """
    facts = sweep.facts[key]
    found = set(statuses.values())
    kind = CLAIM_KINDS[key[1]]
    named = [s for s in (kind.status, NULL_MOVES) if s in found]
    others = [s for s in (DESCRIPTION, NOT_DETECTED, TOO_FEW) if s in found]
    findings: list[tuple[Finding, TableRow]] = []
    for status in named or others[:1]:
        here = {layer for layer, one in statuses.items() if one == status}
        rises = {layer for layer in here if status == kind.status and facts[layer].value > 0}
        signs = filter(None, (here - rises, rises))
        findings += [_finding(sweep, key, kind, status, layers) for layers in signs]
    return findings


def _finding(
    sweep: SweepFacts, key: Key, kind: ClaimKind, status: str, here: set[int]
) -> tuple[Finding, TableRow]:
    """Return the finding of the layers with one status, and its row of the table; few questions
    name no layers.
    """
    anchor, name = key
    along = {layer: fact for layer, fact in sweep.facts[key].items() if layer in here}
    quantity = sweep.quantity(kind)
    label = "donor's answer" if name == DONOR else name
    if status == NOT_DETECTED:
        layers = [largest(along)]
    else:
        layers = [k for k, fact in along.items() if fact.names_layers]
    p = min((sweep.p_values[key][layer] for layer in along), default=float("nan"))
    # Adjusted over the claims of the sweep; that of a contrast is over its own null alone.
    p = min(1.0, len(kinds_of(sweep.facts)) * p)
    p_text = "" if isnan(p) else ("<0.001" if p < 0.001 else f"{p:.3f}")
    if status == TOO_FEW:
        top = along[largest(along)]
        finding = Finding(
            quantity,
            status,
            n=top.n,
            n_clusters=top.n_clusters,
            anchor=anchor,
            control=kind.control,
            sentence=f"{quantity}: {status}, n = {top.n}.",
        )
        return finding, (anchor, label, "", "", "", status, "")
    if not layers:
        # The largest difference, at a layer that is not named.
        fact = along[largest(along)]
        fact = fact._replace(low=fact.sim_low, high=fact.sim_high)
        finding = Finding.of(
            quantity,
            status,
            fact,
            anchor=anchor,
            control=kind.control,
            p=None if isnan(p) else p,
        )
        text = fact.to_text(fact.digits(1))
        return finding, (anchor, label, text, "", p_text, status, "")
    most = largest({k: along[k] for k in layers})
    fact = along[most]._replace(low=along[most].sim_low, high=along[most].sim_high)
    finding = Finding.of(
        quantity,
        status,
        fact,
        layers=tuple(layers),
        layer=most,
        anchor=anchor,
        control=kind.control,
        p=None if isnan(p) else p,
    )
    listed = "" if status == NOT_DETECTED else format_layers(layers)
    text = fact.to_text(fact.digits(1))
    return finding, (anchor, label, text, str(most), p_text, status, listed)


def _most_questions(facts: Facts) -> int:
    """Return the largest number of questions in which a swap and a null can be compared."""
    most = 0
    for along in facts.values():
        for fact in along.values():
            most = max(most, fact.n)
    return most


def _table(found: Sequence[tuple[Finding, TableRow]]) -> tuple[tuple[TableRow, ...], TableRow]:
    """Return rows and heads of the table, claims first, without empty columns."""
    claims_first = sorted(found, key=lambda one: one[0].status not in CLAIMS)
    rows = [row for _, row in claims_first]
    if len(rows) > _MOST_ROWS:
        rest = f"and {len(rows) - _MOST_ROWS} more: contrasts()"
        rows[_MOST_ROWS:] = [(rest, *[""] * (len(_COLUMNS) - 1))]
    heads: list[str] = []
    columns: list[list[str]] = []
    for head, *cells in zip(_COLUMNS, *rows, strict=True):
        # Too few questions have no numbers and no layers.
        if any(cells):
            heads.append(head)
            columns.append(cells)
    return tuple(zip(*columns, strict=True)), tuple(heads)


def _reason_for_no_claim(sweep: SweepFacts, result: SweepResult) -> str:
    """Return the reason why nothing can be claimed; empty otherwise."""
    config: Mapping[str, Any] = sweep.config
    curves: pd.DataFrame = sweep.curves
    reader = _READERS.get(config["readout"])
    if reader and config.get("direction") != "denoising":  # denoising starts from the corrupt input
        auc, low, high = curves[["auc", "auc_low", "auc_high"]].iloc[0]
        if isnan(auc):
            return (
                f"Nothing is claimed: the measured rows lack true or false answers, so {reader} has"
                " no AUC."
            )
        if not low > 0.5:
            return (
                f"Nothing is claimed: no signal of {reader} was detected, AUC {auc:.2f} [{low:.2f},"
                f" {high:.2f}]."
            )
    if config["delta_kind"] == "signed":
        return (
            "Nothing is claimed for delta_kind='signed': effects on true and false answers cancel."
        )
    if not config["n_null_donors"]:
        return (
            "Nothing is claimed: no null was measured, so the effect of a disturbance alone is"
            " unknown."
        )
    if config.get("donors") == "zero":
        return "Nothing is claimed: donors='zero' have no null of the same norm and angle."
    first = kinds_of(sweep.facts)[:1]
    if not first or not any(by_anchor(sweep.facts, first[0]).values()):
        if sweep.contrasts["n"].max() == 1:
            return _too_few(1, result)  # of which there is no band
        name = first[0] if first else "its null"
        return (
            "Nothing is claimed: at every measured layer the swap is fixed by construction, or"
            f" {name} cannot act."
        )
    return ""


def largest(along: Mapping[int, LayerEstimate]) -> int:
    """Return the layer of the largest absolute value."""
    return max(along, key=lambda k: abs(along[k].value))
