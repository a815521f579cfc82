"""Estimates with intervals, and their formatting in findings."""

from collections.abc import Sequence
from math import floor, log10
from typing import NamedTuple, NoReturn

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_LAYERS
from anchorlens.display import drop_zero_signs
from anchorlens.errors import RunError
from anchorlens.results.vocabulary import RowWords, row_words
from anchorlens.statistics.bands import is_concentrated

# Layers are listed if they form at most 3 ranges, or are at most 5.
_PIECES = 3
_FEW_LAYERS = 5
_QUESTIONS = row_words("")
_COLUMNS = ["value", "ci_low", "ci_high", "sim_low", "sim_high", "n", "n_clusters"]


class LayerEstimate(NamedTuple):
    """Value with its pointwise interval, its simultaneous band, and its numbers of questions and of
    clusters that are drawn.
    """

    value: float
    low: float
    high: float
    sim_low: float
    sim_high: float
    n: int
    n_clusters: int

    @property
    def names_layers(self) -> bool:
        """Whether there are enough questions and clusters to name layers."""
        return min(self.n, self.n_clusters) >= MIN_QUESTIONS_FOR_LAYERS

    def beyond(self, sign: int, *, everywhere: bool = False) -> bool:
        """Return whether the interval lies on the side ``sign`` of 0; with ``everywhere``, the
        simultaneous band.
        """
        low, high = (self.sim_low, self.sim_high) if everywhere else (self.low, self.high)
        return low > 0 if sign > 0 else high < 0

    def side(self, *, joint: bool = False) -> int:
        """Return the side of 0 on which the interval lies, 1 or -1; 0 if it holds 0 or is unknown.

        Args:
            joint: Whether to take the simultaneous band. If False, the pointwise interval.
        """
        if self.beyond(1, everywhere=joint):
            return 1
        return -1 if self.beyond(-1, everywhere=joint) else 0

    def digits(self, least: int) -> int:
        """Return the decimals to print: ``least``, or as many as show two digits of the largest of
        value and ends; one more if an end of the interval would round to 0.
        """
        most = max(map(abs, (self.value, self.low, self.high)), default=0.0)
        if 0 < most < 5 * 10**-least:
            return min(12, 1 - floor(log10(most)))
        return least + any(0 < abs(end) < 0.5 * 10**-least for end in (self.low, self.high))

    def to_text(self, digits: int = 1, *, sign: bool = True) -> str:
        """Return the value and its interval: ``-9.7 [-19.3, +1.1]``."""
        return f"{_number(self.value, digits, sign)} {self.interval(digits, sign=sign)}"

    def interval(self, digits: int = 1, *, sign: bool = True) -> str:
        """Return the interval: ``[-19.3, +1.1]``."""
        return f"[{_number(self.low, digits, sign)}, {_number(self.high, digits, sign)}]"


class LayerEstimates(dict[tuple[str, str], LayerEstimate]):
    """Estimates at one layer by (quantity, control)."""

    def __missing__(self, key: tuple[str, str]) -> NoReturn:
        """Raise RunError: every result has the estimates that its findings index, so this one was
        read from an edited file.
        """
        raise RunError(
            f"The run is damaged: its contrasts have no {key[0]} of control {key[1]!r}. Make the"
            " run again."
        )


def estimates_at(contrasts: pd.DataFrame, layer: int) -> LayerEstimates:
    """Return the estimates of a contrasts frame at one layer by (quantity, control)."""
    here = contrasts[contrasts["layer"] == layer]
    rows = here[["quantity", "control", *_COLUMNS]].itertuples(index=False, name=None)
    return LayerEstimates(
        {(quantity, control): LayerEstimate(*numbers) for quantity, control, *numbers in rows}
    )


def estimates_by_layer(
    contrasts: pd.DataFrame, quantity: str, control: str
) -> dict[int, LayerEstimate]:
    """Return the estimates of one quantity and control by layer."""
    rows = contrasts[(contrasts["quantity"] == quantity) & (contrasts["control"] == control)]
    estimates: dict[int, LayerEstimate] = {}
    cells = rows[["layer", *_COLUMNS]]
    for layer, *numbers in cells.itertuples(index=False, name=None):
        estimates[int(layer)] = LayerEstimate(*numbers)
    return estimates


def concentration_note(
    table: pd.DataFrame, by: str, words: str = "{}", rows: RowWords = _QUESTIONS
) -> str:
    """Return a sentence on curves or contrasts that few questions carry; empty if there are none.

    Args:
        table: Columns ``n_clusters``, ``n_effective`` and ``by``.
        by: Column that names the curves or contrasts.
        words: Format of their names.
        rows: Words for the rows of the protocol.
    """
    few = table[is_concentrated(table["n_effective"], table["n_clusters"])]
    named: list[str] = []
    for name, own in few.groupby(by, sort=False):
        least = own["n_effective"].min()
        most = own["n_clusters"].max()
        named.append(f"{words.format(name)} (effective number {least:.1f} of {most})")
    end = f"the band allows for an unseen {rows.group} at the end of the scale"
    return f"Few {rows.groups} carry {join_with_and(named)}: {end}." if named else ""


def format_ranges(numbers: Sequence[int]) -> str:
    """Format sorted numbers as ranges: ``[0, 1, 2, 7]`` -> ``0-2, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def format_layers(layers: Sequence[int]) -> str:
    """Format layers as ``8-14, 17``, as ``9 of 2-27`` if there are many ranges, or as ``none``."""
    text = format_ranges(layers) or "none"
    return (
        text
        if text.count(",") < _PIECES or len(layers) <= _FEW_LAYERS
        else f"{len(layers)} of {layers[0]}-{layers[-1]}"
    )


def name_layers(layers: Sequence[int]) -> str:
    """Format layers for a sentence: ``layer 12``, ``layers 3-8`` or ``9 layers of 2-27``."""
    text = format_layers(layers)
    return (
        text.replace(" of ", " layers of ")
        if " of " in text
        else f"layer{'' if text.isdecimal() else 's'} {text}"
    )


def name_layer(layer: int, probe_layer: "int | None") -> str:
    """Format a layer for a finding: ``k* = 9`` for the probe layer, else ``layer 3``."""
    if probe_layer is None:
        return f"layer {layer}"
    return (
        f"k* = {layer}"
        if layer == probe_layer
        else f"layer {layer} (k* = {probe_layer} was not reached)"
    )


def join_with_and(names: Sequence[str]) -> str:
    """Join names in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _number(value: float, digits: int, sign: bool) -> str:
    return drop_zero_signs(f"{value:{'+' if sign else ''}.{digits}f}")
