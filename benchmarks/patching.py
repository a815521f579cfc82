"""CPU seconds of anchorlens.patching beside transformer_lens.patching, on grids of SmolLM2-135M.

TransformerLens is timed on random cells, half of them before and half after anchorlens, and scaled
to the grid. Both run in this process with two threads. The prompts differ at one token; the metric
is a logit difference at the last position.

`flops`: floating-point operations of all full forward passes divided by those of the cones. Bounds
of the ratio follow. `bound`: all operations of the cones run at the rate of a large matrix product,
and nothing else takes time. `products`: beside the full forward passes of anchorlens (capture of
activations, spot checks), only the matrix products of its cones take time; they are run alone, in
the same layouts. `arithmetic`: all arithmetic operations, without copies and indexing.
"""

import argparse
import contextlib
import io
import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any
from unittest import mock

import pandas as pd
import torch
import transformer_lens.patching as theirs
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from transformer_lens import HookedTransformer

import anchorlens as al
from anchorlens import patching as ours
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cost import GroupSize, PassSize, pass_flops
from anchorlens.models.adapter import Shape
from anchorlens.models.blocks import times
from anchorlens.models.load import adapt

# Name -> site, setter, axes of a cell after the layer, number of layers (0: all).
GRIDS = {
    "resid_pre by position": ("resid_pre", "layer_pos_patch_setter", ("pos",), 0),
    "attn_out by position": ("attn_out", "layer_pos_patch_setter", ("pos",), 0),
    "mlp_out by position": ("mlp_out", "layer_pos_patch_setter", ("pos",), 0),
    "z by head": ("z", "layer_head_vector_patch_setter", ("head",), 0),
    "z by head and position, 8 layers": (
        "z",
        "layer_pos_head_vector_patch_setter",
        ("pos", "head"),
        8,
    ),
}
PRODUCTS = frozenset(("mm", "bmm", "addmm", "_linear_pointwise"))
ARITHMETIC = PRODUCTS | {
    "silu",
    "mul",
    "mul_",
    "add",
    "add_",
    "addcmul_",
    "div_",
    "rsqrt_",
    "pow_",
    "square_",
    "linalg_vector_norm",
    "_softmax",
}
# Prompts, tokens, position of the token that differs.
CASES = ((1, 16, 4), (1, 16, 1), (1, 32, 8), (1, 32, 1), (4, 32, 8), (4, 32, 1))


def cpu_seconds(run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
    """Return a result and the CPU seconds that it took; progress bars are hidden."""
    start = time.process_time()
    with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
        return run(), time.process_time() - start


def matrix_rate(shape: Shape) -> float:
    """Return the operations of a large matrix product in one CPU second, the fastest of 30."""
    assert shape.d_mlp is not None
    left, right = torch.randn(2048, shape.d_model), torch.randn(shape.d_model, shape.d_mlp)
    return (
        2.0
        * left.numel()
        * shape.d_mlp
        / min(cpu_seconds(lambda: times(left, right))[1] for _ in range(30))
    )


@dataclass(frozen=True)
class Operand:
    """Size, strides and dtype of a tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def of(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return a view of a buffer."""
        return buffer.view(self.dtype).as_strided(self.size, self.stride)


class Operations(TorchDispatchMode):
    """Record the arithmetic operations of the cone engine, and count full forward passes; copies
    and indexing are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any]] = []
        self.passes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ARITHMETIC:
            known = tree_map_only(
                torch.Tensor,
                lambda one: Operand(one.shape, one.stride(), one.dtype),
                (args, kwargs or {}),
            )
            self.calls.append((func, known))
        return func(*args, **(kwargs or {}))

    def record(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the result of ``run``, and record its operations and full forward passes."""
        swaps, forward = ConeEngine.run_swap_batches, HookedTransformer.forward

        def run_swap_batches(*args: Any, **options: Any) -> Any:
            with self:
                return swaps(*args, **options)

        def forward_counted(*args: Any, **options: Any) -> Any:
            self.passes += 1
            return forward(*args, **options)

        with (
            mock.patch.object(ConeEngine, "run_swap_batches", run_swap_batches),
            mock.patch.object(HookedTransformer, "forward", forward_counted),
        ):
            return cpu_seconds(run)[0]

    def seconds(self, names: frozenset[str]) -> float:
        """Return the CPU seconds of the operations with these names, alone, on zeros in the same
        layouts.
        """
        calls = [
            (func, known) for func, known in self.calls if func.overloadpacket.__name__ in names
        ]
        operands = [
            one for _, known in calls for one in tree_leaves(known) if isinstance(one, Operand)
        ]
        size = max(
            1 + sum((n - 1) * step for n, step in zip(one.size, one.stride, strict=True))
            for one in operands
        )
        # One buffer per operand of an operation: what is written must not overlap with what is
        # read.
        buffers, made = [torch.zeros(size) for _ in range(4)], list[tuple[Any, Any, Any]]()
        for func, known in calls:
            free = iter(buffers)
            args, options = tree_map_only(Operand, lambda one, free=free: one.of(next(free)), known)
            made.append((func, args, options))

        def run() -> torch.Tensor:
            for func, args, options in made:
                func(*args, **options)
            return buffers[0]

        return cpu_seconds(run)[1]


def operations(
    shape: Shape, prompts: int, tokens: int, first: int, axes: tuple[str, ...], layers: range
) -> tuple[float, float]:
    """Return the operations of one full forward pass per cell, and those of the cones of
    all cells.
    """
    starts = range(first, tokens) if "pos" in axes else [first] * shape.n_heads
    copies = shape.n_heads if len(axes) == 2 else 1
    groups = tuple(
        GroupSize(prompts * (tokens - p), prompts, tokens - p, tokens)
        for p in starts
        for _ in range(copies)
    )
    size = PassSize(
        clean_tokens=prompts * tokens,
        clean_rows=prompts,
        clean_keys=tokens,
        cell_groups=groups,
        reads=prompts,
    )
    cells = len(layers) * (tokens if "pos" in axes else shape.n_heads) * copies
    per_pass = (
        prompts
        * tokens
        * (shape.n_layers * shape.block_flops + 2.0 * shape.d_model * shape.d_vocab)
    )
    return cells * per_pass, pass_flops(shape, size, list(layers))


def main() -> None:
    """Print one row per grid and case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cells", type=int, default=24, help="random cells on which TransformerLens is timed"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="rounds; medians are printed, and the range of the ratio",
    )
    parser.add_argument(
        "--grids", nargs="*", default=list(GRIDS), help=f"grids to measure, of: {', '.join(GRIDS)}"
    )
    parser.add_argument(
        "--cases",
        nargs="*",
        type=int,
        default=list(range(len(CASES))),
        help="numbers of cases, from 0",
    )
    options = parser.parse_args()
    torch.set_num_threads(2)
    model = al.load_model("smollm2-135m-instruct", device="cpu", backend="hooked")
    assert isinstance(model, HookedTransformer)
    shape = adapt(model).shape
    heads = ["grid", "prompts", "tokens", "first", "TransformerLens s", "anchorlens s"]
    heads += ["ratio", "flops", "bound", "products", "arithmetic"]
    print(f"| {' | '.join((*heads, 'difference', 'peak MB'))} |")
    print(f"|---|{'---:|' * (len(heads) + 1)}", flush=True)
    for name, number in product(options.grids, options.cases):
        print(measure(model, shape, name, CASES[number], options.cells, options.rounds), flush=True)


def measure(
    model: HookedTransformer,
    shape: Shape,
    name: str,
    case: tuple[int, int, int],
    n_cells: int,
    n_rounds: int,
) -> str:
    """Return the row of one grid and case."""
    (site, setter, axes, n_layers), (prompts, tokens, first) = GRIDS[name], case
    torch.manual_seed(0)
    clean = torch.randint(100, 40_000, (prompts, tokens))
    corrupted = clean.clone()
    corrupted[:, first] = torch.randint(100, 40_000, (prompts,))
    right, wrong = torch.randint(100, 40_000, (2, prompts))
    rows = torch.arange(prompts)
    with torch.no_grad():
        _, cache = model.run_with_cache(
            clean, names_filter=lambda hook: hook.endswith(f"hook_{site}")
        )

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return (logits[rows, -1, right] - logits[rows, -1, wrong]).mean()

    layers = (
        range(0, shape.n_layers, shape.n_layers // n_layers)[:n_layers]
        if n_layers
        else range(shape.n_layers)
    )
    sizes = {"pos": tokens, "head": shape.n_heads}
    grid = pd.DataFrame(
        list(product(layers, *(range(sizes[axis]) for axis in axes))), columns=["layer", *axes]
    )
    some = random.Random(0).sample(range(len(grid)), min(max(2, n_cells), len(grid)))
    arguments = (model, corrupted, cache, metric)

    def fast_grid() -> torch.Tensor:
        return ours.generic_activation_patch(*arguments, getattr(ours, setter), site, index_df=grid)

    def slow_cells(numbers: list[int]) -> tuple[torch.Tensor, float]:
        cells = grid.iloc[numbers]
        return cpu_seconds(
            lambda: theirs.generic_activation_patch(
                *arguments, getattr(theirs, setter), site, index_df=cells
            )
        )

    recorded = Operations()
    found = recorded.record(fast_grid)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    whole, cones = operations(shape, prompts, tokens, first, axes, layers)
    rounds: list[tuple[float, ...]] = []
    wanted = torch.zeros(0)
    for _ in range(n_rounds):
        before, early = slow_cells(some[::2])
        _, fast = cpu_seconds(fast_grid)
        after, late = slow_cells(some[1::2])
        slow, wanted = (early + late) * len(grid) / len(some), torch.cat([before, after])
        passes = recorded.passes * slow / len(grid)
        least = [recorded.seconds(names) + passes for names in (PRODUCTS, ARITHMETIC)]
        bound = slow / (cones / matrix_rate(shape))
        rounds.append(
            (slow, fast, slow / fast, whole / cones, bound, *(slow / one for one in least))
        )
    gap = float(
        (found[[*some[::2], *some[1::2]]] - wanted).abs().max() / (found.max() - found.min())
    )
    ratios = [ratio for _, _, ratio, *_ in rounds]
    cells = [f"{number:.3g}" for number in map(median, zip(*rounds, strict=True))]
    cells[2] += f" ({min(ratios):.3g} to {max(ratios):.3g})"
    texts = map(str, (name, prompts, tokens, first, *cells, f"{gap:.0e}", f"{peak:,.0f}"))
    return f"| {' | '.join(texts)} |"


if __name__ == "__main__":
    main()
