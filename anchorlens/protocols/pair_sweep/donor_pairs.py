"""Pairs of inputs, one patched with activations of the other, and the tensors of a batch of pairs."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.patches import AnchorSwap, Slots, SwapBatch
from anchorlens.engine.readouts import Reader
from anchorlens.errors import RunError
from anchorlens.prompts.batches import TokenBatch, pad_rows
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.typing import SlotStreams


@dataclass(frozen=True)
class Placement:
    """Placement of one anchor of a pair: activations at ``source`` positions replace those at ``target`` positions.

    With ``direction_label``, random directions with the norm of their difference are added to those at ``target`` instead. The label
    is that of the draw. With ``head``, one head of a head site is patched: a query head of ``z``, ``q`` and ``pattern``, a key/value
    head of ``k`` and ``v``.
    """

    anchor: str
    control: str
    target: tuple[int, ...]
    source: tuple[int, ...]
    direction_label: str = ""
    head: int | None = None


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

    def same_tokens(self, anchor: str, control: str = "none") -> bool:
        """Return whether the anchor (or control) has the same tokens in both inputs, so that its streams into block 0 are equal."""
        place = next((p for p in self.placements if (p.anchor, p.control) == (anchor, control)), None)
        if self.source is None:
            return False
        to, by = (place.target, place.source) if place is not None else (row.positions[anchor] for row in (self.target, self.source))
        return [self.target.ids[i] for i in to] == [self.source.ids[i] for i in by]

    def slots(self, anchor: str, *controls: str) -> int | None:
        """Return the smallest number of patched positions over the controls; None if the pair has none of them at this anchor."""
        return min((len(p.target) for p in self.placements if p.anchor == anchor and p.control in controls), default=None)


def check_stored_pairs(pairs: Iterable[Pair[Any]]) -> None:
    """Raise RunError if a place of a stored pair has other lengths in target and source, or lies outside the source."""
    for pair in pairs:
        n_source = len((pair.source or pair.target).ids)
        for place in pair.placements:
            sizes, inside = (len(place.target), len(place.source)), max(place.source, default=0) < n_source
            if sizes[0] != sizes[1] or not inside:
                more = f"{sizes[0]} and {sizes[1]} positions" if inside else f"position {max(place.source)} of {n_source} tokens"
                raise RunError(
                    f"examples.parquet is damaged: example_id={pair.base.id!r}: {place.anchor} of the row and of {pair.donor_id!r} "
                    f"cannot be paired: {more}. Make the run again."
                )


MakeStreams: TypeAlias = Callable[[Sequence[Pair[Any]], TokenBatch, Sequence[Slots]], Sequence[SlotStreams]]


def slots_of(positions: Sequence[Sequence[int]]) -> Slots:
    """Pad ragged positions to a table of slots."""
    padded = pad_rows([[*p] for p in positions])
    return Slots(positions=padded.ids, mask=padded.mask)


def make_generator(label: str) -> torch.Generator:
    """Make the generator of one draw from its label."""
    return torch.Generator("cpu").manual_seed(int.from_bytes(hashlib.sha256(label.encode()).digest()[:7], "big"))


def unit_directions(label: str, n: int, d_model: int) -> Float[Tensor, "slot d_model"]:
    """Draw ``n`` Gaussian directions of norm 1; all layers share them, so that layers are comparable."""
    drawn = torch.randn(n, d_model, generator=make_generator(label), dtype=torch.float32, device="cpu")
    return drawn / drawn.norm(dim=-1, keepdim=True)


def build_batch(
    pairs: Sequence[Pair[Any]], reader: Reader, make_streams: MakeStreams | None = None, d_model: int = 0, d_head: int = 0
) -> SwapBatch:
    """Build the tensors of a batch: inputs, reader, and the slots of every anchor with their sources or streams.

    Args:
        pairs: Pairs with the same anchors and controls.
        reader: Reader of the metric.
        make_streams: Function of pairs, inputs and slots that returns streams. If None, those of a clean run of the sources.
        d_model: Width of the site's activation, which random directions have; 0 if no placement has any.
        d_head: The same for placements of one head.
    """
    tokens = pad_rows([p.target.ids for p in pairs])
    columns = [[p.placements[i] for p in pairs] for i in range(len(pairs[0].placements))]
    names = [(column[0].anchor, column[0].control) for column in columns]
    slots = [slots_of([place.target for place in column]) for column in columns]
    swaps = [
        AnchorSwap(*name, own, directions={
            i: unit_directions(place.direction_label, len(place.target), d_model if place.head is None else d_head)
            for i, place in enumerate(column) if place.direction_label
        }, heads=None if column[0].head is None else range(column[0].head, column[0].head + 1))
        for name, own, column in zip(names, slots, columns, strict=True)
    ]  # fmt: skip
    if make_streams is not None:
        made = zip(swaps, make_streams(pairs, tokens, slots), strict=True)
        return SwapBatch(tokens, reader, tuple(replace(swap, streams=streams) for swap, streams in made))
    sources = [slots_of([place.source for place in column]) for column in columns]
    swaps = [replace(swap, source=source) for swap, source in zip(swaps, sources, strict=True)]
    return SwapBatch(tokens, reader, tuple(swaps), pad_rows([p.source.ids for p in pairs if p.source is not None]))
