"""Results of the comparison as records, as tables for a terminal and as sections of a Markdown
file.
"""

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
SUMMARY = (
    "prompt",
    "anchors",
    "questions",
    "donors",
    "cells",
    "sweep s",
    "alone ×",
    "careful ×",
    "batch ×",
    "generic ×",
)
_POINTS, _WIDTH = 100, 120


@dataclass
class Measured:
    """One engine on one case.

    Attributes:
        answers: The worker's answer of each round.
        failed: Error message if the engine failed; else empty.
    """

    answers: list[dict[str, Any]] = field(default_factory=list)
    failed: str = ""

    def of(self, name: str) -> list[float]:
        """Return a number of every round; rounds in which the system did not report it are
        omitted.
        """
        return [answer[name] for answer in self.answers if answer[name] is not None]


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        case: Measured case.
        cells: Number of measured cells.
        engine: Name of the engine.
        cpu_seconds: CPU seconds of each round.
        seconds: Wall-clock seconds of each round.
        ratio: Median over the rounds of its CPU seconds divided by those of ``swap_sweep`` in the
            same round.
        peak_mib: Peak memory of a sweep in MiB, maximum over rounds.
        with_model_mib: The same including the loaded model.
        difference: Largest difference of a ΔP from the reference, in percentage points.
        failed: Error message if there is no number; else empty.
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


def lines_of(
    case: Case, job: dict[str, Any], measured: dict[str, Measured], reference: str
) -> list[Line]:
    """Return the lines of one case; ``reference`` names the engine whose ΔP the others are compared
    with.
    """
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
                difference=max(
                    (largest_difference(job, answer, right[0]) for answer in m.answers if right),
                    default=None,
                ),
                failed=m.failed,
            )
        )
    return lines


def largest_difference(job: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest |difference of ΔP| of two answers to a job over all cells, in percentage
    points.
    """

    def deltas(answer: dict[str, Any]) -> list[float]:
        assert sorted(answer["p"]) == sorted(job["places"])  # a missing place is an error
        return [
            p - before
            for place in job["places"]
            for layer in answer["p"][place]
            for p, before in zip(layer, _those_of(job, place, answer["p_before"]), strict=True)
        ]

    return _POINTS * max(abs(a - b) for a, b in zip(deltas(one), deltas(other), strict=True))


def _those_of(job: dict[str, Any], place: str, values: Sequence[float]) -> list[float]:
    """Select the values of the rows that have a place."""
    return [value for row, value in zip(job["rows"], values, strict=True) if place in row["target"]]


def titled(case: Case, cells: int) -> str:
    """Return the title of a case."""
    anchors = "both anchors" if case.anchors == "both" else case.anchors
    questions = f"{case.questions} question{'s' if case.questions > 1 else ''}"
    return (
        f"{case.prompt}, {anchors}, {questions}, {case.donors}"
        f" donor{'s' if case.donors > 1 else ''} each: {cells:,} cells"
    )


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Format the smallest and largest value."""
    return f"{min(values):{form}}–{max(values):{form}}" if values else "–"


def number(value: float | None, form: str = ".2f") -> str:
    """Format a number, or a dash for None."""
    return "–" if value is None else format(value, form)


def _texts(line: Line) -> tuple[str, ...]:
    """Return the table cells of one line."""
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
    """Return one row per case: CPU seconds of the sweep, and those of the others as a multiple."""
    found: list[tuple[str, ...]] = []
    for case, own in _by_case(lines).items():
        of = {line.engine: line for line in own}
        sweep = of["sweep"].cpu_seconds if "sweep" in of else ()
        ratios = [
            number(of[name].ratio) if name in of else "–"
            for name in ("cone", "careful", "batched", "transformer_lens")
        ]
        cpu = number(median(sweep) if sweep else None)
        what = (
            case.prompt,
            case.anchors,
            str(case.questions),
            str(case.donors),
            f"{own[0].cells:,}",
        )
        found.append((*what, cpu, *ratios))
    return found


def rich_tables(lines: Sequence[Line]) -> list[Table]:
    """Return one table per case, and one of all cases."""
    tables: list[Table] = []
    for case, own in _by_case(lines).items():
        table = rich_table(
            COLUMNS, [_texts(line) for line in own], title=titled(case, own[0].cells)
        )
        for i, line in enumerate(own):
            table.rows[i].style = "bold" if line.engine == "sweep" else None
        tables.append(table)
    return [*tables, rich_table(SUMMARY, _summary(lines))]


def rich_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None
) -> Table:
    """Return a table for a terminal with right-aligned numbers."""
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for column, right in zip(columns, _to_the_right(rows, len(columns)), strict=True):
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def show(tables: Sequence[Table], texts: Sequence[str]) -> None:
    """Print tables and notes.

    The width has a minimum, so that narrow terminals and logs show every number.
    """
    width = Console().width if sys.stdout.isatty() else _WIDTH
    console = Console(width=max(width, _WIDTH))
    for table in tables:
        console.print(table)
    for text in texts:
        console.print(text, highlight=False, markup=False, width=width)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines of Markdown."""
    rule = "|".join("---:" if right else "---" for right in _to_the_right(rows, len(columns)))
    return [f"| {' | '.join(columns)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]


def _to_the_right(rows: Sequence[Sequence[str]], n: int) -> list[bool]:
    """Return for each column whether it holds numbers."""
    return [
        all(row[i][:1] in "–-+" or row[i][:1].isdigit() or row[i] == "failed" for row in rows)
        for i in range(n)
    ]


def legend(run: dict[str, Any]) -> list[str]:
    """Return one paragraph each on the cells, on what is timed, and on the columns;
    docs/benchmarks.md has them as tables.
    """
    return [
        (
            "Cells: the residual stream that enters a block is replaced with the donor's at the"
            " positions of an anchor, at every layer, and P of the first answer token is read; the"
            " null does the same at random positions. All engines measure the cells of the plan of"
            " a default sweep, nulls included. Arguments that are not named have their defaults;"
            " prompt qa, both anchors and 4 donors are defaults."
        ),
        (
            "What is timed: anchorlens swap_sweep is the public call, from questions to the result"
            " frame: rows, donors, nulls, trial row, all cells, spot checks and noise floor,"
            " without confidence bands. Engine alone: trial row, plan and passes; positions and"
            " token ids are given, as for the other libraries. TransformerLens, careful: clean"
            " activations are cached, those entering a layer are changed, the pass starts there and"
            " one position is unembedded, for one anchor or null at a time or (in one batch) for"
            " all of a layer. generic_activation_patch: TransformerLens's function, a full pass and"
            " all logits for every cell. Reference engine, hooks and pyvene: a full pass for every"
            " cell; nnsight: one for all anchors and nulls of a layer; all of them with all rows at"
            " once and one position unembedded. Clean runs of questions and donors are timed;"
            " loading the model, reading the file and a first sweep of one layer (warm-up) are not."
        ),
        (
            f"CPU s: seconds of all threads of the engine's process, median of {_rounds(run)}, with"
            " the smallest and largest; wall s: the same by the clock. × sweep, and in the table"
            " of all cases alone ×, careful ×, batch × and generic ×: CPU seconds divided by those"
            " of swap_sweep in the same round, median over rounds. MiB: highest resident anonymous"
            " memory above its value before the sweep; all MiB: above its value before the model"
            f" was loaded. ΔP off: largest difference of a ΔP from that of {run['reference']}, in"
            " percentage points."
        ),
    ]


def _rounds(run: dict[str, Any]) -> str:
    return f"{run['rounds']} rounds" + "".join(
        f" ({rounds} of {case})" for case, rounds in run["fewer"].items()
    )


def remarks(lines: Sequence[Line], run: dict[str, Any]) -> list[str]:
    """Return a sentence for each engine that failed or runs with other versions than the rest."""
    failed = dict.fromkeys((line.engine, line.failed) for line in lines if line.failed)
    return [
        *(f"{NAMES[engine]} failed: {why}" for engine, why in failed),
        *(f"{NAMES[engine]} {note}" for engine, note in run["environments"].items()),
    ]


def machine(run: dict[str, Any]) -> str:
    """Return model, processor, threads and versions."""
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return f"{run['model']}, float32; {run['cpu']}, threads: {run['threads']}; {versions}."


def markdown(lines: Sequence[Line], run: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown section."""
    text = [f"`{run['command']}`", "", machine(run), "", *markdown_table(SUMMARY, _summary(lines))]
    columns = (
        f"Medians of {_rounds(run)}. ΔP off: largest difference from {run['reference']}. Engines"
        " and columns: [How to read the tables](#how-to-read-the-tables)."
    )
    for paragraph in (columns, *remarks(lines, run)):
        text += ["", paragraph]
    for case, own in _by_case(lines).items():
        text += [
            "",
            f"### {titled(case, own[0].cells)}",
            "",
            *markdown_table(COLUMNS, [_texts(line) for line in own]),
        ]
    return text


def write_section(file: Path, title: str, lines: Sequence[str]) -> None:
    """Write a section into a Markdown file: replace the section of this title, or append it."""
    old = file.read_text(encoding="utf8").splitlines() if file.is_file() else ["# Benchmarks"]
    heads = [i for i, line in enumerate(old) if line.startswith("## ")]
    start = next((i for i in heads if old[i] == f"## {title}"), len(old))
    end = next((i for i in heads if i > start), len(old))
    before, after = "\n".join(old[:start]).rstrip(), "\n".join(old[end:])
    section = "\n".join([f"## {title}", "", *lines]).rstrip()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "\n\n".join(part for part in (before, section, after.rstrip()) if part) + "\n",
        encoding="utf8",
    )


def record(lines: Sequence[Line], run: dict[str, Any]) -> dict[str, Any]:
    """Return all results as JSON types."""
    return {**run, "lines": [{**asdict(line), "case": line.case.name} for line in lines]}


__all__ = [
    "Line",
    "Measured",
    "legend",
    "lines_of",
    "machine",
    "markdown",
    "markdown_table",
    "number",
    "record",
    "remarks",
    "rich_table",
    "rich_tables",
    "show",
    "spread",
    "write_section",
]
