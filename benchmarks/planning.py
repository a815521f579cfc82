"""Measure the CPU seconds of planning a swap sweep of many questions, without measuring it.

    python benchmarks/planning.py --rows 5000 10000 20000

Questions about made-up places in eight relations, tokenized by SmolLM2, with the defaults of
``swap_sweep``: both anchors, four donors, both nulls, two layers. Each file is planned in a process
of its own. The CPU seconds are those of the whole plan: tokens, donors, directions, batches.
"""

import argparse
import csv
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RELATIONS = (
    "capital",
    "largest city",
    "currency",
    "official language",
    "president",
    "founder",
    "national animal",
    "highest mountain",
)


class PlannedError(Exception):
    """Ends a sweep when its plan is known."""


def write_questions(path: Path, n: int) -> None:
    """Write a csv file of ``n`` questions."""
    rng = random.Random(0)

    def name(n_syllables: int) -> str:
        parts = [rng.choice("bcdfghklmnprstvz") + rng.choice("aeiou") for _ in range(n_syllables)]
        return "".join(parts).capitalize()

    with path.open("w", newline="", encoding="utf8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["question", "answer", "relation"])
        for _ in range(n):
            relation = rng.choice(RELATIONS)
            rows.writerow([f"What is the {relation} of {name(2)} {name(3)}?", name(3), relation])


def measure(path: str) -> None:
    """Print the CPU seconds of planning a file."""
    import anchorlens as al

    model = al.load_model("smollm2-135m-instruct", progress=False)
    data = al.load_qa(path)
    _ = al.swap_sweep  # its imports are not part of the plan

    def stop(plan: Any) -> None:
        raise PlannedError(str(plan))

    started = time.process_time()
    try:
        al.swap_sweep(model, data, layers=(0, 10), on_plan=stop, progress=False)
    except PlannedError:
        seconds = time.process_time() - started
        each = 1e3 * seconds / len(data)
        print(f"{len(data):7,} questions: {seconds:5.1f} s of CPU, {each:.1f} ms each", flush=True)


def main() -> None:
    """Plan files of several sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[5_000, 10_000, 20_000])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        measure(args.worker)
        return
    with tempfile.TemporaryDirectory() as scratch:
        for n in args.rows:
            path = Path(scratch) / f"{n}.csv"
            write_questions(path, n)
            subprocess.run([sys.executable, __file__, "--worker", str(path)], check=True)


if __name__ == "__main__":
    main()
