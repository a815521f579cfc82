"""Change values of run directories, write their checksums again, and verify them.

    python -m tests.fuzz_attacks --cases 3000 --seed 0

One run of every protocol is attacked by somebody who knows the format. Each case edits one thing: a
value of a derived table, of the samples, of the inputs or of the record; a sample together with all
that follows from it; or the configuration together with the run's id. Row counts are adapted.
Outcomes:

- right: no reader sees a change;
- clear error: loading refuses the run with one line, and ``verify`` has a mismatch or the same
  line;
- mismatch: loading accepts it, ``verify`` has a mismatch;
- not checked: ``verify`` says that it checks less than before;
- several lines: an error of this package with a longer message;
- raw: another exception, of loading, of ``verify`` or of a reader;
- silently other: ``verify`` matches, but a reader sees another value.

Two targets cannot be checked, and are counted apart: a sample that is edited with all that follows
from it (``consistent``) is found if its cell is drawn, and entries that only describe the process
that measured (``provenance``) follow from nothing.
"""

import argparse
import json
import random
import shutil
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import plotly.graph_objects as go

import anchorlens as al
from anchorlens.errors import AnchorlensError
from anchorlens.running import recompute, saving
from anchorlens.runs.checksums import write_sums
from anchorlens.runs.provenance import run_id_of
from anchorlens.runs.store import read_record
from tests.fuzz_runs import edit_json, text_of
from tests.models.tiny import save_tiny
from tests.questions.make import capitals

OUTCOMES = (
    "right",
    "clear error",
    "mismatch",
    "not checked",
    "several lines",
    "raw",
    "silently other",
)
TARGETS = (
    "derived",
    "findings",
    "samples",
    "inputs",
    "record",
    "configuration",
    "figure",
    "consistent",
    "provenance",
)
PROVENANCE = ("created", "environment", "plan", "study")
"""Entries of the record that follow from nothing in the run."""
DESCRIPTIONS = {"model": ("device", "parity", "source", "revision"), "data": ("name", "source")}
"""Entries of model and data set that follow from nothing either: the names of their places, and a
measurement of the loader.
"""
SMALL = {"n_resamples": 20, "n_spot_checks": 1, "progress": False}
PAIRS = [
    {
        "clean": f"The capital of {a} is",
        "corrupted": f"The capital of {b} is",
        "answer": f" {x}",
        "wrong": f" {y}",
    }
    for a, b, x, y in (
        ("France", "Japan", "Paris", "Tokyo"),
        ("Italy", "Spain", "Rome", "Madrid"),
        ("Peru", "Iran", "Lima", "Tehran"),
    )
]


class Attacked:
    """One small run of every protocol, with its data set and the values that readers find.

    Args:
        folder: Folder for a small checkpoint and the runs.
        only: Names of the runs; if empty, all.
    """

    def __init__(self, folder: Path, only: Collection[str] = ()) -> None:
        self.folder, self.model = (
            folder,
            al.load_model(str(save_tiny("llama", folder / "llama")), device="cpu"),
        )
        questions, pairs = capitals(12), al.load_pairs(PAIRS)
        truth = SMALL | {"n_splits": 1}
        sweeps: dict[str, tuple[Any, Callable[..., Any]]] = {
            "swap": (
                capitals(6),
                lambda data: al.swap_sweep(self.model, data, align="last", n_donors=2, **SMALL),
            ),
            "probe": (
                questions,
                lambda data: al.swap_sweep(
                    self.model, data, readout="probe", align="last", n_donors=1, **truth
                ),
            ),
            "knockout": (questions, lambda data: al.knockout_sweep(self.model, data, **truth)),
            "patch_tokens": (
                questions,
                lambda data: al.patch_tokens_sweep(self.model, data, base="all", **truth),
            ),
            "answer_only": (
                questions,
                lambda data: al.answer_only_sweep(self.model, data, **truth),
            ),
            "patch": (pairs, lambda data: al.patch_sweep(self.model, data, by="layer", **SMALL)),
        }
        sweeps = {name: one for name, one in sweeps.items() if not only or name in only}
        self.data = {name: data for name, (data, _) in sweeps.items()}
        self.runs = {name: make(data).save(folder / name) for name, (data, make) in sweeps.items()}
        self.seen = {name: see(run) for name, run in self.runs.items()}
        self.checks = {name: self.verify(run, name) for name, run in self.runs.items()}

    def verify(self, run: Path, name: str) -> al.Verification:
        """Verify a run with the model and the data set of the run of this name."""
        return al.verify_run(
            run, cells=2, model=self.model, data=self.data[name], show_progress=False
        )


def see(run: Path) -> str:
    """Return all that readers find in a run, as text."""
    parts: list[str] = []
    for one in al.load_run(run):
        frames = one.samples(), one.examples(), one.curves(controls=True), one.contrasts()
        parts += [*map(text_of, frames), repr(one), json.dumps(one.record, sort_keys=True)]
        parts.append(one.probes.fingerprint if one.probes else "")
    record = read_record(run)
    kept = [
        {name: one[name] for name in ("run_id", "verdict", "findings")} for one in record["sweeps"]
    ]
    parts.append(
        json.dumps([record["created"], record["pending"], record["study"], kept], sort_keys=True)
    )
    return "\n".join([*parts, (run / "figure.html").read_text(encoding="utf8")])


READERS: dict[str, Callable[[Path], object]] = {
    "report": lambda run: al.save_report(run, run.parent / "report.html"),
    "plot_curves": al.plot_curves,
    "plot_heatmap": al.plot_heatmap,
    "adjust_claims": lambda run: al.adjust_claims(al.load_run(run)),
    "samples_with_inputs": lambda run: [
        one.samples_with_inputs(controls=True) for one in al.load_run(run)
    ],
    "plot_example": lambda run: [one.plot_example(0) for one in al.load_run(run)],
    "to_xarray": lambda run: [one.to_xarray() for one in al.load_run(run)],
}


def other_value(value: Any, column: pd.Series, rng: random.Random) -> Any:
    """Return another value of the type of a column, or a missing one."""
    others = [one for one in column.tolist() if not _equal(one, value)]
    if others and rng.random() < 0.4:
        return rng.choice(others)
    if isinstance(value, np.ndarray | list):
        items = list(value)
        if items and rng.random() < 0.7:
            items[rng.randrange(len(items))] = (
                rng.choice((0, 7, -1, 10**6)) if isinstance(items[0], int | np.integer) else "x"
            )
            return items
        return items[:-1]
    if isinstance(value, bool | np.bool_):
        return not value
    if pd.api.types.is_integer_dtype(column.dtype):
        return rng.choice((0, 1, 2, 10**6, -1))
    if pd.api.types.is_float_dtype(column.dtype):
        known = 0.0 if pd.isna(value) else float(value)
        return rng.choice(
            (known + 0.01, known - 30, -known, known * 1.001 + 1e-6, 0.0, 1.0, np.nan, np.inf, 1e9)
        )
    return rng.choice(
        ("x", "", None, "none", "<script>", "France", "{", '{"answer": [99999]}', "q" * 300)
    )


def _equal(one: Any, two: Any) -> bool:
    lists = [list(value) if isinstance(value, np.ndarray) else value for value in (one, two)]
    missing = [not isinstance(value, list) and bool(pd.isna(value)) for value in lists]
    return all(missing) if any(missing) else lists[0] == lists[1]


def edit_values(run: Path, name: str, rng: random.Random) -> str:
    """Change a value, a column or the rows of a table, and adapt the row count of the record."""
    file = run / f"{name}.parquet"
    if not file.exists():
        return ""
    frame = pd.read_parquet(file)
    if frame.empty:
        return ""
    kind = rng.choice(
        ("value", "value", "value", "column", "permute", "drop", "drop group", "repeat", "reverse")
    )
    column, row = rng.choice(list(frame.columns)), rng.randrange(len(frame))
    values = frame[column].tolist()
    if kind in ("value", "column"):
        new = other_value(values[row], frame[column], rng)
        kind += f" {new!r}"[:60]
        values = (
            [new] * len(frame)
            if kind.startswith("column")
            else [*values[:row], new, *values[row + 1 :]]
        )
        frame[column] = pd.Series(
            values, index=frame.index, dtype=None if _fits(values, frame[column]) else object
        )
    elif kind == "permute":
        rng.shuffle(values)
        frame[column] = pd.Series(values, index=frame.index, dtype=frame[column].dtype)
    elif kind == "drop":
        frame = frame.drop(index=row)
    elif kind == "drop group":
        keep = [not _equal(one, values[row]) for one in values]
        frame = frame[keep]
    elif kind == "repeat":
        frame = pd.concat([frame, frame.iloc[[row]]])
    else:
        frame = frame.iloc[::-1]
    schema = None
    frame.reset_index(drop=True).to_parquet(file, index=False, schema=schema)
    record = json.loads((run / "run.json").read_text(encoding="utf8"))
    record["sweeps"][0]["rows"][name] = len(frame)
    (run / "run.json").write_text(json.dumps(record), encoding="utf8")
    return f"{name}: {kind}, column {column}, row {row}"


def _fits(values: list[Any], column: pd.Series) -> bool:
    return not pd.api.types.is_integer_dtype(column.dtype) or all(
        isinstance(one, int) for one in values
    )


def edit_record(
    run: Path, keys: tuple[str, ...], rng: random.Random, *, rename: bool = False
) -> str:
    """Change one entry of a part of the record; with ``rename``, give the run the id that belongs
    to it, in all files.
    """
    file = run / "run.json"
    record = json.loads(file.read_text(encoding="utf8"))
    key = rng.choice(keys)
    part = record if key in record else record["sweeps"][0]
    if key not in part:
        return ""
    before = json.dumps(part[key])
    described = {name: part[key][name] for name in DESCRIPTIONS.get(key, ()) if rename}
    if isinstance(part[key], dict | list) and part[key]:
        done = edit_json(part[key], rng)
    else:
        part[key] = f"{part[key]}x"
        done = "another text"
    if described:
        part[key] = {**part[key], **described}
    if json.dumps(part[key], sort_keys=True) == json.dumps(json.loads(before), sort_keys=True):
        return ""
    sweep = record["sweeps"][0]
    if rename:
        old, new = sweep["run_id"], run_id_of(sweep["config"], sweep["model"], sweep["data"])
        sweep["run_id"] = new
        for name in ("samples", "examples", "contrasts"):
            if (table := run / f"{name}.parquet").exists():
                pd.read_parquet(table).assign(run_id=new).to_parquet(table, index=False)
        if (run / "probes" / old).is_dir():
            (run / "probes" / old).rename(run / "probes" / new)
    file.write_text(json.dumps(record), encoding="utf8")
    return f"{key}: {done}"


def edit_consistently(run: Path, rng: random.Random) -> str:
    """Change the value of one sample, and all that follows from it, as the library computes it."""
    (result,) = al.load_run(run)
    frame = pd.read_parquet(run / "samples.parquet")
    p = frame.index[frame["metric"] == frame["metric"].iloc[0]]
    row = rng.choice(list(p))
    scale = 100 if frame["unit"].iloc[0] == "percentage points" else 1
    before, after = frame.loc[row, "value_before"], frame.loc[row, "value_after"]
    new = min(1.0, after + 0.2) if after < 0.7 else after - 0.2
    samples = result.samples(all_columns=True)
    sign = np.sign(frame.loc[row, "effect"] / (after - before)) if after != before else 1.0
    if (new >= 0.5) != (after >= 0.5) or not np.isfinite(sign):
        return ""
    samples.loc[row, ["value_after", "effect"]] = [new, sign * scale * (new - before)]
    if samples.loc[row, "logp_after"] == np.log(after):
        samples.loc[row, ["logp_after", "logit_diff_after"]] = [
            np.log(new),
            np.log(new) - np.log1p(-new),
        ]
    home = run / "probes" / result.run_id
    made = type(result).make(
        result.protocol, samples, result.examples(all_columns=True), result.record, result.run_id
    )
    made.with_probes(home if home.is_dir() else {}).save(run, overwrite=True)
    return f"samples: row {row}, value_after {after:.3g} -> {new:.3g}, with all that follows"


def attack(run: Path, target: str, rng: random.Random) -> str:
    """Change a run, write its sums, and return what was done; empty if nothing was."""
    if target == "derived":
        done = edit_values(run, rng.choice(("curves", "contrasts")), rng)
    elif target in ("samples", "inputs"):
        done = edit_values(run, {"samples": "samples", "inputs": "examples"}[target], rng)
    elif target == "findings":
        done = edit_record(run, ("verdict", "findings"), rng)
    elif target == "record":
        done = edit_record(
            run,
            (
                "counts",
                "checks",
                "noise",
                "probe",
                "pairs",
                "pending",
                "run_id",
                "config",
                "model",
                "data",
            ),
            rng,
        )
    elif target == "configuration":
        done = edit_record(run, ("config", "model", "data"), rng, rename=True)
    elif target == "provenance":
        done = edit_record(run, PROVENANCE, rng)
    elif target == "figure":
        page = (run / "figure.html").read_text(encoding="utf8")
        (run / "figure.html").write_text(
            rng.choice(("<script>alert(1)</script>", page + " ", page[::-1])), encoding="utf8"
        )
        done = "figure.html"
    else:
        done = edit_consistently(run, rng)
    write_sums(run)
    return done


def run_attack(attacked: Attacked, number: int, seed: int) -> tuple[str, str, str, str]:
    """Attack a copy of a run; return target, outcome, what was done, and the message."""
    for attempt in range(100):
        rng = random.Random(f"{seed}:{number}:{attempt}")
        target, name = rng.choice(TARGETS), rng.choice(list(attacked.runs))
        with tempfile.TemporaryDirectory(dir=attacked.folder) as scratch:
            copy = Path(scratch) / "run"
            shutil.copytree(attacked.runs[name], copy)
            if done := attack(copy, target, rng):
                if name == "swap" and target == "samples" and "column logit_diff" in done:
                    target = (  # nothing follows from the difference to the donor's answer but its own curve
                        "consistent"
                    )
                if done.startswith("noise: .cells"):
                    target = (  # a checked cell of a probe sweep gives several differences
                        "provenance"
                    )
                if done.startswith("config: .max_new_tokens"):
                    target = "provenance"  # no answer is generated, so no result depends on it
                found, message = _outcome(attacked, name, copy, rng)
                return target, found, f"{name}: {done}", message
    raise AssertionError("no attack changed anything")


def _outcome(attacked: Attacked, name: str, run: Path, rng: random.Random) -> tuple[str, str]:
    refusal, seen, checked_less = "", "", False
    reader = rng.choice(list(READERS))
    try:
        try:
            seen = see(run)
            READERS[reader](run)
        except AnchorlensError as why:
            refusal = str(why)
        try:
            verified = attacked.verify(run, name)
            lacking = [
                [one.what for one in own.checks if "not " in one.status + one.detail]
                for own in (verified, attacked.checks[name])
            ]
            checked_less = lacking[0] != lacking[1]
            problems = [
                f"{one.what}: {one.detail}" for one in verified.checks if one.status == "mismatch"
            ]
        except AnchorlensError as why:
            problems = [str(why)]
    except Exception:  # noqa: BLE001 - what is not an error of this package is the finding
        return "raw", f"{reader}\n{traceback.format_exc(limit=-6)}"
    message = "; ".join([refusal, *problems])
    if any("\n" in one for one in (refusal, *problems)):
        return "several lines", message
    if problems:
        return ("clear error" if refusal else "mismatch"), message
    if seen == attacked.seen[name] and not refusal:
        return "right", message
    return ("not checked" if checked_less else "silently other"), message


def without_drawing() -> Any:
    """Return a context in which figures of runs are empty: their drawing takes longer than
    everything else.
    """
    stack = patch.multiple(recompute, main_figure=lambda results: go.Figure())
    return stack, patch.multiple(saving, main_figure=lambda results: go.Figure())


def main() -> None:
    """Run the cases, print the counts and every case that is neither found nor without effect."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", type=int, help="run this case alone and print its message")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    counts = {name: Counter[str]() for name in TARGETS}
    first, second = without_drawing()
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder, first, second:
        attacked = Attacked(Path(folder))
        for number in (
            range(args.first, args.first + args.cases) if args.only is None else (args.only,)
        ):
            target, found, done, message = run_attack(attacked, number, args.seed)
            counts[target][found] += 1
            is_limit = target in ("consistent", "provenance") and found == "silently other"
            if (found in OUTCOMES[4:] and not is_limit) or args.only is not None:
                print(f"case {number}: {target}, {found}: {done}\n{message}", flush=True)
    for target, own in counts.items():
        print(
            f"{target}: {sum(own.values())} cases,"
            f" {', '.join(f'{name} {own[name]}' for name in OUTCOMES)}"
        )


if __name__ == "__main__":
    main()
