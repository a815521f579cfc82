"""Pairs of inputs of which one is changed by the other's activations, and the tensors of a batch of them."""

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
    """One anchor of one pair: streams of ``source`` positions are put at ``target`` positions, slot by slot."""

    anchor: str
    control: str
    target: tuple[int, ...]
    source: tuple[int, ...]


PromptT_co = TypeVar("PromptT_co", bound=TokenizedPrompt, covariant=True)


@dataclass(frozen=True)
class Pair(Generic[PromptT_co]):
    """One row with one donor.

    Attributes:
        base: The example's own input.
        target: The input that is changed: the base, or for denoising the corrupt input.
        source: The input whose streams are put there; None where streams are a statistic.
        donor: The donor row, None where streams are a statistic.
        donor_id: Its row's id, or the statistic's name.
        placements: Anchors and their nulls.
    """

    base: PromptT_co
    target: PromptT_co
    source: PromptT_co | None
    donor: PromptT_co | None
    donor_id: str
    placements: tuple[Placement, ...]

    def same_tokens(self, anchor: str) -> bool:
        """Whether the anchor's slots hold the same tokens in both inputs: then the streams that enter block 0 are the same."""
        own = next((p for p in self.placements if (p.anchor, p.control) == (anchor, "none")), None)
        if self.source is None:
            return False
        to, by = (own.target, own.source) if own is not None else (row.positions[anchor] for row in (self.target, self.source))
        return [self.target.ids[i] for i in to] == [self.source.ids[i] for i in by]

    def slots(self, anchor: str, control: str) -> int | None:
        """Positions that are changed; None where this is not measured."""
        return next((len(p.target) for p in self.placements if (p.anchor, p.control) == (anchor, control)), None)


MakeStreams: TypeAlias = Callable[[Sequence[Pair[Any]], TokenBatch, Sequence[Slots]], Sequence[SlotStreams]]


def slots_of(positions: Sequence[Sequence[int]]) -> Slots:
    """Return ragged positions as a padded table."""
    padded = pad_rows([[*p] for p in positions])
    return Slots(positions=padded.ids, mask=padded.mask)


def build_batch(pairs: Sequence[Pair[Any]], reader: Reader, make_streams: MakeStreams | None = None) -> SwapBatch:
    """Return the tensors of one batch: inputs, reader, and for every anchor the slots with their sources or streams.

    Args:
        pairs: Pairs with the same anchors and controls.
        reader: What is read of them.
        make_streams: Pairs, their inputs and the slots of every anchor -> streams; None: those of a clean run of the sources.
    """
    tokens = pad_rows([p.target.ids for p in pairs])
    columns = [[p.placements[i] for p in pairs] for i in range(len(pairs[0].placements))]
    names = [(column[0].anchor, column[0].control) for column in columns]
    slots = [slots_of([place.target for place in column]) for column in columns]
    if make_streams is not None:
        made = make_streams(pairs, tokens, slots)
        return SwapBatch(
            tokens,
            reader,
            tuple(AnchorSwap(*name, own, streams=one) for name, own, one in zip(names, slots, made, strict=True)),
        )
    sources = [slots_of([place.source for place in column]) for column in columns]
    swaps = tuple(AnchorSwap(*name, own, source=source) for name, own, source in zip(names, slots, sources, strict=True))
    return SwapBatch(tokens, reader, swaps, pad_rows([p.source.ids for p in pairs if p.source is not None]))
