"""Compare time and memory of a default swap sweep with those of other libraries on the same cells.

    python benchmarks/compare.py                                             all cases
    python benchmarks/compare.py --quick                                     two small ones
    python benchmarks/compare.py --cases "qa/*/16/1" --engines sweep careful

Every engine gets the same model, rows, donors and positions, nulls included, and must give the same
P. Each runs in its own process, and only one computes at a time. Rounds are interleaved, so that a
slow minute of the machine affects all engines alike. The comparison uses CPU seconds. Exit code 1
if two engines differ by more than 0.01 points, or if an engine of every case fails.
"""

import argparse
import json
import platform
import shlex
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import torch
from ours import load
from peers.client import ENGINES, MAIN, NAMES, Worker, WorkerError, environment_of
from peers.jobs import CASES, QUICK, Case, model_directory, write_jobs
from peers.report import (
    Line,
    Measured,
    legend,
    lines_of,
    machine,
    markdown,
    record,
    remarks,
    rich_tables,
    show,
    write_section,
)

TITLE = "The same cells with other libraries"
_ALLOWED = 0.01


def main() -> None:
    """Measure all cases, print the tables and write them to files."""
    args = _arguments()
    cases = [
        case
        for case in (QUICK if args.quick else CASES)
        if any(fnmatch(case.name, pattern) for pattern in args.cases)
    ]
    if not cases:
        raise SystemExit(
            f"No case matches {args.cases}. There are: {', '.join(case.name for case in CASES)}"
        )
    with tempfile.TemporaryDirectory() as folder:
        jobs = write_jobs(load(args.model), cases, Path(folder))
        lines, run = _measured(cases, jobs, args)
    show(rich_tables(lines), (*remarks(lines, run), machine(run), *legend(run)))
    worst = max((line.difference for line in lines if line.difference is not None), default=0.0)
    if worst > _ALLOWED:
        raise SystemExit(f"Two engines differ by {worst:.2g} points.")
    if any(line.failed for line in lines if line.engine in MAIN):
        raise SystemExit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=ENGINES,
        help=f"default: {', '.join(MAIN)}; all engines in the cases with one question",
    )
    parser.add_argument("--quick", action="store_true", help="measure two small cases")
    parser.add_argument(
        "--cases",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help="prompt/anchors/questions/donors, such as 'qa/*/16/1'",
    )
    parser.add_argument(
        "--model",
        type=Path,
        default=model_directory(),
        metavar="DIR",
        help="a Hugging Face checkpoint (default: the packaged one)",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks.json"))
    parser.add_argument(
        "--markdown",
        type=Path,
        default=None,
        metavar="FILE",
        help="also write the tables into this file",
    )
    parser.add_argument(
        "--title", default=TITLE, help="title of the section in that file (default: %(default)s)"
    )
    return parser.parse_args()


def _measured(
    cases: Sequence[Case], jobs: dict[str, Path], args: argparse.Namespace
) -> tuple[list[Line], dict[str, Any]]:
    """Measure every case with its engines; results are written after each case."""
    takes_part = {case: args.engines or (ENGINES if case.everyone else MAIN) for case in cases}
    engines = [engine for engine in ENGINES if any(engine in some for some in takes_part.values())]
    # TransformerLens's own function if it takes part, else the reference engine, else the first
    # engine.
    reference = next(
        (name for name in ("transformer_lens", "oracle") if name in engines), engines[0]
    )
    workers, notes, failures = _start(engines, args.model)
    lines: list[Line] = []
    run: dict[str, Any] = {}
    try:
        for case in cases:
            measured = {
                engine: Measured(failed=failures.get(engine, "")) for engine in takes_part[case]
            }
            rounds = min(args.rounds, case.rounds)
            for i in range(rounds):
                _round(workers, measured, jobs[case.name], f"{case.name}, round {i + 1}/{rounds}")
            lines += lines_of(case, json.loads(jobs[case.name].read_text()), measured, reference)
            run = _record(cases, args, workers, notes, NAMES[reference])
            _write(args.out, json.dumps(record(lines, run), indent=1, ensure_ascii=False) + "\n")
            if args.markdown is not None:
                write_section(args.markdown, args.title, markdown(lines, run))
                _say(f"wrote {args.markdown}")
    finally:
        for worker in workers.values():
            worker.close()
    return lines, run


def _start(
    engines: Sequence[str], model: Path
) -> tuple[dict[str, Worker], dict[str, str], dict[str, str]]:
    """Start the workers.

    Return workers, notes on environments, and error messages, each by engine.
    """
    workers: dict[str, Worker] = {}
    notes: dict[str, str] = {}
    failures: dict[str, str] = {}
    for engine in engines:
        environment = environment_of(engine)
        if environment.refused:
            notes[engine] = f"runs with its {environment.pins} versions. " + "; ".join(
                environment.refused
            )
        if not environment.works:
            failures[engine] = "no environment"
            continue
        _say(f"loading {engine}")
        try:
            workers[engine] = Worker(engine, environment, model)
        except WorkerError as error:
            failures[engine] = str(error)
            _say(f"{engine} failed: {error}")
    return workers, notes, failures


def _round(
    workers: dict[str, Worker], measured: dict[str, Measured], job: Path, label: str
) -> None:
    """Run one sweep with every engine that takes part."""
    for engine, m in measured.items():
        if m.failed:
            continue
        try:
            m.answers.append(workers[engine].measure(job))
        except WorkerError as error:
            m.failed = str(error)
            _say(f"{label}: {engine} failed: {error}")
            continue
        _say(
            f"{label}: {engine} {m.answers[-1]['cpu_seconds']:.2f} CPU s,"
            f" {m.answers[-1]['seconds']:.2f} s"
        )


def _record(
    cases: Sequence[Case],
    args: argparse.Namespace,
    workers: dict[str, Worker],
    notes: dict[str, str],
    reference: str,
) -> dict[str, Any]:
    """Return the command, model, machine and versions of the run."""
    versions = {k: v for worker in workers.values() for k, v in worker.versions.items()}
    return {
        "command": shlex.join(["python", "benchmarks/compare.py", *sys.argv[1:]]),
        "model": "SmolLM2-135M-Instruct" if args.model == model_directory() else args.model.name,
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "versions": {"Python": platform.python_version(), **dict(sorted(versions.items()))},
        "environments": notes,
        "reference": reference,
        "rounds": args.rounds,
        "fewer": {case.name: case.rounds for case in cases if case.rounds < args.rounds},
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    found = (
        [line for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return (
        found[0].split(":", 1)[1].strip() if found else platform.processor() or platform.machine()
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf8")
    _say(f"wrote {path}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
