"""What the first arguments of ``load_qa`` stand for: a known name, a file or a table; its schema, and what outputs call it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from anchorlens.errors import InputError, did_you_mean
from anchorlens.kinds import described, shortened
from anchorlens.questions.schemas import SCHEMAS, Schema
from anchorlens.questions.sources import (
    EXTENSIONS,
    KNOWN,
    SAMPLE_SUFFIX,
    DatasetLike,
    FrameLike,
    KnownDataset,
    Rows,
    file_rows,
    hub_rows,
    is_table,
    known,
    sample_rows,
    table_name,
    table_rows,
)

QASource: TypeAlias = str | os.PathLike[str] | FrameLike | DatasetLike | Sequence[Mapping[str, Any]]
"""What ``load_qa`` takes as its first argument."""

TAKES = (
    "the name of a set ('popqa', 'popqa-sample', ...), a file (load_qa('mine.csv')), a pandas frame, a datasets.Dataset or a list "
    "of dictionaries"
)


@dataclass(frozen=True)
class Origin:
    """Where rows come from.

    Attributes:
        source: As ``QAData.source``.
        name: As ``QAData.name``.
        schema: What the fields mean.
        own: It is a file or table of the user's own, whose columns may have any names.
        cells: It is a csv or tsv file, in which a list can only stand as text.
        read: Reads the rows.
    """

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
    """What is to be read; nothing is read yet.

    Args:
        name: See :func:`~anchorlens.questions.datasets.load_qa`, as all others.

    Raises:
        InputError: The arguments do not go together, are of another kind, or no set goes by the name.
    """
    parts = {"config": config, "split": split, "revision": revision}
    for word, value in (parts | {"dataset_name": dataset_name}).items():
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise InputError(f"{word} must be a name, got {described(value)}.")
    entry = known(name) if isinstance(name, str) else None
    if any(parts.values()) and (entry is None or entry.kind != "hub" or path is not None):
        raise InputError(
            "config=, split= and revision= choose a part of a hub data set; leave them out with a file, sample or table."
        )
    if isinstance(name, str) and (path is not None or entry is not None):
        return _named(name, entry, None if path is None else _path(path), dataset_name, **parts)
    file = _one_file(name, path)
    if file is not None:
        schema = _schema(file.stem) or _schema(dataset_name) or SCHEMAS["own"]
        return _file(file, dataset_name or file.stem, schema)
    if isinstance(name, str):
        cure = "To read a file of your own give path=, or the file in place of the name."
        raise InputError(
            f"No data set goes by the name {shortened(name)}. {did_you_mean(name, [e.name for e in KNOWN])} {cure}"
        )
    if not is_table(name):
        raise InputError(f"load_qa takes {TAKES}; got {'nothing' if name is None else described(name)}.")
    if path is not None:
        raise InputError("Give a table or path=, not both.")
    label = dataset_name or table_name(name)
    read = cast("FrameLike | DatasetLike | Sequence[Mapping[str, Any]]", name)
    return Origin(table_name(name), label, _schema(label) or SCHEMAS["own"], True, False, lambda: table_rows(read))


def _named(
    name: str, entry: KnownDataset | None, path: Path | None, dataset_name: str | None, config: str | None, split: str | None,
    revision: str | None,
) -> Origin:  # fmt: skip
    """A known name, or any name with a file.

    Raises:
        InputError: The name of a sample stands with a file, or the name is empty.
    """
    label, schema = dataset_name or name, _schema(name) or SCHEMAS["own"]
    if path is not None:
        if entry is not None and entry.kind == "sample":
            raise InputError(f"{name!r} is embedded; to read a file of its schema use load_qa({_stem(name)!r}, path=...).")
        if not name.strip():
            raise InputError("The name of the data set is empty; leave it out, and it is the file's.")
        return _file(path, label, schema)
    assert entry is not None  # the caller's condition
    if entry.kind == "sample":
        return Origin(f"sample:{_stem(name)}", label, schema, False, False, lambda: sample_rows(entry))
    subset, part = config or entry.config, split or entry.split
    source = f"hub:{entry.hub_id}[{':'.join(filter(None, (subset, part)))}{f'@{revision}' if revision else ''}]"
    return Origin(source, label, schema, False, False, lambda: hub_rows(entry.hub_id, subset, part, revision))


def _file(path: Path, name: str, schema: Schema) -> Origin:
    cells = path.suffix.lower() in (".csv", ".tsv")
    return Origin(f"file:{path.name}", name, schema, True, cells, lambda: file_rows(path))


def _path(value: object) -> Path:
    """A path as it was given, with the user's directory for ``~``.

    Raises:
        InputError: It is none.
    """
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(given, str) or not given.strip():
        raise InputError(f"path must be a string or a Path to a file, got {described(value)}.")
    try:
        return Path(given).expanduser()
    except RuntimeError:  # ~somebody who is not here
        return Path(given)


def _one_file(name: object, path: object) -> Path | None:
    """The file that stands where a name may stand, or in ``path=`` alone; None where there is none of both.

    Raises:
        InputError: There are two.
    """
    if name is None:
        return None if path is None else _path(path)
    if isinstance(name, os.PathLike):
        if path is not None:
            raise InputError("Give the file once: as the first argument or as path=.")
        return _path(name)
    if not isinstance(name, str) or not name.strip():
        return None
    file = _path(name)
    try:
        there = file.exists()
    except (OSError, ValueError):  # longer than a file's name may be, or with a null character
        there = False
    return file if there or file.suffix.lower() in EXTENSIONS else None


def _stem(name: str) -> str:
    """A known name without the mark of a sample."""
    return name.removesuffix(SAMPLE_SUFFIX)


def _schema(name: str | None) -> Schema | None:
    """The schema that a name stands for."""
    return None if name is None else SCHEMAS.get(_stem(name))
