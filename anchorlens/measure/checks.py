"""Checks of the cone engine by full forward passes: of values, of what was written, and of the
cells of a grid that are measured first.

One rule for sweeps, grids and saved runs: a value is right if it is close, or if rounding explains
the difference: in half precision the noise of the model's own values, or a step of the metric while
the engines agree in the logits.

The checked cells of a grid come before all others, because the first call of a metric is that of
the first cell, as in TransformerLens. Their values are kept, and show what the metric reads on
patched logits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.cone import EVIDENCE
from anchorlens.engine.cost import rows_bytes
from anchorlens.engine.evidence import Evidence, evidence_of_sources, is_same_evidence
from anchorlens.engine.logits import Logits, Reads
from anchorlens.engine.observed_logits import observe
from anchorlens.engine.patches import SwapBatch, window_layers
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.rounding_noise import (
    N_DRAWS,
    TIMES_NOISE,
    root_mean_square,
    round_anew,
    rounding_hooks,
)
from anchorlens.errors import CheckError
from anchorlens.models.adapter import Adapter, Hook, LensModel, Shape, SiteLike

T = TypeVar("T")


EQUAL, ROUNDING, DIFFERS = "equal", "rounding", "differs"


@dataclass(frozen=True, kw_only=True)
class ComparedCell(Generic[T]):
    """Values of one cell from both engines.

    Attributes:
        cell: Name or index of the cell.
        found: Values of the cone engine.
        exact: Values of a full forward pass.
        is_rounding: Function that returns whether rounding explains the difference; None where
            nothing can.
    """

    cell: T
    found: Float[Tensor, "value"]
    exact: Float[Tensor, "value"]
    is_rounding: Callable[[], bool] | None = None

    def classify(self, is_close: Callable[[Tensor, Tensor], bool]) -> str:
        """Return ``equal`` if the values are close, ``rounding`` if rounding explains their
        difference, else ``differs``.

        Examples:
            >>> import torch
            >>> one = ComparedCell(cell="a", found=torch.zeros(1), exact=torch.ones(1))
            >>> one.classify(torch.equal)
            'differs'
        """
        if is_close(self.found, self.exact):
            return EQUAL
        if self.is_rounding is not None and self.is_rounding():
            return ROUNDING
        return DIFFERS


# Allowed difference of the evidence, relative to the size of the activations. Measured with SmolLM2
# over sites and places: up to 3e-5 in float32, 0.34 in bfloat16 (half of the cells below 0.014). A
# patch at another place changes it by about 1.4 in each layer. Beyond it, the noise of the sources'
# own activations is measured in half precision.
_ALLOWED = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.01, torch.bfloat16: 0.05}


@dataclass(frozen=True, kw_only=True)
class WrittenCells:
    """Cells of a pass, with the evidence of what it wrote.

    Attributes:
        batch: Batch whose swaps have a ``source``.
        layers: Layers of the cells.
        changed: Metrics of each swap, with :data:`~anchorlens.engine.cone.EVIDENCE` [layer 1].
    """

    batch: SwapBatch
    layers: Sequence[int]
    changed: Sequence[Metrics]


def check_writes(
    adapter: Adapter, passes: Sequence[WrittenCells], *, site: SiteLike, window: int, n_rows: int
) -> None:
    """Compare what the cone engine wrote in each cell with the activations of full forward passes
    of the sources.

    Args:
        adapter: The model.
        passes: Cells of passes; equal sources run once.
        site: Patched site.
        window: Number of layers patched together.
        n_rows: Maximum number of rows of a forward pass.

    Raises:
        CheckError: If a patch is missing, or other activations, or other places, were written.
    """
    expected = evidence_of_sources(adapter, [one.batch for one in passes], site, n_rows)
    for cells, own in zip(passes, expected, strict=True):
        windows = [window_layers(layer, window, adapter.n_layers) for layer in cells.layers]
        noise = partial(
            _measure_noise, adapter, cells.batch, own, site=site, windows=windows, n_rows=n_rows
        )
        noise = cache(noise)
        for number, (swap, after) in enumerate(zip(cells.batch.swaps, cells.changed, strict=True)):
            for at, (found,) in enumerate(after.values[EVIDENCE].tolist()):
                total, size = own[number].of_window(windows[at])
                shares = _limits_of(adapter, noise, number, at)
                if any(is_same_evidence(found, total, share * size) for share in shares):
                    continue
                off = abs(found - total) / size if size else float("inf")
                allowed = list(_limits_of(adapter, noise, number, at))[-1]
                raise CheckError(
                    f"engine='cone': the patch of {swap.anchor} in layer {cells.layers[at]} was not"
                    f" written as it should be: its activations differ by {off:.2g} of their size"
                    f" (allowed: {allowed:.2g}). The sweep was stopped. Use engine='reference', and"
                    " please report the model."
                )


def _limits_of(
    adapter: Adapter, noise: Callable[[int], list[list[float]]], number: int, at: int
) -> Iterator[float]:
    """Yield allowed differences of the evidence, relative to its size: a fixed one, in half
    precision then with the noise of a swap in a window, from more and more draws.

    ``noise``: function of the number of draws, [swap window].
    """
    allowed = _ALLOWED[adapter.shape.dtype]
    yield allowed
    for n_draws in N_DRAWS if adapter.shape.is_half else ():
        yield allowed + TIMES_NOISE * noise(n_draws)[number][at]


def _measure_noise(
    adapter: Adapter,
    batch: SwapBatch,
    expected: Sequence[Evidence],
    n_draws: int,
    *,
    site: SiteLike,
    windows: Sequence[range],
    n_rows: int,
) -> list[list[float]]:
    """Return the noise of the evidence of each swap in each window, relative to its size: its own
    change when the model rounds in another way, or the mean of its layer if that is larger.
    """
    squares = torch.zeros(len(expected), len(windows), dtype=torch.float64, device="cpu")
    for seed in range(n_draws):
        (again,) = evidence_of_sources(round_anew(adapter, seed), [batch], site, n_rows)
        for i, (one, other) in enumerate(zip(expected, again, strict=True)):
            for j, window in enumerate(windows):
                total, size = one.of_window(window)
                change = (other.of_window(window)[0] - total) / size if size else 0.0
                squares[i, j] += change**2 / n_draws
    squares = squares.nan_to_num(0.0, 0.0, 0.0)
    return torch.maximum(squares, squares.mean(0, keepdim=True)).sqrt().tolist()


Index: TypeAlias = tuple[int, ...]

# Share of the work of a grid that its checked cells take, and how many there are at least and at
# most.
_SHARE = 0.03
_LEAST = 2
_MOST = 16
# Tokens of a full forward pass up to which more rows hardly take longer: SmolLM2 on two cores takes
# 0.18 CPU seconds for one row of 16 tokens and 0.22 for three.
_CHEAP = 48
# Tokens beyond which cells run one after the other.
_TOGETHER = 4096


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
    grid_flops: float,
    pass_flops: float,
    n_tokens: int,
) -> list[Index]:
    """Choose the cells to check: the first, the last that changes something, one that changes
    nothing, and random ones.

    Random cells are drawn from layers that no chosen cell has, as long as there are any.

    Args:
        cells: Cells of the grid.
        changed: Cells that the cone engine computes.
        grid_flops: Floating-point operations of the grid.
        pass_flops: Floating-point operations of one full forward pass.
        n_tokens: Tokens of one full forward pass.
    """
    n = max(_LEAST, _CHEAP // n_tokens, int(_SHARE * grid_flops / pass_flops))
    rng = Random(0)
    drawn = rng.sample(changed, len(changed)) if changed else []
    chosen = dict.fromkeys([cells[0], *changed[-1:]])
    is_changed = set(changed)
    unchanged = [cell for cell in cells if cell not in is_changed]
    if unchanged and cells[0] in is_changed:
        chosen[rng.choice(unchanged)] = None
    for other_layers in (True, False):
        for cell in drawn:
            if len(chosen) >= min(n, _MOST):
                break
            layers = {index[0] for index in chosen}
            if not other_layers or cell[0] not in layers:
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
    logits = 2 * n_pos * shape.d_vocab * shape.number_bytes
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
