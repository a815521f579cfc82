"""Find the source, schema and name of a question set from the first arguments of ``load_qa``."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from anchorlens.display import short_repr, shorten
from anchorlens.errors import InputError, did_you_mean
from anchorlens.questions.schemas import SCHEMAS, Schema
from anchorlens.questions.sources import (
    EXTENSIONS,
    KNOWN,
    SAMPLE_SUFFIX,
    Rows,
    file_rows,
    hub_rows,
    is_table,
    known,
    sample_rows,
    table_name,
    table_rows,
)

QASource: TypeAlias = str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Any
"""Type of the first argument of ``load_qa``."""

TAKES = (
    "the name of a set ('popqa', 'popqa-sample', ...), a file (load_qa('mine.csv')), a pandas frame, a datasets.Dataset or a list "
    "of dictionaries"
)


@dataclass(frozen=True)
class Origin:
    """Source of a question set."""

    source: str
    name: str
    schema: Schema
    own: bool
    cells: bool
    read: Callable[[], Rows]


def find_origin(
    name: object, path: object = None, *, config: str | None = None, split: str | None = None, revision: str | None = None,
    dataset_name: str | None = None,
) -> Origin:  # fmt: skip
    """Find the source of the rows; nothing is read yet."""
    parts = {"config": config, "split": split, "revision": revision}
    for word, value in (parts | {"dataset_name": dataset_name}).items():
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise InputError(f"{word} must be a name, got {short_repr(value)}.")
    entry = known(name) if isinstance(name, str) else None
    if any(parts.values()) and (entry is None or entry.kind != "hub" or path is not None):
        raise InputError(
            "config=, split= and revision= choose a part of a hub data set; leave them out with a file, sample or table."
        )
    if is_table(name):
        if path is not None:
            raise InputError("Give a table or path=, not both.")
        label = dataset_name or table_name(name)
        return Origin(table_name(name), label, _schema(label), True, False, lambda: table_rows(name))
    if entry is not None and path is None:
        label, schema = dataset_name or entry.name, _schema(entry.name)
        if entry.kind == "sample":
            return Origin(f"sample:{_stem(entry.name)}", label, schema, False, False, lambda: sample_rows(entry))
        subset, part = config or entry.config, split or entry.split
        source = f"hub:{entry.hub_id}[{':'.join(filter(None, (subset, part)))}{f'@{revision}' if revision else ''}]"
        return Origin(source, label, schema, False, False, lambda: hub_rows(entry.hub_id, subset, part, revision))
    file, label = _file(name, path)
    schema = _schema(label, dataset_name)
    cells = file.suffix.lower() in (".csv", ".tsv")
    return Origin(f"file:{file.name}", dataset_name or label, schema, True, cells, lambda: file_rows(file))


def _file(name: object, path: object) -> tuple[Path, str]:
    """Find the file that is given by name or path, and its name in outputs."""
    if isinstance(name, str):
        if path is not None:
            if not name.strip():
                raise InputError("The name of the data set is empty; leave it out, and it is the file's.")
            if name.endswith(SAMPLE_SUFFIX) and known(name):
                raise InputError(f"{name!r} is embedded; to read a file of its schema use load_qa({_stem(name)!r}, path=...).")
            return _path(path), name
        if not _is_file_name(name):
            cure = "To read a file of your own give path=, or the file in place of the name."
            names = [entry.name for entry in KNOWN]
            raise InputError(f"No data set goes by the name {shorten(name)}. {did_you_mean(name, names)} {cure}")
    elif isinstance(name, os.PathLike):
        if path is not None:
            raise InputError("Give the file once: as the first argument or as path=.")
    elif name is not None or path is None:
        raise InputError(f"load_qa takes {TAKES}; got {'nothing' if name is None else short_repr(name)}.")
    file = _path(path if name is None else name)
    return file, file.stem


def _path(value: object) -> Path:
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(given, str) or not given.strip():
        raise InputError(f"path must be a string or a Path to a file, got {short_repr(value)}.")
    return Path(os.path.expanduser(given))  # noqa: PTH111 - Path's raises for an unknown user


def _is_file_name(name: str) -> bool:
    try:
        return bool(name.strip()) and (_path(name).exists() or _path(name).suffix.lower() in EXTENSIONS)
    except (OSError, ValueError):  # longer than a file's name may be, or with a null character
        return False


def _stem(name: str) -> str:
    """A known name without the mark of a sample."""
    return name.removesuffix(SAMPLE_SUFFIX)


def _schema(*names: str | None) -> Schema:
    """The schema of the first known name; the user's own if there is none."""
    return next((SCHEMAS[_stem(name)] for name in names if name and _stem(name) in SCHEMAS), SCHEMAS["own"])
