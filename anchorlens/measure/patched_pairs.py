"""Pairs of inputs, one patched with activations of the other, and the tensors of a batch of pairs.

A patch of the control ``norm_matched`` has a direction: the difference of the activations of two
other prompts, or a Gaussian (METHOD 4).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, zip_longest
from operator import is_
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anchorlens.constants import HEAD_SITES
from anchorlens.engine.hooked_passes import capture, run_prefix
from anchorlens.engine.patches import (
    AnchorSwap,
    Slots,
    SwapBatch,
    TokenBatch,
    common_prefix,
    pad_rows,
)
from anchorlens.engine.readouts import Reader
from anchorlens.errors import RunError
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.typing import SlotStreams

Directions: TypeAlias = Mapping[int, Float[Tensor, "layer slot width"]]
"""Row of a batch -> direction of each of its slots at every layer."""
Positions: TypeAlias = tuple[int, ...]
Captured: TypeAlias = Mapping[tuple[str, Positions], Float[Tensor, "layer _ _"]]
"""Prompt id and positions -> activations."""


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
    def names(self) -> tuple[object, ...]:
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
        if place is None:
            at = self.target.positions[anchor]
            source_at = self.source.positions[anchor]
        else:
            at = place.target_positions
            source_at = place.source_positions
        return [self.target.ids[i] for i in at] == [self.source.ids[i] for i in source_at]

    def count_positions(self, anchor: str, *controls: str) -> int | None:
        """Return the smallest number of patched positions over the controls; None if the pair has
        none of them at this anchor.
        """
        chosen = [p for p in self.placements if p.anchor == anchor and p.control in controls]
        return min((len(p.target_positions) for p in chosen), default=None)


PairT = TypeVar("PairT", bound=Pair[Any])


def group_by_places(pairs: Iterable[PairT]) -> list[list[PairT]]:
    """Return the pairs by their anchors and controls, which the pairs of a batch share; those with
    most places first.
    """
    by_places: dict[tuple[tuple[str, str, int], ...], list[PairT]] = {}
    for pair in pairs:
        names = tuple(place.key for place in pair.placements)
        by_places.setdefault(names, []).append(pair)
    names = sorted(by_places, key=len, reverse=True)
    return [by_places[one] for one in names]


def check_stored_pairs(pairs: Iterable[Pair[Any]]) -> None:
    """Raise RunError if a place of a stored pair has other lengths in target and source, or lies
    outside the source.
    """
    for pair in pairs:
        n_source = len((pair.source or pair.target).ids)
        for place in pair.placements:
            n_target_positions = len(place.target_positions)
            n_source_positions = len(place.source_positions)
            is_inside = max(place.source_positions, default=0) < n_source
            if n_target_positions != n_source_positions or not is_inside:
                more = (
                    f"{n_target_positions} and {n_source_positions} positions"
                    if is_inside
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
        directions: Directions of each placement (:func:`draw_directions`). If None, no placement
            has any.
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


def gaussian_directions(label: str, n: int, width: int) -> Float[Tensor, "slot width"]:
    """Draw ``n`` Gaussian directions of norm 1; all layers share them, so that layers are
    comparable.
    """
    drawn = torch.randn(
        n, width, generator=make_generator(label), dtype=torch.float32, device="cpu"
    )
    return drawn / drawn.norm(dim=-1, keepdim=True)


def draw_directions(
    adapter: Adapter,
    site: SiteLike,
    batches: Sequence[Sequence[Pair[Any]]],
    rows_of_pass: Callable[[int], int],
) -> list[list[Directions]]:
    """Return the directions of each placement of each batch; empty for placements without any.

    The other prompts of all batches run together. Where the activations of the two prompts of a
    draw are equal, the direction is Gaussian.

    Args:
        adapter: The model.
        site: Patched site.
        batches: Pairs of each batch, which have the same placements.
        rows_of_pass: Number of tokens of a row -> largest number of rows of a forward pass.
    """
    captured = _capture_prompts(adapter, site, batches, rows_of_pass)
    made: list[list[Directions]] = []
    for pairs in batches:
        of_places: list[dict[int, Tensor]] = [{} for _ in pairs[0].placements]
        for number, row, place in _places_with_directions(pairs):
            of_places[number][row] = _direction(adapter, site, place, captured)
        made.append(list(of_places))
    return made


def count_directions(pairs: Sequence[Pair[Any]]) -> int:
    """Return the number of prompts that run for the directions of pairs."""
    names: set[str] = set()
    for _, _, place in _places_with_directions(pairs):
        names.update(one.prompt.id for one in place.towards or ())
    return len(names)


def direction_bytes(pairs: Sequence[Pair[Any]], n_layers: int, width: int) -> int:
    """Return the memory of the directions of pairs: activations of their prompts, differences, and
    the differences in the order of the patches, all in float32.
    """
    slots = 0
    captured: set[tuple[str, Positions]] = set()
    for _, _, place in _places_with_directions(pairs):
        slots += 2 * len(place.target_positions)
        captured.update((one.prompt.id, one.positions) for one in place.towards or ())
    slots += sum(len(positions) for _, positions in captured)
    return 4 * n_layers * width * slots


def _places_with_directions(pairs: Sequence[Pair[Any]]) -> Iterator[tuple[int, int, Placement]]:
    """Yield number of the placement, row and placement, where a direction is needed."""
    for row, pair in enumerate(pairs):
        for number, place in enumerate(pair.placements):
            if place.direction_label:
                yield number, row, place


def _direction(
    adapter: Adapter, site: SiteLike, place: Placement, captured: Captured
) -> Float[Tensor, "layer slot width"]:
    """Return the direction of a placement: the difference of its two prompts, else Gaussian."""
    is_head_site = site in HEAD_SITES
    heads = adapter.n_heads(site) if is_head_site else 1
    d_head = adapter.shape.d_head if is_head_site else adapter.d_model
    width = d_head if place.head is not None else heads * d_head
    drawn = gaussian_directions(place.direction_label, len(place.target_positions), width)
    gaussian = drawn.expand(adapter.n_layers, *drawn.shape)
    if place.towards is None:
        return gaussian
    first, second = (captured[one.prompt.id, one.positions] for one in place.towards)
    difference = (first - second)[:, : len(place.target_positions)]
    if place.head is not None:
        difference = difference[..., place.head * d_head : (place.head + 1) * d_head]
    is_zero = difference.norm(dim=-1) == 0
    is_zero |= _have_same_past(*place.towards)[: len(place.target_positions)]
    return torch.where(is_zero[..., None], gaussian, difference)


def _have_same_past(first: DirectionPrompt, second: DirectionPrompt) -> Bool[Tensor, "slot"]:
    """Return at which slots two prompts have the same tokens up to there, so that their activations
    are equal: computed in one batch they may differ by rounding, which is no direction.
    """
    same: list[bool] = []
    for one, other in zip(first.positions, second.positions, strict=True):
        same.append(first.prompt.ids[: one + 1] == second.prompt.ids[: other + 1])
    return torch.tensor(same, device="cpu")


def _capture_prompts(
    adapter: Adapter,
    site: SiteLike,
    batches: Sequence[Sequence[Pair[Any]]],
    rows_of_pass: Callable[[int], int],
) -> Captured:
    """Return (prompt id, positions) -> activations of every prompt that a placement needs."""
    prompts: dict[str, TokenizedPrompt] = {}
    wanted: dict[str, dict[Positions, None]] = {}
    for pairs in batches:
        for _, _, place in _places_with_directions(pairs):
            for one in place.towards or ():
                prompts[one.prompt.id] = one.prompt
                wanted.setdefault(one.prompt.id, {})[one.positions] = None
    captured: dict[tuple[str, Positions], Tensor] = {}
    names = sorted(prompts, key=lambda name: len(prompts[name].ids))
    n_rows = rows_of_pass(len(prompts[names[-1]].ids)) if names else 1
    for start in range(0, len(names), n_rows):
        some = names[start : start + n_rows]
        # The anchors of a prompt are columns; prompts with fewer have empty ones.
        columns = list(zip_longest(*(wanted[name] for name in some), fillvalue=()))
        tokens = pad_rows([list(prompts[name].ids) for name in some])
        # Prompts of one template begin alike: their common tokens run once. Streamed weights would
        # be read once more for that.
        needed: list[int] = []
        for name in some:
            needed += chain.from_iterable(wanted[name])
        first = min(needed)
        most = 0 if adapter.shape.streamed else first
        n_shared, cache = run_prefix(adapter, tokens, most)
        slots = [slots_of(_without_prefix(column, n_shared)) for column in columns]
        rest = TokenBatch(tokens.ids[:, n_shared:], tokens.mask[:, n_shared:])
        streams = capture(adapter, rest, site, slots, cache=cache, to_host=True)
        for column, values in zip(columns, streams, strict=True):
            for row, (name, positions) in enumerate(zip(some, column, strict=True)):
                if positions:
                    captured[name, positions] = values[:, row, : len(positions)]
    return captured


def _without_prefix(column: Sequence[Positions], n_shared: int) -> list[Positions]:
    """Return the positions of each row, counted after a prefix of ``n_shared`` tokens."""
    behind: list[Positions] = []
    for positions in column:
        own = tuple(position - n_shared for position in positions)
        behind.append(own)
    return behind
