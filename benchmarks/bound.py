"""Compare the time of a sweep with the time that its FLOPs take at the rate of matrix products, on
one thread.

    python benchmarks/bound.py

FLOPs are those of the cells in the sweep's plan (:mod:`anchorlens.engine.cost`), nulls included,
checks excluded. The rate is that of a block's matrix products in CPU seconds, measured before every
round. The bound uses the best rate of all rounds.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import torch
from alone import engine_alone, load
from ours import default_sweep
from peers.jobs import ANCHOR_SETS, DATA, Case, model_directory, plan_of, some_questions, write_jobs
from peers.report import markdown_table, rich_table, show, spread, write_section

import anchorlens as al
from anchorlens.models.adapter import Shape

TITLE = "Share of the bound"
COLUMNS = (
    "prompt",
    "anchors",
    "questions",
    "GFLOP",
    "bound s",
    "alone s",
    "min–max",
    "share",
    "sweep s",
    "min–max",
    "share",
)
_TOKENS, _REPEATS = 512, 10


def main() -> None:
    """Measure all cases and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", nargs="+", default=["qa", "fewshot(5)"])
    parser.add_argument(
        "--anchors", nargs="+", choices=list(ANCHOR_SETS), default=list(ANCHOR_SETS)
    )
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--markdown",
        type=Path,
        default=None,
        metavar="FILE",
        help="also write the table into this file",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    adapter = load(model_directory())
    data = al.load_qa(DATA)
    rates: list[float] = []
    found: list[tuple[Case, float, list[float], list[float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        cases = [
            Case(prompt, anchors, args.questions)
            for prompt in args.prompts
            for anchors in args.anchors
        ]
        for case, file in zip(
            cases, write_jobs(adapter.model, cases, Path(folder)).values(), strict=True
        ):
            job = json.loads(file.read_text())
            some, _ = some_questions(adapter.model, data, case.questions, **case.arguments)
            flops = plan_of(adapter.model, some, n_spot_checks=0, **case.arguments).flops
            default_sweep(adapter.model, {**job, "layers": job["layers"][:1]})
            alone: list[float] = []
            sweep: list[float] = []
            for _ in range(args.rounds):
                rates.append(product_rate(adapter.shape))
                alone.append(_cpu_seconds(lambda job=job: engine_alone(adapter, job, "cone")))
                sweep.append(_cpu_seconds(lambda job=job: default_sweep(adapter.model, job)))
            found.append((case, flops, alone, sweep))
            print(
                f"{case.name}: {median(alone):.2f} and {median(sweep):.2f} CPU s",
                file=sys.stderr,
                flush=True,
            )
    rate = max(rates)
    rows = [_row(case, flops, flops / rate, alone, sweep) for case, flops, alone, sweep in found]
    said = (
        "SmolLM2-135M-Instruct, float32, one thread, one donor per question. CPU seconds: medians"
        f" of {args.rounds} rounds, with smallest and largest. bound s: FLOPs of the cells at the"
        f" best rate of a block's matrix products ({min(rates) / 1e9:.0f} to {rate / 1e9:.0f}"
        f" GFLOP/s in the {len(rates)} rounds). alone s: trial row, plan and passes of the engine."
        " sweep s: swap_sweep with its defaults. share: bound s divided by alone s, and by"
        " sweep s."
    )
    show([rich_table(COLUMNS, rows)], [said])
    if args.markdown is not None:
        command = shlex.join(["python", "benchmarks/bound.py", *sys.argv[1:]])
        write_section(
            args.markdown, TITLE, [f"`{command}`", "", said, "", *markdown_table(COLUMNS, rows)]
        )


def product_rate(shape: Shape) -> float:
    """Return multiplications and additions per CPU second of a block's matrix products, each at the
    best of ten runs.

    The plan's rate (:func:`anchorlens.engine.cost.matrix_rate`) is by the clock. On a shared
    machine it is lower, and the share of the bound would be too high.
    """
    heads, kv = shape.n_heads * shape.d_head, shape.n_kv_heads * shape.d_head
    inner = [(shape.d_model, shape.d_mlp)] * (shape.mlp_products - 1)
    products = [
        (shape.d_model, heads),
        *[(shape.d_model, kv)] * 2,
        (heads, shape.d_model),
        *inner,
        (shape.d_mlp, shape.d_model),
    ]
    seconds = 0.0
    for rows, columns in products:
        a, b = torch.rand(_TOKENS, rows), torch.rand(rows, columns)
        seconds += min(_cpu_seconds(lambda a=a, b=b: a @ b) for _ in range(_REPEATS))
    return _TOKENS * shape.block_flops / seconds


def _row(
    case: Case, flops: float, bound: float, alone: list[float], sweep: list[float]
) -> tuple[str, ...]:
    """Return a row of the table."""
    return (
        case.prompt,
        case.anchors,
        str(case.questions),
        f"{flops / 1e9:,.0f}",
        f"{bound:.2f}",
        f"{median(alone):.2f}",
        spread(alone),
        f"{100 * bound / median(alone):.0f} %",
        f"{median(sweep):.2f}",
        spread(sweep),
        f"{100 * bound / median(sweep):.0f} %",
    )


def _cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
