"""Compare sweeps in half precision on a CPU with one in float32: CPU seconds, memory and numerical
error.

    python benchmarks/half_precision.py
    python benchmarks/half_precision.py --model gpt2 --questions 16

SmolLM2 on rows of PopQA. Each dtype runs in its own process with one thread, after a small warm-up
sweep. Memory is resident anonymous memory after the sweep, above its value before. The error of
each engine is the root mean square difference of all log-probabilities from those of the cone
engine in float32.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any


def main() -> None:
    """Measure each dtype in its own process and print the table."""
    args = _arguments()
    if args.worker:
        print(json.dumps(_measured(args)))
        return
    found = {dtype: _of_worker(args, dtype) for dtype in ("float32", *args.dtypes)}
    print(
        "| dtype | sweep, CPU s | × float32 | memory kept, MB | cone engine, error in nats |"
        " reference engine, error in nats |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for dtype, one in found.items():
        off = [_rms(one[engine], found["float32"]["cone"]) for engine in ("cone", "reference")]
        ratio = one["cpu"] / found["float32"]["cpu"]
        print(
            f"| {dtype} | {one['cpu']:.1f} | {ratio:.2f} | {one['kept'] / 1e6:.0f} | {off[0]:.2g} |"
            f" {off[1]:.2g} |"
        )


def _rms(one: list[float], other: list[float]) -> float:
    return (sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) / len(one)) ** 0.5


def _of_worker(args: argparse.Namespace, dtype: str) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--worker",
        dtype,
        "--model",
        args.model,
        "--questions",
        str(args.questions),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{dtype}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def _measured(args: argparse.Namespace) -> dict[str, Any]:
    """Measure one dtype in this process."""
    warnings.simplefilter("ignore")
    import torch

    import anchorlens as al

    torch.set_num_threads(1)
    data = al.load_qa("popqa-sample", limit=args.questions)
    model = al.load_model(args.model, device="cpu", dtype=args.worker, progress=False)
    options: dict[str, Any] = {"n_donors": 1, "n_spot_checks": 0, "progress": False}
    al.swap_sweep(model, data, layers=[0], **options)  # warm-up: imports and rotary tables
    before, started = _anonymous(), time.process_time()
    cone = al.swap_sweep(model, data, **options)
    cpu, kept = time.process_time() - started, _anonymous() - before
    reference = al.swap_sweep(model, data, engine="reference", **options)
    values = {
        name: sweep.samples()[["logp_before", "logp_after"]].to_numpy().ravel().tolist()
        for name, sweep in (("cone", cone), ("reference", reference))
    }
    return {"cpu": cpu, "kept": kept, **values}


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
