"""What was measured, as records, as tables for a terminal and as sections of a Markdown file."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from peers.client import NAMES
from peers.jobs import Case, cells_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

COLUMNS = ("engine", "CPU s", "min–max", "× sweep", "wall s", "min–max", "MiB", "all MiB", "ΔP off")
SUMMARY = ("prompt", "anchors", "questions", "donors", "cells", "sweep s", "alone ×", "careful ×", "batch ×", "generic ×")
_POINTS, _WIDTH = 100, 120


@dataclass
class Measured:
    """One engine on one case.

    Attributes:
        answers: Of each round, as the worker gave them.
        failed: Why there is none, or no further one.
    """

    answers: list[dict[str, Any]] = field(default_factory=list)
    failed: str = ""

    def of(self, name: str) -> list[float]:
        """A number of every round; rounds in which the system did not tell it are left out."""
        return [answer[name] for answer in self.answers if answer[name] is not None]


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        case: What was measured.
        cells: How many P after a change.
        engine: Who.
        cpu_seconds: CPU seconds of each round.
        seconds: Seconds of the clock of each round.
        ratio: Median over the rounds of its CPU seconds divided by those of ``swap_sweep`` in the same round.
        peak_mib: Highest of all rounds.
        with_model_mib: The same with the loaded model.
        difference: Largest difference of a ΔP to the reference, in percentage points.
        failed: Why there is no number.
    """

    case: Case
    cells: int
    engine: str
    cpu_seconds: tuple[float, ...]
    seconds: tuple[float, ...]
    ratio: float | None
    peak_mib: float | None
    with_model_mib: float | None
    difference: float | None
    failed: str


def lines_of(case: Case, job: dict[str, Any], measured: dict[str, Measured], reference: str) -> list[Line]:
    """The lines of one case; ``reference`` names the engine whose ΔP the others are compared with."""
    right = measured[reference].answers if reference in measured else []
    sweep = measured["sweep"].of("cpu_seconds") if "sweep" in measured else []
    lines: list[Line] = []
    for engine, m in measured.items():
        cpu = m.of("cpu_seconds")
        ratios = [mine / its for mine, its in zip(cpu, sweep, strict=False)]
        lines.append(
            Line(
                case=case,
                cells=cells_of(job),
                engine=engine,
                cpu_seconds=tuple(cpu),
                seconds=tuple(m.of("seconds")),
                ratio=median(ratios) if ratios else None,
                peak_mib=max(m.of("peak_mib"), default=None),
                with_model_mib=max(m.of("with_model_mib"), default=None),
                difference=max((largest_difference(job, answer, right[0]) for answer in m.answers if right), default=None),
                failed=m.failed,
            )
        )
    return lines


def largest_difference(job: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> float:
    """Largest |difference of ΔP| of two answers to a job over all cells, in percentage points."""

    def deltas(answer: dict[str, Any]) -> list[float]:
        assert sorted(answer["p"]) == sorted(job["places"])  # an engine that leaves a place out agrees with nobody
        return [
            p - before
            for place in job["places"]
            for layer in answer["p"][place]
            for p, before in zip(layer, _those_of(job, place, answer["p_before"]), strict=True)
        ]

    return _POINTS * max(abs(a - b) for a, b in zip(deltas(one), deltas(other), strict=True))


def _those_of(job: dict[str, Any], place: str, values: Sequence[float]) -> list[float]:
    """Of one value for each row, those of the rows that have a place."""
    return [value for row, value in zip(job["rows"], values, strict=True) if place in row["target"]]


def titled(case: Case, cells: int) -> str:
    """A case in words."""
    anchors = "both anchors" if case.anchors == "both" else case.anchors
    questions = f"{case.questions} question{'s' if case.questions > 1 else ''}"
    return f"{case.prompt}, {anchors}, {questions}, {case.donors} donor{'s' if case.donors > 1 else ''} each: {cells:,} cells"


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Smallest and largest."""
    return f"{min(values):{form}}–{max(values):{form}}" if values else "–"


def number(value: float | None, form: str = ".2f") -> str:
    """A number, or a dash."""
    return "–" if value is None else format(value, form)


def _texts(line: Line) -> tuple[str, ...]:
    """The cells of one line."""
    return (
        NAMES[line.engine],
        "failed" if line.failed else number(median(line.cpu_seconds)),
        spread(line.cpu_seconds),
        number(line.ratio),
        number(median(line.seconds) if line.seconds else None),
        spread(line.seconds),
        number(line.peak_mib, ".0f"),
        number(line.with_model_mib, ".0f"),
        number(line.difference, ".0e"),
    )


def _by_case(lines: Sequence[Line]) -> dict[Case, list[Line]]:
    found: dict[Case, list[Line]] = {}
    for line in lines:
        found.setdefault(line.case, []).append(line)
    return found


def _summary(lines: Sequence[Line]) -> list[tuple[str, ...]]:
    """One line a case: what the sweep took, and how many times as much the others did."""
    found: list[tuple[str, ...]] = []
    for case, own in _by_case(lines).items():
        of = {line.engine: line for line in own}
        sweep = of["sweep"].cpu_seconds if "sweep" in of else ()
        ratios = [number(of[name].ratio) if name in of else "–" for name in ("cone", "careful", "batched", "transformer_lens")]
        cpu = number(median(sweep) if sweep else None)
        what = (case.prompt, case.anchors, str(case.questions), str(case.donors), f"{own[0].cells:,}")
        found.append((*what, cpu, *ratios))
    return found


def rich_tables(lines: Sequence[Line]) -> list[Table]:
    """One table for each case, and one of all."""
    tables: list[Table] = []
    for case, own in _by_case(lines).items():
        table = rich_table(COLUMNS, [_texts(line) for line in own], title=titled(case, own[0].cells))
        for i, line in enumerate(own):
            table.rows[i].style = "bold" if line.engine == "sweep" else None
        tables.append(table)
    return [*tables, rich_table(SUMMARY, _summary(lines))]


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Table:
    """A table for a terminal: words to the left, numbers to the right."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column, right in zip(columns, _to_the_right(rows, len(columns)), strict=True):
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def show(tables: Sequence[Table], texts: Sequence[str]) -> None:
    """Print tables and what is said of them; no number is cut off where a terminal is narrow, and a log has no width of its own."""
    width = Console().width if sys.stdout.isatty() else _WIDTH
    console = Console(width=max(width, _WIDTH))
    for table in tables:
        console.print(table)
    for text in texts:
        console.print(text.replace("**", ""), highlight=False, markup=False, width=width)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The same as lines of Markdown."""
    rule = "|".join("---:" if right else "---" for right in _to_the_right(rows, len(columns)))
    return [f"| {' | '.join(columns)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]


def _to_the_right(rows: Sequence[Sequence[str]], n: int) -> list[bool]:
    """Which columns hold numbers."""
    return [all(row[i][:1] in "–-+" or row[i][:1].isdigit() or row[i] == "failed" for row in rows) for i in range(n)]


def legend(run: dict[str, Any]) -> list[str]:
    """What is timed and what the columns are, a paragraph each."""
    return [
        "Cells: the stream that enters a block is replaced at an anchor's positions by a donor's, at every layer, and P of "
        "the first answer token is read; and the same at the null's positions. They are those of a sweep's own plan, nulls "
        "included, and everybody gets just these. Arguments that are not named have their defaults; prompt qa, both "
        "anchors and 4 donors are defaults, too.",
        "What is timed: **anchorlens swap_sweep** is the public call, from questions to the frame of results: rows, "
        "donors, nulls, the engine's trial, all cells, checked cells and noise floor; bands are not in it. **Engine "
        "alone** gets positions and token ids like the peers: trial, plan and passes. **TransformerLens, careful** caches "
        "the clean streams, changes those that enter a layer, runs on from there and unembeds one position, for one anchor "
        "or null after the other or (**in one batch**) for all of a layer together. **generic_activation_patch** is "
        "TransformerLens's own function, a whole pass and all logits for every cell. Oracle, hooks and pyvene take a whole "
        "pass for every cell, too, nnsight one for all anchors and nulls of a layer; all of them pass all rows at once and "
        "unembed one position. Clean runs of bases and donors are in everybody's time; loading the model, reading the file "
        "and a first sweep of one layer, which warms up, are in nobody's.",
        f"CPU s: seconds of all threads of the worker's process, median of {run['rounds']} rounds{_fewer(run)}, with the smallest "
        "and largest; wall s: the same by the clock, which other work on the machine moves more. × sweep, and in the table of "
        "all cases (sweep s: CPU seconds of swap_sweep) alone ×, careful ×, batch × and generic ×: median over the rounds "
        "of its CPU seconds divided by those of swap_sweep in the same round. MiB: highest resident anonymous memory above "
        "its value before the sweep; all MiB: above its value before the model was loaded. ΔP off: the largest difference "
        f"of a ΔP to that of {run['reference']}, in percentage points.",
    ]


def _fewer(run: dict[str, Any]) -> str:
    return "".join(f" ({rounds} of {case})" for case, rounds in run["fewer"].items())


def remarks(lines: Sequence[Line], run: dict[str, Any]) -> list[str]:
    """Engines that failed or run with other versions than the rest."""
    failed = dict.fromkeys((line.engine, line.failed) for line in lines if line.failed)
    return [
        *(f"{NAMES[engine]} failed: {why}" for engine, why in failed),
        *(f"{NAMES[engine]} {note}" for engine, note in run["environments"].items()),
    ]


def machine(run: dict[str, Any]) -> str:
    """What it ran on."""
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return f"{run['model']}, float32; {run['cpu']}, threads: {run['threads']}; {versions}."


def markdown(lines: Sequence[Line], run: dict[str, Any]) -> list[str]:
    """A section's lines."""
    text = [f"`{run['command']}`", "", machine(run), "", *markdown_table(SUMMARY, _summary(lines))]
    for paragraph in (*legend(run), *remarks(lines, run)):
        text += ["", paragraph]
    for case, own in _by_case(lines).items():
        text += ["", f"### {titled(case, own[0].cells)}", "", *markdown_table(COLUMNS, [_texts(line) for line in own])]
    return text


def write_section(file: Path, title: str, lines: Sequence[str]) -> None:
    """Put a section into a Markdown file, in the place of the one of its title, else at the end."""
    old = file.read_text(encoding="utf8").splitlines() if file.is_file() else ["# Benchmarks"]
    heads = [i for i, line in enumerate(old) if line.startswith("## ")]
    start = next((i for i in heads if old[i] == f"## {title}"), len(old))
    end = next((i for i in heads if i > start), len(old))
    before, after = "\n".join(old[:start]).rstrip(), "\n".join(old[end:])
    section = "\n".join([f"## {title}", "", *lines]).rstrip()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n\n".join(part for part in (before, section, after.rstrip()) if part) + "\n", encoding="utf8")


def record(lines: Sequence[Line], run: dict[str, Any]) -> dict[str, Any]:
    """Everything as JSON."""
    return {**run, "lines": [{**asdict(line), "case": line.case.name} for line in lines]}


__all__ = [
    "Line", "Measured", "legend", "lines_of", "machine", "markdown", "markdown_table", "number", "record", "remarks", "rich_table",
    "rich_tables", "show", "spread", "write_section",
]  # fmt: skip
