"""Pairs of inputs, one patched with activations of the other, and the tensors of a batch of pairs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from anchorlens.engine.patches import AnchorSwap, Slots, SwapBatch
from anchorlens.engine.readouts import Reader
from anchorlens.prompts.batches import TokenBatch, pad_rows
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.typing import SlotStreams


@dataclass(frozen=True)
class Placement:
    """Placement of one anchor of a pair: activations at ``source`` positions replace those at ``target`` positions."""

    anchor: str
    control: str
    target: tuple[int, ...]
    source: tuple[int, ...]


PromptT_co = TypeVar("PromptT_co", bound=TokenizedPrompt, covariant=True)


@dataclass(frozen=True)
class Pair(Generic[PromptT_co]):
    """A row with a donor.

    Attributes:
        base: Input of the row.
        target: Patched input: the base, or the corrupt input for denoising.
        source: Input whose activations are patched in; None for a statistic.
        donor: Donor row; None for a statistic.
        donor_id: Id of the donor row, or name of the statistic.
        placements: Placements of anchors and their nulls.
    """

    base: PromptT_co
    target: PromptT_co
    source: PromptT_co | None
    donor: PromptT_co | None
    donor_id: str
    placements: tuple[Placement, ...]

    def same_tokens(self, anchor: str) -> bool:
        """Return whether the anchor has the same tokens in both inputs, so that its streams into block 0 are equal."""
        place = next((p for p in self.placements if (p.anchor, p.control) == (anchor, "none")), None)
        if self.source is None:
            return False
        to, by = (place.target, place.source) if place is not None else (row.positions[anchor] for row in (self.target, self.source))
        return [self.target.ids[i] for i in to] == [self.source.ids[i] for i in by]

    def slots(self, anchor: str, control: str) -> int | None:
        """Return the number of patched positions; None if the pair lacks this anchor and control."""
        return next((len(p.target) for p in self.placements if (p.anchor, p.control) == (anchor, control)), None)


MakeStreams: TypeAlias = Callable[[Sequence[Pair[Any]], TokenBatch, Sequence[Slots]], Sequence[SlotStreams]]


def slots_of(positions: Sequence[Sequence[int]]) -> Slots:
    """Pad ragged positions to a table of slots."""
    padded = pad_rows([[*p] for p in positions])
    return Slots(positions=padded.ids, mask=padded.mask)


def build_batch(pairs: Sequence[Pair[Any]], reader: Reader, make_streams: MakeStreams | None = None) -> SwapBatch:
    """Build the tensors of a batch: inputs, reader, and the slots of every anchor with their sources or streams.

    Args:
        pairs: Pairs with the same anchors and controls.
        reader: Reader of the metric.
        make_streams: Function of pairs, inputs and slots that returns streams. If None, those of a clean run of the sources.
    """
    tokens = pad_rows([p.target.ids for p in pairs])
    columns = [[p.placements[i] for p in pairs] for i in range(len(pairs[0].placements))]
    names = [(column[0].anchor, column[0].control) for column in columns]
    slots = [slots_of([place.target for place in column]) for column in columns]
    if make_streams is not None:
        made = make_streams(pairs, tokens, slots)
        return SwapBatch(
            tokens, reader, tuple(AnchorSwap(*name, own, streams=one) for name, own, one in zip(names, slots, made, strict=True))
        )
    sources = [slots_of([place.source for place in column]) for column in columns]
    swaps = tuple(AnchorSwap(*name, own, source=source) for name, own, source in zip(names, slots, sources, strict=True))
    return SwapBatch(tokens, reader, swaps, pad_rows([p.source.ids for p in pairs if p.source is not None]))
