"""Interventions on a forward pass: swaps of activations and cuts of attention edges, in one layer or a window of layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jaxtyping import Bool, Int
from torch import Tensor

from anchorlens.engine.readouts import Reader
from anchorlens.errors import InputError
from anchorlens.prompts.batches import TokenBatch
from anchorlens.typing import SlotStreams

OnProgress: TypeAlias = Callable[[float], object]
"""Progress callback: gets the share of the whole that each step was."""


def no_progress(share: float) -> None:
    """Do nothing: the progress callback where none is given."""


@dataclass(frozen=True)
class Slots:
    """Positions of every row of a batch, padded to the same number of slots; the mask is True where there is a slot."""

    positions: Int[Tensor, "example slot"]
    mask: Bool[Tensor, "example slot"]


@dataclass(frozen=True)
class AnchorSwap:
    """One anchor of a batch (or its null): where streams are put, and which.

    Attributes:
        anchor: The anchor's name.
        control: ``none``, or the control's name.
        slots: Where the streams are put.
        source: Where they are taken from in the donor rows, slot by slot; None where ``streams`` says what is put.
        streams: What is put at every layer, where it does not come from donor rows; only slots of the mask are used.
    """

    anchor: str
    control: str
    slots: Slots
    source: Slots | None = None
    streams: SlotStreams | None = None


@dataclass(frozen=True)
class SwapBatch:
    """Rows that are measured together, with everything that is changed in them.

    Attributes:
        tokens: The rows that are changed, right-padded.
        reader: What P is, and where it is read.
        swaps: Every anchor and control; each is measured at every layer.
        donors: The donor of each row, right-padded; None where no swap has a ``source``.
    """

    tokens: TokenBatch
    reader: Reader
    swaps: tuple[AnchorSwap, ...]
    donors: TokenBatch | None = None


@dataclass(frozen=True)
class KnockoutBatch:
    """Rows in which attention edges are cut, each variant on its own.

    Attributes:
        tokens: The rows, right-padded.
        row: Row of each state that is read.
        position: Position of each state in its row.
        edges: For each variant, True where position ``query`` may not read position ``key``.
        mode: ``mask`` or ``zero``, see :mod:`anchorlens.engine.knockout`.
        heads: Query heads in which they are cut; None for all.
    """

    tokens: TokenBatch
    row: Int[Tensor, "read"]
    position: Int[Tensor, "read"]
    edges: tuple[Bool[Tensor, "example query key"], ...]
    mode: str = "mask"
    heads: tuple[int, ...] | None = None


def token_rows(tokens: TokenBatch) -> list[tuple[int, ...]]:
    """Return the ids of each row, without padding."""
    return [tuple(ids[: int(n)]) for ids, n in zip(tokens.ids.tolist(), tokens.mask.sum(1), strict=True)]


def check_windows(windows: Sequence[object]) -> None:
    """Raise InputError if a window of layers is no range or has gaps."""
    for window in windows:
        if not isinstance(window, range) or window.step != 1:
            raise InputError(
                f"A window is a range of neighbouring layers, as range(2, 5); got {window!r}. For others give several windows."
            )


def window_layers(layer: int, window: int, n_layers: int) -> range:
    """The layers that are changed together around ``layer``.

    ``window`` layers, centred (the longer half lies above for an even number) and clipped to the model.

    >>> window_layers(0, 3, 12), window_layers(5, 4, 12)
    (range(0, 2), range(4, 8))
    """
    start = layer - (window - 1) // 2
    return range(max(0, start), min(n_layers, start + window))
