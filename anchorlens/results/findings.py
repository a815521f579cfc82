"""Findings as data: statements with quantity, layers, value, interval and status; text, tables,
JSON and HTML are made of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pandas as pd

from anchorlens.constants import MIN_CLUSTERS, MIN_QUESTIONS_FOR_CLAIM
from anchorlens.display import align_columns, escape_hidden
from anchorlens.results.estimates import LayerEstimate

STANDS, SPECIFIC = "stands", "specific"
"""Status of a claim: effect beyond the placebo; of the row's own signal."""
BEYOND_POSITIONS, BEYOND_CHANGE = "beyond other positions", "beyond a matched change"
DONORS_ANSWER = "donor's answer"
"""Status of a claim of a swap: effect beyond a swap of other positions; beyond a change of the same
norm and angle; the donor's answer becomes more likely than after that change.
"""
REVERSED, NOT_DETECTED, NULL_MOVES = "reversed", "not detected", "null moves"
TOO_FEW, DESCRIPTION = "too few questions", "description"
"""Status of a statement that is no claim of an effect."""
CLAIMS = (STANDS, SPECIFIC, BEYOND_POSITIONS, BEYOND_CHANGE, DONORS_ANSWER)
"""Statuses whose layers a figure marks."""

ALPHA = 0.05
"""Largest p-value of a claim, over all looks of a sweep or over all sweeps."""

LEAST_SHARE = 0.5
"""Smallest share of effect minus control that the effect itself accounts for in a claim."""


@dataclass(frozen=True)
class Finding:
    """One statement about a quantity.

    Attributes:
        quantity: Name of the quantity: ``delta_p_vs_placebo``, ``delta_p_minus_null``, ...
        status: one of the statuses above.
        layers: Layers of the statement.
        layer: Layer of ``value``: that with the largest; None if no layer is named.
        value: Value of the quantity at ``layer``, or the largest over layers; None if it has none.
        low: Lower end of the interval.
        high: Upper end of the interval.
        n: Number of questions.
        n_clusters: Number of clusters that were drawn; equal to ``n`` where questions are.
        anchor: Anchor or edges; empty if the sweep has one.
        control: Control of the comparison; ``none`` without one.
        sentence: Text of the statement.
        level: Level of the interval.
        p: P-value of the claim, adjusted over the contrasts of the sweep; None for statements about
            other layers and descriptions.
        control_value: Value under the control alone, in the quantity's unit; None if unknown.
        split_values: Value in each split of the probes; empty for one split.
    """

    quantity: str
    status: str
    layers: tuple[int, ...] = ()
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    n_clusters: int | None = None
    anchor: str = ""
    control: str = "none"
    sentence: str = ""
    level: float = 0.95
    p: float | None = None
    control_value: float | None = None
    split_values: tuple[float, ...] = ()
    layer: int | None = None

    @classmethod
    def of(cls, quantity: str, status: str, fact: LayerEstimate, **more: Any) -> "Finding":
        """Make a finding from a value with its pointwise interval; with too few questions it has no
        interval.
        """
        if status == TOO_FEW:
            return cls(
                quantity,
                status,
                value=fact.value,
                n=fact.n,
                n_clusters=fact.n_clusters,
                sentence=f"{quantity}: {status} ({fact.n}).",
                **more,
            )
        sentence = f"{quantity}: {fact.to_text(fact.digits(decimals(quantity)))}, {status}."
        return cls(
            quantity,
            status,
            value=fact.value,
            low=fact.low,
            high=fact.high,
            n=fact.n,
            n_clusters=fact.n_clusters,
            sentence=sentence,
            **more,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types; NaN is None."""
        fields = {name: None if value != value else value for name, value in asdict(self).items()}
        return {
            **fields,
            "layers": [int(layer) for layer in self.layers],
            "layer": None if self.layer is None else int(self.layer),
            "n": None if self.n is None else int(self.n),
            "n_clusters": None if self.n_clusters is None else int(self.n_clusters),
        }


@dataclass(frozen=True)
class Findings:
    """Findings of a sweep.

    Attributes:
        statements: Findings; that of the headline is first.
        headline: Main finding in one or two sentences.
        warnings: Caveats that limit the headline.
        rows: Cells of a table of numbers.
        columns: Column heads of the table; empty if it needs none.
        notes: Sentences after the table.
    """

    statements: tuple[Finding, ...] = ()
    headline: str = ""
    warnings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def claims(self) -> tuple[Finding, ...]:
        """Statements that claim an effect; a figure marks their layers."""
        return tuple(one for one in self.statements if one.status in CLAIMS)

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """Column heads (if any) and rows."""
        return ((self.columns,) if self.columns else ()) + self.rows

    def __str__(self) -> str:
        table = align_columns(self.table) if self.rows else ""
        parts = (*self.warnings, self.headline, table, *self.notes)
        text = "\n".join(part for part in parts if part)
        # Names of segments, models and sets are the user's.
        return escape_hidden(text)

    def __bool__(self) -> bool:
        return bool(self.headline or self.warnings or self.rows or self.notes)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per statement."""
        return pd.DataFrame(
            [asdict(one) for one in self.statements], columns=list(Finding.__dataclass_fields__)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return {
            "headline": self.headline,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "statements": [one.to_dict() for one in self.statements],
            "table": {"columns": list(self.columns), "rows": [list(row) for row in self.rows]},
        }


def claim_status(
    fact: LayerEstimate,
    *,
    sign: int = 0,
    floor: float = 0.0,
    claim: str = STANDS,
    joint: bool = False,
    effect: float | None = None,
    least: int = MIN_QUESTIONS_FOR_CLAIM,
) -> str:
    """Return the status of a claim at one layer; the rule of all protocols.

    A difference between an effect and a control is no claim where the control itself accounts for
    most of it: if P falls by 2 points after a swap and by 25 after its null, the difference is +23
    although the swap did not raise P.

    Args:
        fact: Value with its interval and its simultaneous band.
        sign: Sign of the expected effect; 0 if either sign is one.
        floor: Noise floor; values within it are not detected.
        claim: Status of an interval on the expected side of 0.
        joint: Whether the simultaneous band has to exclude 0, for layers that were not named
            beforehand. If False, the pointwise interval.
        effect: Effect of which ``fact`` is the difference from a control. If None, ``fact`` is the
            effect itself.
        least: Number of questions below which nothing is claimed.
    """
    if fact.n < least or fact.n_clusters < MIN_CLUSTERS:
        return TOO_FEW
    side = fact.side(joint=joint)
    if abs(fact.value) <= floor or side == 0:
        return NOT_DETECTED
    if sign and side != sign:
        return REVERSED
    if effect is not None and effect / fact.value < LEAST_SHARE:
        return NULL_MOVES
    return claim


def decimals(quantity: str) -> int:
    """Return the decimals to print: 2 for areas under the curve, 1 for percentage points."""
    return 2 if quantity.startswith("auc") else 1


def empty_findings(reason: str, warnings: Sequence[str] = ()) -> Findings:
    """Return findings without a statement: the reason is the headline."""
    return Findings(headline=reason, warnings=tuple(warnings))


def text_warning(
    probe: Mapping[str, Any], beyond: LayerEstimate | None = None, reader: str = "the probe"
) -> tuple[str, ...]:
    """Return a warning if a classifier of the text alone separates true from false answers."""
    pair, alone = (probe.get(name) for name in ("qa_text_auc", "answer_text_auc"))
    if pair and pair["ci_low"] > 0.5:
        more = "" if beyond is None else f"; {reader}'s AUC {beyond.to_text(2)} beyond it"
        return (
            f"Beware: a classifier of question and answer text reaches AUC {_auc(pair)}{more}.",
        )
    if alone and (alone["ci_low"] > 0.5 or alone["ci_high"] < 0.5):
        return (f"Beware: a classifier of the answer's text reaches AUC {_auc(alone)}.",)
    return ()


def _auc(text: Mapping[str, float]) -> str:
    return f"{text['auc']:.2f} [{text['ci_low']:.2f}, {text['ci_high']:.2f}]"
