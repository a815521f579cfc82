"""Faults that are injected into the cone engine, to see whether the checks of a grid find them.

``python -m tests.patching.faults 300`` injects 300 faults and prints how many were found, by kind;
``--dtype bfloat16`` in a model of half precision. A fault counts if it changes at least 2 % of the
cells by more than rounding. It acts between the grid and the engine, as a mistake in either would:
on some cells of a pass, chosen at random.
"""

import argparse
import contextlib
import io
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from anchorlens import patching
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.patches import AnchorSwap, Slots, SwapBatch
from anchorlens.models.load import load_model
from tests.engine.make import random_rows
from tests.models.tiny import save_tiny

FUNCTIONS = {
    "attn_out": "get_act_patch_attn_out",
    "resid_pre": "get_act_patch_resid_pre",
    "z": "get_act_patch_attn_head_out_by_pos",
    "z of all positions": "get_act_patch_attn_head_out_all_pos",
    "v": "get_act_patch_attn_head_v_by_pos",
    "q": "get_act_patch_attn_head_q_all_pos",
}
HEADS = ("z", "z of all positions", "v", "q")
# Share of the cells that a fault must change, and what counts as a change, relative to the range of
# the metric.
SHARE, CHANGE = 0.02, 2e-3
HALF = (torch.bfloat16, torch.float16)

Job = tuple[SwapBatch, list[int]]


def shifted(rng: random.Random, swap: AnchorSwap, n_pos: int) -> AnchorSwap:
    """The patch lands one position later or earlier."""
    step = rng.choice((-1, 1))
    return replace(
        swap, slots=Slots((swap.slots.positions + step).clamp(0, n_pos - 1), swap.slots.mask)
    )


def other_head(rng: random.Random, swap: AnchorSwap, n_heads: int) -> AnchorSwap:
    """Another head is patched, with its own values."""
    assert swap.heads is not None
    head = (swap.heads.start + rng.randrange(1, n_heads)) % n_heads
    return replace(swap, heads=range(head, head + 1))


def stale(rng: random.Random, swap: AnchorSwap) -> AnchorSwap:
    """The values of one layer are those of an earlier call."""
    assert swap.streams is not None
    streams = swap.streams.clone()
    layer = rng.randrange(len(streams))
    streams[layer] = streams[layer] * 0.9 + 0.1 * streams[layer].roll(1, -1)
    return replace(swap, streams=streams)


def layer_off(swap: AnchorSwap) -> AnchorSwap:
    """The values are those of the layer before."""
    assert swap.streams is not None
    return replace(swap, streams=swap.streams.roll(1, 0))


def dropped(rng: random.Random, swap: AnchorSwap) -> AnchorSwap:
    """One row of the batch is not patched."""
    mask = swap.slots.mask.clone()
    mask[rng.randrange(len(mask))] = False
    source = None if swap.source is None else Slots(swap.source.positions, mask)
    return replace(swap, slots=Slots(swap.slots.positions, mask), source=source)


class OtherPositions:
    """A reader that is given the states of other positions than it plans."""

    where = None

    def __init__(self, reader: Any, step: int) -> None:
        self.reader, self.row = reader, reader.row
        self.position = (reader.position + step).clamp(min=0)

    def metrics(self, adapter: Any, states: Any) -> Any:
        return self.reader.metrics(adapter, states)


KINDS = (
    "shifted position",
    "swapped head",
    "stale cache",
    "layer off by one",
    "dropped patch",
    "wrong read position",
)


def break_given(kind: str, rng: random.Random, share: float, job: Job) -> Job:
    """Break the given activations of some patches of a grid: they are old, or those of the layer
    before.
    """
    batch, layers = job
    if kind == "stale cache":
        swaps = [stale(rng, swap) if rng.random() <= share else swap for swap in batch.swaps]
    elif kind == "layer off by one":
        swaps = [layer_off(swap) if rng.random() <= share else swap for swap in batch.swaps]
    else:
        return job
    return replace(batch, swaps=tuple(swaps)), layers


def inject(
    kind: str,
    rng: random.Random,
    n_heads: int,
    break_activations: Callable[[str, random.Random, float, Job], Job] = break_given,
) -> Callable[..., Any]:
    """Return a faulty ``run_swap_batches``; ``break_activations`` injects the faults of the
    activations, not of their places.
    """
    right = ConeEngine.run_swap_batches
    share = rng.choice((0.05, 0.1, 0.3, 1.0))

    def break_swap(swap: AnchorSwap, n_pos: int) -> AnchorSwap:
        if rng.random() > share:
            return swap
        if kind == "shifted position":
            return shifted(rng, swap, n_pos)
        if kind == "swapped head" and swap.heads is not None:
            return other_head(rng, swap, n_heads)
        return dropped(rng, swap) if kind == "dropped patch" else swap

    def run(self: ConeEngine, jobs: list[Job], **options: Any) -> Any:
        made: list[Job] = []
        for batch, layers in jobs:
            n_pos = batch.tokens.ids.shape[1]
            broken = replace(batch, swaps=tuple(break_swap(swap, n_pos) for swap in batch.swaps))
            if kind == "wrong read position":
                reader: Any = OtherPositions(broken.reader, -1)
                broken = replace(broken, reader=reader)
            made.append(break_activations(kind, rng, share, (broken, layers)))
        return right(self, made, **options)

    return run


def metrics_of(rng: random.Random, vocab: int) -> Callable[[torch.Tensor], torch.Tensor]:
    token, other = rng.sample(range(vocab), 2)
    return rng.choice(
        (
            lambda logits: (logits[:, -1, token] - logits[:, -1, other]).mean(),
            lambda logits: logits[:, -1].log_softmax(-1)[:, token].mean(),
            lambda logits: logits.log_softmax(-1)[..., token].mean(),
            lambda logits: (logits[:, -1] > logits[:, -1, token, None]).sum().float(),
        )
    )


Grid = tuple[Any, torch.Tensor, Any, Callable[[torch.Tensor], torch.Tensor]]


def unchecked(
    function: Callable[..., torch.Tensor], given: Grid, engine: Callable[..., Any]
) -> torch.Tensor:
    """Return what an engine returns without any check."""
    checks = mock.patch.multiple(
        "anchorlens.measure.grid",
        is_same_evidence=lambda *_: True,
        choose_cells=lambda cells, *_, **__: [cells[0]],
    )
    with (
        mock.patch.object(ConeEngine, "run_swap_batches", engine),
        checks,
        mock.patch("anchorlens.measure.grid._GridPasses.check"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        return function(*given)


def one_by_one(function: Callable[..., torch.Tensor], given: Grid) -> torch.Tensor:
    """Return a grid from one forward pass per cell."""
    with (
        mock.patch("anchorlens.patching.generic.find_obstacle", lambda *_: "it is compared"),
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        return function(*given)


def try_fault(number: int, models: dict[str, Any]) -> tuple[str, str, float]:
    """Return kind and outcome of a fault: found, missed, or too small; and the share of cells that
    it changes.
    """
    rng = random.Random(number)
    kind, family = KINDS[number % len(KINDS)], rng.choice(sorted(models))
    site = rng.choice(HEADS if kind == "swapped head" else sorted(FUNCTIONS))
    model, n_rows, length = models[family], rng.choice((1, 2, 3)), rng.choice((6, 9))
    clean, corrupted = (
        torch.tensor(random_rows((length,) * n_rows, rng.randrange(10**6))) for _ in range(2)
    )
    first = rng.randrange(length // 2)
    corrupted[:, :first] = clean[:, :first]
    metric = metrics_of(rng, int(model.cfg.d_vocab))
    heads = (
        int(model.cfg.n_key_value_heads or model.cfg.n_heads)
        if site == "v"
        else int(model.cfg.n_heads)
    )
    function = getattr(patching, FUNCTIONS[site])
    faulty = inject(kind, random.Random(number), heads)
    with torch.no_grad():
        cache = model.run_with_cache(clean)[1]
        given = (model, corrupted, cache, metric)
        right = unchecked(function, given, ConeEngine.run_swap_batches)
        wrong = unchecked(function, given, faulty)
        plain = right
        if model.cfg.dtype in HALF:
            plain = one_by_one(function, given)
        faulty = inject(kind, random.Random(number), heads)
        with (
            mock.patch.object(ConeEngine, "run_swap_batches", faulty),
            warnings.catch_warnings(record=True) as told,
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("always")
            found = function(*given)
    spread = float(right.max() - right.min())
    least = max(CHANGE * spread, float((right - plain).abs().max()))
    share = float(((wrong - right).abs() > least).float().mean()) if spread else 0.0
    if share < SHARE:
        return kind, "too small", share
    is_told = any("one forward pass per cell" in str(one.message) for one in told)
    is_right = bool(((found - right).abs() <= least).all())
    return kind, "found" if is_told and is_right else "missed", share


def count_outcomes(
    count: int, attempt: Callable[[int], tuple[str, str, float]]
) -> Counter[tuple[str, str]]:
    """Try faults by their numbers until ``count`` were large enough; return the outcomes by
    kind.
    """
    out: Counter[tuple[str, str]] = Counter()
    number = 0
    while sum(n for (_, outcome), n in out.items() if outcome != "too small") < count:
        kind, outcome, share = attempt(number)
        if outcome == "missed":
            print(f"missed: {number}, {kind}, {share:.0%} of the cells", file=sys.stderr)
        out[kind, outcome] += 1
        number += 1
    return out


@contextlib.contextmanager
def loaded(families: Sequence[str], dtype: str) -> Iterator[dict[str, Any]]:
    """Load small checkpoints of families."""
    with tempfile.TemporaryDirectory() as folder:
        yield {
            name: load_model(
                str(save_tiny(name, Path(folder) / name)), device="cpu", dtype=dtype, progress=False
            )
            for name in families
        }


def run_faults(
    count: int,
    families: tuple[str, ...] = ("gpt2", "llama", "gemma2"),
    dtype: str = "float32",
) -> Counter[tuple[str, str]]:
    """Inject faults until ``count`` were large enough; return the outcomes by kind."""
    with loaded(families, dtype) as models:
        return count_outcomes(count, lambda number: try_fault(number, models))


def share_found(outcomes: Counter[tuple[str, str]]) -> float:
    """Return the share of the faults that counted and were found."""
    found = sum(n for (_, outcome), n in outcomes.items() if outcome == "found")
    return found / (found + sum(n for (_, outcome), n in outcomes.items() if outcome == "missed"))


def command(run: Callable[..., Counter[tuple[str, str]]], description: "str | None") -> None:
    """Run the command line of a module of faults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "count", type=int, help="number of faults that change at least 2 %% of the cells"
    )
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    found = run(args.count, dtype=args.dtype)
    print("| fault | found | missed | too small to count |\n|---|---:|---:|---:|")
    for kind in KINDS:
        print(
            f"| {kind} | {found[kind, 'found']} | {found[kind, 'missed']} |"
            f" {found[kind, 'too small']} |"
        )


if __name__ == "__main__":
    command(run_faults, __doc__)
