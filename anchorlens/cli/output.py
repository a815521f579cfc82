"""Output of the command line: text tables and JSON."""

import dataclasses
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from anchorlens.display import escape_hidden, escape_hidden_json, list_counts

if TYPE_CHECKING:
    import pandas as pd

    from anchorlens.results.sweep import SweepResult
    from anchorlens.running.run_study import Outcome


# Python argument -> name of its option.
_RENAMED = {"source": "pairs", "path": "data_file", "dataset_name": "dataset", "name": "dataset"}


def echo(text: str) -> None:
    """Print a text; characters that a terminal would obey or hide are shown as escapes."""
    click.echo(_wrap(escape_hidden(text), is_terminal=sys.stdout.isatty()))


def echo_json(text: str) -> None:
    """Print a JSON text, with the escapes of JSON for such characters."""
    click.echo(escape_hidden_json(text))


def note(text: str) -> None:
    click.echo(_wrap(escape_hidden(text), is_terminal=sys.stderr.isatty()), err=True)


def _wrap(text: str, *, is_terminal: bool) -> str:
    """Return a text whose long lines end between words where a terminal shows it; the rows of
    tables, with columns two blanks apart, stay.
    """
    if not is_terminal:
        return text
    width = shutil.get_terminal_size().columns
    lines: list[str] = []
    for line in text.split("\n"):
        is_row = "  " in line.strip()
        if len(line) <= width or is_row:
            lines.append(line)
        else:
            lines += textwrap.wrap(
                line, width, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
            )
    return "\n".join(lines)


def note_error(text: str) -> None:
    """Print an error as one line; long words and lines, which are values of the user, are cut."""
    line = re.sub(r"(\S{60})\S{240,}?([.,:;')]*)(?=\s|$)", r"\1…\2", " ".join(text.split("\n")))
    note(f"Error: {line if len(line) <= 1200 else f'{line[:900]} … {line[-200:]}'}")


def describe_os_error(error: OSError) -> str:
    return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}."


def with_options(
    text: str, command: click.Command | None = None, arguments: Iterable[str] = ()
) -> str:
    """Append the options of the arguments that an error carries or a message writes as ``name=``
    outside quotes, with the value where the message has one to copy.

    If ``command`` is None, use the running command.
    """
    context = click.get_current_context(silent=True)
    params = command.params if command else context.command.params if context else []
    options = {one.name: one.opts[0] for one in params if isinstance(one, click.Option)}
    unquoted = re.sub(r"(?<!\w)'[^']*'", "", text)
    # What is to be left out ("without quick=True") is no option to give.
    named = [*arguments, *re.findall(r"(?<!without )\b([a-z_]+)=", unquoted)]
    names = dict.fromkeys(_RENAMED.get(name, name) for name in named)
    found = [options[name] + _shell_value(text, name) for name in names if name in options]
    return f"{text} ({', '.join(found)})" if found else text


def _shell_value(text: str, name: str) -> str:
    """Return the value that a message gives an argument, as a shell takes it; empty for none.

    >>> _shell_value("Use prompt='fewshot(2)' or known_only=True.", "prompt")
    " 'fewshot(2)'"
    >>> _shell_value("Pass columns={'question': '...'}.", "columns")
    ' question=...'
    """
    advice = re.search(rf"\b(?:[Uu]se|[Pp]ass|[Gg]ive|or) {name}=('[^']*'|{{[^}}]*}})", text)
    if advice is None:
        return ""
    value = advice[1]
    if value.startswith("{"):
        pairs = re.findall(r"'([^']*)': '([^']*)'", value)
        return " " + ",".join(f"{field}={column}" for field, column in pairs)
    return f" {value}"


def show_result(result: "SweepResult") -> None:
    title, table = result.protocol.table([result])
    frame = table.drop(columns=["model", "data set", "dataset"], errors="ignore")
    frame = frame.dropna(axis=1, how="all")
    heading = f"{result.protocol.name}: {result.dataset} ({result.model})\n{title}"
    rows = [list(map(_cell, row)) for row in frame.itertuples(index=False)]
    show_table(heading, list(frame.columns), rows, right=frame.columns)
    gone = list_counts(result.dropped_counts) or "none"
    short = sum(result.record["counts"].get("null_shortfall", {}).values())
    rows = result.record["counts"].get("rows")
    n_splits = result.record["config"].get("n_splits", 1)
    splits = ""
    if rows:
        sizes = ", ".join(f"{n} {name}" for name, n in rows.items())
        each = f"{n_splits} splits, each with at least " if n_splits > 1 else ""
        splits = f" ({each}{sizes} rows)"
    missing = f"; positions for which a null had no other token: {short}" if short else ""
    prompt = result.record["config"].get("prompt")
    prompt = f"prompt {prompt}; " if prompt else ""
    echo(f"{prompt}{len(result.example_ids)} measured rows{splits}; dropped: {gone}{missing}")
    if result.verdict:
        echo("\n" + with_options(result.verdict))
    echo("")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.4g}"
    return str(value)


def show_claims(results: "Sequence[SweepResult]") -> None:
    """Print the claims of several sweeps, adjusted over the sweeps; nothing for one sweep."""
    from anchorlens.results.adjusted_claims import adjust_claims, adjustment_text, claim_rows

    claims = adjust_claims(results)
    if text := adjustment_text(claims, results):
        heads, rows = claim_rows(claims)
        show_table(text, heads, rows, right=heads[2:6]) if rows else echo(text)


def outcome_json(outcome: "Outcome") -> str:
    """Return the outcome of a study as one JSON object."""
    from anchorlens.results.adjusted_claims import adjust_claims, adjustment_text

    summary: list[dict[str, Any]] = []
    counts: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    findings: list[dict[str, Any]] = []
    for result in outcome.results:
        protocol = {"protocol": result.protocol.name}
        source = {"model": result.model, "dataset": result.dataset}
        summary += [{**protocol, **row} for row in records(result.summary(all_columns=True))]
        counts.append({**source, **result.record["counts"]})
        if result.verdict:
            verdicts.append({**source, "verdict": result.verdict})
        findings.append({**protocol, **source, **result.findings.to_dict()})
    claims = adjust_claims(outcome.results)
    content = {
        "run": str(outcome.out),
        "figure": str(outcome.out / "figure.html") if outcome.out else None,
        "summary": summary,
        "counts": counts,
        "verdicts": verdicts,
        "findings": findings,
        "claims": records(claims),
        "adjustment": adjustment_text(claims, outcome.results),
    }
    return json.dumps(content, ensure_ascii=False)


def records(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the rows of a frame as JSON records."""
    return json.loads(frame.to_json(orient="records", double_precision=12))


def show_table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()
) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    numbers = set(right) - {"anchor"}
    table = Table(title=escape_hidden(title), title_justify="left", box=SIMPLE, pad_edge=False)
    for name in head:
        table.add_column(
            escape_hidden(name), justify="right" if name in numbers else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*map(escape_hidden, row))
    console = Console()
    # Piped output has no width; 80 columns would fold rows and break grep. Names may hold brackets
    # and colons.
    Console(
        width=console.width if console.is_terminal else 160,
        soft_wrap=False,
        markup=False,
        emoji=False,
    ).print(table)


def listing(title: str, things: Iterable[Any], *, as_json: bool) -> None:
    """Print records as a table or as a JSON list."""
    rows = [one if isinstance(one, dict) else dataclasses.asdict(one) for one in things]
    if as_json:
        echo_json(json.dumps(rows, ensure_ascii=False))
        return
    head = tuple(rows[0])
    cells = [["" if row[key] is None else str(row[key]) for key in head] for row in rows]
    show_table(title, head, cells)
