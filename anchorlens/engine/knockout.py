"""Attention knockout: cut attention edges between token positions, in chosen heads and layers
(METHOD 5).

An edge runs from a source position s to a later position t that attends to it (s < t). A token's
edge to itself is never cut. Modes:

- ``mask``: the score is set to minus infinity before the softmax, so the remaining weights
  renormalise (Geva et al. 2023).
- ``zero``: the weight is set to 0 after the softmax; the others stay, so the weights of a query sum
  to less than one.

States at layer k depend on layers <= k only. A forward pass with the cut in *all* layers therefore
gives, at every k, the states of a pass cut in layers 0..k. Other windows of layers need one pass
each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool
from torch import Tensor

from anchorlens.constants import KNOCKOUT_MODES
from anchorlens.errors import InputError, did_you_mean
from anchorlens.models.adapter import Adapter, Hook


@dataclass(frozen=True)
class AttentionKnockout:
    """Edges that are cut in the rows of one batch.

    Attributes:
        edges: True where position ``query`` does not attend to position ``key``.
        layers: Layers in which edges are cut.
        mode: ``mask`` or ``zero``.
        heads: Query heads in which edges are cut, also with grouped-query attention. If None, all
            heads.
    """

    edges: Bool[Tensor, "example query key"]
    layers: tuple[int, ...]
    mode: str = "mask"
    heads: tuple[int, ...] | None = None


def cut_edges(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int] | None], width: int
) -> Bool[Tensor, "example query key"]:
    """Return True at the edges from each row's ``sources`` to its ``targets``, with targets
    strictly later than sources.

    Targets of None are all later positions that are not sources; ``width``: number of positions of
    the padded rows.
    """
    source = _table(sources, width)
    target = _table([range(width) if at is None else at for at in targets], width)
    # Edges between sources stay: only the flow out of the span is cut.
    is_all_later = torch.tensor([at is None for at in targets])
    target &= ~(source & rearrange(is_all_later, "example -> example 1"))
    earlier = torch.ones(width, width, dtype=torch.bool).tril(-1)
    return (
        rearrange(target, "example query -> example query 1")
        & rearrange(source, "example key -> example 1 key")
        & earlier
    )


def _table(positions: Sequence[Sequence[int]], width: int) -> Bool[Tensor, "example pos"]:
    table = torch.zeros(len(positions), width, dtype=torch.bool)
    for row, selected in zip(table, positions, strict=True):
        row[list(selected)] = True
    return table


def check_heads(heads: Sequence[int], n_heads: int) -> None:
    """Raise InputError if a head occurs twice or does not exist."""
    if not heads or len(set(heads)) != len(heads) or not all(0 <= head < n_heads for head in heads):
        raise InputError(
            f"heads={tuple(heads)}: give different numbers from 0 to {n_heads - 1}.",
            argument="heads",
        )


def knockout_hooks(adapter: Adapter, cut: AttentionKnockout) -> list[Hook]:
    """Return one hook per layer of ``cut.layers`` that cuts its edges; raise InputError for invalid
    modes, heads or layers.
    """
    if cut.mode not in KNOCKOUT_MODES:
        raise InputError(
            f"mode={cut.mode!r}: unknown. {did_you_mean(cut.mode, KNOCKOUT_MODES)}",
            argument="knockout_mode",
        )
    n_heads = adapter.shape.n_heads
    heads = tuple(range(n_heads)) if cut.heads is None else cut.heads
    check_heads(heads, n_heads)
    has_repeats = len(set(cut.layers)) != len(cut.layers)
    if has_repeats or not all(0 <= layer < adapter.n_layers for layer in cut.layers):
        raise InputError(
            f"layers={cut.layers}: give different numbers from 0 to {adapter.n_layers - 1}.",
            argument="layers",
        )
    chosen = torch.zeros(n_heads, dtype=torch.bool)
    chosen[list(heads)] = True
    edges = rearrange(cut.edges, "example query key -> example 1 query key")
    mask = edges & rearrange(chosen, "head -> 1 head 1 1") if cut.heads is not None else edges
    name, value = ("attn_scores", -torch.inf) if cut.mode == "mask" else ("pattern", 0.0)

    def fill(scores: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        return scores.masked_fill(mask.to(scores.device), value)

    return [(adapter.attention_hook(layer, name), fill) for layer in cut.layers]
