"""Damage run directories and unfinished runs, and read them with every reader.

    python -m tests.fuzz_runs --cases 3000 --seed 0

The damage is a flipped bit, a cut, removed or swapped file, or an edit whose checksums are written
again: a dropped, retyped or renamed column, a dropped or retyped entry of the record. Outcomes of a
case:

- right: the values of the undamaged run;
- clear error: an error of this package with a message of one line;
- several lines: an error of this package with a longer message;
- raw: another exception;
- silently other: other values without an error.

A case is reproduced with ``--only N``.
"""

import argparse
import json
import random
import shutil
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

import anchorlens as al
from anchorlens.errors import AnchorlensError
from anchorlens.protocols import base
from anchorlens.runs.checksums import SUMS, write_sums
from anchorlens.runs.journal import parts_of
from anchorlens.runs.merging import copy_parts, missing_in
from anchorlens.runs.status import status_of
from anchorlens.runs.store import TABLES
from tests.models.tiny import save_tiny
from tests.questions.make import capitals
from tests.running.kills import OPTIONS, interrupt

OUTCOMES = ("right", "clear error", "several lines", "raw", "silently other")
VALUES: tuple[Any, ...] = (
    None,
    "",
    "x",
    "<b>",
    -1,
    0,
    7,
    1.5,
    True,
    [],
    [1],
    ["x"],
    {},
    {"a": 1},
    [[1]],
    10**30,
    "\ud800",
    "1e400",
)


class Runs:
    """A finished run of two protocols and parts of a stopped one, with the values that readers have
    to find.

    Args:
        folder: Folder for a small checkpoint and the runs.
    """

    def __init__(self, folder: Path) -> None:
        self.model, self.folder = (
            al.load_model(str(save_tiny("llama", folder / "llama")), device="cpu"),
            folder,
        )
        base.SHARD_FLOPS = 1.0  # a shard for every unit
        data = al.load_qa("popqa-sample", limit=45)
        self.run = al.save_run(
            [
                al.swap_sweep(self.model, capitals(12), **OPTIONS),
                al.knockout_sweep(
                    self.model, data, n_resamples=50, n_splits=1, n_spot_checks=0, progress=False
                ),
            ],
            folder / "run",
        )
        self.values = {name: read(self.run) for name, read in READERS.items()}
        patch = interrupt(3)
        try:
            self.sweep(folder / "stopped")
        except KeyboardInterrupt:
            pass
        finally:
            patch.undo()
        self.parts = parts_of(folder / "stopped")
        self.whole = self.sweep(folder / "whole")

    def sweep(self, out: Path, **more: Any) -> str:
        """Measure the small sweep, or continue it, and return its values as text."""
        return text_of(
            al.swap_sweep(self.model, capitals(12), **OPTIONS, out=out, **more).samples()
        )


def text_of(frame: pd.DataFrame) -> str:
    """Return all values of a frame as text."""
    return frame.to_csv()


def _load(run: Path) -> str:
    parts: list[str] = []
    for one in al.load_run(run):
        frames = one.samples(), one.examples(), one.curves(controls=True), one.contrasts()
        parts += [
            *map(text_of, frames),
            repr(one),
            one.verdict,
            one._repr_html_(),
            one.probes.fingerprint if one.probes else "",
        ]
    return "\n".join(parts)


READERS: dict[str, Callable[[Path], str]] = {
    "load_run": _load,
    "load_curves": lambda run: text_of(al.load_curves(run)),
    "plot_curves": lambda run: str(al.plot_curves(run).to_json()),
    "status": lambda run: str(status_of(run)),
    "verify": lambda run: str(
        [check for check in al.verify_run(run, cells=0).checks if check.status == "mismatch"]
    ),
    "adjust_claims": lambda run: text_of(al.adjust_claims(al.load_run(run))),
    "report": (
        lambda run: al.save_report(run, run.parent / "report.html").read_text(encoding="utf8")
    ),
}


def damage_file(folder: Path, rng: random.Random) -> str:
    """Flip a bit of a file, cut, remove or replace it; return what was done."""
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and file.name not in ("lock", "figure.html")
    )
    file, kind = (
        rng.choice(files),
        rng.choice(("flip", "flip", "flip", "cut", "remove", "swap", "empty")),
    )
    data = file.read_bytes()
    if kind == "flip" and data:
        place, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        file.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
    elif kind == "cut":
        file.write_bytes(data[: rng.randrange(len(data) + 1)])
    elif kind == "remove":
        file.unlink()
    elif kind == "swap":
        file.write_bytes(rng.choice(files).read_bytes())
    else:
        file.write_bytes(b"")
    return f"{kind} {file.relative_to(folder)}"


def edit_table(folder: Path, rng: random.Random) -> str:
    """Drop, retype or rename a column, or repeat or drop rows; the checksums are written again."""
    name = rng.choice((*TABLES, "contrasts"))
    file = folder / f"{name}.parquet"
    frame = pd.read_parquet(file)
    column = rng.choice(list(frame.columns))
    changes: dict[str, Callable[[], pd.DataFrame]] = {
        "drop": lambda: frame.drop(columns=column),
        "text": lambda: frame.assign(**{column: [f"x{i}" for i in range(len(frame))]}),
        "number": lambda: frame.assign(**{column: range(len(frame))}),
        "list": lambda: frame.assign(**{column: [[1]] * len(frame)}),
        "bytes": lambda: frame.assign(**{column: [b"x"] * len(frame)}),
        "null": lambda: frame.assign(**{column: [None] * len(frame)}),
        "rename": lambda: frame.rename(columns={column: "other"}),
        "repeat": lambda: pd.concat([frame, frame]),
        "rows": lambda: frame.iloc[: len(frame) // 2],
        "none": lambda: frame.iloc[:0],
    }
    kind = rng.choice(list(changes))
    changes[kind]().to_parquet(file, index=False)
    write_sums(folder)
    return f"edit {name}: {kind} {column}"


def edit_record(folder: Path, rng: random.Random) -> str:
    """Drop or retype an entry of run.json, at any depth; the checksums are written again."""
    file = folder / "run.json"
    record = json.loads(file.read_text(encoding="utf8"))
    done = edit_json(record, rng)
    file.write_text(json.dumps(record), encoding="utf8")
    if (folder / SUMS).exists():
        write_sums(folder)
    return f"edit run.json: {done}"


def edit_json(value: Any, rng: random.Random, path: str = "") -> str:
    """Drop or replace one entry of a JSON value in place, and return what was done."""
    while True:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        path += f".{key}"
        if not (isinstance(value[key], dict | list) and value[key] and rng.random() < 0.85):
            break
        value = value[key]
    if rng.random() < 0.4:
        del value[key]
        return f"drop {path}"
    value[key] = rng.choice(VALUES)
    return f"{path} = {value[key]!r}"


def outcome(read: Callable[[], str], wanted: Callable[[str], bool]) -> tuple[str, str]:
    """Return the outcome of a reading, and its message or traceback."""
    try:
        found = read()
    except AnchorlensError as why:
        return ("several lines" if "\n" in str(why) else "clear error"), str(why)
    except Exception:  # noqa: BLE001 - what is not an error of this package is the finding
        return "raw", traceback.format_exc(limit=-4)
    return ("right", "") if wanted(found) else ("silently other", "")


def run_case(runs: Runs, number: int, seed: int) -> tuple[str, str, str]:
    """Damage a copy and read it; return the outcome, what was done, and the message."""
    rng = random.Random(f"{seed}:{number}")
    kind = rng.choice(("run", "run", "table", "record", "parts"))
    with tempfile.TemporaryDirectory(dir=runs.folder) as scratch:
        if kind == "parts":
            return _parts_case(runs, Path(scratch), rng)
        copy = Path(scratch) / "run"
        shutil.copytree(runs.run, copy)
        done = {"run": damage_file, "table": edit_table, "record": edit_record}[kind](copy, rng)
        name = rng.choice(list(READERS))

        def as_before(found: str) -> bool:
            # An edit with new checksums is a run with other values, not damage; `verify` and
            # `status` report.
            return (
                kind != "run"
                or name in ("verify", "status")
                or found.replace(str(copy), str(runs.run)) == runs.values[name]
            )

        return (*_named(outcome(lambda: READERS[name](copy), as_before), f"{done}, {name}"),)


def _parts_case(runs: Runs, scratch: Path, rng: random.Random) -> tuple[str, str, str]:
    out = scratch / "stopped"
    shutil.copytree(runs.parts, parts_of(out))
    files = sorted(file for file in parts_of(out).rglob("*.json"))
    if rng.random() < 0.4:
        file = rng.choice(files)
        record = json.loads(file.read_text(encoding="utf8"))
        done = f"edit {file.relative_to(scratch)}: {edit_json(record, rng)}"
        file.write_text(json.dumps(record), encoding="utf8")
    else:
        done = damage_file(parts_of(out), rng)
    name = rng.choice(("resume", "resume", "status", "missing", "merge"))
    reads: dict[str, Callable[[], str]] = {
        "resume": lambda: runs.sweep(out, resume=True),
        "status": lambda: str(status_of(out)),
        "missing": lambda: str(missing_in(out)),
        "merge": lambda: str(copy_parts(scratch / "other", [parts_of(out)])),
    }
    return (
        *_named(
            outcome(reads[name], lambda found: name != "resume" or found == runs.whole),
            f"parts: {done}, {name}",
        ),
    )


def _named(found: tuple[str, str], done: str) -> tuple[str, str, str]:
    return found[0], done, found[1]


def target_of(done: str) -> str:
    """Return what a case has damaged: files of a run, its tables or record with new checksums, or
    parts.
    """
    starts = {"parts: ": "parts", "edit run.json": "record", "edit ": "tables"}
    return next((target for start, target in starts.items() if done.startswith(start)), "files")


def main() -> None:
    """Run the cases, print the counts and every case that is neither right nor a clear error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this case alone and print its message")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        runs, counts = (
            Runs(Path(folder)),
            {name: Counter[str]() for name in ("files", "tables", "record", "parts")},
        )
        for number in range(args.cases) if args.only is None else (args.only,):
            found, done, message = run_case(runs, number, args.seed)
            counts[target_of(done)][found] += 1
            if found in OUTCOMES[2:] or args.only is not None:
                print(f"case {number}: {found}: {done}\n{message}", flush=True)
    for target, own in counts.items():
        print(
            f"{target}: {sum(own.values())} cases,"
            f" {', '.join(f'{name} {own[name]}' for name in OUTCOMES)}"
        )


if __name__ == "__main__":
    main()
