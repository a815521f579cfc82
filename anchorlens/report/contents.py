"""What a report says beside figures and rows: findings, tables, what was left out, provenance, and how to measure it again."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anchorlens.errors import AnchorlensError
from anchorlens.protocols.registry import protocol_of
from anchorlens.protocols.specification import tomllib
from anchorlens.results.sweep import SweepResult

# Numbers, such as layers, one a line.
_LINES = re.compile(r"\[\n((?: +-?[\d.]+,\n)+)\]")
_NUMBER = re.compile(r"[-+−]?\d|[-–]$")


@dataclass(frozen=True)
class Table:
    """A table of a page.

    Attributes:
        rows: Its cells.
        columns: Their heads; none where the rows speak for themselves.
        caption: What it shows.
    """

    rows: list[list[str]]
    columns: list[str]
    caption: str = ""

    @property
    def numbers(self) -> list[bool]:
        """Of each column, whether it holds numbers."""
        return [all(_NUMBER.match(cell) for cell in column) for column in zip(*self.rows, strict=True)]


@dataclass(frozen=True)
class Verdict:
    """A verdict in its parts.

    Attributes:
        beware: What has to be known before it is believed.
        finding: The first sentence.
        table: The numbers behind it; may have no row.
        notes: Everything after that.
    """

    beware: list[str]
    finding: str
    table: Table
    notes: list[str]


def verdict_of(text: str) -> Verdict:
    """The parts of a verdict: its lines, of which those of a table are indented, with two spaces or more between cells."""
    lines = text.splitlines()
    cells = [re.split(r" {2,}", line.strip()) for line in lines if line.startswith(" ")]
    width = max(map(len, cells), default=0)
    rows = [row + [""] * (width - len(row)) for row in cells]
    # A row of heads has no number behind its name.
    headed = bool(rows) and not _NUMBER.match(rows[0][1] if width > 1 else rows[0][0])
    beware = [line for line in lines if line.startswith("Beware:")]
    said = [line for line in lines if not line.startswith((" ", "Beware:"))]
    table = Table(rows[headed:], rows[0] if headed else [])
    return Verdict(beware, said[0] if said else "", table, said[1:])


def name_of(result: SweepResult) -> str:
    """What a report calls a sweep."""
    return f"{kind_of(result)}: {result.model} on {result.dataset}"


def kind_of(result: SweepResult) -> str:
    """Its protocol, for people."""
    title = result.protocol.title
    return f"{title[0].upper()}{title[1:]}"


def about(results: Sequence[SweepResult]) -> str:
    """Of what the report is, in a line."""
    kinds, models, sets = (
        list(dict.fromkeys(names)) for names in zip(*((kind_of(r), r.model, r.dataset) for r in results), strict=True)
    )
    counted = [_counted(len(names), one) for names, one in ((models, "model"), (sets, "data set")) if len(names) > 1]
    rows = _counted(sum(len(result.example_ids) for result in results), "example")
    return " · ".join([", ".join(kinds), *counted, _counted(len(results), "sweep"), rows])


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def tables_of(results: Sequence[SweepResult]) -> list[Table]:
    """The tables that a terminal shows, one a protocol; a column that says the same of every sweep is left out."""
    groups: dict[str, list[SweepResult]] = {}
    for result in results:
        groups.setdefault(result.protocol.name, []).append(result)
    found: list[Table] = []
    for own in groups.values():
        caption, frame = own[0].protocol.table(own)
        same = [
            column for column, names in (("model", {r.model for r in results}), ("data set", {r.dataset for r in results}))
            if len(names) == 1 and column in frame.columns
        ]  # fmt: skip
        frame = frame.drop(columns=same)
        rows = [[_cell(value) for value in row] for row in frame.itertuples(index=False, name=None)]
        found.append(Table(rows, [str(name) for name in frame.columns], caption))
    return found


def _cell(value: Any) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def dropped_of(results: Sequence[SweepResult]) -> Table:
    """What was left out: of which sweep, why, how many rows, and one of them."""
    rows: list[list[str]] = []
    for result in results:
        examples = result.examples()
        gone = examples[examples["role"] == "dropped"]
        for reason, group in sorted(gone.groupby("drop_reason"), key=lambda pair: -len(pair[1])):
            one, why = str(group["question"].iloc[0]), str(group["drop_detail"].iloc[0])
            rows.append([name_of(result), str(reason), str(len(group)), f"{one} ({why})" if why else one])
    alone = len(results) == 1
    return Table([row[alone:] for row in rows], ["sweep", "reason", "rows", "one of them"][alone:])


def facts_of(result: SweepResult) -> dict[str, dict[str, str]]:
    """Provenance by section: what was asked for, of what, with what."""
    record = result.record
    shown = ("config", "model", "data", "plan", "checks", "noise", "counts", "environment")
    return {
        "run": {"run_id": result.run_id},
        **{name: {key: _said(value) for key, value in record[name].items()} for name in shown if record.get(name)},
    }


def _said(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]} …"


def command_of(result: SweepResult) -> str:
    """The command that measured it, as it was given."""
    return str(result.record.get("environment", {}).get("command", ""))


def studies_of(results: Sequence[SweepResult]) -> list[str]:
    """Studies' files that measure the same again, one for each choice of questions.

    What code of the user's own, or a table from memory, took part in is left out.
    """
    groups: dict[str, list[SweepResult]] = {}
    for result in results:
        of = result.record["data"]
        groups.setdefault(json.dumps([of["limit"], of["seed"], of.get("spans")]), []).append(result)
    return [text for text in map(_study, groups.values()) if text]


def _study(results: Sequence[SweepResult]) -> str:
    import tomli_w

    models = list(dict.fromkeys(result.model for result in results))
    data = {result.dataset: result.record["data"] for result in results}
    tables: list[dict[str, Any]] = []
    for name, of in data.items():
        source = str(of["source"])
        if not source.startswith(("sample:", "file:", "hub:")):
            return ""
        table = {"name": name, "path": source.removeprefix("file:") if source.startswith("file:") else None}
        table |= {"limit": of["limit"], "seed": of["seed"], "spans": of.get("spans", "auto")}
        tables.append({key: value for key, value in table.items() if value is not None and (key, value) != ("spans", "auto")})
    protocols: list[dict[str, Any]] = []
    for result in results:
        try:
            spec = protocol_of(result.protocol.name).spec.from_config(result.record["config"])
            changed = {key: value for key, value in _changed(spec).items() if value is not None}
        except AnchorlensError:
            return ""
        entry = {"name": result.protocol.name, **changed}
        if entry not in protocols:
            protocols.append(entry)
    text = tomli_w.dumps({"models": models, "data": tables, "protocol": protocols})
    return _LINES.sub(lambda found: f"[{', '.join(found[1].replace(',', ' ').split())}]", text)


def _changed(spec: Any) -> dict[str, Any]:
    return tomllib.loads(spec.to_toml())


__all__ = [
    "Table", "Verdict", "about", "command_of", "dropped_of", "facts_of", "kind_of", "name_of", "studies_of", "tables_of",
    "verdict_of",
]  # fmt: skip
