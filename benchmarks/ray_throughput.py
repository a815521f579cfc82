"""Two workers of Ray beside two processes that measure a share each, on the same sweep, one thread in each.

    OMP_NUM_THREADS=1 python benchmarks/ray_throughput.py

Sweep: ``swap_sweep`` of the packaged model with its defaults and one donor each. Counted is the time from the end of planning to
the last shard on disk, as the run's own log has it: start-up (imports, model, preparation, plan) and the last steps (checked cells,
tables, figure) are not. The two processes begin to measure together, and their time is that of the slower one. Rounds are
interleaved, and the shards of both compared byte for byte.
"""

import argparse
import hashlib
import json
import multiprocessing
import tempfile
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import torch

import anchorlens as al

MODEL = "smollm2-135m-instruct"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ratios: list[float] = []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            ways = {"ray": workers, "processes": processes}
            order = list(ways) if number % 2 == 0 else list(reversed(ways))
            found = {name: ways[name](Path(folder) / name, args.questions) for name in order}
            seconds = {name: max(times) for name, times in found.items()}
            same = shards(Path(folder) / "ray") == shards(Path(folder) / "processes")
            n = len(shards(Path(folder) / "ray"))
        ratios.append(seconds["processes"] / seconds["ray"])
        print(
            f"round {number + 1}: {n} shards; two workers of Ray {seconds['ray']:.1f} s, two processes "
            f"{' and '.join(f'{one:.1f}' for one in found['processes'])} s; throughput {ratios[-1]:.3f}; shards equal: {same}",
            flush=True,
        )
    print(f"median throughput of Ray, two processes = 1: {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def workers(out: Path, questions: int) -> list[float]:
    """Ray's; the share 1/1 is all of the sweep, and leaves shards and log where they are."""
    measure(out, questions, (1, 1), None, al.RayExecutor(workers=2))
    return measured_in(out)


def processes(out: Path, questions: int) -> list[float]:
    """Two processes, a share each."""
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(2)
    both = [spawn.Process(target=measure, args=(out, questions, (i, 2), barrier)) for i in (1, 2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
        assert one.exitcode == 0, one.exitcode
    return measured_in(out)


def measure(out: Path, questions: int, shard: tuple[int, int], barrier: Any, executor: Any = None) -> None:
    """A share of the sweep; it begins when all have come to the barrier."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    data = al.load_qa("popqa-sample", limit=questions)
    wait = None if barrier is None else lambda plan: barrier.wait()  # noqa: ARG005
    al.swap_sweep(
        MODEL, data, n_donors=1, batch_size=4, progress=False, out=out, shard=shard, executor=executor, on_plan=wait
    )  # fmt: skip


def measured_in(out: Path) -> list[float]:
    """Seconds from the end of planning to the last shard, of each process."""
    logs = sorted(out.with_name(f"{out.name}.parts").glob("log-*.jsonl"))
    lines = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
    return [sum(line["seconds"] for line in log if line["event"] == "shard") for log in lines]


def shards(out: Path) -> dict[str, str]:
    """Shards by name, with the hash of their bytes."""
    files = sorted(out.with_name(f"{out.name}.parts").glob("000/*.parquet"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


if __name__ == "__main__":
    main()
