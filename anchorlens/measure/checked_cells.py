"""Cells of a grid that are measured with full forward passes before all others.

They come first, because the first call of a metric is that of the first cell, as in
TransformerLens. Their values are kept, show what the metric reads on patched logits, and check the
cone engine.
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

from anchorlens.engine.cost import rows_bytes
from anchorlens.engine.logits import Logits, Reads
from anchorlens.engine.observed_logits import observe
from anchorlens.engine.rounding_noise import N_DRAWS, root_mean_square, rounding_hooks
from anchorlens.models.adapter import Adapter, Hook
from anchorlens.models.backend import LensModel
from anchorlens.models.shape import Shape

Index: TypeAlias = tuple[int, ...]

# Share of the work of a grid that its checked cells take, and how many there are at least and at
# most.
_SHARE, _LEAST, _MOST = 0.03, 2, 16
# Tokens of a full forward pass up to which more rows hardly take longer: SmolLM2 on two cores takes
# 0.18 CPU seconds for one row of 16 tokens and 0.22 for three. And tokens beyond which cells run
# one after the other.
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


def choose_cells(
    cells: Sequence[Index],
    changed: Sequence[Index],
    *,
    work: float,
    one: float,
    n_tokens: int,
) -> list[Index]:
    """Choose the cells to check: the first, the last that changes something, one that changes
    nothing, and random ones.

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


def count_together(shape: Shape, budget: int, n_rows: int, n_pos: int) -> int:
    """Return the number of cells of one full forward pass.

    Args:
        shape: Shape of the model.
        budget: Bytes that the pass may take.
        n_rows: Number of rows of a cell.
        n_pos: Number of tokens of a row.
    """
    # The logits of all positions, and a copy that the metric gets.
    logits = 2 * n_pos * shape.d_vocab * shape.item
    by_memory = budget // (n_rows * (rows_bytes(shape, 1, n_pos) + logits))
    return max(1, min(by_memory, _TOGETHER // (n_rows * n_pos)))


@dataclass(frozen=True, kw_only=True)
class CheckedRun:
    """Full forward passes with one patch each, through the model's own hooks.

    Attributes:
        model: The model.
        tokens: Corrupted tokens.
        hook_name: Layer -> name of the patched hook.
        clean: Layer -> clean activation.
        setter: Function (corrupted activation, index, clean activation) -> patched activation.
        together: Number of cells of one forward pass.
    """

    model: LensModel
    tokens: Int[Tensor, "batch pos"]
    hook_name: Callable[[int], str]
    clean: Callable[[int], Tensor]
    setter: Callable[[Tensor, Sequence[int], Tensor], Tensor]
    together: int

    @torch.no_grad()
    def measure(
        self,
        indices: Sequence[Index],
        metric: Callable[[Tensor], Float[Tensor, "value"]],
        after_first: Callable[[Float[Tensor, "value"]], bool],
    ) -> list[CheckedCell]:
        """Measure cells, several in one forward pass.

        Args:
            indices: Cells; the metric is called for the first one first.
            metric: Values of the metric from logits [batch pos d_vocab].
            after_first: Function of the values of the first cell, called after the first call of
                the metric; False stops the measurement.

        Returns:
            The measured cells; none if ``after_first`` returned False.
        """
        found: list[CheckedCell] = []
        for start in range(0, len(indices), self.together):
            some = indices[start : start + self.together]
            for index, logits in zip(some, self._run(some), strict=True):
                # A copy, because the metric may write into its logits.
                value = metric(logits.clone())
                if not found and not after_first(value):
                    return []
                observed = Logits.of(logits)
                again = observe(metric, observed)
                if not torch.equal(value.nan_to_num(), again.nan_to_num()):
                    raise ValueError(
                        f"it returns {value.tolist()} and {again.tolist()} for the same logits"
                    )
                found.append(CheckedCell(index, value, observed.reads))
        return found

    @torch.no_grad()
    def noise(
        self,
        adapter: Adapter,
        metric: Callable[[Tensor], Float[Tensor, "value"]],
        before: Float[Tensor, "value"],
        cells: Sequence[CheckedCell],
    ) -> Float[Tensor, "value"]:
        """Return the noise floor of the metric: the root mean square change of its values when the
        model rounds in another way, without a patch and in cells.

        Args:
            adapter: The model.
            metric: Values of the metric from logits [batch pos d_vocab].
            before: Values of the metric without a patch.
            cells: Cells that were measured.
        """
        known: list[tuple[Index | None, Tensor]] = [(None, before)]
        known += [(cell.index, cell.value) for cell in cells]
        changes: list[Tensor] = []
        for seed in range(N_DRAWS[0]):
            hooks = rounding_hooks(adapter, seed)
            for start in range(0, len(known), self.together):
                some = known[start : start + self.together]
                every = self._run([index for index, _ in some], hooks)
                for (_, value), logits in zip(some, every, strict=True):
                    changes.append(metric(logits) - value)
        return root_mean_square(changes)

    def _run(
        self, indices: "Sequence[Index | None]", more_hooks: Sequence[Hook] = ()
    ) -> list[Float[Tensor, "batch pos d_vocab"]]:
        """Run one full forward pass in which each group of rows is patched at a cell of its own;
        None for no patch.
        """
        n_rows = len(self.tokens)

        def patch(value: Tensor, hook: Any, layer: int) -> Tensor:  # noqa: ARG001
            for i, index in enumerate(indices):
                if index is not None and index[0] == layer:
                    own = slice(i * n_rows, (i + 1) * n_rows)
                    value[own] = self.setter(value[own].clone(), index, self.clean(layer))
            return value

        layers = sorted({index[0] for index in indices if index is not None})
        patches = [partial(patch, layer=layer) for layer in layers]
        hooks: list[Any] = list(zip(map(self.hook_name, layers), patches, strict=True))
        hooks += more_hooks
        every = repeat(self.tokens, "batch pos -> (cell batch) pos", cell=len(indices))
        logits = self.model.run_with_hooks(every, fwd_hooks=hooks)
        assert isinstance(logits, Tensor)
        return list(logits.split(n_rows))
