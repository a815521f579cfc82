"""Words for the values of a sweep: name and unit of its metric, and what its rows are.

The samples name metric and unit. Texts of results, reports and figures take their words from here,
so that a patch sweep of logits says neither P nor points.
"""

from dataclasses import dataclass

import pandas as pd

from anchorlens.constants import AUC, DIFFERENCE, FLIP, POINTS, SIZE, P
from anchorlens.runs.schema import leading_metric

_UNIT_WORDS = {"logit": "logits", "nat": "nats", POINTS: "points"}
# Start of the name of a metric that is a function of the user.
_FUNCTION = "callable:"


def unit_words(unit: str) -> str:
    """Return a unit for use after a number: ``points``, ``logits``, ``nats``, else the unit."""
    return _UNIT_WORDS.get(unit, unit)


def metric_name(metric: str) -> str:
    """Return the display name of a metric: ``P``, ``logit_diff``, ...; of a function its own."""
    return "P" if metric == P else metric.removeprefix(_FUNCTION)


@dataclass(frozen=True, kw_only=True)
class MetricLabels:
    """Display texts of one metric.

    Attributes:
        name: Name of the effect: ``ΔP``, ``Δ logit_diff``.
        axis: Title of the axis.
        unit: Unit with a leading space; empty without one.
        before: Name of the value before: ``P before``; empty if it has none.
        explanation: Text in the caption; empty if the name suffices.
        bound: Largest possible absolute value.
    """

    name: str
    axis: str
    unit: str
    before: str
    explanation: str = ""
    bound: float = float("inf")

    @property
    def name_in_unit(self) -> str:
        """Name and unit: ``ΔP in points``."""
        return f"{self.name} in{self.unit}" if self.unit else self.name


_LABELS = {
    P: MetricLabels(
        name="ΔP",
        axis="ΔP (points)",
        unit=" points",
        before="P before",
        explanation="ΔP in percentage points",
        bound=100,
    ),
    FLIP: MetricLabels(
        name="flip rate",
        axis="flip rate (points)",
        unit=" points",
        before="",
        explanation="flip rate: share of predictions that changed, in percentage points",
        bound=100,
    ),
    DIFFERENCE: MetricLabels(
        name="difference of ΔP",
        axis="difference (points)",
        unit=" points",
        before="before",
        explanation="ΔP of the second run less that of the first, in percentage points",
        bound=200,
    ),
    AUC: MetricLabels(
        name="AUC of the probe",
        axis="AUC",
        unit="",
        before="P before",
        explanation="line: 0.5, no better than chance",
        bound=1,
    ),
    SIZE: MetricLabels(
        name="size of the pathways", axis="questions", unit=" questions", before="P before"
    ),
}


def metric_labels(table: pd.DataFrame) -> MetricLabels:
    """Return the texts of the metric of a table of curves or samples with one metric."""
    metric, unit = map(str, table[["metric", "unit"]].iloc[0])
    if metric in _LABELS and (metric != DIFFERENCE or unit in ("", POINTS)):
        return _LABELS[metric]
    words = unit_words(unit)
    name = metric if metric == DIFFERENCE else f"Δ {metric_name(metric)}"
    return MetricLabels(
        name=name,
        axis=f"{name} ({words})" if words else name,
        unit=f" {words}" if words else "",
        before="before" if metric == DIFFERENCE else f"{metric_name(metric)} before",
    )


def leading_labels(samples: pd.DataFrame) -> MetricLabels:
    """Return the texts of the leading metric of samples."""
    return metric_labels(samples[samples["metric"] == leading_metric(samples)])


@dataclass(frozen=True, kw_only=True)
class RowWords:
    """Words for the rows of a protocol.

    Attributes:
        text: Text that identifies a row.
        group: Rows that stay together when rows are resampled.
        groups: Plural of ``group``.
        place: Positions that are changed together.
        cluster: Groups that are drawn together where the data name at least ten clusters.
        clusters: Plural of ``cluster``.
    """

    text: str
    group: str
    groups: str
    place: str
    cluster: str
    clusters: str

    def count(self, n: int) -> str:
        """Return a number of groups: ``1 question``."""
        return f"{n} {self.group if n == 1 else self.groups}"


_QUESTIONS = RowWords(
    text="question",
    group="question",
    groups="questions",
    place="anchor",
    cluster="relation",
    clusters="relations",
)
_PAIRS = RowWords(
    text="prompt",
    group="group of pairs",
    groups="groups of pairs",
    place="place",
    cluster="template",
    clusters="templates",
)
_ROWS = {"patch": _PAIRS, "edges": _PAIRS}


def row_words(protocol: str) -> RowWords:
    """Return the words for the rows of a protocol."""
    return _ROWS.get(protocol, _QUESTIONS)
