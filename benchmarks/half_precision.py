"""A sweep in half precision on a CPU beside one in float32: CPU seconds, memory that stays, and how far the numbers are off.

    python benchmarks/half_precision.py
    python benchmarks/half_precision.py --model gpt2 --questions 16

SmolLM2 on rows of PopQA; each type runs in a process of its own with one thread, a small sweep first. Memory is resident anonymous
memory above its value before the sweep, when the sweep is over. What is off: the root mean square of the differences of all
log-probabilities to those of the cone engine in float32, of the cone engine and of the oracle.
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
    """Each type in its own process; a table."""
    args = _arguments()
    if args.worker:
        print(json.dumps(_measured(args)))
        return
    found = {dtype: _of_worker(args, dtype) for dtype in ("float32", *args.dtypes)}
    print("| type | sweep, CPU s | × float32 | stays, MB | cone off, nats | oracle off, nats |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for dtype, one in found.items():
        off = [_rms(one[engine], found["float32"]["cone"]) for engine in ("cone", "oracle")]
        ratio = one["cpu"] / found["float32"]["cpu"]
        print(f"| {dtype} | {one['cpu']:.1f} | {ratio:.2f} | {one['kept'] / 1e6:.0f} | {off[0]:.2g} | {off[1]:.2g} |")


def _rms(one: list[float], other: list[float]) -> float:
    return (sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) / len(one)) ** 0.5


def _of_worker(args: argparse.Namespace, dtype: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--worker", dtype, "--model", args.model, "--questions", str(args.questions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{dtype}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def _measured(args: argparse.Namespace) -> dict[str, Any]:
    """One type, in this process."""
    warnings.simplefilter("ignore")
    import torch

    import anchorlens as al

    torch.set_num_threads(1)
    data = al.load_qa("popqa-sample", limit=args.questions)
    model = al.load_model(args.model, device="cpu", dtype=args.worker, progress=False)
    options: dict[str, Any] = {"n_donors": 1, "n_spot_checks": 0, "progress": False}
    al.swap_sweep(model, data, layers=[0], **options)  # imports and rotary tables
    before, started = _anonymous(), time.process_time()
    cone = al.swap_sweep(model, data, **options)
    cpu, kept = time.process_time() - started, _anonymous() - before
    oracle = al.swap_sweep(model, data, engine="reference", **options)
    values = {
        name: sweep.samples()[["logp_before", "logp_after"]].to_numpy().ravel().tolist()
        for name, sweep in (("cone", cone), ("oracle", oracle))
    }
    return {"cpu": cpu, "kept": kept, **values}


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
