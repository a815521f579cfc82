"""Attention knockout: edges between token positions are cut, in chosen heads and layers (METHOD 5).

An edge runs from a source position s to a later position t that attends to it (s < t). Cutting it means that t no longer reads s.
A token's edge to itself is no flow between tokens and is never cut. Two modes, which are different interventions:

- ``mask``: the score is set to minus infinity before the softmax, so the remaining weights renormalise (Geva et al. 2023).
- ``zero``: the weight is set to 0 after the softmax, the others stay as they are, so a row sums to less than one.

States at layer k depend on layers <= k alone. With the cut in *all* layers, one forward pass therefore gives the states that a
separate run with the cut in layers 0..k would give at k, for every k. Windows of layers need a pass each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from anchorlens.constants import KNOCKOUT_MODES
from anchorlens.errors import InputError, did_you_mean
from anchorlens.models.adapter import Adapter, Hook


@dataclass(frozen=True)
class AttentionKnockout:
    """Edges that are cut in the rows of one batch.

    Attributes:
        edges: True where position ``query`` may not read position ``key``.
        layers: Layers in which they are cut.
        mode: ``mask`` or ``zero``.
        heads: Query heads in which they are cut; None for all. With grouped-query attention heads are still counted as query
            heads: heads of one group share keys and values, and only the named ones are cut.
    """

    edges: Bool[Tensor, "example query key"]
    layers: tuple[int, ...]
    mode: str = "mask"
    heads: tuple[int, ...] | None = None


def cut_edges(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int] | None], width: int
) -> Bool[Tensor, "example query key"]:
    """Return the edges from each row's ``sources`` to its ``targets`` (None: all later positions that are no source).

    Returns:
        True where the edge is cut. Only edges to strictly earlier positions are.
    """
    source = _table(sources, width)
    everywhere = [[*range(width)] if where is None else where for where in targets]
    target = _table(everywhere, width)
    # `later` leaves the sources' own exchange alone: what is cut is what flows out of the span.
    out = torch.tensor([where is None for where in targets])
    target &= ~(source & rearrange(out, "example -> example 1"))
    earlier = torch.ones(width, width, dtype=torch.bool).tril(-1)
    return rearrange(target, "example query -> example query 1") & rearrange(source, "example key -> example 1 key") & earlier


def _table(positions: Sequence[Sequence[int]], width: int) -> Bool[Tensor, "example pos"]:
    table = torch.zeros(len(positions), width, dtype=torch.bool)
    for row, where in zip(table, positions, strict=True):
        row[list(where)] = True
    return table


def check_heads(heads: Sequence[int], n_heads: int) -> None:
    """Raise InputError if heads repeat or do not exist."""
    if not heads or len(set(heads)) != len(heads) or not all(0 <= head < n_heads for head in heads):
        raise InputError(f"heads must be different numbers from 0 to {n_heads - 1}, got {tuple(heads)}.")


def knockout_hooks(adapter: Adapter, cut: AttentionKnockout) -> list[Hook]:
    """Return hooks that cut the edges, one for each layer of ``cut.layers``."""
    if cut.mode not in KNOCKOUT_MODES:
        raise InputError(f"Unknown mode={cut.mode!r}. {did_you_mean(cut.mode, KNOCKOUT_MODES)}")
    n_heads = adapter.shape.n_heads
    heads = tuple(range(n_heads)) if cut.heads is None else cut.heads
    check_heads(heads, n_heads)
    if len(set(cut.layers)) != len(cut.layers) or not all(0 <= layer < adapter.n_layers for layer in cut.layers):
        raise InputError(f"layers must be different numbers from 0 to {adapter.n_layers - 1}, got {cut.layers}.")
    chosen = torch.zeros(n_heads, dtype=torch.bool)
    chosen[list(heads)] = True
    edges = rearrange(cut.edges, "example query key -> example 1 query key")
    where = edges & rearrange(chosen, "head -> 1 head 1 1") if cut.heads is not None else edges
    name, value = ("hook_attn_scores", -torch.inf) if cut.mode == "mask" else ("hook_pattern", 0.0)

    def put(scores: Tensor, hook: HookPoint) -> Tensor:  # noqa: ARG001
        return scores.masked_fill(where.to(scores.device), value)

    return [(f"blocks.{layer}.attn.{name}", put) for layer in cut.layers]
