"""Claims of one sweep: contrasts at a layer named beforehand, with one rule for protocols with a
control (METHOD 5).

A contrast is claimed only where the change itself accounts for at least half of its difference from
the control; else the control moves (:func:`~anchorlens.results.findings.claim_status`).

All contrasts of a protocol beyond their 95 % intervals on the expected side are one claim.
Otherwise each contrast is one of k looks and has the interval of level 1 - 0.05 / k, so that all k
hold jointly at 95 % (Bonferroni), and k times its sign-flip p-value must be at most 5 %: at 20
questions these intervals alone claim something in up to 9 % of sweeps without an effect. The
p-value of a statement follows the same rule: the smaller of the largest p-value of all contrasts
and k times its own. A p-value alone claims nothing; it also serves the adjustment over sweeps
(:mod:`~anchorlens.results.adjusted_claims`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from scipy.special import stdtr

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM
from anchorlens.results.estimates import (
    LayerEstimate,
    LayerEstimates,
    concentration_note,
    estimates_at,
    estimates_by_layer,
    join_with_and,
)
from anchorlens.results.findings import (
    ALPHA,
    CLAIMS,
    DESCRIPTION,
    LEAST_SHARE,
    NOT_DETECTED,
    NULL_MOVES,
    REVERSED,
    STANDS,
    TOO_FEW,
    Finding,
    claim_status,
    decimals,
)
from anchorlens.statistics.bands import RATE, p_values
from anchorlens.statistics.pathways import quantity_frame
from anchorlens.statistics.resamples import Estimate

SplitValues: TypeAlias = Mapping[tuple[str, str], tuple[float, ...]]
# The p-values of estimates half a standard error from the limit of a claim, on both sides.
BORDERLINE = (0.01, 0.15)
NO_PLACEBO = "Nothing is claimed: no placebo was measured, so what another change does is unknown."
COMPATIBLE = "Not detected: effects inside the interval remain compatible."
# Status of a reversed contrast whose change itself moves in the opposite direction.
_OPPOSITE = "opposite"


class Claim(NamedTuple):
    """Contrast that is claimed.

    Attributes:
        control: Side that is subtracted.
        sign: Sign of an expected effect; 0 if either sign is one.
        alone: Quantity that holds the value under the control alone; empty without one.
    """

    control: str
    sign: int
    alone: str = ""


@dataclass(frozen=True)
class Looks:
    """Contrasts at one layer as several looks.

    Attributes:
        level: Level of the intervals, 1 - 0.05 / number of contrasts.
        facts: Contrasts with intervals of that level.
        p: Two-sided p-value of each contrast.
        splits: (quantity, control) -> value in each split of the probes; empty for one split.
        flips: Two-sided p-value of each contrast by sign flips alone; empty if not computed.
    """

    level: float
    facts: LayerEstimates
    p: Mapping[str, float]
    splits: SplitValues = field(default_factory=dict)
    flips: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        estimates: Mapping[str, Estimate],
        claims: Mapping[str, Claim],
        layer: int,
        splits: SplitValues | None = None,
        flips: Mapping[str, float] | None = None,
    ) -> "Looks":
        """Compute the intervals of ``claims`` from their estimates at ``layer``, and the p-values
        of all estimates.

        Args:
            estimates: Contrast -> estimate at the layer.
            claims: Contrasts that are claimed.
            layer: Layer of the claims.
            splits: (quantity, control) -> value in each split of the probes. If None, one split.
            flips: Contrast -> p-value of the sign-flip test at the layer. The p-value of a contrast
                is the larger of it and that of its intervals, so that it never claims where they do
                not. If None, that of the intervals.
        """
        level = level_of(len(claims))
        rates = {name: name == "flip_rate" for name in estimates}
        frames: list[pd.DataFrame] = []
        for name, claim in claims.items():
            if name in estimates:
                own = estimates[name]
                frames.append(
                    quantity_frame([layer], name, claim.control, own, rate=rates[name], level=level)
                )
        facts = estimates_at(pd.concat(frames), layer) if frames else LayerEstimates()
        p: dict[str, float] = {}
        for name, one in estimates.items():
            flipped = (flips or {}).get(name, np.nan)
            p[name] = float(np.fmax(_p_value(one, rate=rates[name]), flipped))
        return cls(level, facts, p, splits or {}, flips or {})

    def is_unconfirmed(self, name: str, n_looks: int) -> bool:
        """Return whether sign flips do not confirm the interval of a contrast, one of ``n_looks``
        looks.
        """
        return n_looks * self.flips.get(name, 0.0) > ALPHA


def _p_value(estimate: Estimate, *, rate: bool) -> float:
    """Return the two-sided p-value for 0 at the only point: the larger of those of the percentile
    and of the t interval.

    The far ends of a percentile interval are a few resamples. Measured without the t interval:
    studies of eight sweeps without an effect claim something in 10 % after the adjustment (100
    questions).
    """
    n = int(estimate.n[0])
    scale = float(np.nanstd(estimate.draws))
    if n < MIN_QUESTIONS_FOR_CLAIM:
        return 1.0
    scale *= np.sqrt(n / (n - 1))
    of_t = 2 * float(stdtr(n - 1, -abs(estimate.value[0]) / scale)) if scale > 0 else 0.0
    return max(float(p_values(estimate, span=RATE if rate else 0.0)[0]), of_t)


def level_of(looks: int) -> float:
    """Return the level of each interval at which ``looks`` claims hold jointly at 95 %."""
    return 1 - ALPHA / looks


def claim_statements(
    claims: Mapping[str, Claim],
    facts: LayerEstimates,
    looks: Looks,
    layer: int,
    *,
    effects: Mapping[str, float] | None = None,
    floor: float = 0.0,
) -> tuple[Finding, ...]:
    """Return a statement for each contrast that was measured.

    Args:
        claims: Contrasts that are claimed.
        facts: Estimates at the layer, with 95 % intervals.
        looks: The same contrasts as several looks.
        layer: Layer of the claims.
        effects: Contrast -> effect of the change itself, of which the contrast is the difference
            from the control. If None, both sides are changes of one kind, and neither is a control.
        floor: Noise floor in percentage points.
    """
    alone = effects or {}
    claims = {name: claim for name, claim in claims.items() if (name, claim.control) in facts}
    level = 0.95
    used = facts
    status = _statuses(claims, facts, alone, floor)
    if any(one not in (STANDS, TOO_FEW) for one in status.values()):
        level = looks.level
        used = looks.facts
        status = _statuses(claims, used, alone, floor)
        for name, one in status.items():
            if one in (*CLAIMS, REVERSED) and looks.is_unconfirmed(name, len(claims)):
                status[name] = NOT_DETECTED
    together = joint_p(claims, facts, looks.p)
    statements: list[Finding] = []
    for name, claim in claims.items():
        statement = Finding.of(
            name,
            status[name],
            used[name, claim.control],
            layers=(layer,),
            layer=layer,
            control=claim.control,
            level=level,
            p=min(together, len(claims) * looks.p.get(name, 1.0)),
            control_value=value_alone(facts, claim),
            split_values=looks.splits.get((name, claim.control), ()),
        )
        statements.append(statement)
    return tuple(statements)


def _statuses(
    claims: Mapping[str, Claim], facts: LayerEstimates, alone: Mapping[str, float], floor: float
) -> dict[str, str]:
    """Return the status of each claim by the name of its contrast."""
    found: dict[str, str] = {}
    for name, claim in claims.items():
        fact = facts[name, claim.control]
        found[name] = claim_status(
            fact, sign=claim.sign, floor=floor_of(name, floor), effect=alone.get(name)
        )
    return found


def joint_p(claims: Mapping[str, Claim], facts: LayerEstimates, p: Mapping[str, float]) -> float:
    """Return the p-value of the claim that all contrasts differ from 0 on their expected sides."""
    for name, claim in claims.items():
        is_expected = facts[name, claim.control].value * claim.sign >= 0
        if not is_expected:
            return 1.0
    return max((p.get(name, 1.0) for name in claims), default=1.0)


def floor_of(quantity: str, floor: float) -> float:
    """Return the noise floor of a quantity: that of probabilities, in points; 0 for areas under the
    curve.
    """
    return 0.0 if decimals(quantity) > 1 else floor


def value_alone(facts: LayerEstimates, claim: Claim) -> float | None:
    """Return the value under the control of a claim alone; None if it was not measured."""
    fact = facts.get((claim.alone, claim.control))
    return None if fact is None else fact.value


def claim_table(
    statements: Sequence[Finding],
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return heads and rows of the table of claims; descriptions and statements without a value are
    left out.
    """
    with_value = [one for one in statements if one.value is not None]
    shown = [one for one in with_value if one.status not in (DESCRIPTION, TOO_FEW)]
    if not shown:
        return (), ()
    rows: list[tuple[str, ...]] = []
    has_splits = any(one.split_values for one in shown)
    for one in shown:
        assert one.value is not None and one.low is not None and one.high is not None
        fact = LayerEstimate(
            value=one.value,
            low=one.low,
            high=one.high,
            sim_low=one.low,
            sim_high=one.high,
            n=one.n or 0,
            n_clusters=one.n_clusters or 0,
        )
        digits = fact.digits(decimals(one.quantity))
        number, interval = fact.to_text(digits).split(" ", 1)
        alone = ""
        if one.control_value is not None:
            alone = f"{one.control_value:.{decimals(one.quantity)}f}"
        ends: list[str] = []
        if one.split_values:
            least = np.nanmin(one.split_values)
            most = np.nanmax(one.split_values)
            ends = [f"{least:+.{digits}f}", f"{most:+.{digits}f}"]
        rows.append(
            (
                one.quantity,
                number,
                interval,
                *([" to ".join(ends)] if has_splits else []),
                one.status,
                alone,
            )
        )
    interval_head = f"{100 * shown[0].level:.3g} % interval"
    heads = (
        "contrast",
        "value",
        interval_head,
        *(["single splits"] if has_splits else []),
        "status",
        "control alone",
    )
    width = len(heads) if any(row[-1] for row in rows) else len(heads) - 1
    return heads[:width], tuple(row[:width] for row in rows)


def note_on_sign_flips(statements: Sequence[Finding], looks: Looks) -> str:
    """Return a sentence on the contrasts whose interval excludes 0 and that sign flips do not
    confirm; empty if there are none.
    """
    names: list[str] = []
    for one in statements:
        if one.status != NOT_DETECTED or one.low is None or one.high is None:
            continue
        if not one.low <= 0 <= one.high and looks.is_unconfirmed(one.quantity, len(looks.facts)):
            p = min(1.0, len(looks.facts) * looks.flips[one.quantity])
            names.append(f"{one.quantity} (p = {p:.2g})")
    if not names:
        return ""
    return (
        f"Not claimed although the interval excludes 0: {join_with_and(names)}. The p-value of"
        f" sign flips, over all contrasts, is above {100 * ALPHA:.0f} %."
    )


def concentration_of_claims(contrasts: pd.DataFrame, statements: Sequence[Finding]) -> str:
    """Return a sentence on the claimed contrasts that few questions carry; empty if none is."""
    claimed = [(one.quantity, one.control) for one in statements if one.status in CLAIMS]
    keys = zip(contrasts["quantity"], contrasts["control"], strict=True)
    is_claimed = [key in claimed for key in keys]
    return concentration_note(contrasts[is_claimed], "quantity")


def stability_notes(
    statements: Sequence[Finding],
    claims: Mapping[str, Claim],
    probe_layers: Sequence[int],
    contrasts: pd.DataFrame,
) -> tuple[str, ...]:
    """Return k* of each split, which claims depend on the split, and which statuses are borderline.

    A claim depends on the split if its value has the opposite sign in a split, or if it is not
    detected at k* of a split (over all rows, pointwise 95 % interval). A status is borderline if
    its p-value lies in ``BORDERLINE``: another draw of splits and false answers may change it.
    """
    near: list[str] = []
    for one in statements:
        if one.p is None or one.status == DESCRIPTION:
            continue
        if BORDERLINE[0] <= one.p <= BORDERLINE[1]:
            near.append(f"{one.quantity} (p = {one.p:.2f})")
    borderline = (
        (f"Borderline, another seed may decide otherwise: {', '.join(near)}.",) if near else ()
    )
    if len(probe_layers) < 2:
        return borderline
    parts: list[str] = []
    for one in statements:
        if one.status not in CLAIMS or one.value is None or one.quantity not in claims:
            continue
        sign = 1 if one.value > 0 else -1
        along = estimates_by_layer(contrasts, one.quantity, claims[one.quantity].control)
        turned = sum(value * sign < 0 for value in one.split_values)
        lost = [k for k in sorted(set(probe_layers)) if k in along and not along[k].beyond(sign)]
        where: list[str] = []
        if turned:
            where.append(f"opposite sign in {turned} of {len(one.split_values)} splits")
        if lost:
            where.append(
                f"not detected at layer{'s' * (len(lost) > 1)} {', '.join(map(str, lost))}"
            )
        if where:
            parts.append(f"{one.quantity} ({' and '.join(where)})")
    layers = (
        f"k* of the {len(probe_layers)} splits: {', '.join(map(str, probe_layers))}; claims use the"
        " median."
    )
    return (layers, *([f"Depends on the split: {', '.join(parts)}."] if parts else []), *borderline)


def claim_sentence(
    statements: Sequence[Finding], change: str, control: str, effects: Mapping[str, float]
) -> str:
    """Return which contrasts stand, as a clause: ``cutting A has a larger effect than cutting B by
    flip_rate``.

    Args:
        statements: Statements of the contrasts.
        change: The change in words.
        control: The control in words.
        effects: Contrast -> effect of the change itself.
    """
    quantities: dict[str, list[str]] = {}
    for one in statements:
        status = one.status
        if status == REVERSED and _moves_itself(one, effects):
            status = _OPPOSITE
        quantities.setdefault(status, []).append(one.quantity)
    standing = quantities.get(STANDS, [])
    missing = quantities.get(NOT_DETECTED, [])
    clause = f"no larger effect of {change} than of {control} was detected"
    if standing:
        clause = f"{change} has a larger effect than {control}"
        if len(standing) < len(statements):
            clause += f" by {join_with_and(standing)}"
        if missing:
            clause += f", not shown by {join_with_and(missing)}"
    parts = [clause]
    if opposite := quantities.get(_OPPOSITE):
        parts.append(
            f"by {join_with_and(opposite)} {change} acts in the opposite direction, and more"
            " strongly"
        )
    if turned := quantities.get(REVERSED):
        parts.append(f"by {join_with_and(turned)} {control} has the larger effect")
    if moved := quantities.get(NULL_MOVES):
        parts.append(
            f"by {join_with_and(moved)} the placebo moves: it accounts for most of the difference"
        )
    return "; ".join(parts)


def _moves_itself(one: Finding, effects: Mapping[str, float]) -> bool:
    """Return whether the change itself accounts for at least half of a difference."""
    own = effects.get(one.quantity)
    return bool(own is not None and one.value and own / one.value >= LEAST_SHARE)


def no_signal(auc: LayerEstimate, where: str, reader: str = "the probe") -> str:
    """Return why nothing can be claimed from a readout without signal; empty if it has one."""
    if auc.value != auc.value:
        return (
            f"Nothing is claimed: the measured rows lack true or false answers, so {reader} has no"
            " AUC."
        )
    if not auc.low > 0.5:
        return (
            f"Nothing is claimed: at {where} no signal of {reader} was detected, AUC"
            f" {auc.to_text(2, sign=False)}."
        )
    return ""


def too_few(n: int, sides: str) -> str:
    """Return that ``sides`` can be compared in too few questions; empty if there are enough."""
    if n >= MIN_QUESTIONS_FOR_CLAIM:
        return ""
    return (
        f"Nothing is claimed: {sides} can be compared in {n} questions, but"
        f" {MIN_QUESTIONS_FOR_CLAIM} are needed."
    )
