"""Measure the CPU seconds of saving, loading and resuming a run, beside those of another commit.

    python benchmarks/storage.py --against ec0ddde

A small random Llama measures a swap with four donors on made questions, so that files are a large
part of the work. ``save`` replaces a run with a result; ``load`` reads all tables of a run;
``resume`` continues a run whose shards are all stored, up to the final write. Processes of both
trees alternate.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

STEPS = ("save", "load", "resume")


def measure(folder: Path, questions: int, repeats: int) -> None:
    """Print the seconds of each step as JSON, with the package that Python finds first; the first
    call stores the shards.
    """
    import torch

    import anchorlens as al
    from anchorlens.protocols import base
    from tests.models.tiny import save_tiny
    from tests.questions.make import capital, data_of

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    base.SHARD_FLOPS = 1e9  # some sixty shards, as a long run has
    rng = random.Random(0)
    names = {
        "".join(rng.choice("bcdfglmnprst") + rng.choice("aeiou") for _ in range(4)).title(): None
        for _ in range(2 * questions)
    }
    pairs = list(names)[: 2 * questions]
    data = data_of(
        [capital(*pair) for pair in zip(pairs[::2], pairs[1::2], strict=False)][:questions]
    )
    options = {
        "align": "last",
        "n_donors": 4,
        "batch_size": 8,
        "n_spot_checks": 0,
        "n_resamples": 200,
        "progress": False,
    }
    if not (folder / "llama").exists():
        save_tiny("llama", folder / "llama")
    model = al.load_model(str(folder / "llama"), device="cpu")
    stored, run, out, parts = (folder / name for name in ("stored", "run", "out", "out.parts"))
    swap_sweep: Any = al.swap_sweep
    if not run.exists():
        swap_sweep(model, data, **options, out=stored, job=(1, 1))
        swap_sweep(model, data, **options, out=run)
    (result,) = al.load_run(run)
    for _ in range(repeats):
        for step in STEPS:
            if step == "resume":
                shutil.rmtree(out, ignore_errors=True)
                shutil.copytree(folder / "stored.parts", parts)
            wall, cpu = time.perf_counter(), time.process_time()
            if step == "save":
                result.save(out, overwrite=True)
            elif step == "load":
                (one,) = al.load_run(run)
                _ = one.samples(), one.examples(), one.curves(), one.contrasts()
            else:
                swap_sweep(model, data, **options, out=out, resume=True)
            print(
                json.dumps([step, time.process_time() - cpu, time.perf_counter() - wall]),
                flush=True,
            )


def main() -> None:
    """Measure both trees in turn and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", default="HEAD", help="the commit to compare with")
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2, help="measurements of each process")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure, args.questions, args.repeats)
        return
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as made:
        tree = Path(made) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--detach", "--force", str(tree), args.against],
            check=True,
            capture_output=True,
        )
        try:
            for _ in range(args.rounds):
                for name, home in (("before", tree), ("now", Path.cwd())):
                    folder = Path(made) / name
                    folder.mkdir(exist_ok=True)
                    command = [
                        sys.executable,
                        __file__,
                        "--measure",
                        str(folder),
                        "--questions",
                        str(args.questions),
                    ]
                    command += ["--repeats", str(args.repeats)]
                    env = {**os.environ, "PYTHONPATH": str(home)}
                    done = subprocess.run(
                        command, check=True, env=env, cwd=home, capture_output=True, text=True
                    )
                    for line in done.stdout.splitlines():
                        step, cpu, wall = json.loads(line)
                        times.setdefault((step, name), []).append((cpu, wall))
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", str(tree)], check=True, capture_output=True
            )
    print(
        f"| step | CPU s at {args.against} | CPU s now | ratio | wall s at {args.against} | wall s"
        " now | ratio |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for step in STEPS:
        cells: list[str] = []
        for i in range(2):
            before, now = (
                median(one[i] for one in times[step, name]) for name in ("before", "now")
            )
            cells += [f"{before:.3f}", f"{now:.3f}", f"{now / before:.2f}"]
        print(f"| {step} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
