"""What the command line prints: tables for people, JSON for scripts."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import pandas as pd

    from anchorlens.results.sweep import SweepResult


def note(text: str) -> None:
    """A line on standard error."""
    click.echo(text, err=True)


def report(results: "Sequence[SweepResult]", target: Path, *, as_json: bool) -> None:
    import pandas as pd

    from anchorlens.results.knockout import KnockoutResult

    cut = [r for r in results if isinstance(r, KnockoutResult)]
    swaps = [r for r in results if not isinstance(r, KnockoutResult)]
    tables = [pd.concat([r.summary() for r in group], ignore_index=True) for group in (swaps, cut) if group]
    if as_json:
        counts = [{"model": r.model, "dataset": r.dataset, **r.record["counts"]} for r in results]
        summary = [row for table in tables for row in _records(table)]
        verdicts = [{"model": r.model, "dataset": r.dataset, "verdict": r.verdict} for r in cut]
        out = {"run": str(target), "figure": str(target / "figure.html"), "summary": summary, "counts": counts}
        click.echo(json.dumps(out | ({"verdicts": verdicts} if cut else {}), ensure_ascii=False))
        return
    if swaps:
        _print_summary(tables[0])
    if cut:
        _print_knockout(tables[-1])
    for result in results:
        gone = ", ".join(f"{reason} {n}" for reason, n in result.dropped().items()) or "none"
        short = sum(result.record["counts"].get("null_shortfall", {}).values())
        more = f"; null slots without a position: {short}" if short else ""
        n, unit = len(result.example_ids), "rows" if isinstance(result, KnockoutResult) else "questions"
        click.echo(f"{result.dataset} ({result.model}): {n} {unit}; dropped: {gone}{more}")
    for result in cut:
        click.echo("\n" + _folded(f"{result.dataset} ({result.model}): {result.verdict}"))
    click.echo()
    click.echo(f"figure  {target / 'figure.html'}")
    click.echo(f"run     {target}")


def _folded(text: str) -> str:
    """Lines that break between words in a terminal; one line for a pipe."""
    return click.wrap_text(text, shutil.get_terminal_size().columns - 1) if sys.stdout.isatty() else text


def _print_knockout(summary: "pd.DataFrame") -> None:
    """AUC, groups and effects at k*, as a table."""

    def points(row: dict[str, Any], key: str) -> str:
        value = row.get(key)
        return "-" if value is None else f"{value:+.1f}"

    def share(row: dict[str, Any], key: str) -> str:
        value = row.get(key)
        return "-" if value is None else f"{value:.2f}"

    rows = [
        (
            str(r["model"]), str(r["dataset"]), str(r["layer"]), share(r, "auc"), share(r, "auc_knocked_out"),
            share(r, "text_only_auc"), f"{points(r, 'q')} ({r['n_q']})", f"{points(r, 'a')} ({r['n_a']})", points(r, "all"),
            points(r, "gap_matched"), points(r, "gap_random_tokens"), points(r, "effect_random_tokens"),
        )
        for r in _records(summary.astype(object).where(summary.notna(), None))
    ]  # fmt: skip
    head = (
        "model", "data set", "layer", "AUC", "cut", "text only", "Q (n)", "A (n)", "All", "matched", "placebo", "effect",
    )  # fmt: skip
    title = "Knockout at k*, ΔP in percentage points. AUC: clean, cut, text alone. Effect = matched gap less placebo gap"
    names = {row[0] for row in rows}
    if len(names) == 1:  # said once, it leaves the table narrow enough for a terminal
        title, head, rows = f"{title}\n{names.pop()}", head[1:], [row[1:] for row in rows]
    _table(title, head, rows, right=[name for name in head if name not in ("model", "data set")])


def _records(frame: "pd.DataFrame") -> list[dict[str, object]]:
    return json.loads(frame.to_json(orient="records", double_precision=12))


def _print_summary(summary: "pd.DataFrame") -> None:
    """The strongest effect of every curve, as a table."""
    rows = [
        (
            str(r["model"]), str(r["dataset"]), str(r["anchor"]), str(r["layer"]), f"{r['delta_p']:+.1f}",
            f"[{r['ci_low']:+.1f}, {r['ci_high']:+.1f}]", "-" if r["null"] is None else f"{r['null']:+.1f}",
            f"{r['p_before']:.2f}", str(r["n"]),
        )
        for r in _records(summary.astype(object).where(summary.notna(), None))
    ]  # fmt: skip
    _table(
        "Strongest effect of each curve (ΔP in percentage points)",
        ("model", "data set", "anchor", "layer", "ΔP", "95 % interval", "null", "P before", "n"), rows,
        right=("layer", "ΔP", "95 % interval", "null", "P before", "n"),
    )  # fmt: skip


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    for name in head:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console()
    # Piped output has no width; a table folded to 80 columns is of no use to grep.
    Console(width=console.width if console.is_terminal else 160, soft_wrap=False).print(table)


def _as_dict(record: object) -> dict[str, Any]:
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return dataclasses.asdict(record)
    assert isinstance(record, Mapping)
    return dict(record)


def listing(title: str, records: Iterable[object], *, as_json: bool) -> None:
    rows = [_as_dict(record) for record in records]
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    head = tuple(rows[0])
    _table(title, head, [["" if row[key] is None else str(row[key]) for key in head] for row in rows])
