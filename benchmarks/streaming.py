"""Compare time and memory of a sweep of a streamed model with the same sweep of the model in
memory.

    python benchmarks/streaming.py
    python benchmarks/streaming.py --dtype float32 --questions 16

Random weights in the shape of Llama-3.2-3B (6.4 GB in bfloat16) are written to a temporary
directory, shard by shard, and deleted afterwards; the tokenizer is SmolLM2's. The two runs follow
each other in separate processes, so both find the files in the system's cache. Memory is given
without the pages of mapped files (RssAnon) and with them (VmRSS), above the value after imports. It
is sampled every three milliseconds. ``--cold`` drops the files from the cache before each run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from targets import config_of, write_random

ROOT = Path(__file__).resolve().parents[1]
WAYS = {"in memory": False, "streamed": True}


def main() -> None:
    """Write the checkpoint, measure both runs, print a table."""
    args = _arguments()
    if args.worker:
        print(json.dumps(_measured(args)))
        return
    config = config_of(
        "Llama-3.2-3B",
        **{
            name: n
            for name, n in (("num_hidden_layers", args.layers), ("vocab_size", args.vocab))
            if n
        },
    )
    with tempfile.TemporaryDirectory(prefix="streaming-", dir=args.dir) as scratch:
        directory = write_random(config, Path(scratch) / "model")
        n_bytes = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
        print(
            f"{config.num_hidden_layers} layers, {n_bytes / 1e9:.2f} GB in {directory}",
            file=sys.stderr,
        )
        found = {way: _of_worker(args, directory, way) for way in args.only or WAYS}
    if args.json:
        print(json.dumps(found))
        return
    print(
        "| model | load, s | sweep, s | sweep, CPU s | anonymous while loading, GB | anonymous,"
        " sweep, GB | resident, sweep, GB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for way, one in found.items():
        sizes = " | ".join(
            f"{one[name] / 1e9:.2f}" for name in ("loading", "anonymous", "resident")
        )
        print(f"| {way} | {one['load']:.1f} | {one['sweep']:.1f} | {one['cpu']:.1f} | {sizes} |")
    for way, one in found.items():
        print(f"\n{way}: {one['plan']}")
    if len(found) == len(WAYS):
        one, two = (found[way]["log_p"] for way in WAYS)
        gap = max(abs(a - b) for a, b in zip(one, two, strict=True))
        alike = found["in memory"]["batches"] == found["streamed"]["batches"]
        # In half precision the last digits of a row depend on its batch.
        off = f"differ by up to {gap:.2g} nats, in {'the same' if alike else 'other'} batches"
        same = "equal to the bit" if one == two else off
        ratio = found["streamed"]["sweep"] / found["in memory"]["sweep"]
        print(
            f"\n{len(one)} log-probabilities: {same}; the streamed sweep took {ratio:.2f} × as long"
        )


def _of_worker(args: argparse.Namespace, directory: Path, way: str) -> dict[str, Any]:
    if args.cold:
        for path in directory.iterdir():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    given = [
        "--questions",
        str(args.questions),
        "--dtype",
        args.dtype,
        "--max-memory",
        args.max_memory,
    ]
    given += ["--batch-size", str(args.batch_size)] if args.batch_size else []
    given += ["--at", *map(str, args.at)] if args.at else []
    done = subprocess.run(
        [sys.executable, __file__, "--worker", str(directory), "--only", way, *given],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{way}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def _measured(args: argparse.Namespace) -> dict[str, Any]:
    """Measure one run in this process."""
    warnings.simplefilter("ignore")
    import anchorlens as al

    _ = al.load_model, al.load_qa, al.swap_sweep, al.model_card  # trigger lazy imports
    data = al.load_qa("popqa-sample", limit=args.questions)
    baseline, highest, done = _memory(), _memory(), threading.Event()

    def watch() -> None:
        while not done.wait(0.003):
            for name, size in _memory().items():
                highest[name] = max(highest[name], size)

    watching = threading.Thread(target=watch)
    watching.start()
    started = time.perf_counter()
    model = al.load_model(
        args.worker, device="cpu", dtype=args.dtype, stream=WAYS[args.only[0]], progress=False
    )
    loaded, loading = time.perf_counter(), highest["RssAnon"] - baseline["RssAnon"]
    highest |= _memory()
    cpu = time.process_time()
    plans: list[Any] = []
    options: dict[str, Any] = {
        "batch_size": args.batch_size,
        "max_memory": args.max_memory,
        "on_plan": plans.append,
    }
    result = al.swap_sweep(
        model, data, n_donors=1, layers=args.at, n_spot_checks=2, progress=False, **options
    )
    ended, cpu = time.perf_counter(), time.process_time() - cpu
    done.set()
    watching.join()
    samples = result.samples()
    return {
        "load": loaded - started,
        "sweep": ended - loaded,
        "cpu": cpu,
        "predicted": plans[0].peak_bytes,
        "plan": str(plans[0]),
        "loading": loading,
        "anonymous": highest["RssAnon"] - baseline["RssAnon"],
        "resident": highest["VmRSS"] - baseline["VmRSS"],
        "log_p": samples[["logp_before", "logp_after"]].to_numpy().ravel().tolist(),
        "effect": samples["effect"].tolist(),
        "weights": al.model_card(model).weights_sha256,
        "engine": plans[0].engine,
        "seconds": plans[0].seconds,
        "batches": list(plans[0].batch_sizes),
    }


def _memory() -> dict[str, int]:
    """Return RssAnon and VmRSS in bytes."""
    lines = (
        line.partition(":")
        for line in Path("/proc/self/status").read_text(encoding="utf8").splitlines()
    )
    return {
        name: int(size.split()[0]) * 1024 for name, _, size in lines if name in ("RssAnon", "VmRSS")
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--layers", type=int, help="number of layers (default: all of the model)")
    parser.add_argument("--vocab", type=int, help="vocabulary size (default: that of the model)")
    parser.add_argument("--at", type=int, nargs="+", help="measured layers (default: all)")
    parser.add_argument(
        "--batch-size", type=int, help="pairs per pass in both runs (default: chosen by each plan)"
    )
    parser.add_argument("--max-memory", default="1.5GB")
    parser.add_argument("--only", nargs="+", choices=WAYS)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--dir", help="folder for the weights")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
