"""What a report says beside findings and rows, as plain values: what was left out, provenance, and how to measure it again."""

import json
from collections.abc import Sequence
from typing import Any

from anchorlens.errors import AnchorlensError
from anchorlens.protocols.registry import protocol_of
from anchorlens.protocols.specification import tomllib
from anchorlens.results.sweep import SweepResult


def name_of(result: SweepResult) -> str:
    """What a report calls a sweep."""
    title = result.protocol.title
    return f"{title[0].upper()}{title[1:]}: {result.model} on {result.dataset}"


def dropped_of(result: SweepResult) -> list[dict[str, Any]]:
    """What was left out: reason, how many rows, and one of them."""
    examples = result.examples()
    gone = examples[examples["role"] == "dropped"]
    return [
        {
            "reason": str(reason), "rows": len(group), "question": str(group["question"].iloc[0]),
            "detail": str(group["drop_detail"].iloc[0]),
        }
        for reason, group in sorted(gone.groupby("drop_reason"), key=lambda pair: -len(pair[1]))
    ]  # fmt: skip


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


def study_of_results(results: Sequence[SweepResult]) -> str:
    """A study's file that measures the same again; "" where code of the user's own, or tables from memory, took part."""
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
    return tomli_w.dumps({"models": models, "data": tables, "protocol": protocols})


def _changed(spec: Any) -> dict[str, Any]:
    return tomllib.loads(spec.to_toml())


__all__ = ["command_of", "dropped_of", "facts_of", "name_of", "study_of_results"]
