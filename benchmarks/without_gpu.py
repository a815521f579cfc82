"""Count what a GPU would be asked to do, without one: launches, waits of the host and memory.

    python benchmarks/without_gpu.py --json without_gpu.json
    python benchmarks/without_gpu.py --cards    # the target models on cards of 24 to 141 GB

The model has the exact shape and no values (torch's meta tensors), so every operation of a pass is
seen with its sizes, and nothing is computed. *Launches*: operations on the device, without views.
*Waits*: copies to or from the host for which the host waits. *Moved*: bytes that all operations
read and write. *Planned*: bytes beside the weights
that the planner predicts for the passes. *Peak*: most bytes of tensors that the passes need at
once; an allocator and matrix libraries add to them. With ``--cards`` a pass may take half of what a
card has beside the weights and 0.5 GB for CUDA, as a sweep does by default. Sites of a grid:
``resid_pre`` by position, ``z`` by head at all positions, ``z`` by position and head.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from gpu_models import PROMPTS, empty_model, random_job
from peers.report import markdown_table

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from alone import build_batch, make_pairs, make_reader
from targets import SHAPES, config_of

from anchorlens.engine import cost
from anchorlens.engine.cone import ConeEngine
from anchorlens.measure.patch_plan import plan_swaps
from anchorlens.models.hf_model import count_parameters, make_empty_model
from anchorlens.models.hooked import adapter as hooked_adapter
from anchorlens.models.load import adapt
from tests.engine.stand_in import GPU, StandIn, on_stand_in, run_grid

GIB = 2**30
LARGE = 80 * GIB
"""Bytes that passes are planned for without ``--cards``."""
CARDS = (24e9, 48e9, 80e9, 141e9)
"""Bytes of cards."""
QUESTIONS, POSITIONS = 16, 64
"""Size of the sweep and of the grid of heads with ``--cards``."""
SWEEPS = ((16, "zero-shot"), (16, "5-shot"), (40, "zero-shot"))
"""Questions and prompt of sweeps; every layer is swapped at two anchors."""
GRIDS = (
    ("resid_pre", ("pos",), 1, 32),
    ("resid_pre", ("pos",), 8, 64),
    ("z", ("head",), 1, 32),
    ("z", ("head",), 8, 64),
    ("z", ("pos", "head"), 1, 32),
)
"""Site, columns, rows and positions of grids."""
COLUMNS = (
    "case",
    "cells",
    "launches",
    "a block",
    "waits",
    "TFLOP",
    "GB moved",
    "planned GiB",
    "peak GiB",
)
CARD_COLUMNS = (
    "model",
    "weights GB",
    "card GB",
    "sweep: passes",
    "planned GB",
    "peak GB",
    "grid: passes",
    "planned GB ",
    "peak GB ",
)


def main() -> None:
    """Count all cases and print the table."""
    args = _arguments()
    warnings.simplefilter("ignore")
    if args.cards:
        columns, rows = CARD_COLUMNS, [row for shape in SHAPES for row in _count_cards(shape, args)]
        print(f"{args.dtype}.\n")
    else:
        columns, rows = COLUMNS, _count_cases(args)
        print(f"{args.shape}, {args.dtype}, {LARGE / GIB:.0f} GiB beside the weights.\n")
    print("\n".join(markdown_table(columns, rows)))
    if args.json is not None:
        facts = [dict(zip(columns, row, strict=True)) for row in rows]
        args.json.write_text(json.dumps(facts, indent=1), encoding="utf8")


def _count_cases(args: argparse.Namespace) -> list[tuple[str, ...]]:
    """Count sweeps and grids of one model, with much memory."""
    config = config_of(args.shape, **({"num_hidden_layers": args.layers} if args.layers else {}))
    dtype = getattr(torch, args.dtype)
    rows: list[tuple[str, ...]] = []
    for n, prompt in SWEEPS:
        found = _run_sweep(_engine(config, dtype), config, n, prompt, LARGE)
        rows.append(_row(f"swap of {n} questions, {prompt}", *found))
    for site, columns, n_rows, n_pos in GRIDS:
        found = run_grid(
            _engine(config, dtype), site, columns, n_rows=n_rows, n_pos=n_pos, budget=LARGE
        )
        rows.append(_row(f"{site} by {' and '.join(columns)}, {n_rows} x {n_pos}", *found))
    return rows


def _count_cards(name: str, args: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Count a sweep and a grid of heads of one model on cards of several sizes."""
    config = config_of(name, **({"num_hidden_layers": args.layers} if args.layers else {}))
    dtype = getattr(torch, args.dtype)
    weights = count_parameters(make_empty_model(config, dtype)) * dtype.itemsize
    for card in CARDS:
        free = card - weights - 0.5e9
        start = (name, f"{weights / 1e9:.1f}", f"{card / 1e9:.0f}")
        if free < 1e9:
            yield (*start, *["streamed"] * (len(CARD_COLUMNS) - len(start)))
            continue
        budget = int(free / 2)
        cone = _engine(config, dtype)
        sweep, _, of_sweep, _ = _run_sweep(cone, config, QUESTIONS, "zero-shot", budget)
        grid, _, of_grid, _ = run_grid(
            _engine(config, dtype), "z", ("head",), n_rows=1, n_pos=POSITIONS, budget=budget
        )
        row = list(start)
        for gpu, planned in ((sweep, of_sweep), (grid, of_grid)):
            passes = gpu.waits.count("layer") // config.num_hidden_layers
            row += [f"{passes}", f"{planned / 1e9:.2f}", f"{gpu.peak / 1e9:.2f}"]
        yield tuple(row)


def _engine(config: Any, dtype: torch.dtype) -> ConeEngine:
    """Make an engine of a model without values, whose biases are zero as those of its family."""
    model = empty_model(config, torch.device("meta"), dtype)
    no_biases = [(False,) * 5] * int(config.num_hidden_layers)
    with mock.patch.object(hooked_adapter, "find_biases", lambda *_: no_biases):
        cone = ConeEngine(adapt(model))
    cone.adapter.device = GPU
    return cone


def _run_sweep(
    cone: ConeEngine, config: Any, n: int, prompt: str, budget: int
) -> tuple[StandIn, int, int, float]:
    """Run the passes of a sweep of swaps on the stand-in, without nulls and checks.

    Returns:
        As :func:`tests.engine.stand_in.run_grid`.
    """
    job = random_job(config, PROMPTS[prompt], ("exact_question", "pre_answer"), n)
    pairs = make_pairs(job)
    # Seconds are not predicted here: there is no device whose rate could be measured.
    with mock.patch.object(cost, "matrix_rate", lambda *_: 1.0):
        plan = plan_swaps(
            cone,
            pairs,
            make_reader(pairs, job),
            tuple(job["layers"]),
            site="resid_pre",
            window=1,
            batch_size=None,
            max_memory=budget,
            checks=0,
        )
    with on_stand_in(cone) as gpu:
        for group in plan.groups:
            batches = [
                (build_batch(batch.pairs, make_reader(batch.pairs, job)), batch.layers)
                for batch in group.parts
            ]
            cone.run_swap_batches(batches, site="resid_pre", window=1, on_progress=gpu.layer)
    return gpu, plan.cells, plan.pass_bytes, plan.flops


def _row(name: str, gpu: StandIn, cells: int, planned: int, flops: float) -> tuple[str, ...]:
    layers = gpu.waits.count("layer")
    waits = len(gpu.waits) - layers
    return (
        name,
        f"{cells:,}",
        f"{gpu.launches:,}",
        f"{gpu.launches / max(1, layers):.0f}",
        f"{waits:,}",
        f"{flops / 1e12:.1f}",
        f"{gpu.moved / 1e9:.0f}",
        f"{planned / GIB:.2f}",
        f"{gpu.peak / GIB:.2f}",
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="Qwen3-8B")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--layers", type=int, default=None, help="number of layers (default: all)")
    parser.add_argument("--cards", action="store_true", help="the target models on several cards")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
