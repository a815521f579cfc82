"""Replace the numbers of columns of the type ``ClassLabel`` by the names of their classes."""

import json
from collections.abc import Mapping
from typing import Any

from anchorlens.display import short_repr
from anchorlens.errors import DataError


def name_classes(rows: list[dict[str, Any]], features: object, source: str) -> list[dict[str, Any]]:
    """Return rows with the names of classes, also inside lists and objects.

    Args:
        rows: Rows of a data set.
        features: Types of its columns, as ``datasets.Features.to_dict`` writes them.
        source: Name of the data set, for errors.

    Raises:
        DataError: If a class has no name.
    """
    if not isinstance(features, Mapping):
        return rows
    labelled = {name: kind for name, kind in features.items() if _has_classes(kind)}
    named: list[dict[str, Any]] = []
    for number, row in enumerate(rows, start=1):
        own = dict(row)
        for name, kind in labelled.items():
            if name in row:
                own[name] = _name_cell(row[name], kind, f"{source}, row {number}: {name}")
        named.append({name: cell for name, cell in own.items() if cell is not None})
    return named


def read_features(metadata: "Mapping[bytes, bytes] | None") -> object:
    """Return the types of columns that ``datasets`` has written into a parquet file, if any."""
    text = (metadata or {}).get(b"huggingface")
    try:
        return json.loads(text)["info"]["features"] if text else None
    except (ValueError, LookupError, TypeError):  # metadata of another program
        return None


def _is_list(kind: Mapping[str, Any]) -> bool:
    return "feature" in kind and "_type" in kind


def _has_classes(kind: object) -> bool:
    if isinstance(kind, list):
        return any(_has_classes(one) for one in kind)
    if not isinstance(kind, Mapping):
        return False
    if kind.get("_type") == "ClassLabel":
        return True
    if _is_list(kind):
        return _has_classes(kind["feature"])
    return any(_has_classes(one) for one in kind.values())


def _name_cell(cell: Any, kind: Any, where: str) -> Any:
    """Return a cell with names for the numbers of classes; None for -1, a missing label."""
    if isinstance(kind, Mapping) and kind.get("_type") == "ClassLabel":
        names = kind.get("names") or ()
        if not isinstance(cell, int) or isinstance(cell, bool) or cell == -1:
            return None if cell == -1 else cell
        if not 0 <= cell < len(names):
            raise DataError(
                f"{where}={short_repr(cell)}: the column has {len(names)} classes, numbered from 0."
                " Write the answer as text."
            )
        return names[cell]
    inner = kind
    if isinstance(kind, list) and len(kind) == 1:
        inner = kind[0]
    elif isinstance(kind, Mapping) and _is_list(kind):
        inner = kind["feature"]
    if isinstance(cell, list):
        return [_name_cell(one, inner, where) for one in cell]
    if isinstance(cell, Mapping) and isinstance(inner, Mapping):
        cells: dict[Any, Any] = {}
        for name, one in cell.items():
            has_kind = name in inner
            cells[name] = _name_cell(one, inner[name], where) if has_kind else one
        return cells
    return cell
