"""Directions of the control ``norm_matched``: differences of the activations of two other prompts,
or Gaussian (METHOD 4).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anchorlens.constants import HEAD_SITES
from anchorlens.engine.hooked_passes import capture, run_prefix
from anchorlens.measure.patched_pairs import (
    DirectionPrompt,
    Pair,
    Placement,
    make_generator,
    slots_of,
)
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.prompts.batches import TokenBatch, pad_rows
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt

Directions: TypeAlias = Mapping[int, Float[Tensor, "layer slot width"]]
"""Row of a batch -> direction of each of its slots at every layer."""
Positions: TypeAlias = tuple[int, ...]
Captured: TypeAlias = Mapping[tuple[str, Positions], Float[Tensor, "layer _ _"]]
"""Prompt id and positions -> activations."""


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
        slots = [slots_of(_behind(column, n_shared)) for column in columns]
        rest = TokenBatch(tokens.ids[:, n_shared:], tokens.mask[:, n_shared:])
        streams = capture(adapter, rest, site, slots, cache=cache, to_host=True)
        for column, values in zip(columns, streams, strict=True):
            for row, (name, positions) in enumerate(zip(some, column, strict=True)):
                if positions:
                    captured[name, positions] = values[:, row, : len(positions)]
    return captured


def _behind(column: Sequence[Positions], n_shared: int) -> list[Positions]:
    """Return the positions of each row, counted after a prefix of ``n_shared`` tokens."""
    behind: list[Positions] = []
    for positions in column:
        own = tuple(position - n_shared for position in positions)
        behind.append(own)
    return behind
