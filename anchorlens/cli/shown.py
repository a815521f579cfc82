"""What the command line prints: tables for people, JSON for scripts."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import pandas as pd

    from anchorlens.protocols.study import Outcome
    from anchorlens.results.sweep import SweepResult


def note(text: str) -> None:
    """A line on standard error."""
    click.echo(text, err=True)


def show_result(result: "SweepResult") -> None:
    """What one finished sweep found."""
    title, table = result.protocol.table([result])
    frame = table.drop(columns=[name for name in ("model", "data set", "dataset") if name in table.columns])
    heading = f"{result.protocol.name}: {result.dataset} ({result.model})\n{title}"
    show_table(
        heading, list(frame.columns), [[str(v) for v in row] for row in frame.itertuples(index=False)], right=frame.columns
    )
    gone = ", ".join(f"{reason} {n}" for reason, n in result.dropped_counts.items()) or "none"
    short = sum(result.record["counts"].get("null_shortfall", {}).values())
    rows = result.record["counts"].get("rows")
    splits = f" ({', '.join(f'{n} {name}' for name, n in rows.items())} rows)" if rows else ""
    more = f"; null slots without a position: {short}" if short else ""
    click.echo(f"{len(result.example_ids)} measured rows{splits}; dropped: {gone}{more}")
    if result.verdict:
        click.echo("\n" + _folded(result.verdict))
    click.echo()


def outcome_json(outcome: "Outcome") -> str:
    """One object for scripts."""
    by_protocol: dict[str, list[SweepResult]] = {}
    for result in outcome.results:
        by_protocol.setdefault(result.protocol.name, []).append(result)
    return json.dumps(
        {
            "run": str(outcome.out), "figure": str(outcome.out / "figure.html") if outcome.out else None,
            "summary": [
                {"protocol": name, **row} for name, some in by_protocol.items() for r in some for row in records(r.summary())
            ],
            "counts": [{"model": r.model, "dataset": r.dataset, **r.record["counts"]} for r in outcome.results],
            "verdicts": [{"model": r.model, "dataset": r.dataset, "verdict": r.verdict} for r in outcome.results if r.verdict],
        },
        ensure_ascii=False,
    )  # fmt: skip


def records(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """Rows of a frame as JSON has them."""
    return json.loads(frame.to_json(orient="records", double_precision=12))


def _folded(text: str) -> str:
    """Sentences break between words in a terminal; the lines of a table (indented) stay as they are."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns - 1
    return "\n".join(line if line.startswith(" ") else click.wrap_text(line, width) for line in text.splitlines())


def show_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> None:
    """A table for people."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    numbers = set(right) - {"anchor"}
    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    for name in head:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console()
    # Piped output has no width; a table folded to 80 columns is of no use to grep.
    Console(width=console.width if console.is_terminal else 160, soft_wrap=False).print(table)


def listing(title: str, things: Iterable[object], *, as_json: bool) -> None:
    """A table of records, or a JSON list of them."""
    rows = [_as_dict(thing) for thing in things]
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    head = tuple(rows[0])
    show_table(title, head, [["" if row[key] is None else str(row[key]) for key in head] for row in rows])


def _as_dict(record: object) -> dict[str, Any]:
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return dataclasses.asdict(record)
    assert isinstance(record, Mapping)
    return dict(record)


__all__ = ["listing", "note", "outcome_json", "records", "show_result", "show_table"]
