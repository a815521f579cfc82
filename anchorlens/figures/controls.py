"""Display texts of controls, and the choice of the control that is drawn by default."""

from collections.abc import Sequence
from dataclasses import dataclass

from anchorlens.constants import NULL_CONTROLS


@dataclass(frozen=True)
class ControlLabels:
    """Display texts of one control."""

    name: str  # in the legend and at the axis
    explanation: str


CONTROLS = {
    "random_tokens": ControlLabels("Placebo", "the same with as many other question tokens"),
    "other_question": ControlLabels("Other question", "the answer after another row's question"),
    "other_pair": ControlLabels("Other pair", "another pair's activations at the same place"),
    "null": ControlLabels("Null (displaced)", "the donor's activations at random other positions"),
    "same_role": ControlLabels("Null (other positions)", "the donor's activations of other positions, each at its own position"),
    "norm_matched": ControlLabels("Null (random direction)", "a random change of the same norm at the same positions"),
    "size_matched": ControlLabels("Question, fewer tokens", "as many exact question tokens cut as other question tokens"),
    "random_before": ControlLabels("Placebo (before)", "question tokens before subject and property cut"),
    "random_after": ControlLabels("Placebo (after)", "question tokens after subject and property cut"),
    "shuffled_labels": ControlLabels("Shuffled labels", "a probe trained on labels flipped within the question"),
    "cross_fold": ControlLabels("Cross-fold", "pathways by one fold of the probe, ΔP by another"),
}
LEADING = ("random_tokens", "other_question", "other_pair", *NULL_CONTROLS.values())
"""Controls by preference: the first one that a protocol has is drawn, and is subtracted in its leading contrasts."""


def control_labels(control: str) -> ControlLabels:
    """Return the display texts of a control; its own name if it is unknown."""
    return CONTROLS.get(control, ControlLabels(control, ""))


def leading_control(present: Sequence[str], preferred: Sequence[str] = LEADING) -> str:
    """Return the preferred control of those present, else the first one; "" if there is none."""
    return next((name for name in (*preferred, *present) if name in present), "")
