"""Read raw rows of a question set from the hub, a file, an embedded sample, a frame, a ``datasets.Dataset`` or a list."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from anchorlens.display import join_words, short_repr
from anchorlens.errors import DataError, DownloadError, InputError, did_you_mean

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class KnownDataset:
    """Question set that ``load_qa`` loads by name.

    Attributes:
        name: Name to pass to ``load_qa``.
        hub_id: Repository on the Hugging Face hub; for a sample, the repository with the same schema.
        config: Default configuration. If None, the repository has only one.
        split: Default split of the repository.
        kind: ``hub`` or ``sample``.
        note: Description in one line.
    """

    name: str
    hub_id: str
    config: str | None
    split: str
    kind: str
    note: str


_HUB = (
    KnownDataset("popqa", "akariasai/PopQA", None, "test", "hub", "14,267 templated questions, 16 relations, with popularity"),
    KnownDataset("triviaqa", "mandarjoshi/trivia_qa", "unfiltered.nocontext", "validation", "hub", "11,313 trivia questions"),
    KnownDataset("hotpotqa", "hotpotqa/hotpot_qa", "distractor", "validation", "hub", "7,405 two-hop questions"),
    KnownDataset("nq", "google-research-datasets/nq_open", None, "validation", "hub", "3,610 search engine questions"),
)
SAMPLE_SUFFIX = "-sample"
_SAMPLE_NOTE = "embedded questions in the schema of {}, written for this package; not rows of that data set"
KNOWN: tuple[KnownDataset, ...] = _HUB + tuple(
    KnownDataset(d.name + SAMPLE_SUFFIX, d.hub_id, d.config, d.split, "sample", _SAMPLE_NOTE.format(d.name)) for d in _HUB
)


def find_dataset(name: str) -> KnownDataset | None:
    """Return the known question set of this name; None if there is none."""
    return next((entry for entry in KNOWN if entry.name == name), None)


def plain(value: Any) -> Any:
    """Convert a value to JSON types: arrays to lists, numpy numbers to Python numbers, missing values to None."""
    if isinstance(value, str | bool | int) or value is None:
        return value
    if type(value).__name__ in {"NAType", "NaTType"}:
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        # Frames write missing values as NaN.
        return None if value != value else float(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def _plain_rows(rows: Iterable[Mapping[Any, Any]]) -> Rows:
    """Return rows with plain values and without empty fields."""
    return [{str(k): v for k, v in ((k, plain(v)) for k, v in row.items()) if v is not None} for row in rows]


def is_table(value: object) -> bool:
    """Return True if :func:`table_rows` reads or rejects a value."""
    return isinstance(value, Mapping | list | tuple) or (
        not isinstance(value, type) and (_is_frame(value) or hasattr(value, "column_names"))
    )


def _is_frame(value: object) -> bool:
    return hasattr(value, "columns") and hasattr(value, "to_dict")


def table_name(table: object) -> str:
    """Return the name of an unnamed table in outputs: ``list``, ``frame`` or ``dataset``."""
    return "list" if isinstance(table, list | tuple) else "frame" if _is_frame(table) else "dataset"


def _list_row(row: object, number: int) -> Mapping[Any, Any]:
    """Return a row of a list as a dictionary; ``number`` counts from 1."""
    if isinstance(row, Mapping):
        return row
    if isinstance(row, tuple | list) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], str | list | tuple):
        return {"question": row[0], "answers": row[1]}
    fix = "Pass dictionaries {'question': ..., 'answers': ...} or pairs (question, answer)"
    raise DataError(f"list, row {number} is {short_repr(row)}. {fix}.")


def table_rows(table: Any) -> Rows:
    """Read a pandas frame, a ``datasets.Dataset``, or a list of dictionaries or (question, answer) pairs."""
    if isinstance(table, Mapping):
        fix = "Pass a list of rows, [{'question': ..., 'answers': ...}]" if "question" in table else "Pass one of its splits"
        raise DataError(f"The table is a dictionary with the keys {join_words(table)}. {fix}.")
    if isinstance(table, list | tuple):
        return _plain_rows(_list_row(row, number) for number, row in enumerate(table, start=1))
    if hasattr(table, "to_dicts"):
        raise DataError(f"Cannot read questions from {short_repr(table)} of this library. Pass frame.to_dicts().")
    if _is_frame(table):
        return _plain_rows(table.to_dict("records"))
    if hasattr(table, "to_list"):
        return _plain_rows(table.to_list())
    raise DataError(f"Cannot read questions from {short_repr(table)}. Pass a pandas frame, a datasets.Dataset or a list of rows.")


def parse_jsonl(text: str, source: str) -> Rows:
    """Parse a jsonl text; blank lines are skipped."""
    rows: Rows = []
    # splitlines() would also split at characters that JSON allows in strings.
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                problem = f"bad JSON at line {number}, column {error.colno} ({error.msg})"
                raise DataError(f"{source}: {problem}. Write one object per line.") from error
            if not isinstance(rows[-1], dict):
                kind = type(rows[-1]).__name__
                raise DataError(f"{source}: line {number} is a {kind}, not an object. Write one object per line.")
    return rows


def _parse_json(text: str, source: str) -> Rows:
    try:
        value = json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        hint = " If it has one object per line, name the file .jsonl." if error.msg == "Extra data" else ""
        raise DataError(f"{source}: bad JSON at line {error.lineno}, column {error.colno} ({error.msg}).{hint}") from error
    rows = value.get("data") if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{source} must contain a list of objects, or an object with such a list under 'data'.")
    return rows


def _parse_table(text: str, source: str, delimiter: str) -> Rows:
    """Parse a csv or tsv text; empty cells are missing fields."""
    reader = csv.DictReader(text.removeprefix("\ufeff").splitlines(keepends=True), delimiter=delimiter)
    rows: Rows = []
    try:
        for row in reader:
            if None in row:
                fix = f"Quote cells that contain {delimiter!r}"
                raise DataError(f"{source}: line {reader.line_num} has more cells than the header has columns. {fix}.")
            rows.append({key: value for key, value in row.items() if value})
    except csv.Error as error:
        raise DataError(f"{source}: line {reader.line_num} cannot be read ({error}).") from error
    return rows


_PARSERS: dict[str, Callable[[str, str], Rows]] = {
    ".jsonl": parse_jsonl,
    ".json": _parse_json,
    ".csv": lambda text, source: _parse_table(text, source, ","),
    ".tsv": lambda text, source: _parse_table(text, source, "\t"),
}
EXTENSIONS = (*_PARSERS, ".parquet")


def file_rows(path: Path) -> Rows:
    """Read a local jsonl, json, csv, tsv or parquet file, selected by its extension."""
    if path.is_dir():
        raise DataError(f"{path} is a directory. Pass one file ({', '.join(EXTENSIONS)}).")
    if not path.exists():
        near = [other.name for other in path.parent.iterdir() if other.suffix in EXTENSIONS] if path.parent.is_dir() else []
        raise DataError(f"No such file: {path}. {did_you_mean(path.name, near) if near else 'Check the path.'}")
    if path.suffix.lower() not in EXTENSIONS:
        raise DataError(f"{path.name}: the extension {path.suffix!r} is not supported. Pass one of {', '.join(EXTENSIONS)}.")
    if path.stat().st_size == 0:
        raise DataError(f"{path.name} is empty. It needs one row per question.")
    if path.suffix.lower() == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            return _plain_rows(pyarrow.parquet.read_table(path).to_pylist())
        except pyarrow.ArrowException as error:
            raise DataError(f"{path.name} is not a readable parquet file ({error}).") from error
    try:
        # newline="" preserves line ends inside quoted cells.
        with path.open(encoding="utf8", newline="") as handle:
            text = handle.read()
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8 (byte {error.start}). Save it as UTF-8.") from error
    return _plain_rows(_PARSERS[path.suffix.lower()](text, path.name))


def sample_rows(entry: KnownDataset) -> Rows:
    """Read an embedded sample."""
    file = resources.files("anchorlens.questions") / "samples" / f"{entry.name.removesuffix(SAMPLE_SUFFIX)}.jsonl"
    return _plain_rows(parse_jsonl(file.read_text(encoding="utf8"), entry.name))


def hub_rows(hub_id: str, config: str | None, split: str, revision: str | None) -> Rows:
    """Read a data set of the hub through ``datasets`` and its cache.

    A repository with a loading script is read from the hub's parquet files, unless a revision is passed.
    """
    import datasets
    import httpx
    from datasets.exceptions import DatasetsError

    fix = "Load it once while connected, or pass a local file of the same schema as path= (jsonl, json, csv, tsv, parquet)."
    try:
        try:
            loaded = datasets.load_dataset(hub_id, config, split=split, revision=revision)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error) or revision is not None:
                raise
            files = f"hf://datasets/{hub_id}@refs/convert/parquet/{config or 'default'}/{split}/*.parquet"
            loaded = datasets.load_dataset("parquet", data_files={split: files}, split=split)
    except ValueError as error:
        if "find cache" in str(error):
            raise DownloadError(f"{hub_id} is not in the local cache and the hub was not reached. {fix}") from error
        wrong = "split" if "split" in str(error).lower() else "config"
        raise InputError(f"{hub_id} cannot be loaded with config={config!r}, split={split!r}: {error}", argument=wrong) from error
    except (OSError, DatasetsError, httpx.HTTPError) as error:
        raise DownloadError(f"{hub_id} could not be loaded from the hub ({type(error).__name__}: {error}). {fix}") from error
    return table_rows(loaded)
