"""Contents of a report besides figures and rows: findings, tables, dropped rows, provenance, and study files."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anchorlens.errors import AnchorlensError
from anchorlens.protocols.registry import specification_of
from anchorlens.protocols.specification import tomllib
from anchorlens.results.adjusted_claims import adjust_claims, adjustment_text, claim_rows
from anchorlens.results.findings import Findings
from anchorlens.results.sweep import SweepResult

# A TOML list of numbers with one number per line.
_LINES = re.compile(r"\[\n((?: +-?[\d.]+,\n)+)\]")
_NUMBER = re.compile(r"[-+−]?\d|[-–]$")


@dataclass(frozen=True)
class Table:
    """Table of a report, optionally with column heads."""

    rows: list[list[str]]
    columns: list[str]
    caption: str = ""

    @property
    def numbers(self) -> list[bool]:
        """Whether each column holds numbers."""
        return [all(_NUMBER.match(cell) for cell in column) for column in zip(*self.rows, strict=True)]


def findings_table(findings: Findings) -> Table:
    """Return the table of the findings; it may be empty."""
    return Table([list(row) for row in findings.rows], list(findings.columns))


def claims_table(results: Sequence[SweepResult]) -> Table:
    """Return the claims of several sweeps, adjusted over the sweeps, with a caption; empty for one sweep."""
    claims = adjust_claims(results)
    text = adjustment_text(claims, results)
    heads, rows = claim_rows(claims) if text else ([], [])
    return Table(rows, heads, text)


def name_of(result: SweepResult) -> str:
    """Return the name of a sweep in a report."""
    return f"{kind_of(result)}: {result.model} on {result.dataset}"


def kind_of(result: SweepResult) -> str:
    """Return the title of a sweep's protocol."""
    title = result.protocol.title
    return f"{title[0].upper()}{title[1:]}"


def about(results: Sequence[SweepResult]) -> str:
    """Return a line that summarises the contents of a report."""
    kinds, models, sets = map(dict.fromkeys, zip(*((kind_of(r), r.model, r.dataset) for r in results), strict=True))
    counted = [_count(len(names), one) for names, one in ((models, "model"), (sets, "data set")) if len(names) > 1]
    rows = _count(sum(len(result.example_ids) for result in results), "example")
    return " · ".join([", ".join(kinds), *counted, _count(len(results), "sweep"), rows])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def tables_of(results: Sequence[SweepResult]) -> list[Table]:
    """Return the command line's table of each protocol, without empty columns and those that are equal for all sweeps."""
    groups: dict[str, list[SweepResult]] = {}
    for result in results:
        groups.setdefault(result.protocol.name, []).append(result)
    tables: list[Table] = []
    for group in groups.values():
        caption, frame = group[0].protocol.table(group)
        names = {"model": {r.model for r in results}, "data set": {r.dataset for r in results}}
        frame = frame.drop(columns=[column for column in names if len(names[column]) == 1], errors="ignore").dropna(
            axis=1, how="all"
        )
        if frame.empty:  # no mean over pairs
            continue
        rows = [[_cell(value) for value in row] for row in frame.itertuples(index=False, name=None)]
        tables.append(Table(rows, [str(name) for name in frame.columns], caption))
    return tables


def _cell(value: Any) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def count_drops(results: Sequence[SweepResult]) -> Table:
    """Return the number of dropped rows by sweep and reason, with an example of each."""
    rows: list[list[str]] = []
    for result in results:
        examples = result.examples(all_columns=True)
        gone = examples[examples["role"] == "dropped"]
        for reason, group in sorted(gone.groupby("drop_reason"), key=lambda pair: -len(pair[1])):
            one, why = group["question"].iloc[0], group["drop_detail"].iloc[0]
            rows.append([name_of(result), str(reason), str(len(group)), f"{one} ({why})" if why else one])
    alone = len(results) == 1
    return Table([row[alone:] for row in rows], ["sweep", "reason", "rows", "example"][alone:])


def facts_of(result: SweepResult) -> dict[str, dict[str, str]]:
    """Return the provenance by section."""
    record = result.record
    shown = ("config", "model", "data", "plan", "checks", "noise", "counts", "environment")
    return {
        "run": {"run_id": result.run_id, **({"clock": record["clock"]} if "clock" in record else {})},
        **{name: {key: _to_text(value) for key, value in record[name].items()} for name in shown if record.get(name)},
    }


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]} …"


def command_of(result: SweepResult) -> str:
    """Return the command that measured a sweep."""
    return str(result.record.get("environment", {}).get("command", ""))


def studies_of(results: Sequence[SweepResult]) -> list[str]:
    """Return study files that repeat the sweeps, one for each choice of questions; none for data in memory."""
    groups: dict[str, list[SweepResult]] = {}
    for result in results:
        of = result.record["data"]
        groups.setdefault(json.dumps([of["limit"], of["seed"], of.get("spans"), of.get("reading")]), []).append(result)
    return [text for text in map(_study, groups.values()) if text]


def _study(results: Sequence[SweepResult]) -> str:
    import tomli_w

    models = list(dict.fromkeys(result.model for result in results))
    data = {result.dataset: result.record["data"] for result in results}
    tables: list[dict[str, Any]] = []
    for name, of in data.items():
        kind, _, path = str(of["source"]).partition(":")
        if kind not in ("sample", "file", "hub"):
            return ""
        spans = of.get("spans", "auto")
        table = {"name": name, "path": path if kind == "file" else None, "limit": of["limit"], "seed": of["seed"]}
        table |= {"spans": None if spans == "auto" else spans, **of.get("reading", {})}
        tables.append({key: value for key, value in table.items() if value is not None})
    protocols: list[dict[str, Any]] = []
    for result in results:
        try:
            spec = specification_of(result.protocol.name).from_config(result.record["config"])
            spec = spec.fix_clock(result.record["clock"]) if "clock" in result.record else spec
            changed = {key: value for key, value in tomllib.loads(spec.to_toml()).items() if value is not None}
        except AnchorlensError:
            return ""
        entry = {"name": result.protocol.name, **changed}
        if entry not in protocols:
            protocols.append(entry)
    text = tomli_w.dumps({"models": models, "data": tables, "protocol": protocols})
    return _LINES.sub(lambda found: f"[{', '.join(found[1].replace(',', ' ').split())}]", text)
