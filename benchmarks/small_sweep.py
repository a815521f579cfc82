"""Compare the CPU time of a small swap sweep with that of its forward passes alone.

    python benchmarks/small_sweep.py
    python benchmarks/small_sweep.py --dtype bfloat16 --questions 8

Four zero-shot questions, two layers, one donor, both nulls, on a live SmolLM2. The passes alone are
:meth:`PatchRunner.run`: clean rows, donors, patched cells and the prompts of the directions. The
rest is planning, the trial row, spot checks, hashes, statistics and findings. Sweeps follow each
other in one process; the median is printed.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import anchorlens as al
from anchorlens.measure.patch_runner import PatchRunner


def main() -> None:
    """Measure some sweeps and print a table."""
    args = _arguments()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    model = al.load_model("smollm2-135m-instruct", dtype=args.dtype, progress=False)
    data = al.load_qa("popqa-sample", limit=args.questions)
    passes: list[float] = []
    PatchRunner.run = _timed(PatchRunner.run, passes)
    wholes: list[float] = []
    for _ in range(args.runs + 1):  # the first one warms up
        started = time.process_time()
        al.swap_sweep(model, data, layers=args.layers, n_donors=1, progress=False)
        wholes.append(time.process_time() - started)
    whole, alone = statistics.median(wholes[1:]), statistics.median(passes[1:])
    print("| questions | dtype | sweep, CPU s | its passes, CPU s | ratio |")
    print("| --- | --- | --- | --- | --- |")
    print(f"| {len(data)} | {args.dtype} | {whole:.2f} | {alone:.2f} | {whole / alone:.2f} |")


def _timed(run: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        values = run(*args, **kwargs)
        seconds.append(time.process_time() - started)
        return values

    return timed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--layers", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
