"""Measure the cost of a default sweep beside its cells: CPU seconds of checks, noise floor and
trial row; FLOPs of the null.

    python benchmarks/cost.py PYTHONPATH=OTHER/TREE python benchmarks/cost.py --label before
    the same for another version of the package

All arguments except prompt, anchors and donors have their defaults. The script makes only public
calls and times the phases of the progress bar, so it runs on older versions too. GFLOP are those of
the plan. Seconds are medians over the rounds, with one thread unless --threads is given.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

import torch
from peers.jobs import ANCHOR_SETS, DATA, plan_of, some_questions
from peers.report import markdown_table, rich_table, show, spread, write_section

import anchorlens as al
from anchorlens.progress import Progress
from anchorlens.running import runner as driver

TITLE = "Cost of a default sweep"
COLUMNS = (
    "prompt",
    "anchors",
    "rows",
    "sweep s",
    "min–max",
    "cells s",
    "null off s",
    "checks s",
    "share",
    "GFLOP",
    "null off",
    "×",
)
_TRIAL, _CHECKS, _MEASURING = "trial", "checks", ""


class Clock:
    """Counts CPU seconds by phase; one phase at a time.

    Attributes:
        spent: Phase -> seconds.
    """

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._phase: str | None = None
        self._since = 0.0

    def enter(self, phase: str | None) -> None:
        """Start a phase and end the one before; None: count nothing."""
        now = time.process_time()
        if self._phase is not None:
            self.spent[self._phase] = self.spent.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now


@contextmanager
def timed() -> Iterator[Clock]:
    """Time the phases of a sweep's progress, and the choice of the engine, which includes the trial
    row.
    """
    clock = Clock()
    # The methods that are replaced inside the block.
    own = {"__init__": Progress.__init__, "enter": Progress.enter, "close": Progress.close}
    choose = driver.choose_engine

    def before(method: Callable[..., Any], phase: Callable[..., str | None]) -> Callable[..., Any]:
        @wraps(method)
        def called(*args: Any, **kwargs: Any) -> Any:
            clock.enter(phase(*args))
            return method(*args, **kwargs)

        return called

    def chosen(*args: Any, **kwargs: Any) -> Any:
        clock.enter(_TRIAL)
        try:
            return choose(*args, **kwargs)
        finally:
            clock.enter(None)

    phases: dict[str, Callable[..., str | None]] = {
        "__init__": lambda *_: _MEASURING,
        # Clean passes and the first batch are measuring too.
        "enter": lambda _, phase: phase if phase == _CHECKS else _MEASURING,
        "close": lambda _: None,
    }
    try:
        for name, method in own.items():
            setattr(Progress, name, before(method, phases[name]))
        driver.choose_engine = chosen
        yield clock
    finally:
        for name, method in own.items():
            setattr(Progress, name, method)
        driver.choose_engine = choose
        clock.enter(None)


def main() -> None:
    """Measure all cases and print the table."""
    args = _arguments()
    torch.set_num_threads(args.threads)
    model = al.load_model("smollm2-135m-instruct", device="cpu")
    rows = [
        _line(model, prompt, anchors, n, args)
        for prompt in args.prompts
        for anchors in args.anchors
        for n in args.rows
    ]
    said = (
        f"SmolLM2-135M-Instruct, {DATA}, n_donors={args.donors}, threads: {args.threads}. CPU"
        f" seconds, medians of {args.rounds} rounds. sweep s: the whole call, with smallest and"
        " largest. cells s: its cells; null off s: the same with n_null_donors=0. checks s: spot"
        " checks, noise floor and trial row, and their share of the whole call. The remaining time"
        " is spent on rows, pairs and frames. GFLOP: cells of the plan, with the null, without it,"
        " and the ratio."
    )
    show([rich_table(COLUMNS, rows, title=args.label or None)], [said])
    if args.markdown is not None:
        command = shlex.join(["python", "benchmarks/cost.py", *sys.argv[1:]])
        title = f"{TITLE}: {args.label}" if args.label else TITLE
        write_section(
            args.markdown, title, [f"`{command}`", "", said, "", *markdown_table(COLUMNS, rows)]
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", nargs="+", default=["qa", "fewshot(2)", "fewshot(5)", "chat"])
    parser.add_argument(
        "--anchors", nargs="+", choices=list(ANCHOR_SETS), default=["pre_answer", "both"]
    )
    parser.add_argument("--rows", nargs="+", type=int, default=[2, 14])
    parser.add_argument(
        "--donors", type=int, default=4, help="n_donors (default: 4, as in swap_sweep)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--label", default="", help="added to the title")
    parser.add_argument(
        "--markdown",
        type=Path,
        default=None,
        metavar="FILE",
        help="also write the table into this file",
    )
    return parser.parse_args()


def _line(
    model: Any, prompt: str, anchors: str, n: int, args: argparse.Namespace
) -> tuple[str, ...]:
    """Measure one line of the table."""
    arguments = {"prompt": prompt, "anchors": ANCHOR_SETS[anchors], "n_donors": args.donors}
    data, _ = some_questions(model, al.load_qa(DATA), n, **arguments)
    # Without checks: plans of only some versions count them.
    gflop, without = (
        plan_of(model, data, n_spot_checks=0, n_null_donors=nulls, **arguments).flops / 1e9
        for nulls in (1, 0)
    )
    al.swap_sweep(model, data, progress=False, layers=[0], **arguments)  # warm up
    whole: list[float] = []
    measuring: list[float] = []
    bare: list[float] = []
    checks: list[float] = []
    for _ in range(args.rounds):
        spent, total = _spent(model, data, arguments)
        whole.append(total)
        measuring.append(spent.pop(_MEASURING))
        checks.append(sum(spent.values()))
        bare.append(_spent(model, data, arguments | {"n_null_donors": 0})[0][_MEASURING])
    print(
        f"{prompt} {anchors} {n}: {median(whole):.2f} CPU s, of these {median(checks):.2f} of"
        " checks",
        file=sys.stderr,
        flush=True,
    )
    share = median(mine / its for mine, its in zip(checks, whole, strict=True))
    return (
        prompt,
        anchors,
        str(n),
        f"{median(whole):.2f}",
        spread(whole),
        f"{median(measuring):.2f}",
        f"{median(bare):.2f}",
        f"{median(checks):.2f}",
        f"{100 * share:.0f} %",
        f"{gflop:,.0f}",
        f"{without:,.0f}",
        f"{gflop / without:.1f}",
    )


def _spent(
    model: Any, data: al.QAData, arguments: dict[str, Any]
) -> tuple[dict[str, float], float]:
    """Return CPU seconds by phase, and of the whole call.

    Raises:
        SystemExit: If the sweep has no phase for its checks, so that they would count as measuring.
    """
    with timed() as clock:
        started = time.process_time()
        al.swap_sweep(model, data, progress=False, **arguments)
        total = time.process_time() - started
    if not {_CHECKS, _TRIAL, _MEASURING} <= set(clock.spent):
        raise SystemExit(f"This version names other phases: {', '.join(map(repr, clock.spent))}.")
    return clock.spent, total


if __name__ == "__main__":
    main()
