"""Count what a GPU would be asked to do, without one: launches, waits of the host and memory.

    python benchmarks/without_gpu.py
    python benchmarks/without_gpu.py --shape Qwen3-8B --json without_gpu.json

The model has the exact shape and no values (torch's meta tensors), so every operation of a pass is
seen with its sizes, and nothing is computed. *Launches*: operations on the device, without views.
*Waits*: copies to or from the host for which the host waits. *Planned*: bytes beside the weights
that the planner predicts for the passes. *Peak*: most bytes of tensors that the passes need at
once; an allocator and matrix libraries add to them. Sites of a grid: ``resid_pre`` by position,
``z`` by head at all positions, ``z`` by position and head.
"""

import argparse
import json
import sys
import warnings
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
from anchorlens.models.adapt import adapt
from anchorlens.models.hooked import adapter as hooked_adapter
from tests.engine.stand_in import GPU, StandIn, on_stand_in, run_grid

GIB = 2**30
CARD = 80 * GIB
"""Memory of the card that passes are planned for."""
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
COLUMNS = ("case", "cells", "passes", "launches", "a block", "waits", "planned GiB", "peak GiB")


def main() -> None:
    """Count all cases and print the table."""
    args = _arguments()
    warnings.simplefilter("ignore")
    config = config_of(args.shape, **({"num_hidden_layers": args.layers} if args.layers else {}))
    dtype = getattr(torch, args.dtype)
    rows: list[tuple[str, ...]] = []
    for n, prompt in SWEEPS:
        rows.append(_count_sweep(_engine(config, dtype), config, n, prompt))
    for site, columns, n_rows, n_pos in GRIDS:
        rows.append(_count_grid(_engine(config, dtype), site, columns, n_rows, n_pos))
    print(f"{args.shape}, {args.dtype}, planned for {CARD / GIB:.0f} GiB beside the weights.\n")
    print("\n".join(markdown_table(COLUMNS, rows)))
    if args.json is not None:
        facts = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        args.json.write_text(json.dumps(facts, indent=1), encoding="utf8")


def _engine(config: Any, dtype: torch.dtype) -> ConeEngine:
    """Make an engine of a model without values, whose biases are zero as those of its family."""
    model = empty_model(config, torch.device("meta"), dtype)
    no_biases = [(False,) * 5] * int(config.num_hidden_layers)
    with mock.patch.object(hooked_adapter, "find_biases", lambda *_: no_biases):
        cone = ConeEngine(adapt(model))
    cone.adapter.device = GPU
    return cone


def _count_sweep(cone: ConeEngine, config: Any, n: int, prompt: str) -> tuple[str, ...]:
    """Count the passes of a sweep of swaps, without nulls and checks."""
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
            max_memory=CARD,
            checks=0,
        )
    with on_stand_in(cone) as gpu:
        for group in plan.groups:
            batches = [
                (build_batch(batch.pairs, make_reader(batch.pairs, job)), batch.layers)
                for batch in group.batches
            ]
            cone.run_swap_batches(batches, site="resid_pre", window=1, on_progress=gpu.layer)
    return _row(f"swap of {n} questions, {prompt}", plan.cells, gpu, plan.pass_bytes)


def _count_grid(
    cone: ConeEngine, site: str, columns: tuple[str, ...], n_rows: int, n_pos: int
) -> tuple[str, ...]:
    """Count the passes of a grid of the drop-in, without its checks; the metric is a logit
    difference at the last position.
    """
    gpu, cells, planned = run_grid(cone, site, columns, n_rows=n_rows, n_pos=n_pos, budget=CARD)
    return _row(f"{site} by {' and '.join(columns)}, {n_rows} x {n_pos}", cells, gpu, planned)


def _row(name: str, cells: int, gpu: StandIn, planned: int) -> tuple[str, ...]:
    layers = gpu.waits.count("layer")
    waits = len(gpu.waits) - layers
    return (
        name,
        f"{cells:,}",
        f"{layers}",
        f"{gpu.launches:,}",
        f"{gpu.launches / max(1, layers):.0f}",
        f"{waits:,}",
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
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
