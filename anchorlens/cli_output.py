"""What the command line prints: tables for people, JSON for scripts."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import pandas as pd

    from anchorlens.results.sweep import SweepResult


def report(results: "Sequence[SweepResult]", target: Path, *, as_json: bool) -> None:
    import pandas as pd

    summary = pd.concat([r.summary() for r in results], ignore_index=True)
    if as_json:
        counts = [{"model": r.model, "dataset": r.dataset, **r.record["counts"]} for r in results]
        out = {"run": str(target), "figure": str(target / "figure.html"), "summary": _records(summary), "counts": counts}
        click.echo(json.dumps(out, ensure_ascii=False))
        return
    _print_summary(summary)
    for result in results:
        gone = ", ".join(f"{reason} {n}" for reason, n in result.dropped().items()) or "none"
        short = sum(result.record["counts"]["null_shortfall"].values())
        more = f"; null slots without a position: {short}" if short else ""
        click.echo(f"{result.dataset} ({result.model}): {len(result.example_ids)} questions; dropped: {gone}{more}")
    click.echo()
    click.echo(f"figure  {target / 'figure.html'}")
    click.echo(f"run     {target}")


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
