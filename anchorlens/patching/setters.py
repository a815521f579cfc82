"""Patch setters: write a part of the clean activation into the corrupted one, chosen by an index,
in place.

Each takes (corrupted activation, index, clean activation) and returns the patched activation.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeAlias

import pandas as pd
from torch import Tensor

from anchorlens.constants import HEAD_SITES, SITES
from anchorlens.models.adapter import LensModel

PatchSetter: TypeAlias = Callable[[Tensor, Sequence[int], Tensor], Tensor]


def make_df_from_ranges(
    column_max_ranges: Sequence[int], column_names: Sequence[str]
) -> pd.DataFrame:
    """Return all combinations of indices from 0 to each maximum minus 1, one per row; the last
    column changes fastest.
    """
    return pd.DataFrame(list(product(*map(range, column_max_ranges))), columns=list(column_names))


def layer_pos_patch_setter(
    corrupted_activation: Tensor, index: Sequence[int], clean_activation: Tensor
) -> Tensor:
    """Patch [batch pos ...] at index (layer, pos)."""
    _, pos = index
    corrupted_activation[:, pos] = clean_activation[:, pos]
    return corrupted_activation


def layer_pos_head_vector_patch_setter(
    corrupted_activation: Tensor, index: Sequence[int], clean_activation: Tensor
) -> Tensor:
    """Patch [batch pos head ...] at index (layer, pos, head)."""
    _, pos, head = index
    corrupted_activation[:, pos, head] = clean_activation[:, pos, head]
    return corrupted_activation


def layer_head_vector_patch_setter(
    corrupted_activation: Tensor, index: Sequence[int], clean_activation: Tensor
) -> Tensor:
    """Patch [batch pos head ...] at index (layer, head), at all positions."""
    _, head = index
    corrupted_activation[:, :, head] = clean_activation[:, :, head]
    return corrupted_activation


def layer_head_pattern_patch_setter(
    corrupted_activation: Tensor, index: Sequence[int], clean_activation: Tensor
) -> Tensor:
    """Patch an attention pattern [batch head query key] at index (layer, head)."""
    _, head = index
    corrupted_activation[:, head] = clean_activation[:, head]
    return corrupted_activation


def layer_head_pos_pattern_patch_setter(
    corrupted_activation: Tensor, index: Sequence[int], clean_activation: Tensor
) -> Tensor:
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


# Setter -> columns of its index after the layer, and whether the site is a pattern.
_COLUMNS: dict[PatchSetter, tuple[tuple[str, ...], bool]] = {
    layer_pos_patch_setter: (("pos",), False),
    layer_pos_head_vector_patch_setter: (("pos", "head"), False),
    layer_head_vector_patch_setter: (("head",), False),
    layer_head_pattern_patch_setter: (("head",), True),
    layer_head_pos_pattern_patch_setter: (("head", "pos"), True),
    layer_head_dest_src_pos_pattern_patch_setter: (("head", "pos", "key"), True),
}


def columns_of(setter: PatchSetter) -> tuple[str, ...]:
    """Return what a known setter chooses after the layer: ``pos``, ``head`` or ``key``."""
    known = _find_setter(setter)
    return () if known is None else _COLUMNS[known][0]


def _find_setter(setter: PatchSetter) -> PatchSetter | None:
    """Return the setter of this package that a setter is, also if it is TransformerLens's; None for
    others.
    """
    if getattr(setter, "__module__", "") == "transformer_lens.patching":
        name = getattr(setter, "__name__", "")
        return next((one for one in _COLUMNS if getattr(one, "__name__", "") == name), None)
    return setter if setter in _COLUMNS else None


def find_obstacle(
    model: LensModel,
    tokens: object,
    setter: PatchSetter,
    activation_name: str,
    indices: Sequence[Sequence[int]],
) -> str | None:
    """Return the reason why the cone engine cannot measure these cells; None if it can."""
    name = getattr(setter, "__name__", "such setter")
    known = _find_setter(setter)
    if known is None:
        return f"the cone engine has no {name}"
    columns, is_pattern = _COLUMNS[known]
    has_heads = activation_name in HEAD_SITES
    if not has_heads and activation_name not in SITES:
        return f"{activation_name!r} is none of {', '.join((*SITES, *HEAD_SITES))}"
    if is_pattern != (activation_name == "pattern") or ("head" in columns and not has_heads):
        return f"{name} changes no position or head of {activation_name!r}"
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.is_floating_point():
        return "corrupted_tokens is no tensor of token ids, [batch pos]"
    if getattr(model.tokenizer, "padding_side", "right") != "right":
        return "the tokenizer pads on the left"
    if not indices or any(len(index) != 1 + len(columns) or min(index) < 0 for index in indices):
        return f"an index is not (layer, {', '.join(columns)}) with numbers of at least 0"
    return None
