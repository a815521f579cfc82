"""Measure the CPU seconds of a sweep per question, by number of questions, beside plain forward
passes of the same rows.

    python benchmarks/scaling.py

Sweep: ``swap_sweep`` with its defaults and one donor per question, nulls and checks included.
Alone: the engine on the same cells. Forwards: TransformerLens's blocks over every distinct base and
donor once, without hooks and unembedding. Their batches hold as many tokens, padding included, as
one pass of a sweep. Medians of interleaved rounds.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import torch
from alone import engine_alone, load
from ours import default_sweep
from peers.jobs import ANCHOR_SETS, Case, model_directory, write_jobs
from peers.report import rich_table, show
from tensors import padded

from anchorlens.models.adapter import Adapter

COLUMNS = (
    "prompt",
    "anchors",
    "n",
    "sweep s/question",
    "alone",
    "forwards",
    "sweep / forwards",
    "alone / forwards",
)
_TOKENS = 2048  # tokens per pass of a sweep on a CPU


def main() -> None:
    """Measure all cases and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", nargs="+", default=["qa", "fewshot(5)"])
    parser.add_argument("--questions", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument(
        "--anchors", nargs="+", choices=list(ANCHOR_SETS), default=["pre_answer", "both"]
    )
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    adapter = load(model_directory())
    rows: list[tuple[str, ...]] = []
    for prompt in args.prompts:
        for anchors in args.anchors:
            cases = [Case(prompt, anchors, n) for n in args.questions]
            with tempfile.TemporaryDirectory() as folder:
                files = write_jobs(adapter.model, cases, Path(folder))
                jobs = [json.loads(files[case.name].read_text()) for case in cases]
            for case, times in zip(cases, _interleaved(adapter, jobs, args.rounds), strict=True):
                each = [
                    f"{median(column) / case.questions:.3f}" for column in zip(*times, strict=True)
                ]
                ratios = [f"{median(line[i] / line[2] for line in times):.2f}" for i in range(2)]
                rows.append((prompt, anchors, str(case.questions), *each, *ratios))
                print(*rows[-1], file=sys.stderr, flush=True)
    show([rich_table(COLUMNS, rows)], [])


def _interleaved(
    adapter: Adapter, jobs: list[dict[str, Any]], rounds: int
) -> list[list[tuple[float, float, float]]]:
    """Return CPU seconds of the sweep, of the engine alone, and of the forward passes, for each job
    and round.
    """
    times: list[list[tuple[float, float, float]]] = [[] for _ in jobs]
    for job in jobs:
        default_sweep(adapter.model, {**job, "layers": job["layers"][:1]})
    for _ in range(rounds):
        for job, found in zip(jobs, times, strict=True):
            works = (
                lambda job=job: default_sweep(adapter.model, job),
                lambda job=job: engine_alone(adapter, job, "cone"),
                lambda job=job: _forwards(adapter, job),
            )
            sweep, alone, forwards = map(_cpu_seconds, works)
            found.append((sweep, alone, forwards))
    return times


@torch.inference_mode()
def _forwards(adapter: Adapter, job: dict[str, Any]) -> None:
    """Run every distinct base and donor through all blocks once."""
    for rows in packed({tuple(row[kind]) for row in job["rows"] for kind in ("ids", "donor_ids")}):
        adapter.model(padded(rows), stop_at_layer=adapter.n_layers, padding_side="right")


def packed(rows: Iterable[Sequence[int]], most: int = _TOKENS) -> list[list[list[int]]]:
    """Batch rows of similar length: at most so many tokens with padding, at least one row."""
    batches: list[list[list[int]]] = []
    for row in sorted(map(list, rows), key=len):
        if not batches or (len(batches[-1]) + 1) * len(row) > most:
            batches.append([])
        batches[-1].append(row)
    return batches


def _cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
