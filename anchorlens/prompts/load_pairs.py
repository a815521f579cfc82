"""Load clean and corrupted prompts with ``load_pairs``: from a list, a frame, a
``datasets.Dataset``, a file or a sample.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from anchorlens.display import as_int, list_counts, short_repr, shorten, warn
from anchorlens.errors import DataError, EmptySweepError, InputError, did_you_mean
from anchorlens.prompts.alias_cells import AliasCells, warn_of_doubts
from anchorlens.prompts.answer_space import ADD_SPACE, ANSWER_SPACES, KEEP_SPACES, join_by_space
from anchorlens.prompts.cells import (
    cell_text,
    find_bad_character,
    replace_bad_characters,
)
from anchorlens.prompts.dataset import PAIR_FIXES, Dropped, RowDropped, explain_drops
from anchorlens.prompts.doubtful_cells import find_doubt, find_line_ends
from anchorlens.prompts.pair_cells import IDS, TEXT, CellReader, read_alignment, strip_text
from anchorlens.prompts.pair_columns import (
    ANSWER_FIELDS,
    FIELDS,
    check_pair_columns,
    check_pair_layout,
    check_pair_mapping,
    rename_pair_columns,
)
from anchorlens.prompts.pair_samples import PAIR_SAMPLES, sample_rows
from anchorlens.prompts.pairs import (
    AnswerText,
    AnyOf,
    PairData,
    PromptPair,
    content_of,
    list_answers,
)
from anchorlens.prompts.read_rows import (
    EXTENSIONS,
    RawData,
    Rows,
    column_filter,
    file_extension,
    file_stem,
    is_table,
    read_file,
    read_table,
    table_name,
)
from anchorlens.prompts.whole_numbers import drop_zero_decimals

PairSource: TypeAlias = Sequence[Mapping[str, Any]] | str | os.PathLike[str] | Any
"""Type of the first argument of ``load_pairs``."""

# Names of columns that hold token ids, such as correct_idx.
_ID_COLUMN = re.compile(r"(^|_)(idx|ids?|index|tokens?)$", re.IGNORECASE)


@dataclass(frozen=True)
class _Origin:
    """Source of the rows of a data set of pairs.

    ``has_cells`` is True if every value is text, as in a csv file, so that lists are written as
    JSON.
    """

    label: str
    name: str
    has_cells: bool
    read: Callable[[], RawData]


@dataclass(frozen=True, kw_only=True)
class _PairOptions:
    """Checked arguments of :func:`load_pairs` that tell how rows are read."""

    columns: Mapping[str, str]
    answer_space: str
    numbers: str
    answers_sep: str | None

    @property
    def extra(self) -> tuple[str, ...]:
        """Names of columns for a metric."""
        return tuple(name for name in self.columns if name not in FIELDS)

    def record(self) -> dict[str, Any]:
        """Return the arguments that differ from their defaults."""
        found: dict[str, Any] = {}
        if self.columns:
            found["columns"] = dict(self.columns)
        if self.answer_space != KEEP_SPACES:
            found["answer_space"] = self.answer_space
        if self.numbers != TEXT:
            found["numbers"] = self.numbers
        if self.answers_sep:
            found["answers_sep"] = self.answers_sep
        return found


def load_pairs(
    source: PairSource | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    limit: int | None = None,
    dataset_name: str | None = None,
    columns: Mapping[str, str] | None = None,
    answer_space: str = KEEP_SPACES,
    numbers: str = TEXT,
    answers_sep: str | None = None,
) -> PairData:
    """Load clean and corrupted prompts.

    Columns: ``clean`` and ``corrupted`` (required), ``answer`` and ``wrong`` (optional, one or
    several tokens), ``id``, ``group``, ``template``, ``segments`` and ``alignment`` (optional).
    Pairs of one template are resampled together where there are at least ten templates, and the
    control ``other_pair`` is another pair of the template. Prompts and answers are text, or token
    ids, which are used as they are: no BOS is added to them. A list of texts, or of lists of token
    ids, has alternative answers, of which any counts. Token ids are a list, an array or tensor
    ([n] or [1, n], as of ``model.to_tokens``), or the output of a tokenizer or chat template. In
    csv and tsv files, lists and objects are JSON.

    ``segments`` is an object: name -> a text that occurs once in both prompts, or name -> [clean
    text, corrupted text]. ``alignment`` is a list of [clean position, corrupted position];
    positions count tokens, BOS included.

    Args:
        source: List of dictionaries, pandas frame, ``datasets.Dataset`` (streamed: with ``limit``),
            csv, tsv, jsonl, json or parquet file, or the name of an embedded sample
            (``facts-pairs``, ``ioi-pairs`` or ``induction-pairs``). With ``path``, the name in
            outputs.
        path: File of pairs, as ``source``.
        limit: Number of rows to load, from the first. If None, all.
        dataset_name: Name of the data set in outputs. If None, that of the file or sample, or
            ``pairs``.
        columns: Field -> column of your file or table: ``{"clean": "prompt"}``. Another name than
            that of a field, such as ``{"label": "label"}``, is kept for metric functions that take
            the pair's row. With ``columns``, further columns are not read; without it they are
            refused, because a misspelt ``anwser`` would be lost.
        answer_space: ``keep``, or ``add``: one space between prompt and answer, at the answer's
            beginning. Spaces at the end of prompts are removed, and texts of answers that begin
            without white space get a space.
        numbers: Meaning of a bare number as an answer: ``text`` (its digits) or ``ids`` (the token
            of this id).
        answers_sep: Separator of alternatives in one text of ``answer`` or ``wrong``, such as
            ``";"``. If None, a text is one answer.

    Returns:
        Data set of the pairs. Rows that cannot be read are dropped with a reason and counted. Pairs
        that cannot be tokenized or paired are dropped when a sweep starts.

    Raises:
        InputError: If an argument is invalid, a file is missing or damaged, a column is missing,
            unknown or occurs twice, or an id occurs twice.

    Examples:
        >>> import anchorlens as al
        >>> pair = {"clean": "The capital of France is", "corrupted": "The capital of Italy is"}
        >>> data = al.load_pairs([{**pair, "answer": " Paris", "wrong": " Rome"}])
        >>> len(data)
        1
    """
    source, dataset_name = _name_source(source, path, dataset_name)
    count = as_int(limit)
    if limit is not None and (count is None or count < 1):
        raise InputError(
            f"limit={short_repr(limit)}: must be a whole number of at least 1, or None.",
            argument="limit",
        )
    options = _PairOptions(
        columns=check_pair_mapping(columns),
        answer_space=_choose("answer_space", answer_space, ANSWER_SPACES),
        numbers=_choose("numbers", numbers, (TEXT, IDS)),
        answers_sep=_check_separator(answers_sep),
    )
    origin = _find_origin(source, [*FIELDS, *options.columns.values()], count)
    try:
        raw = origin.read()
        check_pair_layout(raw, options.columns)
        rows = rename_pair_columns(raw.rows[:count], options.columns, raw)
        if raw.delimiter:
            rows = drop_zero_decimals(rows, ANSWER_FIELDS, origin.label)
        if options.numbers == TEXT:
            _warn_of_ids(rows, options.columns)
        check_pair_columns(rows, options.extra, raw, has_unread=not options.columns)
        data = _read_pairs(rows, origin, options, dataset_name or origin.name, count)
    except DataError as why:
        argument = why.arguments[0] if why.arguments else "source"
        raise DataError(f"source={short_repr(source)}: {why}", argument=argument) from why
    _check_usable_pairs(data)
    reading = {**raw.reading, **options.record()}
    return PairData(**{**vars(data), "reading": reading})


def _name_source(source: object, path: object, dataset_name: object) -> tuple[object, str | None]:
    """Return the source and the name in outputs; raise InputError if they contradict each other."""
    if dataset_name is not None and not (isinstance(dataset_name, str) and dataset_name.strip()):
        raise InputError(
            f"dataset_name={short_repr(dataset_name)}: must be a non-empty string, or None.",
            argument="dataset_name",
        )
    if path is None:
        return source, dataset_name
    if not isinstance(path, str | os.PathLike):
        raise InputError(
            f"path={short_repr(path)}: must be a string or a Path to a file.", argument="path"
        )
    if source is not None and not (isinstance(source, str) and source.strip()):
        raise InputError(
            f"path={short_repr(path)}: source is given already. Pass one of them.", argument="path"
        )
    return path, dataset_name or source


def _choose(argument: str, value: object, known: Sequence[str]) -> str:
    if isinstance(value, str) and value in known:
        return value
    raise InputError(
        f"{argument}={short_repr(value)}: must be {' or '.join(map(repr, known))}.",
        argument=argument,
    )


def _check_separator(answers_sep: object) -> str | None:
    if answers_sep is None or (isinstance(answers_sep, str) and answers_sep):
        return answers_sep
    raise InputError(
        f"answers_sep={short_repr(answers_sep)}: must be a non-empty string, such as ';', or None.",
        argument="answers_sep",
    )


def _find_origin(source: object, known: Collection[str], limit: int | None) -> _Origin:
    is_read = column_filter(known)
    if isinstance(source, str) and source in PAIR_SAMPLES:
        read_sample = lambda: RawData(sample_rows(source))  # noqa: E731
        return _Origin(f"sample:{source}", source, True, read_sample)
    if is_table(source):
        read = lambda: read_table(source, limit, is_read)  # noqa: E731
        return _Origin(table_name(source), "pairs", False, read)
    if not isinstance(source, str | os.PathLike) or not str(source).strip():
        kinds = "a list of dictionaries, a pandas frame, a datasets.Dataset, a file"
        fix = f"Give {kinds} or the name of a sample."
        raise InputError(f"source={short_repr(source)}: no prompt pairs. {fix}", argument="source")
    # Path.expanduser raises for an unknown user.
    path = Path(os.path.expanduser(os.fspath(source)))  # noqa: PTH111
    suffix = file_extension(path)
    is_word = isinstance(source, str) and suffix not in EXTENSIONS and path.name == source
    if is_word and not path.exists():
        near = did_you_mean(str(source), PAIR_SAMPLES)
        fix = f"{near} For a file give its path ({', '.join(EXTENSIONS)})."
        raise InputError(f"source={source!r}: no such file or sample. {fix}", argument="source")
    has_cells = suffix in (".csv", ".tsv")
    read = lambda: read_file(path, known, is_read)  # noqa: E731
    return _Origin(f"file:{path.name}", file_stem(path), has_cells, read)


def _warn_of_ids(rows: Rows, columns: Mapping[str, str]) -> None:
    """Warn if a column of numbers is read as text, but its name is that of token ids."""
    for field in ("answer", "wrong"):
        column = columns.get(field, field)
        cells = [str(row[field]).strip() for row in rows if field in row]
        if cells and _ID_COLUMN.search(column) and all(cell.isdecimal() for cell in cells):
            warn(
                f"{field}: the numbers of column {column!r}, such as {cells[0]}, are read as text."
                " Pass numbers='ids', if they are token ids."
            )


def _check_usable_pairs(data: PairData) -> None:
    """Raise EmptySweepError if no pair is left, and warn if most rows are dropped."""
    if not data.pairs:
        raise EmptySweepError(explain_drops(data.dropped, f"in {data.source}"), argument="source")
    n_rows = len(data.pairs) + len(data.dropped)
    if 2 * len(data.dropped) > n_rows:
        counts = Counter(row.reason for row in data.dropped).most_common()
        reason = counts[0][0]
        first = next(row for row in data.dropped if row.reason == reason)
        warn(
            f"{data.source}: {len(data.dropped):,} of {n_rows:,} rows are dropped"
            f" ({list_counts(dict(counts))}). The first: {first.detail}."
            f" {PAIR_FIXES.get(reason, '')}".rstrip()
        )


def _read_pairs(
    rows: Rows, origin: _Origin, options: _PairOptions, name: str, limit: int | None
) -> PairData:
    reader = CellReader(origin.has_cells, options.numbers, options.answers_sep)
    pairs: list[PromptPair] = []
    dropped: list[Dropped] = []
    aliases = {field: AliasCells() for field in ANSWER_FIELDS}
    doubts: dict[str, list[str]] = {}
    of_prompts: dict[frozenset[str], str] = {}
    for number, row in enumerate(rows, start=1):
        where = f"row {number}"
        pair_id = cell_text(row.get("id"), where, "id") or f"{number - 1:06d}"
        group = cell_text(row.get("group"), where, "group")
        try:
            pair = _read_pair(row, pair_id, group or pair_id, reader, options.extra)
            if not group:
                # The same two prompts, in either order, are one observation.
                prompts = frozenset((repr(pair.clean), repr(pair.corrupted)))
                pair = replace(pair, group=of_prompts.setdefault(prompts, pair_id))
            at = f"{origin.label}, {where}"
            own = _find_doubts(row, pair, at)
            for doubt, shown in own:
                doubts.setdefault(doubt, []).append(shown)
            for field, cells in aliases.items():
                answer = getattr(pair, field)
                # No list, no JSON and nothing to split.
                if answer == row.get(field) and not own:
                    _look_for_aliases(answer, field, at, cells)
            pairs.append(join_by_space(pair) if options.answer_space == ADD_SPACE else pair)
        except RowDropped as why:
            dropped.append(
                Dropped(
                    example_id=replace_bad_characters(pair_id),
                    dataset=name,
                    question=replace_bad_characters(_cell_repr(row, "clean")),
                    answer=replace_bad_characters(_cell_repr(row, "answer")),
                    reason=why.reason,
                    detail=f"{where}: {replace_bad_characters(why.detail)}",
                )
            )
    warn_of_doubts(doubts)
    for cells in aliases.values():
        warn_of_doubts(cells.doubts())
    _warn_of_repeated_prompts(pairs, origin.label)
    for repeated, n in Counter(pair.id for pair in pairs).items():
        if n > 1:
            raise DataError(f"{n} rows have the id {repeated!r}. Give unique ids, or none.")
    text = json.dumps([content_of(pair) for pair in pairs], sort_keys=True, ensure_ascii=False)
    return PairData(
        name=name,
        pairs=tuple(pairs),
        dropped=tuple(dropped),
        source=origin.label,
        sha256=hashlib.sha256(text.encode("utf8", "surrogatepass")).hexdigest(),
        limit=limit,
    )


def _find_doubts(row: Mapping[str, Any], pair: PromptPair, where: str) -> list[tuple[str, str]]:
    """Return what the texts of a pair may mean instead, each with its cell."""
    found: list[tuple[str, str]] = []
    for field in ("clean", "corrupted", "answer", "wrong", "group", "template"):
        given = row.get(field)
        if not isinstance(given, str) or (field in ANSWER_FIELDS and given != getattr(pair, field)):
            continue
        if doubt := find_doubt(given) or find_line_ends(given):
            name = "wrong answer" if field == "wrong" else field
            found.append((doubt, f"{where}: the {name} {shorten(given)}"))
    return found


def _warn_of_repeated_prompts(pairs: Sequence[PromptPair], source: str) -> None:
    """Warn if the same two prompts are in several groups, which are resampled as independent."""
    groups: dict[object, set[str]] = {}
    for pair in pairs:
        prompts = frozenset((repr(pair.clean), repr(pair.corrupted)))
        groups.setdefault(prompts, set()).add(pair.group)
    repeated = [names for names in groups.values() if len(names) > 1]
    if repeated:
        first = ", ".join(sorted(repeated[0])[:2])
        n = len(repeated)
        which = "one pair of prompts is" if n == 1 else f"{n} pairs of prompts are"
        warn(
            f"{source}: {which} in several groups, such as {first}. Groups count as independent"
            " observations: give rows with the same prompts one group, or no group."
        )


def _look_for_aliases(answer: AnswerText | None, field: str, where: str, cells: AliasCells) -> None:
    """Note an answer that seems to list several in one text; code may end in a semicolon."""
    if isinstance(answer, str):
        name = "wrong answer" if field == "wrong" else field
        inner = answer.strip().strip("|;").strip()
        cells.add(inner, f"{where}: the {name} {shorten(answer)}")


def _cell_repr(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    return value if isinstance(value, str) else "" if value is None else short_repr(value)


def _read_pair(
    row: Mapping[str, Any], pair_id: str, group: str, reader: CellReader, extra: Sequence[str]
) -> PromptPair:
    """Return a row as a pair; raise RowDropped if a cell cannot be used."""
    clean = reader.read_prompt(row.get("clean"), "clean")
    corrupted = reader.read_prompt(row.get("corrupted"), "corrupted")
    answer = reader.read_answer(row.get("answer"), "answer")
    wrong = reader.read_answer(row.get("wrong"), "wrong")
    for name, text in (("clean", clean), ("corrupted", corrupted)):
        if not strip_text(text):
            raise RowDropped("empty_cell", f"{name} is empty")
    for name, text in (("answer", answer), ("wrong", wrong)):
        if text is not None and not isinstance(text, AnyOf) and not strip_text(text):
            raise RowDropped(
                "empty_answer", f"{name} is empty. Leave it out, or give white space as token ids"
            )
    assert clean is not None and corrupted is not None  # checked above
    segments = reader.read_segments(row.get("segments"))
    alignment = read_alignment(row.get("alignment"))
    named: list[object] = []
    for name, both in segments.items():
        named += [name, *both]
    own = {name: row.get(name) for name in extra}
    template = cell_text(row.get("template"), f"pair {pair_id!r}", "template") or None
    fields = {"id": pair_id, "group": group, "clean": clean, "corrupted": corrupted, **own}
    fields["template"] = template
    written = {name: text for name, text in fields.items() if isinstance(text, str)}
    for name, given in (("answer", answer), ("wrong", wrong)):
        written[name] = "".join(one for one in list_answers(given) if isinstance(one, str))
    written["segments"] = " ".join(text for text in named if isinstance(text, str))
    if bad := find_bad_character(written):
        raise RowDropped(*bad)
    return PromptPair(
        id=pair_id,
        group=group,
        template=template,
        clean=clean,
        corrupted=corrupted,
        answer=answer,
        wrong=wrong,
        segments=segments,
        alignment=alignment,
        extra=own,
    )
