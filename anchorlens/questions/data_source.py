"""Find the source, schema and name of a question set from the first arguments of ``load_qa``."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from anchorlens.display import short_repr, shorten
from anchorlens.errors import InputError, did_you_mean
from anchorlens.prompts.read_rows import (
    EXTENSIONS,
    RawData,
    column_filter,
    file_extension,
    file_stem,
    is_table,
    read_file,
    table_name,
)
from anchorlens.questions.choices import is_choice_column
from anchorlens.questions.layouts import NESTED_FIELDS
from anchorlens.questions.schemas import SCHEMAS, Schema
from anchorlens.questions.sources import (
    KNOWN,
    SAMPLE_SUFFIX,
    find_dataset,
    read_hub,
    read_questions,
    sample_rows,
)

QASource: TypeAlias = (
    str | os.PathLike[str] | Sequence[Mapping[str, Any] | tuple[str, str | Sequence[str]]] | Any
)
"""Type of the first argument of ``load_qa``."""

_ACCEPTED = (
    "the name of a set ('popqa', 'popqa-sample', ...), a file ('mine.csv'), a pandas frame, a"
    " datasets.Dataset, or a list of dictionaries or (question, answer) pairs"
)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Source of a question set."""

    source: str  # as in QAData.source
    name: str
    schema: Schema
    own: bool  # a file or table of the user's
    read: Callable[[], RawData]


def find_origin(
    name: object,
    path: object = None,
    *,
    config: str | None = None,
    split: str | None = None,
    revision: str | None = None,
    dataset_name: str | None = None,
    columns: Collection[str] = (),
    limit: int | None = None,
) -> Origin:
    """Find the source of the rows without reading them; arguments as in ``load_qa``.

    ``columns`` are the user's names of columns; ``limit`` is the number of rows that are read of a
    streamed data set.
    """
    is_read = _column_selector(columns)
    parts = {"config": config, "split": split, "revision": revision}
    for word, value in (parts | {"dataset_name": dataset_name}).items():
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise InputError(
                f"{word}={short_repr(value)}: must be a non-empty string, or None.", argument=word
            )
    entry = find_dataset(name) if isinstance(name, str) else None
    if any(parts.values()) and (entry is None or entry.kind != "hub" or path is not None):
        used = next(word for word, value in parts.items() if value)
        raise InputError(
            f"{used}={parts[used]!r}: config, split and revision select a part of a hub data set."
            " Leave them out for a file, sample or table.",
            argument=used,
        )
    if is_table(name):
        if path is not None:
            raise InputError(
                f"path={short_repr(path)}: not allowed with a table. Pass one of them.",
                argument="path",
            )
        label = dataset_name or table_name(name)
        return Origin(
            source=table_name(name),
            name=label,
            schema=_schema(label),
            own=True,
            read=lambda: read_questions(name, limit, is_read),
        )
    if entry is not None and path is None:
        label = dataset_name or entry.name
        schema = _schema(entry.name)
        if entry.kind == "sample":
            return Origin(
                source=f"sample:{_stem(entry.name)}",
                name=label,
                schema=schema,
                own=False,
                read=lambda: RawData(sample_rows(entry)),
            )
        hub_id = entry.hub_id
        subset = config or entry.config
        part = split or entry.split
        assert hub_id is not None and part is not None  # a set of the hub
        shown = f"{subset}:{part}" if subset else part
        if revision:
            shown += f"@{revision}"
        source = f"hub:{hub_id}[{shown}]"
        return Origin(
            source=source,
            name=label,
            schema=schema,
            own=False,
            read=lambda: read_hub(hub_id, subset, part, revision, is_read),
        )
    file, label = _file(name, path)
    # A name that was passed beside a path selects the schema before dataset_name does.
    is_named = isinstance(name, str) and path is not None
    schema = _schema(label, dataset_name) if is_named else _schema(dataset_name, label)
    return Origin(
        source=f"file:{file.name}",
        name=dataset_name or label,
        schema=schema,
        own=True,
        read=lambda: read_file(file, (*schema.fields, *columns), is_read),
    )


def _column_selector(columns: Collection[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a column of this name is read: a field of a schema, a
    column of choices, a nested list of questions, or one of the user's ``columns``.
    """
    fields = chain.from_iterable(schema.fields for schema in SCHEMAS.values())
    is_named = column_filter([*fields, *NESTED_FIELDS, *columns])
    return lambda name: is_named(name) or is_choice_column(name)


def _file(name: object, path: object) -> tuple[Path, str]:
    """Return the file selected by ``name`` or ``path``, and its name in outputs."""
    if isinstance(name, str):
        if path is not None:
            if not name.strip():
                raise InputError(
                    "name='': must not be empty. Leave it out to use the file's name.",
                    argument="name",
                )
            if name.endswith(SAMPLE_SUFFIX) and find_dataset(name):
                raise InputError(
                    f"name={name!r}: is embedded."
                    f" For a file of its schema use load_qa({_stem(name)!r}, path=...).",
                    argument="name",
                )
            return _path(path), name
        if not _is_file_name(name):
            names = [entry.name for entry in KNOWN]
            formats = ", ".join(sorted(one.removeprefix(".") for one in EXTENSIONS))
            more = f"{did_you_mean(name, names)} For a file of your own pass path=."
            if Path(name).suffix:
                more = f"Give a {formats} file."
            raise InputError(f"name={shorten(name)}: unknown data set. {more}", argument="name")
    elif isinstance(name, os.PathLike):
        if path is not None:
            raise InputError(
                f"path={short_repr(path)}: name is a file already. Pass one of them.",
                argument="path",
            )
    elif name is not None or path is None:
        raise InputError(f"name={short_repr(name)}: must be {_ACCEPTED}.", argument="name")
    file = _path(path if name is None else name)
    return file, file_stem(file)


def _path(value: object) -> Path:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"path={short_repr(value)}: must be a string or a Path to a file.", argument="path"
        )
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path's raises for an unknown user


def _is_file_name(name: str) -> bool:
    try:
        return bool(name.strip()) and (
            _path(name).exists() or file_extension(_path(name)) in EXTENSIONS
        )
    except (OSError, ValueError):  # too long for a file name, or with a null character
        return False


def _stem(name: str) -> str:
    """Return a known name without the suffix of samples."""
    return name.removesuffix(SAMPLE_SUFFIX)


def _schema(*names: str | None) -> Schema:
    """Return the schema of the first known name, in any case (the published file is popQA.tsv),
    else the user's own schema.
    """
    stems = [_stem(name).casefold() for name in names if name]
    return next((SCHEMAS[stem] for stem in stems if stem in SCHEMAS), SCHEMAS["own"])
