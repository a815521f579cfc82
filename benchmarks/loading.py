"""Measure the CPU seconds of reading question files of many rows.

    python benchmarks/loading.py --rows 100000 1000000
    python benchmarks/loading.py --rows 5000 10000 20000 --spans auto

Each file is a csv file of questions and answers, read in a process of its own. Without ``--spans``
a function gives the two segments, so that reading and checking the rows is measured alone.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUESTIONS = (
    "What is the capital of land {}?",
    "Who wrote the book {} in the year 1900?",
    "In what city was person {} born?",
    "Which river flows through the town of place {} in the north?",
)


def measure(path: str, spans: str) -> None:
    """Print CPU seconds and peak memory of reading a file."""
    import resource

    import anchorlens as al

    chosen = spans or (lambda _: ((0, 4), (5, 7)))
    al.load_qa([("Who wrote Emma?", "Austen")])
    start = time.process_time()
    n_rows = len(al.load_qa(path, spans=chosen).pool)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"{n_rows:9,} rows: {seconds:6.1f} s of CPU, {1e6 * seconds / n_rows:5.0f} µs per row,"
        f" peak {peak:,.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU seconds of reading question files.")
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--spans", default="", help="value of load_qa(spans=), such as auto")
    parser.add_argument("--file", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.file:
        measure(args.file, args.spans)
        return
    with tempfile.TemporaryDirectory() as folder:
        for n_rows in args.rows:
            path = Path(folder) / f"{n_rows}.csv"
            with path.open("w", encoding="utf8") as file:
                file.write("id,question,answers\n")
                for row in range(n_rows):
                    question = QUESTIONS[row % len(QUESTIONS)].format(row)
                    file.write(f"q{row},{question},Answer {row}\n")
            command = [sys.executable, __file__, "--file", str(path), "--spans", args.spans]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
