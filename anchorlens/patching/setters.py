"""Patch setters: write a part of the clean activation into the corrupted one, chosen by an index, in place.

Each takes (corrupted activation, index, clean activation) and returns the patched activation.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Protocol, TypeAlias, runtime_checkable

import pandas as pd
from torch import Tensor


@runtime_checkable
class Cache(Protocol):
    """Activations by hook name, such as TransformerLens's ActivationCache or a dictionary."""

    def __getitem__(self, name: str, /) -> Tensor:
        """Return the activation at a hook."""
        ...


PatchSetter: TypeAlias = Callable[[Tensor, Sequence[int], Tensor], Tensor]


def make_df_from_ranges(column_max_ranges: Sequence[int], column_names: Sequence[str]) -> pd.DataFrame:
    """Return all combinations of indices from 0 to each maximum minus 1, one per row; the last column changes fastest."""
    return pd.DataFrame(list(product(*map(range, column_max_ranges))), columns=list(column_names))


def layer_pos_patch_setter(corrupted_activation: Tensor, index: Sequence[int], clean_activation: Tensor) -> Tensor:
    """Patch [batch pos ...] at index (layer, pos)."""
    _, pos = index
    corrupted_activation[:, pos] = clean_activation[:, pos]
    return corrupted_activation


def layer_pos_head_vector_patch_setter(corrupted_activation: Tensor, index: Sequence[int], clean_activation: Tensor) -> Tensor:
    """Patch [batch pos head ...] at index (layer, pos, head)."""
    _, pos, head = index
    corrupted_activation[:, pos, head] = clean_activation[:, pos, head]
    return corrupted_activation


def layer_head_vector_patch_setter(corrupted_activation: Tensor, index: Sequence[int], clean_activation: Tensor) -> Tensor:
    """Patch [batch pos head ...] at index (layer, head), at all positions."""
    _, head = index
    corrupted_activation[:, :, head] = clean_activation[:, :, head]
    return corrupted_activation


def layer_head_pattern_patch_setter(corrupted_activation: Tensor, index: Sequence[int], clean_activation: Tensor) -> Tensor:
    """Patch an attention pattern [batch head query key] at index (layer, head)."""
    _, head = index
    corrupted_activation[:, head] = clean_activation[:, head]
    return corrupted_activation


def layer_head_pos_pattern_patch_setter(corrupted_activation: Tensor, index: Sequence[int], clean_activation: Tensor) -> Tensor:
    """Patch an attention pattern [batch head query key] at index (layer, head, query)."""
    _, head, query = index
    corrupted_activation[:, head, query] = clean_activation[:, head, query]
    return corrupted_activation


def layer_head_dest_src_pos_pattern_patch_setter(
    corrupted_activation: Tensor, index: Sequence[int], clean_activation: Tensor
) -> Tensor:
    """Patch an attention pattern [batch head query key] at index (layer, head, query, key)."""
    _, head, query, key = index
    corrupted_activation[:, head, query, key] = clean_activation[:, head, query, key]
    return corrupted_activation
