"""Fuzz study files and command lines: every invalid one ends in one message of ours and exit code
2.

``python -m tests.fuzz_arguments --cases 3000 --seed 0`` counts the outcomes and prints the cases
that end otherwise. Every case is a dry run in this process. Models and data are checked, but no
model is loaded and nothing is measured.
"""

import argparse
import contextlib
import copy
import datetime
import io
import os
import random
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import jaxtyping
import pytest
import tomli_w

import anchorlens as al
from anchorlens import cli
from anchorlens.errors import AnchorlensError
from anchorlens.measure.budget import SweepPlan
from anchorlens.running.executors import LocalExecutor
from tests.models.tiny import save_tiny
from tests.questions.make import capitals
from tests.shell import write_questions

LONG = "x" * 100_000
# Of another type or range than most arguments.
VALUES: list[Any] = [
    0,
    1,
    -1,
    2,
    300,
    2**63,
    10**30,
    -(10**30),
    0.5,
    2.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    True,
    False,
    "",
    " ",
    "0",
    "1",
    "2.5",
    "1/2",
    "0/0",
    "3/2",
    "1e9",
    "yes",
    "auto",
    "all",
    "none",
    "cpu",
    "cuda",
    "cuda:7",
    "mps",
    "float16",
    "ray",
    "a:1",
    "4GB",
    "-4:",
    "0-11",
    "0,0",
    "a=b",
    "question=q,answers=gold",
    "subject -> later",
    "fewshot(2)",
    "{question}",
    "{",
    "swap",
    "qa",
    "popqa-sample",
    "[red]x[/]",
    "quiz [/v2]",
    "<b>x</b>",
    "%s{0}",
    "../..",
    "/",
    ".",
    "~nobody/x",
    "nothing.jsonl",
    "ü☃😀",
    "a\nb",
    "a\x00b",
    "\x1b[2J",
    LONG,
    "9" * 5_000,
    [],
    [[]],
    ["a", "a"],
    [1, "a"],
    [0, 2],
    [10**30],
    list(range(3_000)),
    {},
    {"a": 1},
    {"name": {"name": "a"}},
    datetime.date(2026, 1, 2),
]
SURROGATES = ["\udcff", "a\ud800b", "x\udfff.jsonl"]


@dataclass(frozen=True)
class Case:
    """A study file and the arguments of a command; None if the command reads no study."""

    args: tuple[str, ...]
    study: str | None = None

    def __str__(self) -> str:
        text = " ".join(map(ascii, self.args)) + ("" if self.study is None else f" {self.study!a}")
        return text if len(text) < 400 else f"{text[:200]} ... {text[-200:]}"


@dataclass(frozen=True)
class Outcome:
    """Kind of an outcome (``accepted``, ``clear``, ``several lines``, ``other exit code``, ``raw``)
    and its message.
    """

    kind: str
    message: str = ""


@dataclass(frozen=True)
class Place:
    """Folder with a small model, questions, prompt pairs and a run; the folder of every case."""

    folder: Path
    model: str

    @classmethod
    @contextlib.contextmanager
    def make(cls, folder: Path) -> "Iterator[Place]":
        """Make the files, and let no case load a model or reach the hub until the end of
        the block.
        """
        place = cls(folder, str(save_tiny("llama", folder / "llama")))
        write_questions(folder / "mine.jsonl")
        (folder / "pairs.csv").write_text(
            "clean,corrupted,answer,wrong\nA B,A C,B,C\nB A,C A,B,C\n"
        )
        options = {
            "align": "last",
            "n_donors": 1,
            "layers": (0,),
            "n_resamples": 20,
            "n_spot_checks": 0,
            "progress": False,
        }
        with pytest.MonkeyPatch.context() as patch:
            al.swap_sweep(place.model, capitals(5), **options).save(folder / "done")
            patch.chdir(folder)
            patch.setenv("HF_HUB_OFFLINE", "1")
            patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
            patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it
            plan = SweepPlan(
                engine="cone",
                reason="",
                batch_sizes=(1,),
                questions=1,
                cells=1,
                flops=1.0,
                seconds=1.0,
                peak_bytes=1,
                pass_bytes=1,
                max_memory=None,
            )
            station = SimpleNamespace(free=1, plan=lambda free: SimpleNamespace(cost=plan))
            patch.setattr(LocalExecutor, "make_runner", lambda *given: station)
            yield place

    def run(self, case: Case) -> Outcome:
        """Run the command of a case; of a study file also ``Study.check``, which must agree."""
        if case.study is not None:
            (self.folder / "study.toml").write_text(case.study, encoding="utf8")
        found = _outcome(case.args)
        if case.study is not None and case.args == _RUN:
            checked = _checked(self.folder / "study.toml")
            return checked if checked.kind != "clear" and checked.kind != found.kind else found
        return found


_RUN = ("run", "study.toml", "--quiet", "--dry-run")


def _outcome(args: tuple[str, ...]) -> Outcome:
    out, err, code = io.StringIO(), io.StringIO(), None
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        try:
            cli.main(list(args))
        except SystemExit as stopped:
            code = stopped.code
        except BaseException as error:  # noqa: BLE001 - counted
            return Outcome("raw", _raw(error))
    if code == 0:
        return Outcome("accepted")
    _, sign, message = (
        err.getvalue().strip().rpartition("Error: ")
    )  # after the usage, warnings and notes
    if not sign or "\n" in message or len(message) > 1_500:
        return Outcome("several lines", message)
    # A download that fails is no invalid input.
    return Outcome(
        "clear" if code == 2 or "HF_HUB_OFFLINE" in message else "other exit code", message
    )


def _checked(file: Path) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            al.Study.from_toml(file).check()
        except AnchorlensError as error:
            return Outcome("clear", str(error))
        except BaseException as error:  # noqa: BLE001 - counted
            return Outcome("raw", _raw(error))
    return Outcome("accepted")


def _raw(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:200]} ({Path(last.filename).name}:{last.lineno})"


# --- studies
# -------------------------------------------------------------------------------------------------------------------


def study_of(model: str) -> dict[str, Any]:
    """Return a valid study as values of TOML."""
    return {
        "models": [model],
        "device": "cpu",
        "dtype": "float32",
        "stream": False,
        "n_devices": 1,
        "data": [
            {
                "name": "mine",
                "path": "mine.jsonl",
                "limit": 5,
                "seed": 1,
                "spans": "auto",
                "dataset_name": "quiz",
            },
            {"name": "popqa-sample", "limit": 4},
        ],
        "protocol": [
            {
                "name": "swap",
                "align": "last",
                "n-donors": 1,
                "layers": "0,2",
                "anchors": ["exact_question"],
                "null": ["norm_matched"],
            },
            {
                "name": "knockout",
                "layers": [0, 1],
                "n_resamples": 50,
                "edges": "subject -> later",
                "max_memory": "2GB",
            },
        ],
    }


def _tables(value: Any) -> list[Any]:
    inner = (
        list(value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else []
    )
    own = [value] if isinstance(value, dict) or (isinstance(value, list) and value) else []
    return own + [one for part in inner for one in _tables(part)]


def _mutate_value(rng: random.Random, value: Any) -> Any:
    """Return another value, often close to the given one."""
    if isinstance(value, str) and value and rng.random() < 0.3:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(["", "x", "[", "\x00", "é", "-", value]) + value[at + 1 :]
    if isinstance(value, int) and rng.random() < 0.3:
        return rng.choice([value + 1, -value, str(value), float(value), [value]])
    if rng.random() < 0.1:
        deep: Any = value
        for _ in range(rng.choice([1, 3, 40, 80])):
            deep = [deep]
        return deep
    return copy.deepcopy(rng.choice(VALUES))


def mutate_study(rng: random.Random, model: str) -> Case:
    """Return a study with up to three mutated keys, values or tables, or mutated text."""
    study = study_of(model)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        table = rng.choice(_tables(study))
        keys = list(table) if isinstance(table, dict) else range(len(table))
        if not keys:
            continue
        key, act = rng.choice(list(keys)), rng.random()
        if act < 0.65:
            table[key] = _mutate_value(rng, table[key])
        elif act < 0.75:
            del table[key]
        elif act < 0.85 and isinstance(table, dict):
            table[str(_mutate_value(rng, str(key))) if rng.random() < 0.5 else "seed"] = table[key]
        elif isinstance(table, dict):
            table["".join(rng.sample("abcdefgh", 3))] = copy.deepcopy(rng.choice(VALUES))
        else:
            table.append(copy.deepcopy(table[key]))
    text = tomli_w.dumps(_with_text_keys(study))
    if rng.random() < 0.15:
        text = _mutate_text(rng, text)
    more = ("--job", str(rng.choice(VALUES))) if rng.random() < 0.05 else ()
    return Case((*_RUN, *(one.replace("\x00", "") for one in more)), text)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_text_keys(one) for key, one in value.items()}
    return [_with_text_keys(one) for one in value] if isinstance(value, list) else value


def _mutate_text(rng: random.Random, text: str) -> str:
    lines, at = text.splitlines(), rng.randrange(len(text))
    line = rng.randrange(len(lines))
    return rng.choice(
        [
            text[:at],
            text[:at] + text[at + 1 :],
            text[:at] + rng.choice('"[]{}=#\n\x00.') + text[at:],
            "\n".join([*lines[:line], *lines[line + 1 :]]),
            "\n".join([*lines, lines[line]]),
            f"device = {'[' * 3_000}{']' * 3_000}\n" + text.replace("device", "dtype"),
            f"n_devices = {'9' * 5_000}\n" + text.replace("n_devices", "dtype"),
            text.replace('"', "'"),
            text.replace("[[", "["),
            text * 2,
            "",
        ]
    )


# --- arguments
# -----------------------------------------------------------------------------------------------------------------


def commands_of(model: str) -> list[list[str]]:
    """Return valid commands, each option with its value in one argument."""
    own = [
        f"--model={model}",
        "--limit=5",
        "--layers=0,2",
        "--seed=1",
        "--resamples=50",
        "--device=cpu",
    ]
    data = ["--dataset=mine", "--data-file=mine=mine.jsonl", "--spans=auto"]
    run = ["--out=out", "--quiet"]
    return [
        [
            "swap",
            *own,
            *data,
            *run,
            "--align=last",
            "--n-donors=1",
            "--anchors=exact_question,pre_answer",
            "--prompt=qa",
        ],
        [
            "swap",
            *own,
            *data,
            *run,
            "--dtype=float32",
            "--n-devices=1",
            "--max-memory=2GB",
            "--engine=cone",
            "--null=norm_matched",
        ],
        ["swap", *own, *data, *run, "--job=1/2"],
        [
            "swap",
            *own,
            *data,
            *run,
            "--executor=ray",
            "--workers=1",
            "--address=127.0.0.1:1",
            "--gpus-per-worker=0",
        ],
        ["swap", "--config=options.toml", *own, *data],
        [
            "knockout",
            *own,
            *data,
            *run,
            "--edges=subject -> later",
            "--knockout-mode=zero",
            "--batch-size=2",
        ],
        ["patch-tokens", *own, *data, *run, "--n-spot-checks=1"],
        ["answer-only", *own, *data, *run, "--add-bos=no", "--max-new-tokens=4"],
        ["patch", *(one for one in own if "limit" not in one), "--pairs=pairs.csv", *run],
        ["run", "study.toml", *run],
        ["status", "done"],
        ["status", "done", "--json"],
        ["merge", "done"],
        ["verify", "done", "--seed=1"],
        ["models"],
        ["datasets", "--json"],
        ["report", "done", "--out=report.html", "--title=One"],
        [
            "figure",
            "done",
            "--out=figure.html",
            "--title=One",
            "--anchors=exact_question",
            "--metric=p",
            "--bands=pointwise",
            "--width=900",
        ],
        [
            "figure",
            "done",
            "--out=labelled.html",
            "--label=a",
            "--contrasts=none",
            "--style=paper",
            "--colour=curve",
            "--facet=dataset",
            "--theme=light",
            "--scale=2",
        ],
    ]


def _text(rng: random.Random) -> str:
    text = rng.choice(SURROGATES) if rng.random() < 0.1 else str(rng.choice(VALUES))
    return text.replace("\x00", "")  # no argument of a process holds one


def mutate_arguments(rng: random.Random, model: str) -> Case:
    """Return a command with up to three mutated options, a mutated option file, or options of
    another command.
    """
    commands = commands_of(model)
    args = list(rng.choice(commands))
    measures = args[0] in ("swap", "knockout", "patch-tokens", "answer-only", "patch", "run")
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        at, act = rng.randrange(len(args)), rng.random()
        name, sign, _ = args[at].partition("=")
        if act < 0.6:
            args[at] = f"{name}={_text(rng)}" if sign else _text(rng)
        elif act < 0.7 and at:
            del args[at]
        elif act < 0.8:
            args.insert(at + 1, args[at])
        elif act < 0.9:
            args.insert(1, rng.choice(rng.choice(commands)[1:] or ["--help"]))
        else:
            args[at] = args[at][:-1] + rng.choice(["", "x", "=", "\udcff", "ß"])
    options = {
        name.lstrip("-").replace("-", "_"): value
        for name, _, value in (one.partition("=") for one in commands[0][1:4])
    }
    options |= {rng.choice(["limit", "quiet", "anchors", "n-donors", "out"]): _mutate_value(rng, 1)}
    Path("options.toml").write_text(tomli_w.dumps(options), encoding="utf8")
    more = ["--dry-run"] if measures else ["--cells=0"] if args[0] == "verify" else []
    return Case((*args, *more), tomli_w.dumps(study_of(model)) if args[0] == "run" else None)


def fuzz(place: Place, cases: int, seed: int) -> Iterator[tuple[str, Case, Outcome]]:
    """Yield target, case and outcome; two of three cases are study files."""
    kinds: list[tuple[str, Callable[[random.Random, str], Case]]] = [
        ("study file", mutate_study),
        ("study file", mutate_study),
        ("arguments", mutate_arguments),
    ]
    for number in range(cases):
        target, mutate = kinds[number % len(kinds)]
        case = mutate(random.Random(f"{seed} {number}"), place.model)
        yield target, case, place.run(case)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz_arguments", description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--cases", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder, Place.make(Path(folder)) as place:
        for target, case, outcome in fuzz(place, given.cases, given.seed):
            counts.setdefault(target, Counter())[outcome.kind] += 1
            if outcome.kind not in ("accepted", "clear"):
                print(f"{outcome.kind}: {case}\n    {outcome.message[:300]}", flush=True)
    for target, own in counts.items():
        print(
            f"{target}: {sum(own.values())} cases,"
            f" {', '.join(f'{kind} {n}' for kind, n in own.most_common())}"
        )


if __name__ == "__main__":
    main()
