"""Pairs of inputs, one patched with activations of the other, and the tensors of a batch of
pairs.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import is_
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from anchorlens.engine.patches import AnchorSwap, Slots, SwapBatch
from anchorlens.engine.readouts import Reader
from anchorlens.errors import RunError
from anchorlens.prompts.batches import TokenBatch, common_prefix, pad_rows
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.typing import SlotStreams


@dataclass(frozen=True)
class Placement:
    """Placement of one anchor of a pair: activations at ``source`` positions replace those at
    ``target`` positions.

    With ``direction_label``, those at ``target`` are turned in another direction instead, as far as
    the source's are turned. The label is that of the draw. With ``head``, one head of a head site
    is patched: a query head of ``z``, ``q`` and ``pattern``, a key/value head of ``k`` and ``v``.

    Attributes:
        anchor: Name of the anchor.
        control: Name of the control; ``none`` for the anchor itself.
        target_positions: Patched positions.
        source_positions: Positions of the activations that are patched in, slot by slot.
        direction_label: Label of the random direction; empty if the source's activations are
            patched in.
        towards: Two other prompts, whose difference at their own positions is the direction. If
            None, the direction is Gaussian.
        draw: Number of the draw of a control, from 0.
        head: Patched head. If None, all.
    """

    anchor: str
    control: str
    target_positions: tuple[int, ...]
    source_positions: tuple[int, ...]
    direction_label: str = ""
    towards: "tuple[DirectionPrompt, DirectionPrompt] | None" = None
    draw: int = 0
    head: int | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Anchor, control and draw."""
        return self.anchor, self.control, self.draw


@dataclass(frozen=True)
class DirectionPrompt:
    """Prompt of a direction, with its positions that correspond to those of the anchor."""

    prompt: TokenizedPrompt
    positions: tuple[int, ...]


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

    @property
    def key(self) -> tuple[str, str]:
        """Names of the row and of its donor, which the parts of a pair also have."""
        return self.base.id, self.donor_id

    @cached_property
    def places(self) -> tuple[object, ...]:
        """Names of the row, of its donor and of each placement."""
        return (*self.key, *(place.key for place in self.placements))

    @cached_property
    def n_alike(self) -> int:
        """Number of tokens that both inputs begin with."""
        if self.source is None:
            return 0
        rows = (self.target.ids, self.source.ids)
        return common_prefix(rows, min(map(len, rows)))

    def without_equal_positions(self, *, of_embedding: bool = False) -> "Pair[PromptT_co]":
        """Return the pair without the patched positions that have the same activation in both
        inputs.

        In a causal model these are positions that are patched from themselves, among the tokens
        that both inputs begin with; in the embedding, all with the same token. A random direction
        there has norm 0. Patches of other positions are as before.

        ``of_embedding``: whether the stream into block 0 is patched.
        """
        if self.source is None or not (self.n_alike or of_embedding):
            return self
        own = self.target.ids
        other = self.source.ids
        places = []
        for place in self.placements:
            pairs = list(zip(place.target_positions, place.source_positions, strict=True))
            kept: list[tuple[int, int]] = []
            for t, s in pairs:
                is_equal = own[t] == other[s] if of_embedding else t < self.n_alike
                if t != s or not is_equal:
                    kept.append((t, s))
            # Directions are drawn for all positions of a place, so these stay together.
            if len(kept) < len(pairs) and not (kept and place.direction_label):
                target = tuple(t for t, _ in kept)
                source = tuple(s for _, s in kept)
                place = replace(place, target_positions=target, source_positions=source)
            places.append(place)
        if all(map(is_, places, self.placements)):
            return self
        return replace(self, placements=tuple(places))

    def at_places(self, numbers: Sequence[int]) -> "Pair[PromptT_co]":
        """Return the pair with some of its placements."""
        return replace(self, placements=tuple(self.placements[i] for i in numbers))

    def same_tokens(self, anchor: str, control: str = "none") -> bool:
        """Return whether the anchor (or control) has the same tokens in both inputs, so that its
        streams into block 0 are equal.
        """
        place = next(
            (p for p in self.placements if (p.anchor, p.control) == (anchor, control)), None
        )
        if self.source is None:
            return False
        to, by = (
            (place.target_positions, place.source_positions)
            if place is not None
            else (row.positions[anchor] for row in (self.target, self.source))
        )
        return [self.target.ids[i] for i in to] == [self.source.ids[i] for i in by]

    def slots(self, anchor: str, *controls: str) -> int | None:
        """Return the smallest number of patched positions over the controls; None if the pair has
        none of them at this anchor.
        """
        chosen = [p for p in self.placements if p.anchor == anchor and p.control in controls]
        return min((len(p.target_positions) for p in chosen), default=None)


def check_stored_pairs(pairs: Iterable[Pair[Any]]) -> None:
    """Raise RunError if a place of a stored pair has other lengths in target and source, or lies
    outside the source.
    """
    for pair in pairs:
        n_source = len((pair.source or pair.target).ids)
        for place in pair.placements:
            sizes, inside = (
                (len(place.target_positions), len(place.source_positions)),
                max(place.source_positions, default=0) < n_source,
            )
            if sizes[0] != sizes[1] or not inside:
                more = (
                    f"{sizes[0]} and {sizes[1]} positions"
                    if inside
                    else f"position {max(place.source_positions)} of {n_source} tokens"
                )
                raise RunError(
                    f"examples.parquet is damaged: example_id={pair.base.id!r}: {place.anchor} of"
                    f" the row and of {pair.donor_id!r} cannot be paired: {more}. Make the run"
                    " again."
                )


MakeStreams: TypeAlias = Callable[
    [Sequence[Pair[Any]], TokenBatch, Sequence[Slots]], Sequence[SlotStreams]
]


def slots_of(positions: Sequence[Sequence[int]]) -> Slots:
    """Pad ragged positions to a table of slots."""
    padded = pad_rows([[*p] for p in positions])
    return Slots(positions=padded.ids, mask=padded.mask)


def make_generator(label: str) -> torch.Generator:
    """Make the generator of one draw from its label."""
    return torch.Generator("cpu").manual_seed(
        int.from_bytes(hashlib.sha256(label.encode()).digest()[:7], "big")
    )


def build_batch(
    pairs: Sequence[Pair[Any]],
    reader: Reader,
    make_streams: MakeStreams | None = None,
    directions: Sequence[Mapping[int, Tensor]] | None = None,
) -> SwapBatch:
    """Build the tensors of a batch: inputs, reader, and the slots of every anchor with their
    sources or streams.

    Args:
        pairs: Pairs with the same anchors and controls.
        reader: Reader of the metric.
        make_streams: Function of pairs, inputs and slots that returns streams. If None, those of a
            clean run of the sources.
        directions: Directions of each placement (:mod:`~anchorlens.measure.directions`). If None,
            no placement has any.
    """
    tokens = pad_rows([p.target.ids for p in pairs])
    columns = [_placements_at(pairs, i) for i in range(len(pairs[0].placements))]
    turned = [{} for _ in columns] if directions is None else directions
    swaps = [_swap_of(column, own) for column, own in zip(columns, turned, strict=True)]
    if make_streams is not None:
        slots = [swap.slots for swap in swaps]
        made = zip(swaps, make_streams(pairs, tokens, slots), strict=True)
        return SwapBatch(
            tokens, reader, tuple(replace(swap, streams=streams) for swap, streams in made)
        )
    with_sources: list[AnchorSwap] = []
    for swap, column in zip(swaps, columns, strict=True):
        source = slots_of([place.source_positions for place in column])
        with_sources.append(replace(swap, source=source))
    return SwapBatch(
        tokens,
        reader,
        tuple(with_sources),
        pad_rows([p.source.ids for p in pairs if p.source is not None]),
    )


def _placements_at(pairs: Sequence[Pair[Any]], number: int) -> list[Placement]:
    """Return one placement of each pair, by its number."""
    return [pair.placements[number] for pair in pairs]


def _swap_of(column: Sequence[Placement], directions: Mapping[int, Tensor]) -> AnchorSwap:
    """Return the swap of one placement of each pair, without its sources or streams."""
    first = column[0]
    return AnchorSwap(
        anchor=first.anchor,
        control=first.control,
        slots=slots_of([place.target_positions for place in column]),
        directions=directions,
        heads=None if first.head is None else range(first.head, first.head + 1),
    )
