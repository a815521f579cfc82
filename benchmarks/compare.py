"""Time and memory of one swap sweep: anchorlens, its oracle, and the ways other libraries have to compute the same cells.

    python benchmarks/compare.py --rounds 3

Every engine gets the same model, rows, donors and positions, and has to give the same P; it runs in a process of its own, and only
one of them computes at a time. Rounds are interleaved, so that a slow minute of the machine hits all engines alike.
"""

import argparse
import json
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from peers.client import ENGINES, Worker, WorkerError, environment_of
from peers.jobs import CASES, model_config, model_directory, write_jobs
from peers.report import Line, Measured, legend, lines_of, machine, markdown, record, remarks, rich_tables
from rich.console import Console

# The MLP's matrices of the model that is measured, and a batch that fills them.
_GEMM = (4096, 576, 1536)


def main() -> None:
    """Measure, print, write."""
    args = _arguments()
    cases = [case for case in CASES if any(fnmatch(case.name, pattern) for pattern in args.rows_config)]
    if not cases:
        raise SystemExit(f"No case matches {args.rows_config}. There are: {', '.join(case.name for case in CASES)}")
    rates = [matrix_rate()]
    workers, notes, failures = _start(args.engines)
    lines: list[Line] = []
    run: dict[str, Any] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            jobs = write_jobs(cases, Path(folder))
            for case in cases:
                measured = {engine: Measured(failed=failures.get(engine, "")) for engine in args.engines}
                if any(fnmatch(case.name, pattern) for pattern in args.spare):
                    for engine in set(args.engines) - set(args.every_round):
                        measured[engine].failed = "left out"
                for i in range(args.rounds):
                    rates.append(matrix_rate())
                    _round(workers, measured, jobs[case.name], f"{case.name}, round {i + 1}/{args.rounds}", args)
                bound = cone_flops(json.loads(jobs[case.name].read_text()), model_config()) / max(rates)
                lines += lines_of(case, measured, bound)
                # After every case, so that nothing is lost where it is stopped.
                run = _record(args, workers, notes, max(rates))
                _write(args.out, json.dumps(record(lines, run), indent=1, ensure_ascii=False) + "\n")
                if args.markdown is not None:
                    _write(args.markdown, markdown(lines, run))
    finally:
        for worker in workers.values():
            worker.close()
    console = Console(width=None if sys.stdout.isatty() else 120)  # a log has no width of its own
    for table in rich_tables(lines):
        console.print(table)
    for text in (*remarks(lines, run), machine(run), legend(run)):
        console.print(text, highlight=False, markup=False)


def _record(args: argparse.Namespace, workers: dict[str, Worker], notes: dict[str, str], rate: float) -> dict[str, Any]:
    """What was run, where and with what."""
    versions = {k: v for worker in workers.values() for k, v in worker.versions.items()}
    return {
        "command": shlex.join(["python", "benchmarks/compare.py", *sys.argv[1:]]),
        "model": "SmolLM2-135M-Instruct",
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "matrix_gflops": rate / 1e9,
        "versions": {"Python": platform.python_version(), **dict(sorted(versions.items()))},
        "environments": notes,
        "reference": "the oracle" if "oracle" in workers else "the first engine",
        "rounds": args.rounds,
        "max_seconds": args.max_seconds,
        "every_round": args.every_round,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument(
        "--rows-config", nargs="+", default=["*"], metavar="PATTERN", help="cases prompt/anchors/examples, such as 'qa/*/16'"
    )
    parser.add_argument("--max-seconds", type=float, default=20.0, help="an engine that takes longer gets one round of a case")
    parser.add_argument(
        "--spare", nargs="+", default=[], metavar="PATTERN", help="cases that only the engines of --every-round get"
    )
    parser.add_argument(
        "--every-round",
        nargs="*",
        choices=ENGINES,
        default=["cone", "transformer_lens"],
        help="engines that get all rounds anyway",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks.json"))
    parser.add_argument("--markdown", type=Path, default=None, metavar="FILE", help="write the tables here as well")
    return parser.parse_args()


def _start(engines: Sequence[str]) -> tuple[dict[str, Worker], dict[str, str], dict[str, str]]:
    """Workers by engine, what is to be said of their environments, and why others did not start."""
    workers: dict[str, Worker] = {}
    notes: dict[str, str] = {}
    failures: dict[str, str] = {}
    for engine in engines:
        environment = environment_of(engine)
        if environment.refused:
            notes[engine] = f"runs with its {environment.pins} versions. " + "; ".join(environment.refused)
        if not environment.works:
            failures[engine] = "no environment"
            continue
        _say(f"loading {engine}")
        try:
            workers[engine] = Worker(engine, environment, model_directory())
        except WorkerError as error:
            failures[engine] = str(error)
            _say(f"{engine} failed: {error}")
    return workers, notes, failures


def _round(workers: dict[str, Worker], measured: dict[str, Measured], job: Path, label: str, args: argparse.Namespace) -> None:
    """One sweep of every engine that still takes part."""
    for engine, worker in workers.items():
        m = measured[engine]
        slow = bool(m.seconds) and m.seconds[0] > args.max_seconds and engine not in args.every_round
        if m.failed or slow:
            continue
        try:
            answer = worker.measure(job)
        except WorkerError as error:
            m.failed = str(error)
            _say(f"{label}: {engine} failed: {error}")
            continue
        m.seconds.append(answer["seconds"])
        m.peak_mib.append(answer["peak_mib"])
        m.with_model_mib.append(answer["with_model_mib"])
        m.answer = answer
        _say(f"{label}: {engine} {answer['seconds']:.2f} s")


def cone_flops(job: dict[str, Any], cfg: dict[str, int]) -> float:
    """Floating-point operations that the job's numbers depend on, given one clean run of bases and donors.

    Bases and donors pass once, what all of them begin with once for all. A cell takes the tokens from the first changed position
    to the one that is read through the blocks from its layer up; every token costs two operations for each parameter of a block,
    and four for each key and channel that it attends to. One row of logits for each P.
    """
    d, n_layers = cfg["hidden_size"], cfg["num_hidden_layers"]
    queries = cfg["num_attention_heads"] * cfg["head_dim"]
    keys = cfg["num_key_value_heads"] * cfg["head_dim"]
    block = 2 * d * queries + 2 * d * keys + 3 * d * cfg["intermediate_size"]
    read = 2 * d * cfg["vocab_size"]

    def passed(first: int, end: int, blocks: int) -> float:
        """Tokens at ``first`` .. ``end`` - 1 through so many blocks; each attends to itself and all before it."""
        attended = (end * (end + 1) - first * (first + 1)) / 2
        return blocks * (2 * block * (end - first) + 4 * queries * attended)

    rows = [row[kind] for row in job["rows"] for kind in ("ids", "donor_ids")]
    places = [p for row in job["rows"] for kind in ("target", "source") for a in job["anchors"] for p in row[kind][a]]
    shared = 0
    while shared < min(places) and len({row[shared] for row in rows}) == 1:
        shared += 1
    total = passed(0, shared, n_layers)
    for row in job["rows"]:
        total += passed(shared, len(row["ids"]), n_layers) + passed(shared, len(row["donor_ids"]), n_layers) + read
        for anchor in job["anchors"]:
            first = min(row["target"][anchor])
            total += sum(passed(first, row["read"] + 1, n_layers - layer) + read for layer in job["layers"])
    return total


def matrix_rate() -> float:
    """Floating-point operations in a second of a large float32 matrix product, the best of a few."""
    m, k, n = _GEMM
    a, b = torch.rand(m, k), torch.rand(k, n)
    times: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - started)
    return 2 * m * k * n / min(times)


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    found = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return found[0].split(":", 1)[1].strip() if found else platform.processor() or platform.machine()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    _say(f"wrote {path}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
