"""Load question sets with ``load_qa`` and find the segments of every question (METHOD 2)."""

import os
import random
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anchorlens.display import as_int, short_repr
from anchorlens.errors import DataError, InputError
from anchorlens.fingerprint import callable_name, fingerprint
from anchorlens.prompts.dataset import Dropped, KnownDataset
from anchorlens.prompts.pair_samples import PAIR_SAMPLES
from anchorlens.prompts.read_rows import RawData
from anchorlens.prompts.whole_numbers import drop_zero_decimals
from anchorlens.questions.choices import remove_topics, resolve_choices
from anchorlens.questions.columns import (
    check_columns,
    check_fields,
    check_layout,
    match_names,
    rename_columns,
    split_answers,
    warn_of_cells,
    warn_of_truth_values,
    warn_of_two_answers,
)
from anchorlens.questions.data_source import Origin, QASource, find_origin
from anchorlens.questions.example import Example, QAData
from anchorlens.questions.layouts import unfold_rows
from anchorlens.questions.make_examples import (
    canonical,
    check_usable_rows,
    example_ids,
    hash_of,
    make_example,
    only,
    share_answers,
)
from anchorlens.questions.schemas import Record, Row, read_row
from anchorlens.questions.sources import KNOWN
from anchorlens.questions.spans.accuracy import find_form
from anchorlens.questions.spans.span_finder import (
    SpansLike,
    span_finder,
)

if TYPE_CHECKING:
    pass


def known_datasets() -> tuple[KnownDataset, ...]:
    """Return the data sets that are loaded by name: questions (four sets of the hub, four embedded
    samples) and prompt pairs.

    Examples:
        >>> import anchorlens as al
        >>> [entry.name for entry in al.known_datasets() if entry.kind == "sample"]
        ['popqa-sample', 'triviaqa-sample', 'hotpotqa-sample', 'nq-sample']
    """
    return (*KNOWN, *PAIR_SAMPLES.values())


def _read(raw: RawData, origin: Origin, columns: Mapping[str, str], sep: str | None) -> list[Row]:
    """Rename columns and split answers; warn of suspicious cells."""
    schema = origin.schema
    source = origin.source
    unfolded = unfold_rows(raw.rows) if origin.own else raw.rows
    if not unfolded:
        raise DataError(f"{source} has no rows. It needs one row per question.")
    if origin.own:
        check_layout(unfolded, columns, schema, source, raw)
    renamed = rename_columns(unfolded, columns, schema, source, raw)
    rows = match_names(renamed, schema, source)
    check_fields(rows, schema, source, raw, own=origin.own)
    if origin.own:
        if raw.delimiter:
            rows = drop_zero_decimals(rows, schema.answers, source)
        warn_of_two_answers(rows, schema, source)
        rows = remove_topics(resolve_choices(rows, schema, source), source)
        rows = split_answers(rows, schema, sep, source)
        warn_of_cells(rows, schema, source)
        warn_of_truth_values(rows, schema, source)
    return rows


def _draw(limit: object, seed: object) -> tuple[int | None, int]:
    """Return checked ``limit`` and ``seed`` as integers."""
    n = as_int(limit)
    seed_number = as_int(seed)
    if limit is not None and (n is None or n < 1):
        raise InputError(
            f"limit={short_repr(limit)}: must be an integer >= 1, or None for all rows.",
            argument="limit",
        )
    if seed_number is None or seed_number < 0:
        raise InputError(f"seed={short_repr(seed)}: must be an integer >= 0.", argument="seed")
    return n, seed_number


def load_qa(
    name: QASource | None = None,
    path: str | os.PathLike[str] | None = None,
    config: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    *,
    revision: str | None = None,
    spans: SpansLike = "auto",
    dataset_name: str | None = None,
    columns: Mapping[str, str] | None = None,
    answers_sep: str | None = None,
) -> QAData:
    """Load a question set and find the two segments of exact question tokens (E_Q) in every
    question.

    Examples:
        >>> import anchorlens as al
        >>> rows = [
        ...     ("Who wrote Emma?", "Jane Austen"),
        ...     ("What is the capital of Peru?", ["Lima", "Ciudad de los Reyes"]),
        ... ]
        >>> data = al.load_qa(rows)
        >>> [(row.subject.of(row.question), row.property.of(row.question)) for row in data.examples]
        [('Emma', 'wrote'), ('Peru', 'capital')]

    Args:
        name: Known set (``popqa``, ``triviaqa``, ``hotpotqa`` or ``nq``; from the hub, or a file of
            that schema with ``path``), embedded sample (``popqa-sample`` and so on), other name
            with ``path``, file (``"mine.csv"``, a ``Path``), pandas frame, ``datasets.Dataset``
            (streamed: with ``limit``), or list of dictionaries or (question, answer) pairs; an
            answer is a text or a list of texts.
        path: Local jsonl, json, csv, tsv or parquet file, also compressed (``.csv.gz``); lists in
            csv and tsv cells are JSON. Rules: docs/errors.md, "Question files". Fields:
            ``question``, ``answers`` or ``answer`` (with ``choices``, the number or label of one);
            optional ``id``, ``relation``, ``cluster``, ``answer_type``, ``popularity``, and the
            segments as ``subject_span`` and ``property_span`` ([first character, one past the
            last]) or as the texts ``subject`` and ``property``, which occur once in the question. A
            missing segment is found by rules (``annotation+rules``). If ``name`` is None, the set
            has the file's name, and ``popqa.jsonl`` the schema of ``popqa``.
        config: Configuration on the hub. If None, the default.
        split: Split on the hub. If None, the default.
        limit: Number of rows drawn from the whole file, before rows are dropped; the draw keeps
            file order. If None, all rows. Of a streamed data set the first rows are read.
        seed: Random seed of the draw.
        revision: Branch, tag or commit on the hub.
        spans: ``auto``, ``rules``, ``annotation``, ``spacy:NAME``, or a function from a question to
            (subject, property) or None, each as :class:`~anchorlens.questions.example.Span`, pair
            of numbers, or text that occurs once.
        dataset_name: Name in outputs. If None, ``name`` (of a table ``frame``, ``dataset`` or
            ``list``). For a table or a file without ``name``, the name of a known set also selects
            its schema.
        columns: Field -> column of your file or table: ``{"question": "q", "answers": "gold"}``.
        answers_sep: Separator of gold answers in one text of your file or table, such as ``";"``.
            If None, a text is one answer.

    Returns:
        Rows to evaluate, the pool of all usable rows, and the dropped rows.

    Raises:
        InputError: If an argument is invalid, names an unknown set or field, or conflicts with
            another argument.
        DataError: If a file is missing, empty or damaged, a column is missing or occurs twice, a
            cell that is read is neither text nor a number, or ids repeat.
        SpanError: If no annotation fits its question, or a function of ``spans`` returns no two
            segments. If some annotations fit, other rows are dropped as ``bad_annotation``.
        DownloadError: If the hub cannot be reached or has no such set.
    """
    limit, seed = _draw(limit, seed)
    finder = span_finder(spans)
    origin = find_origin(
        name,
        path,
        config=config,
        split=split,
        revision=revision,
        dataset_name=dataset_name,
        columns=[*columns.values()] if isinstance(columns, Mapping) else (),
        limit=limit,
    )
    own_columns = check_columns(columns, origin.schema)
    for argument, value in (("columns", own_columns), ("answers_sep", answers_sep)):
        if value and not origin.own:
            raise InputError(
                f"{argument}={short_repr(value)}: only for a file or table of your own; {name!r}"
                " has fixed fields. Leave it out.",
                argument=argument,
            )
    raw = origin.read()
    rows = _read(raw, origin, own_columns, answers_sep)
    source = origin.source
    texts: list[str] = []
    places: list[str] = []
    records: list[Record] = []
    for number, row in enumerate(rows, start=1):
        text = canonical(row)
        place = f"{source}, row {number}"
        texts.append(text)
        places.append(place)
        records.append(read_row(row, origin.schema, place))
    ids = example_ids(records, rows, texts, origin)
    found: list[Example | Dropped] = []
    for record, example_id, place in zip(records, ids, places, strict=True):
        found.append(make_example(record, example_id, origin.name, finder, place))
    results = share_answers(found)
    check_usable_rows(results, source)
    drawn = results
    if limit is not None:
        indices = random.Random(seed).sample(range(len(rows)), min(limit, len(rows)))
        drawn = [results[i] for i in sorted(indices)]
    reasons = Counter(row.reason for row in only(Dropped, results))
    reading: dict[str, Any] = dict(raw.reading)
    if own_columns:
        reading["columns"] = dict(own_columns)
    if answers_sep:
        reading["answers_sep"] = answers_sep
    return QAData(
        name=origin.name,
        examples=only(Example, drawn),
        pool=only(Example, results),
        dropped=only(Dropped, drawn),
        pool_dropped=dict(sorted(reasons.items())),
        source=source,
        sha256=hash_of("\n".join(texts)),
        limit=limit,
        seed=seed,
        form=find_form(origin.schema.name, [record.question for record in records]),
        spans=spans if isinstance(spans, str) else f"{callable_name(spans)} {fingerprint(spans)}",
        reading=reading,
    )
