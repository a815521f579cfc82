"""What was measured, as records, as tables for a terminal and as Markdown."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from peers.client import NAMES
from peers.jobs import Case
from rich.table import Table

COLUMNS = ("anchors", "n", "engine", "seconds", "× cone", "bound", "MiB", "with model", "ΔP off", "rounds")
_POINTS = 100


@dataclass
class Measured:
    """One engine on one case.

    Attributes:
        seconds: Of each round.
        peak_mib: Of each round; None where the system does not tell.
        with_model_mib: The same with the loaded model.
        answer: P of the last round, as the worker gave it.
        failed: Why there is no answer.
    """

    seconds: list[float] = field(default_factory=list)
    peak_mib: list[float | None] = field(default_factory=list)
    with_model_mib: list[float | None] = field(default_factory=list)
    answer: dict[str, Any] = field(default_factory=dict)
    failed: str = ""


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        case: The benchmark row.
        engine: Who.
        seconds: Median over the rounds; None where it failed.
        all_seconds: Of each round.
        ratio: Median over the rounds of its time divided by the cone's in the same round.
        peak_mib: Highest of all rounds.
        with_model_mib: The same with the loaded model.
        difference: Largest difference of a ΔP to the reference, in percentage points.
        bound_seconds: For the cone: its floating-point operations at the rate of a large matrix product on this machine.
        failed: Why there is no number.
    """

    case: Case
    engine: str
    seconds: float | None
    all_seconds: tuple[float, ...]
    ratio: float | None
    peak_mib: float | None
    with_model_mib: float | None
    difference: float | None
    bound_seconds: float | None
    failed: str


def lines_of(case: Case, measured: dict[str, Measured], bound_seconds: float) -> list[Line]:
    """The lines of one case. The reference is the oracle, or the first engine with an answer where the oracle was left out."""
    ran = [engine for engine, m in measured.items() if m.answer]
    reference = measured["oracle" if "oracle" in ran else ran[0]].answer if ran else {}
    cone = measured["cone"].seconds if "cone" in ran else []
    lines: list[Line] = []
    for engine, m in measured.items():
        ratios = [mine / its for mine, its in zip(m.seconds, cone, strict=False)]
        peaks = [peak for peak in m.peak_mib if peak is not None]
        whole = [peak for peak in m.with_model_mib if peak is not None]
        lines.append(
            Line(
                case=case,
                engine=engine,
                seconds=median(m.seconds) if m.seconds else None,
                all_seconds=tuple(m.seconds),
                ratio=median(ratios) if ratios else None,
                peak_mib=max(peaks) if peaks else None,
                with_model_mib=max(whole) if whole else None,
                difference=largest_difference(m.answer, reference) if m.answer else None,
                bound_seconds=bound_seconds if engine == "cone" else None,
                failed=m.failed,
            )
        )
    return lines


def largest_difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Largest |difference of ΔP| of two answers over all anchors, layers and rows, in percentage points."""

    def deltas(answer: dict[str, Any]) -> list[float]:
        return [
            p - before
            for anchor in sorted(answer["p"])
            for layer in answer["p"][anchor]
            for p, before in zip(layer, answer["p_before"], strict=True)
        ]

    return _POINTS * max(abs(a - b) for a, b in zip(deltas(one), deltas(other), strict=True))


def _texts(line: Line) -> tuple[str, ...]:
    """The cells of one line."""

    def number(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    return (
        line.case.anchors,
        str(line.case.examples),
        NAMES[line.engine],
        line.failed.split(",")[0]
        if line.failed.startswith("left out")
        else "failed"
        if line.failed
        else number(line.seconds, ".2f"),
        number(line.ratio, ".2f"),
        number(line.bound_seconds, ".2f"),
        number(line.peak_mib, ".0f"),
        number(line.with_model_mib, ".0f"),
        number(line.difference, ".0e"),
        str(len(line.all_seconds)),
    )


def rich_tables(lines: Sequence[Line]) -> list[Table]:
    """One table for each prompt."""
    tables: list[Table] = []
    for prompt in dict.fromkeys(line.case.prompt for line in lines):
        table = Table(title=f"prompt {prompt}")
        for i, column in enumerate(COLUMNS):
            table.add_column(column, justify="left" if i in (0, 2) else "right")
        before: Case | None = None
        for line in (line for line in lines if line.case.prompt == prompt):
            if before is not None and before != line.case:
                table.add_section()
            before = line.case
            table.add_row(*_texts(line), style="bold" if line.engine == "cone" else None)
        tables.append(table)
    return tables


def legend(run: dict[str, Any]) -> str:
    """What the columns are."""
    return (
        "Cells: the stream that enters a block is replaced at an anchor's positions by a donor's, at every layer; P of the first "
        "answer token. n: examples, each with one donor. Seconds: median over the rounds, clean runs of bases and donors "
        "included, loading left out. × cone: median over the rounds of the time divided by the cone's in the same round. Bound: "
        "seconds that the cone's floating-point operations take at the rate of a large matrix product here, "
        f"{run['matrix_gflops']:.0f} GFLOP/s. MiB: highest resident anonymous memory above its value before the sweep; with model: "
        f"above its value before the model was loaded. ΔP off: largest difference of a ΔP to that of {run['reference']}, in "
        f"percentage points. Rounds: an engine whose first round of a case took longer than {run['max_seconds']:g} s got no further "
        f"one (but {' and '.join(NAMES[e] for e in run['every_round'])} always did). Left out: it would have taken many "
        "minutes more (--spare)."
    )


def remarks(lines: Sequence[Line], run: dict[str, Any]) -> list[str]:
    """Engines that failed or run with other versions than the rest."""
    failed = dict.fromkeys((line.engine, line.failed) for line in lines if line.failed and line.failed != "left out")
    return [
        *(f"{NAMES[engine]} failed: {why}" for engine, why in failed),
        *(f"{NAMES[engine]} {note}" for engine, note in run["environments"].items()),
    ]


def machine(run: dict[str, Any]) -> str:
    """What it ran on."""
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return f"{run['model']}, float32; {run['cpu']}, threads: {run['threads']}; {versions}."


def markdown(lines: Sequence[Line], run: dict[str, Any]) -> str:
    """The whole report."""
    text = ["# Benchmarks", "", f"`{run['command']}`", "", machine(run), "", legend(run)]
    for remark in remarks(lines, run):
        text += ["", remark]
    for prompt in dict.fromkeys(line.case.prompt for line in lines):
        text += ["", f"## Prompt `{prompt}`", "", f"| {' | '.join(COLUMNS)} |"]
        text += ["|" + "|".join("---" if i in (0, 2) else "---:" for i in range(len(COLUMNS))) + "|"]
        text += ["| " + " | ".join(_texts(line)) + " |" for line in lines if line.case.prompt == prompt]
    return "\n".join(text) + "\n"


def record(lines: Sequence[Line], run: dict[str, Any]) -> dict[str, Any]:
    """Everything as JSON."""
    return {**run, "lines": [{**asdict(line), "case": line.case.name} for line in lines]}
