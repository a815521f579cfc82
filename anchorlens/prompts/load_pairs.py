"""Load clean and corrupted prompts with ``load_pairs``: from a list, a frame, a ``datasets.Dataset``, a file or a sample."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from anchorlens.display import as_int, short_repr
from anchorlens.errors import DataError, InputError, did_you_mean
from anchorlens.prompts.cells import cell_text, find_bad_character, load_json, replace_bad_characters
from anchorlens.prompts.dataset import Dropped, RowDropped
from anchorlens.prompts.pair_samples import PAIR_SAMPLES, sample_rows
from anchorlens.prompts.pairs import PairData, PromptPair, TokenText
from anchorlens.prompts.read_rows import EXTENSIONS, Rows, file_extension, file_rows, file_stem, is_table, table_name, table_rows

PairSource: TypeAlias = Sequence[Mapping[str, Any]] | str | os.PathLike[str] | Any
"""Type of the first argument of ``load_pairs``."""

_REQUIRED = ("clean", "corrupted")
_COLUMNS = (*_REQUIRED, "answer", "wrong", "id", "group", "segments", "alignment")
# Token ids in a cell of a csv file.
_IDS = re.compile(r"\s*\[\s*(-?\d+\s*(,\s*-?\d+\s*)*)?\]\s*")
# Names of places that are not segments.
_RESERVED = re.compile(r"(pos|head):.*|last|all|paired|metric_reads")


@dataclass(frozen=True)
class _Origin:
    """Source of the rows; ``cells`` if every value is text, as in a csv file."""

    label: str
    name: str
    cells: bool
    read: Callable[[], Rows]


def load_pairs(source: PairSource, *, name: str | None = None, limit: int | None = None) -> PairData:
    """Load clean and corrupted prompts.

    Columns: ``clean`` and ``corrupted`` (required), ``answer`` and ``wrong`` (optional, one or several tokens), ``id``, ``group``,
    ``segments`` and ``alignment`` (optional). Prompts and answers are text, or lists of token ids, which are used as they are: no
    BOS is added to them. In csv and tsv files, lists and objects are JSON.

    ``segments`` is an object: name -> a text that occurs once in both prompts, or name -> [clean text, corrupted text].
    ``alignment`` is a list of [clean position, corrupted position]; positions count tokens, BOS included.

    Args:
        source: List of dictionaries, pandas frame, ``datasets.Dataset``, csv, tsv, jsonl, json or parquet file, or the name of an
            embedded sample (``facts-pairs``, ``ioi-pairs`` or ``induction-pairs``).
        name: Name of the data set in outputs. If None, that of the file or sample, or ``pairs``.
        limit: Number of rows to load. If None, all.

    Returns:
        Data set of the pairs. Rows that cannot be read are dropped with a reason and counted. Pairs that cannot be tokenized or
        paired are dropped when a sweep starts.

    Raises:
        InputError: If an argument is invalid, a file is missing or damaged, a column is missing, unknown or occurs twice, or an id
            occurs twice.

    Examples:
        >>> data = load_pairs([{"clean": "The capital of France is", "corrupted": "The capital of Italy is",
        ...                     "answer": " Paris", "wrong": " Rome"}])
        >>> len(data)
        1
    """
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise InputError(f"name={short_repr(name)}: must be a non-empty string, or None.", argument="name")
    count = as_int(limit)
    if limit is not None and (count is None or count < 1):
        raise InputError(f"limit={short_repr(limit)}: must be a whole number of at least 1, or None.", argument="limit")
    origin = _find_origin(source)
    try:
        rows = origin.read()[:count]
        _check_columns(rows)
        return _read_pairs(rows, origin, name or origin.name, count)
    except DataError as why:
        raise DataError(f"source={short_repr(source)}: {why}", argument="source") from why


def _find_origin(source: object) -> _Origin:
    if isinstance(source, str) and source in PAIR_SAMPLES:
        return _Origin(f"sample:{source}", source, True, lambda: sample_rows(source))
    if is_table(source):
        return _Origin(table_name(source), "pairs", False, lambda: table_rows(source))
    if not isinstance(source, str | os.PathLike) or not str(source).strip():
        fix = "Give a list of dictionaries, a pandas frame, a datasets.Dataset, a file or the name of a sample."
        raise InputError(f"source={short_repr(source)}: no prompt pairs. {fix}", argument="source")
    path = Path(os.path.expanduser(os.fspath(source)))  # noqa: PTH111 - Path raises for an unknown user
    suffix = file_extension(path)
    if isinstance(source, str) and suffix not in EXTENSIONS and path.name == source and not path.exists():
        fix = f"{did_you_mean(source, PAIR_SAMPLES)} For a file give its path ({', '.join(EXTENSIONS)})."
        raise InputError(f"source={source!r}: no such file or sample. {fix}", argument="source")
    return _Origin(f"file:{path.name}", file_stem(path), suffix in (".csv", ".tsv"), lambda: file_rows(path))


def _check_columns(rows: Rows) -> None:
    """Raise DataError if there is no row, or if a column is unknown or missing in all rows."""
    if not rows:
        raise DataError("There is no row. Give at least one pair.")
    names = dict.fromkeys(name for row in rows for name in row)
    unknown = next((name for name in names if name not in _COLUMNS), None)
    if unknown is not None:
        raise DataError(f"Unknown column {unknown!r}. {did_you_mean(unknown, _COLUMNS)} Rename or remove it.")
    missing = next((name for name in _REQUIRED if name not in names), None)
    if missing is not None:
        raise DataError(f"Column {missing!r} is missing or empty. Rows need {' and '.join(_REQUIRED)}.")


def _read_pairs(rows: Rows, origin: _Origin, name: str, limit: int | None) -> PairData:
    pairs: list[PromptPair] = []
    dropped: list[Dropped] = []
    for number, row in enumerate(rows, start=1):
        where = f"row {number}"
        pair_id = cell_text(row.get("id"), where, "id") or f"{number - 1:06d}"
        group = cell_text(row.get("group"), where, "group") or pair_id
        try:
            pairs.append(_read_pair(row, pair_id, group, origin.cells))
        except RowDropped as why:
            shown, question, answer = map(replace_bad_characters, (pair_id, _cell_repr(row, "clean"), _cell_repr(row, "answer")))
            dropped.append(Dropped(shown, name, question, answer, why.reason, f"{where}: {replace_bad_characters(why.detail)}"))
    ids = [pair.id for pair in pairs]
    if repeated := next((one for one in ids if ids.count(one) > 1), None) if len(set(ids)) < len(ids) else None:
        raise DataError(f"{ids.count(repeated)} rows have the id {repeated!r}. Give unique ids, or none.")
    text = json.dumps([vars(pair) for pair in pairs], sort_keys=True, ensure_ascii=False)
    return PairData(name, tuple(pairs), tuple(dropped), origin.label, hashlib.sha256(text.encode("utf8")).hexdigest(), limit)


def _cell_repr(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    return value if isinstance(value, str) else "" if value is None else short_repr(value)


def _read_pair(row: Mapping[str, Any], pair_id: str, group: str, cells: bool) -> PromptPair:
    """Return a row as a pair; raise RowDropped if a cell cannot be used."""
    texts = {name: _read_text(row.get(name), name, cells) for name in _COLUMNS[:4]}
    empty = next((name for name in _REQUIRED if texts[name] is None or not _strip(texts[name])), None)
    if empty is not None:
        raise RowDropped("empty_cell", f"{empty} is empty")
    empty = next((name for name, text in texts.items() if text is not None and not _strip(text)), None)
    if empty is not None:
        raise RowDropped("empty_answer", f"{empty} is empty. Leave it out, or give white space as token ids")
    clean, corrupted, answer, wrong = texts.values()
    assert clean is not None and corrupted is not None  # checked above
    segments, alignment = _read_segments(row.get("segments"), cells), _read_alignment(row.get("alignment"))
    named = " ".join(text for name, both in segments.items() for text in (name, *both) if isinstance(text, str))
    fields = {"id": pair_id, "group": group, **texts, "segments": named}
    if bad := find_bad_character({name: text for name, text in fields.items() if isinstance(text, str)}):
        raise RowDropped(*bad)
    return PromptPair(pair_id, group, clean, corrupted, answer, wrong, segments, alignment)


def _strip(text: TokenText | None) -> object:
    return text.strip() if isinstance(text, str) else text


def _read_text(value: object, column: str, cells: bool) -> TokenText | None:
    """Return a text, token ids, or None for a missing cell."""
    if value is None or value == "":
        return None
    if cells and isinstance(value, str) and _IDS.fullmatch(value):
        value = json.loads(value)
    if isinstance(value, list) and all(type(one) is int for one in value):
        return tuple(value)
    if isinstance(value, str):
        return value
    raise RowDropped("bad_cell", f"{column}={short_repr(value)} is neither text nor a list of token ids")


def _unpack(value: object, reason: str) -> object:
    """Return the value of a JSON text; other values as they are."""
    if not isinstance(value, str) or not value.strip():
        return value or None
    try:
        return load_json(value, "cell")
    except (json.JSONDecodeError, DataError) as why:
        raise RowDropped(reason, f"{short_repr(value)} is no JSON") from why


def _read_segments(value: object, cells: bool) -> dict[str, tuple[TokenText, TokenText]]:
    given = _unpack(value, "bad_segments")
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RowDropped("bad_segments", f"{short_repr(given)} is no object: name -> text, or name -> [clean text, corrupted text]")
    found: dict[str, tuple[TokenText, TokenText]] = {}
    for name, one in given.items():
        if one is None:  # a struct of parquet has all names in every row
            continue
        if not name.strip() or _RESERVED.fullmatch(name):
            raise RowDropped("bad_segments", f"{name!r} cannot name a segment")
        both = one if isinstance(one, list) and len(one) == 2 and not all(type(i) is int for i in one) else [one, one]
        clean, corrupted = (_read_text(part, f"segments[{name!r}]", cells) for part in both)
        if not clean or not corrupted:
            raise RowDropped("bad_segments", f"{name!r} is empty")
        found[name] = clean, corrupted
    return found


def _read_alignment(value: object) -> tuple[tuple[int, int], ...] | None:
    given = _unpack(value, "bad_alignment")
    if given is None:
        return None
    ok = isinstance(given, list) and given and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(p) is int for p in pair) for pair in given
    )  # fmt: skip
    if not ok:
        raise RowDropped("bad_alignment", f"{short_repr(given)} is no list of [clean position, corrupted position]")
    return tuple((a, b) for a, b in given)  # pyright: ignore[reportGeneralTypeIssues, reportAttributeAccessIssue]
