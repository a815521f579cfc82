"""Display texts of controls, and the choice of the control that is drawn by default."""

from collections.abc import Sequence
from dataclasses import dataclass

from anchorlens.constants import NULL_CONTROLS


@dataclass(frozen=True)
class ControlLabels:
    """Display texts of one control.

    Attributes:
        name: Name in the legend: the kind of control, and its name in arguments and tables.
        short: Name in arguments and tables.
        explanation: Definition of the control; empty if unknown.
    """

    name: str
    short: str
    explanation: str


def _labels(kind: str, short: str, explanation: str) -> ControlLabels:
    return ControlLabels(f"{kind} {short}", short, explanation)


CONTROLS = {
    "random_tokens": _labels(
        "Placebo", "random_tokens", "the same with as many other question tokens"
    ),
    "other_question": _labels(
        "Control", "other_question", "the answer after another row's question"
    ),
    "other_pair": _labels("Control", "other_pair", "another pair's activations at the same place"),
    "null": _labels("Null", "displaced", "the donor's activations at random other positions"),
    "same_role": _labels(
        "Null",
        "same_role",
        "the donor's activations of other positions, each at its own position",
    ),
    "norm_matched": _labels(
        "Null",
        "norm_matched",
        "a change of the same norm and angle at the same positions, in another direction",
    ),
    "size_matched": _labels(
        "Control", "size_matched", "as many exact question tokens cut as other question tokens"
    ),
    "random_before": _labels(
        "Placebo", "random_before", "question tokens before subject and property cut"
    ),
    "random_after": _labels(
        "Placebo", "random_after", "question tokens after subject and property cut"
    ),
    "shuffled_labels": _labels(
        "Placebo", "shuffled_labels", "a probe trained on labels flipped within the question"
    ),
    "cross_fold": _labels(
        "Control", "cross_fold", "pathways by one fold of the probe, ΔP by another"
    ),
}
LEADING = ("random_tokens", "other_question", "other_pair", *NULL_CONTROLS.values())
"""Controls by preference: the first one that a protocol has is drawn, and is subtracted in its
leading contrasts.
"""


def control_labels(control: str) -> ControlLabels:
    """Return the display texts of a control; its own name if it is unknown."""
    return CONTROLS.get(control, ControlLabels(control, control, ""))


def leading_control(present: Sequence[str], preferred: Sequence[str] = LEADING) -> str:
    """Return the preferred control of those present, else the first one; "" if there is none."""
    return next((name for name in (*preferred, *present) if name in present), "")
