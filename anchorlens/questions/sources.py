"""Raw rows of a question set: from the hub, a file, an embedded sample, a frame, a ``datasets.Dataset`` or a list of rows."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from anchorlens.errors import DataError, DownloadError, InputError, did_you_mean
from anchorlens.kinds import described, listed

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class KnownDataset:
    """A question set that goes by a name.

    Attributes:
        name: What ``load_qa`` takes.
        hub_id: Repository on the Hugging Face hub; of a sample, the one whose schema it has.
        config: Its default configuration, None where it has only one.
        split: Its default split.
        kind: ``hub`` or ``sample``.
        note: One line about it.
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
    KnownDataset(
        "hotpotqa", "hotpotqa/hotpot_qa", "distractor", "validation", "hub", "7,405 two-hop and comparison questions"
    ),
    KnownDataset(
        "nq", "google-research-datasets/nq_open", None, "validation", "hub", "3,610 questions typed into a search engine"
    ),
)
SAMPLE_SUFFIX = "-sample"
_SAMPLE_NOTE = "embedded questions in the schema of {}, written for this package; not rows of that data set"
KNOWN: tuple[KnownDataset, ...] = _HUB + tuple(
    KnownDataset(d.name + SAMPLE_SUFFIX, d.hub_id, d.config, d.split, "sample", _SAMPLE_NOTE.format(d.name)) for d in _HUB
)


@runtime_checkable
class FrameLike(Protocol):
    """A pandas DataFrame, as far as it is looked at."""

    @property
    def columns(self) -> Any:
        """Names of the columns."""
        ...

    def to_dict(self, orient: Any = ...) -> Any:
        """Its rows."""
        ...


@runtime_checkable
class DatasetLike(Protocol):
    """A ``datasets.Dataset``, as far as it is looked at."""

    @property
    def column_names(self) -> Any:
        """Names of the columns; a dictionary where there are several splits."""
        ...


def known(name: str) -> KnownDataset | None:
    """The known question set of this name."""
    return next((entry for entry in KNOWN if entry.name == name), None)


def plain(value: Any) -> Any:
    """A value as JSON can hold it: arrays as lists, numpy's numbers as Python's, what pandas marks as missing as None."""
    if isinstance(value, str | bool | int) or value is None:
        return value
    if type(value).__name__ in {"NAType", "NaTType"}:
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        # Not a number is how frames say that there is nothing.
        return None if value != value else float(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def _plain_rows(rows: list[Any]) -> Rows:
    """Rows with plain values, fields without a value left out."""
    return [{str(k): v for k, v in ((k, plain(v)) for k, v in row.items()) if v is not None} for row in rows]


def is_table(value: object) -> bool:
    """Whether :func:`table_rows` is where a value belongs, if only to be refused there."""
    return isinstance(value, Mapping | list | tuple | FrameLike | DatasetLike) and not isinstance(value, type)


def table_name(table: object) -> str:
    """How outputs name a table that has no name."""
    return "list" if isinstance(table, list | tuple) else "frame" if isinstance(table, FrameLike) else "dataset"


def table_rows(table: FrameLike | DatasetLike | Sequence[Mapping[str, Any]]) -> Rows:
    """Rows of a pandas frame, a ``datasets.Dataset`` or a list of dictionaries.

    Raises:
        DataError: It is a dictionary, a list of something else, or a frame of another library.
    """
    if isinstance(table, Mapping):
        cure = "give a list of rows, [{'question': ..., 'answers': ...}]" if "question" in table else "give one split of it"
        raise DataError(f"This is a dictionary with the keys {listed(table)}; {cure}.")
    if isinstance(table, list | tuple):
        for number, row in enumerate(table, start=1):
            if not isinstance(row, Mapping):
                cure = "each row is a dictionary, {'question': ..., 'answers': ...}"
                raise DataError(f"list, row {number} is {described(row)}; {cure}.")
        return _plain_rows(list(table))
    if hasattr(table, "to_dicts"):
        raise DataError(f"Cannot read questions from {described(table)} of this library; give frame.to_dicts().")
    if isinstance(table, FrameLike):
        return _plain_rows(cast("Any", table).to_dict("records"))
    if hasattr(table, "to_list"):
        return _plain_rows(cast("Any", table).to_list())
    raise DataError(
        f"Cannot read questions from {described(table)}; give a pandas frame, a datasets.Dataset or a list of rows."
    )


def _json_line(line: str, number: int, source: str) -> dict[str, Any]:
    """One line of a jsonl file.

    Raises:
        DataError: It is no JSON object.
    """
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{source}: bad JSON at line {number}, column {error.colno} ({error.msg}). Each line is one object."
        ) from error
    if not isinstance(row, dict):
        raise DataError(f"{source}: line {number} holds a {type(row).__name__}, not an object. Each line is one object.")
    return row


def parse_jsonl(text: str, source: str) -> Rows:
    """Rows of a jsonl text; blank lines are skipped.

    Raises:
        DataError: A line is no JSON object.
    """
    # Not splitlines(): it also splits at characters that JSON allows inside a string.
    lines = text.removeprefix("\ufeff").split("\n")
    return [_json_line(line, i, source) for i, line in enumerate(lines, start=1) if line.strip()]


def _parse_json(text: str, source: str) -> Rows:
    """Rows of a JSON list of objects, or of an object with such a list under ``data``."""
    try:
        value = json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        hint = " One object a line is the jsonl format: name the file .jsonl." if error.msg == "Extra data" else ""
        raise DataError(f"{source}: bad JSON at line {error.lineno}, column {error.colno} ({error.msg}).{hint}") from error
    rows = value.get("data") if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{source} must hold a list of objects, or an object with such a list under 'data'.")
    return rows


def _parse_table(text: str, source: str, delimiter: str) -> Rows:
    """Rows of a csv or tsv text; empty cells are missing fields."""
    reader = csv.DictReader(text.removeprefix("\ufeff").splitlines(keepends=True), delimiter=delimiter)
    rows: Rows = []
    try:
        for row in reader:
            if None in row:
                cure = f"quote cells that hold {delimiter!r}"
                raise DataError(f"{source}: line {reader.line_num} has more cells than the header has columns; {cure}.")
            rows.append({key: value for key, value in row.items() if value})
    except csv.Error as error:
        raise DataError(f"{source}: line {reader.line_num} cannot be read ({error}).") from error
    return rows


def _read_parquet(path: Path) -> Rows:
    """Rows of a parquet file."""
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(f"{path.name} is not a readable parquet file ({error}).") from error


_PARSERS: dict[str, Callable[[str, str], Rows]] = {
    ".jsonl": parse_jsonl,
    ".json": _parse_json,
    ".csv": lambda text, source: _parse_table(text, source, ","),
    ".tsv": lambda text, source: _parse_table(text, source, "\t"),
}


EXTENSIONS = (*_PARSERS, ".parquet")


def file_rows(path: Path) -> Rows:
    """Rows of a local jsonl, json, csv, tsv or parquet file, told apart by its extension.

    Raises:
        DataError: The file is missing, empty, of another kind, not UTF-8, or damaged.
    """
    if path.is_dir():
        raise DataError(f"{path} is a directory; give one file ({', '.join(EXTENSIONS)}).")
    if not path.exists():
        near = [other.name for other in path.parent.iterdir() if other.suffix in EXTENSIONS] if path.parent.is_dir() else []
        raise DataError(f"There is no file {path}. {did_you_mean(path.name, near) if near else 'Check the path.'}")
    if path.suffix.lower() not in EXTENSIONS:
        raise DataError(f"Cannot read {path.name}: the extension {path.suffix!r} is none of {', '.join(EXTENSIONS)}.")
    if path.stat().st_size == 0:
        raise DataError(f"{path.name} is empty; it needs one row a question.")
    if path.suffix.lower() == ".parquet":
        return _plain_rows(_read_parquet(path))
    try:
        # newline="" keeps line ends inside quoted cells as they are.
        with path.open(encoding="utf8", newline="") as handle:
            text = handle.read()
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8 (byte {error.start}); save it as UTF-8.") from error
    return _plain_rows(_PARSERS[path.suffix.lower()](text, path.name))


def _file_name(entry: KnownDataset) -> str:
    """The file of an embedded sample."""
    return entry.name.removesuffix(SAMPLE_SUFFIX) + ".jsonl"


def sample_rows(entry: KnownDataset) -> Rows:
    """Rows of an embedded sample.

    Raises:
        DataError: The installed package lacks the file.
    """
    file = resources.files("anchorlens.questions").joinpath("samples").joinpath(_file_name(entry))
    if not file.is_file():
        raise DataError(f"The embedded sample {entry.name} is not in this installation; install the package again.")
    return _plain_rows(parse_jsonl(file.read_text(encoding="utf8"), entry.name))


def _download_errors() -> tuple[type[Exception], ...]:
    """What ``datasets`` raises when the hub cannot be reached or has no such set, whichever HTTP client is beneath it."""
    from datasets.exceptions import DatasetsError

    try:
        from httpx import HTTPError
    except ImportError:
        return (OSError, DatasetsError)
    return (OSError, DatasetsError, HTTPError)


def hub_rows(hub_id: str, config: str | None, split: str, revision: str | None) -> Rows:
    """Rows of a data set on the hub, through ``datasets`` and its cache; with ``HF_HUB_OFFLINE`` only the cache is used.

    A repository that still holds a loading script, which ``datasets`` no longer runs, is read from the parquet files into which the
    hub converts it, unless a revision was asked for.

    Raises:
        DownloadError: The hub cannot be reached, or has no such data set.
        InputError: The data set has no such configuration or split.
    """
    import datasets

    cure = "Load it once while connected, or give a local file of the same schema with path= (jsonl, json, csv, tsv, parquet)."
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
            raise DownloadError(f"{hub_id} is not in the local cache and the hub was not reached. {cure}") from error
        raise InputError(f"{hub_id} cannot be loaded with config={config!r}, split={split!r}: {error}") from error
    except _download_errors() as error:
        raise DownloadError(f"{hub_id} could not be loaded from the hub ({type(error).__name__}: {error}). {cure}") from error
    return table_rows(cast(DatasetLike, loaded))
