"""Output of the command line: text tables and JSON."""

import dataclasses
import json
import re
import shlex
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


# ``name=value`` of a message, or a quoted value of the user, which is left as it is.
_ARGUMENT = re.compile(
    r"(?<![\w='])'[^']*'"
    r"|(?<![\w.-])(?P<name>[a-z_]+)="
    r"(?P<value>'[^']*'|\{[^{}]*\}|[\[(][^\[\]()]*[\])]|\.\.\.|[\w+-]+(?:\.\d+)?|)"
)
# Cure of a broken run, which commands that only read runs lack as an option.
_RESTART = "restart=True"
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
    """Return a message of the Python interface in the words of the command line: arguments that it
    writes as ``name=value`` become options. Those that cannot be written so, and those that the
    error carries without naming them, follow in brackets.

    If ``command`` is None, use the running command.

    >>> options = [click.Option([name]) for name in ("--layers", "--limit")]
    >>> command = click.Command("swap", params=options)
    >>> with_options("layers=[30, 40]: use -3 to 2, or a larger limit=.", command)
    '--layers 30,40: use -3 to 2, or a larger --limit.'
    >>> with_options("Discard it with restart=True.", command)
    'Discard it with --restart of the command that measured the run.'
    >>> with_options("Call load_qa(data, limit=5).", command, ["layers"])
    'Call load_qa(data, limit=5). (--limit, --layers)'
    """
    context = click.get_current_context(silent=True)
    params = command.params if command else context.command.params if context else []
    options = {one.name or "": one for one in params if isinstance(one, click.Option)}
    behind: list[str] = []

    def translate(match: re.Match[str]) -> str:
        name = _RENAMED.get(match["name"] or "", match["name"])
        option = options.get(name or "")
        if option is None and options and match[0] == _RESTART:
            return "--restart of the command that measured the run"
        if option is None:
            return match[0]
        written = _shell_words(option, match["value"])
        if not written or _is_in_call(text, match.start()):
            behind.append(name)
            return match[0]
        return written

    said = _ARGUMENT.sub(translate, text)
    behind += [_RENAMED.get(name, name) for name in arguments]
    found = [options[name].opts[0] for name in dict.fromkeys(behind) if name in options]
    missing = [option for option in found if not re.search(rf"{option}(?![\w-])", said)]
    return f"{said} ({', '.join(missing)})" if missing else said


def _is_in_call(text: str, start: int) -> bool:
    """Return whether a place of a message is within the brackets of a Python call."""
    opened = text.rfind("(", 0, start)
    return opened > max(0, text.rfind(")", 0, start)) and text[opened - 1].isalnum()


def _shell_words(option: click.Option, value: str) -> str:
    """Return an option with a value that is written as in Python, as a shell takes them; empty if
    there is no such form.

    >>> _shell_words(click.Option(["--prompt"]), "'fewshot(2)'")
    "--prompt 'fewshot(2)'"
    >>> _shell_words(click.Option(["--columns"]), "{'question': 'q'}")
    '--columns question=q'
    >>> _shell_words(click.Option(["--quick"], is_flag=True), "True")
    '--quick'
    """
    name = option.opts[0]
    if not value:
        return name
    if option.is_flag:
        other = option.secondary_opts
        return {"True": name, "False": other[0] if other else ""}.get(value, "")
    if value.startswith("{"):
        pairs = re.findall(r"'([^']*)': '([^']*)'", value)
        return f"{name} {','.join(f'{field}={column}' for field, column in pairs)}" if pairs else ""
    if value.startswith("'"):
        return f"{name} {shlex.quote(value[1:-1])}"
    if value[0] in "[(":
        items = [item.strip().strip("'") for item in value[1:-1].split(",")]
        return f"{name} {shlex.quote(','.join(filter(None, items)))}"
    return "" if value in ("True", "False", "None") else f"{name} {value}"


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
    if result.rounding_note:
        echo(result.rounding_note)
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
    cells: list[list[str]] = []
    for row in rows:
        values = [row[key] for key in head]
        cells.append(["" if value is None else str(value) for value in values])
    show_table(title, head, cells)
