"""Numbers with their intervals, and the words and small tables that verdicts are made of."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import pandas as pd

FEW = 10
"""Questions that a group must have to be spoken of."""
# So many pieces of a run of layers are told one by one.
_PIECES, _FEW_LAYERS = 3, 5
_COLUMNS = ["value", "ci_low", "ci_high", "sim_low", "sim_high", "n"]


class LayerEstimate(NamedTuple):
    """A value with its pointwise interval, the band over all layers, and the number of questions behind it."""

    value: float
    low: float
    high: float
    sim_low: float
    sim_high: float
    n: int

    def beyond(self, sign: int, *, everywhere: bool = False) -> bool:
        """Whether the interval lies on this side of 0; ``everywhere``: the band over all layers."""
        low, high = (self.sim_low, self.sim_high) if everywhere else (self.low, self.high)
        return low > 0 if sign > 0 else high < 0

    @property
    def off_zero(self) -> bool:
        """Whether the pointwise interval leaves 0 out."""
        return self.beyond(1) or self.beyond(-1)

    def digits(self, least: int) -> int:
        """Decimals to tell it with: ``least``, or one more where an end of the interval would be rounded to 0."""
        return least + any(0 < abs(end) < 0.5 * 10**-least for end in (self.low, self.high))

    def to_text(self, digits: int = 1, *, sign: bool = True) -> str:
        """``-9.7 [-19.3, +1.1]``."""
        return f"{_number(self.value, digits, sign)} {self.interval(digits, sign=sign)}"

    def interval(self, digits: int = 1, *, sign: bool = True) -> str:
        """``[-19.3, +1.1]``."""
        return f"[{_number(self.low, digits, sign)}, {_number(self.high, digits, sign)}]"

    def range_text(self, digits: int = 1) -> str:
        """``-19.3 .. +1.1``: what the data leave open where nothing is shown."""
        return f"{_number(self.low, digits, True)} .. {_number(self.high, digits, True)}"


LayerEstimates: TypeAlias = Mapping[tuple[str, str], LayerEstimate]


def estimates_at(contrasts: pd.DataFrame, layer: int) -> LayerEstimates:
    """(quantity, control) -> fact, at one layer of an contrasts frame."""
    here = contrasts[contrasts["layer"] == layer]
    rows = here[["quantity", "control", *_COLUMNS]].itertuples(index=False, name=None)
    return {(quantity, control): LayerEstimate(*numbers) for quantity, control, *numbers in rows}


def estimates_by_layer(contrasts: pd.DataFrame, quantity: str, control: str) -> dict[int, LayerEstimate]:
    """Layer -> fact, of one quantity and control."""
    rows = contrasts[(contrasts["quantity"] == quantity) & (contrasts["control"] == control)]
    return {
        int(layer): LayerEstimate(*numbers)
        for layer, *numbers in rows[["layer", *_COLUMNS]].itertuples(index=False, name=None)
    }


def format_ranges(numbers: Sequence[int]) -> str:
    """``[0, 1, 2, 7]`` -> ``0-2, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def format_layers(layers: Sequence[int]) -> str:
    """``8-14, 17``; ``9 of 2-27`` where they lie in many pieces; ``none``."""
    told = format_ranges(layers) or "none"
    return told if told.count(",") < _PIECES or len(layers) <= _FEW_LAYERS else f"{len(layers)} of {layers[0]}-{layers[-1]}"


def name_layer(layer: int, probe_layer: "int | None") -> str:
    """What a verdict calls its layer: k* only where it is k*."""
    if probe_layer is None:
        return f"layer {layer}"
    return f"k* = {layer}" if layer == probe_layer else f"layer {layer} (k* = {probe_layer} was not reached)"


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """A small table: columns under each other, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(f"  {line}" for line in lines)


def join_with_and(names: Sequence[str]) -> str:
    """``a``; ``a and b``; ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _number(value: float, digits: int, sign: bool) -> str:
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text


__all__ = [
    "FEW",
    "LayerEstimate",
    "LayerEstimates",
    "align_columns",
    "estimates_at",
    "estimates_by_layer",
    "format_layers",
    "format_ranges",
    "join_with_and",
    "name_layer",
]
