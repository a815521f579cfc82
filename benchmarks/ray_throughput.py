"""Compare two Ray workers with two processes of one job each, on the same sweep, with one thread
each.

    OMP_NUM_THREADS=1 python benchmarks/ray_throughput.py

Sweep: ``swap_sweep`` of the packaged model with its defaults and one donor per question. The time
runs from the end of planning to the last stored shard, as the run's log records it. Start-up
(imports, model, preparation, plan) and final steps (spot checks, tables, figure) are excluded. The
two processes start to measure together, and their time is that of the slower one. Rounds are
interleaved, and the shards of both are compared byte for byte. CPU seconds are those of all
processes in the same time, Ray's own included; other work on the machine changes them less than
wall-clock seconds.
"""

import argparse
import hashlib
import json
import multiprocessing
import tempfile
import threading
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

import anchorlens as al

MODEL = "smollm2-135m-instruct"


def main() -> None:
    """Measure all rounds and print the throughput."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=110)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rounds: list[tuple[float, float]] = []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            ways = {"ray": workers, "processes": processes}
            order = list(ways) if number % 2 == 0 else list(reversed(ways))
            found = {name: ways[name](Path(folder) / name, args.questions) for name in order}
            kept = {name: shards(Path(folder) / name) for name in ways}
        rounds.append(
            (found["processes"][0] / found["ray"][0], found["processes"][1] / found["ray"][1])
        )
        said = {
            name: f"{seconds:.1f} s ({cpu:.1f} s of CPU)" for name, (seconds, cpu) in found.items()
        }
        print(
            f"round {number + 1}: {len(kept['ray'])} shards; two Ray workers {said['ray']}, two"
            f" processes {said['processes']}; throughput {rounds[-1][0]:.3f}, by CPU"
            f" {rounds[-1][1]:.3f}; shards equal: {kept['ray'] == kept['processes']}",
            flush=True,
        )
    clock, cpu = zip(*rounds, strict=True)
    for name, ratios in (("clock", clock), ("CPU", cpu)):
        print(
            f"throughput of Ray by the {name}, two processes = 1: {median(ratios):.3f}"
            f" ({min(ratios):.3f} to {max(ratios):.3f})"
        )


def workers(out: Path, questions: int) -> tuple[float, float]:
    """Return wall and CPU seconds with Ray.

    Job 1/1 is the whole sweep; it leaves shards and log in place.
    """
    spent = Spent()
    measure(out, questions, (1, 1), spent.begin, al.RayExecutor(workers=2))
    return max(measured_in(out)), spent.end()


def processes(out: Path, questions: int) -> tuple[float, float]:
    """Return wall and CPU seconds of two processes with one job each."""
    spawn = multiprocessing.get_context("spawn")
    barrier, spent = spawn.Barrier(2), spawn.Queue()
    both = [
        spawn.Process(target=one_of_two, args=(out, questions, i, barrier, spent)) for i in (1, 2)
    ]
    for one in both:
        one.start()
    cpu = sum(spent.get() for _ in both)
    for one in both:
        one.join()
    return max(measured_in(out)), cpu


def one_of_two(out: Path, questions: int, i: int, barrier: Any, spent: Any) -> None:
    """Run one of the two processes; both start to measure when both have planned."""
    began: list[float] = []

    def begin() -> None:
        barrier.wait()
        began.append(time.process_time())

    measure(out, questions, (i, 2), begin)
    spent.put(time.process_time() - began[0])


def measure(
    out: Path, questions: int, job: tuple[int, int], begin: Any, executor: Any = None
) -> None:
    """Measure a job of the sweep; calls ``begin`` when it starts to measure."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    data = al.load_qa("popqa-sample", limit=questions)
    al.swap_sweep(
        MODEL,
        data,
        n_donors=1,
        batch_size=4,
        progress=False,
        out=out,
        job=job,
        executor=executor,
        on_plan=lambda _: begin(),
    )


class Spent:
    """CPU seconds of this process and all its children, including those that end meanwhile."""

    def __init__(self) -> None:
        self._before: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._over = threading.Event()

    def begin(self) -> None:
        """Start to count."""
        self._before = self._now()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def end(self) -> float:
        """Stop, and return the CPU seconds."""
        self._over.set()
        self._watching.join()
        return sum(cpu - self._before.get(pid, 0.0) for pid, cpu in self._last.items())

    def _watch(self) -> None:
        while not self._over.wait(0.25):
            self._last |= self._now()

    def _now(self) -> dict[int, float]:
        found: dict[int, float] = {}
        me = psutil.Process()
        for one in [me, *me.children(recursive=True)]:
            try:
                times = one.cpu_times()
            except psutil.Error:
                continue
            found[one.pid] = times.user + times.system
        return found


def measured_in(out: Path) -> list[float]:
    """Return for each process the seconds from the end of planning to the last shard."""
    logs = sorted(out.with_name(f"{out.name}.parts").glob("log-*.jsonl"))
    lines = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
    return [sum(line["seconds"] for line in log if line["event"] == "shard") for log in lines]


def shards(out: Path) -> dict[str, str]:
    """Return shard name -> hash of its bytes."""
    files = sorted(out.with_name(f"{out.name}.parts").glob("000/*.parquet"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


if __name__ == "__main__":
    main()
