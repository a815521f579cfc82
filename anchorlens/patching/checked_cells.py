"""Cells of a grid that are measured with full forward passes before all others.

They come first, because the first call of a metric is that of the first cell, as in TransformerLens. Their values are kept, show
what the metric reads on patched logits, and check the cone engine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeAlias

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.observed_logits import Logits, Reads, observe
from anchorlens.models.backend import LensModel
from anchorlens.patching.setters import PatchSetter

Index: TypeAlias = tuple[int, ...]

# Share of the work of a grid that its checked cells take, and how many there are at least and at most.
_SHARE, _LEAST, _MOST = 0.03, 2, 16
# Tokens of a full forward pass up to which more rows hardly take longer: SmolLM2 on two cores takes 0.18 CPU seconds for one row of
# 16 tokens and 0.22 for three. And tokens beyond which cells run one after the other.
_CHEAP, _TOGETHER = 48, 4096


@dataclass(frozen=True)
class CheckedCell:
    """Cell that was measured with a full forward pass.

    Attributes:
        index: Index of the cell.
        value: Values of the metric.
        reads: Logits that the metric read.
    """

    index: Index
    value: Float[Tensor, "value"]
    reads: Reads


def choose_cells(cells: Sequence[Index], changed: Sequence[Index], work: float, one: float, n_tokens: int) -> list[Index]:
    """Choose the cells to check: the first, the last that changes something, one that changes nothing, and random ones.

    Random cells are drawn from layers that no chosen cell has, as long as there are any.

    Args:
        cells: Cells of the grid.
        changed: Cells that the cone engine computes.
        work: Floating-point operations of the grid.
        one: Floating-point operations of one full forward pass.
        n_tokens: Tokens of one full forward pass.
    """
    n = max(_LEAST, _CHEAP // n_tokens, int(_SHARE * work / one))
    rng = Random(0)
    drawn = rng.sample(changed, len(changed)) if changed else []
    chosen = dict.fromkeys([cells[0], *changed[-1:]])
    rest = set(changed)
    still = [cell for cell in cells if cell not in rest]
    if still and cells[0] in rest:
        chosen[rng.choice(still)] = None
    for other_layers in (True, False):
        for cell in drawn:
            if len(chosen) >= min(n, _MOST):
                break
            if not other_layers or cell[0] not in {one[0] for one in chosen}:
                chosen[cell] = None
    return list(chosen)


@torch.no_grad()
def measure_cells(
    model: LensModel,
    tokens: Int[Tensor, "batch pos"],
    indices: Sequence[Index],
    hook_name: Callable[[int], str],
    clean: Callable[[int], Tensor],
    setter: PatchSetter,
    metric: Callable[[Tensor], Float[Tensor, "value"]],
    after_first: Callable[[Float[Tensor, "value"]], bool],
) -> list[CheckedCell]:
    """Measure cells, several in one forward pass.

    Args:
        model: The model.
        tokens: Corrupted tokens.
        indices: Cells; the metric is called for the first one first.
        hook_name: Layer -> name of the patched hook.
        clean: Layer -> clean activation.
        setter: Function that patches an activation.
        metric: Values of the metric from logits [batch pos d_vocab].
        after_first: Function of the values of the first cell, called after the first call of the metric; False stops the
            measurement.

    Returns:
        The measured cells; none if ``after_first`` returned False.
    """
    found: list[CheckedCell] = []
    size = max(1, _TOGETHER // tokens.numel())
    for start in range(0, len(indices), size):
        some = indices[start : start + size]
        for index, logits in zip(some, _forward(model, tokens, some, hook_name, clean, setter), strict=True):
            # A copy, because the metric may write into its logits.
            value = metric(logits.clone())
            if not found and not after_first(value):
                return []
            observed = Logits.of(logits)
            again = observe(metric, observed)
            if not torch.equal(value.nan_to_num(), again.nan_to_num()):
                raise ValueError(f"it returns {value.tolist()} and {again.tolist()} for the same logits")
            found.append(CheckedCell(index, value, observed.reads))
    return found


def _forward(
    model: LensModel,
    tokens: Int[Tensor, "batch pos"],
    indices: Sequence[Index],
    hook_name: Callable[[int], str],
    clean: Callable[[int], Tensor],
    setter: PatchSetter,
) -> list[Float[Tensor, "batch pos d_vocab"]]:
    """Run one full forward pass in which each group of rows is patched at a cell of its own."""
    n_rows = len(tokens)

    def patch(value: Tensor, hook: Any, layer: int) -> Tensor:  # noqa: ARG001
        for i, index in enumerate(indices):
            if index[0] == layer:
                own = slice(i * n_rows, (i + 1) * n_rows)
                value[own] = setter(value[own].clone(), index, clean(layer))
        return value

    layers = sorted({index[0] for index in indices})
    hooks: list[Any] = [(hook_name(layer), partial(patch, layer=layer)) for layer in layers]
    every = repeat(tokens, "batch pos -> (cell batch) pos", cell=len(indices))
    logits = model.run_with_hooks(every, fwd_hooks=hooks)
    assert isinstance(logits, Tensor)
    return list(logits.split(n_rows))
