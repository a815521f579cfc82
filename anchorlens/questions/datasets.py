"""``load_qa``: a name, a file or a table becomes question rows with spans (METHOD 2)."""

import hashlib
import html
import json
import os
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from anchorlens.display import as_int, short_repr
from anchorlens.errors import DataError, InputError, SpanError
from anchorlens.fingerprint import callable_name, fingerprint
from anchorlens.prompts.dataset import Dropped
from anchorlens.questions.accuracy import expected, form_of
from anchorlens.questions.answers import answer_type
from anchorlens.questions.columns import check_columns, check_fields, rename_columns, warn_of_cells
from anchorlens.questions.data_source import Origin, QASource, find_origin
from anchorlens.questions.example import Example, pooled_answers, question_id
from anchorlens.questions.schemas import Record, Row, Schema, read_row
from anchorlens.questions.sources import KNOWN, KnownDataset
from anchorlens.questions.spans import BAD_ANNOTATION, SpanFinder, SpansLike, span_finder
from anchorlens.questions.templates import match_template
from anchorlens.warn import warn

if TYPE_CHECKING:
    import pandas

# Half of a UTF-16 pair: no character, and no file can hold it.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_ANNOTATION = "If these columns are no annotation, leave them out, or give spans='rules'."


@dataclass(frozen=True)
class QAData:
    """A question set, ready for a sweep.

    Attributes:
        name: ``popqa``, ``popqa-sample``, or the user's name.
        examples: Rows to evaluate: after ``limit``, spans found, in file order.
        pool: Every usable row of the whole file, where donors come from; contains ``examples``.
        dropped: Rows of the evaluated draw that were left out, with their reasons.
        pool_dropped: The same reasons counted over the whole file.
        source: ``hub:akariasai/PopQA[test]``, ``file:popqa.jsonl``, ``sample:popqa``, ``frame``, ``dataset`` or ``list``.
        sha256: Of the raw rows in canonical JSON, columns renamed as ``columns=`` says.
        limit: How many rows were drawn; None for all.
        seed: Of the draw.
        form: The measured form of its questions (``popqa``, ``triviaqa``, ``hotpotqa``, ``nq``), which says what share of its spans
            to expect right.
        spans: How they were looked for, as ``load_qa(spans=)`` has it; a function by its name and a fingerprint of what it does.
    """

    name: str
    examples: tuple[Example, ...]
    pool: tuple[Example, ...]
    dropped: tuple[Dropped, ...]
    pool_dropped: dict[str, int]
    source: str
    sha256: str
    limit: int | None
    seed: int
    form: str = "triviaqa"
    spans: str = "auto"

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def question_share(self) -> float:
        """Mean over ``examples`` of the share of the question's characters that E_Q takes; nan without examples."""
        shares = [(len(e.subject.of(e.question)) + len(e.property.of(e.question))) / len(e.question) for e in self.examples]
        return sum(shares) / len(shares) if shares else float("nan")

    @property
    def dropped_counts(self) -> dict[str, int]:
        """Reasons of ``dropped``, counted."""
        return dict(sorted(Counter(row.reason for row in self.dropped).items()))

    def _facts(self) -> dict[str, str]:
        reasons = ", ".join(f"{reason} {n}" for reason, n in self.dropped_counts.items())
        sources = ", ".join(f"{source} {n}" for source, n in sorted(Counter(e.span_source for e in self.examples).items()))
        expectation = expected(self.form, (example.span_source for example in self.examples))
        return {
            "examples": f"{len(self.examples):,}",
            "dropped": f"{len(self.dropped):,}" + (f" ({reasons})" if reasons else ""),
            "pool": f"{len(self.pool):,}",
            "spans": sources or "none",
            **({"expected": expectation} if expectation else {}),
            "E_Q share of question": f"{self.question_share:.2f}",
            "limit": str(self.limit),
            "seed": str(self.seed),
            "source": self.source,
            "sha256": self.sha256[:12],
        }

    def __repr__(self) -> str:
        return f"QAData({self.name!r}: " + " | ".join(f"{key} {value}" for key, value in self._facts().items()) + ")"

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>" for key, value in self._facts().items())
        return f"<table><caption>QAData: {html.escape(self.name)}</caption>{''.join(rows)}</table>"

    def record(self) -> dict[str, object]:
        """Return name, source, content hash and sizes for ``run.json``."""
        return {
            "name": self.name, "source": self.source, "sha256": self.sha256, "limit": self.limit, "seed": self.seed,
            "spans": self.spans, "examples": len(self.examples), "pool": len(self.pool), "pool_dropped": dict(self.pool_dropped),
        }  # fmt: skip

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row per example.

        Returns:
            ``example_id question_id dataset question answers relation answer_type subject property``, first and last (exclusive)
            character of the segments (``subject_start`` and so on), ``span_source`` and ``popularity``; answers are a list.
        """
        import pandas

        columns = (
            "example_id question subject property answers relation answer_type span_source popularity "
            "subject_start subject_end property_start property_end question_id dataset"
        )
        rows: list[dict[str, Any]] = []
        for one in self.examples:
            row = {**vars(one), "answers": list(one.answers)}
            for name, span in (("subject", one.subject), ("property", one.property)):
                row |= {name: span.of(one.question), f"{name}_start": span.start, f"{name}_end": span.end}
            rows.append(row)
        return pandas.DataFrame(rows, columns=columns.split())


def known_datasets() -> tuple[KnownDataset, ...]:
    """The question sets that ``load_qa`` knows by name: four of the hub, four embedded samples.

    Returns:
        One entry a set, with its name, where it comes from and its schema.
    """
    return KNOWN


def canonical(row: Row) -> str:
    """A row as JSON with sorted keys and without spaces: the form that is hashed."""
    return json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _example_ids(records: Sequence[Record], hashes: Sequence[str], schema: Schema, source: str) -> list[str]:
    """Unique names of the rows: the file's own where they are unique, else row number and hash."""
    given = [record.file_id for record in records]
    counts = Counter(file_id for file_id in given if file_id is not None)
    repeated = [file_id for file_id, n in counts.items() if n > 1]
    if repeated and schema.name == "own":
        raise DataError(
            f"{source}: {len(repeated)} ids repeat, for example {repeated[0]!r} ({counts[repeated[0]]} rows); "
            "make them unique, or leave the id field out and rows are numbered."
        )
    if repeated or None in given:
        return [f"{i:06d}-{digest[:8]}" for i, digest in enumerate(hashes)]
    return [str(file_id) for file_id in given]


def _example(record: Record, example_id: str, dataset: str, finder: SpanFinder, where: str) -> Example | Dropped:
    """One row with its spans, or the reason why it has to be left out."""
    first = record.answers[0] if record.answers else ""
    if any(_LONE_SURROGATE.search(text) for text in (record.question, *record.answers, example_id, record.relation or "")):
        shown, question, answer = (_LONE_SURROGATE.sub("\ufffd", text) for text in (example_id, record.question, first))
        cure = f"{where}: half of a character (a lone surrogate) stands in it; write the file as UTF-8 again."
        return Dropped(shown, dataset, question, answer, "lone_surrogate", cure)
    reason = "empty_question" if not record.question else "no_answer" if not record.answers else ""
    found = None if reason else finder.find(record, where)
    if found is None or found.subject is None or found.property is None:
        why, detail = (reason, "") if found is None else (found.reason, found.detail)
        return Dropped(example_id, dataset, record.question, first, why, detail)
    match = match_template(record.question) if record.templated and not record.relation else None
    return Example(
        example_id, question_id(record.question), dataset, record.question, record.answers, found.subject, found.property,
        relation=match.relation if match else record.relation,
        answer_type=record.answer_type or answer_type(first, record.question),
        span_source=found.source, popularity=record.popularity,
    )  # fmt: skip


def _check_annotations(results: Sequence[Example | Dropped], source: str) -> None:
    """Warns where half of the annotations or more do not fit their questions."""
    bad = [result for result in results if isinstance(result, Dropped) and result.reason == BAD_ANNOTATION]
    if bad and not any(isinstance(result, Example) for result in results):
        more = "" if len(results) == 1 else f" No row of {len(results):,} can be used. {_NO_ANNOTATION}"
        raise SpanError(bad[0].detail + more)
    if bad and 2 * len(bad) >= len(results):
        warn(
            f"{source}: {len(bad):,} of {len(results):,} rows are dropped as {BAD_ANNOTATION}: {bad[0].detail} {_NO_ANNOTATION}"
        )


def _pool_answers(results: Sequence[Example | Dropped]) -> list[Example | Dropped]:
    """Give rows that ask the same question each other's gold aliases, after their own: all are right (METHOD 3)."""
    pooled = pooled_answers(result for result in results if isinstance(result, Example))
    return [
        replace(one, answers=tuple(dict.fromkeys((*one.answers, *pooled[one.question_id]))))
        if isinstance(one, Example)
        else one
        for one in results
    ]


def _read(origin: Origin, columns: Mapping[str, str]) -> list[Row]:
    """Read rows under our names, and warn of what looks wrong."""
    raw = origin.read()
    if not raw:
        raise DataError(f"{origin.source} has no rows; it needs one row a question.")
    rows = rename_columns(raw, columns, origin.schema, origin.source)
    check_fields(rows, origin.schema, origin.source, own=origin.own)
    if origin.cells:
        warn_of_cells(rows, origin.schema, origin.source)
    return rows


def _draw(limit: object, seed: object) -> tuple[int | None, int]:
    n, drawn_by = as_int(limit), as_int(seed)
    if limit is not None and (n is None or n < 1):
        raise InputError(f"limit must be at least 1, or None for all rows; got {short_repr(limit)}.")
    if drawn_by is None or drawn_by < 0:
        raise InputError(f"seed must be a whole number, at least 0; got {short_repr(seed)}.")
    return n, drawn_by


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
) -> QAData:
    """Loads a question set and finds the two segments of exact question tokens in every row.

    Args:
        name: ``popqa``, ``triviaqa``, ``hotpotqa`` or ``nq`` (from the hub, or with ``path`` from a file of that schema);
            ``popqa-sample`` and so on (embedded); any other name with ``path``; a file of your own (``"mine.csv"``, a
            ``Path``); a pandas frame; a ``datasets.Dataset``; a list of dictionaries.
        path: A local jsonl, json, csv, tsv or parquet file; in csv and tsv lists are JSON in a cell. The user's own schema:
            ``question``, ``answers`` or ``answer``, and optionally ``id``, ``relation``, ``answer_type``, ``popularity``, and the
            segments as ``subject_span`` and ``property_span`` ([first character, one past the last]) or as the texts ``subject`` and
            ``property``, each occurring exactly once in the question; an empty one is none, and the rules find it
            (``annotation+rules``). Annotated segments are read from files of every schema.
            Without ``name`` the set is called by the file's name, and ``popqa.jsonl`` has the schema of ``popqa``.
        config: Configuration on the hub, instead of the default.
        split: Split on the hub, instead of the default.
        limit: How many rows are drawn from all rows of the file, before any are dropped; None for all. The draw keeps file order.
        seed: Of the draw.
        revision: Branch, tag or commit on the hub.
        spans: ``auto``, ``rules``, ``annotation``, ``spacy:NAME``, or a function from a question to (subject, property) or None;
            the two as :class:`~anchorlens.questions.example.Span`, as pairs of numbers, or as texts that each occur once.
        dataset_name: Name in outputs, instead of ``name`` (of a table: ``frame``, ``dataset`` or ``list``). For a table or a file
            without ``name``, the name of a known set also says which schema it has.
        columns: Your names for the columns, where they are not ours: ``{"question": "q", "answers": "gold"}``, our field first. For
            files and tables of any schema. From a shell: ``question=q,answers=gold`` (:func:`parse_columns`).

    Returns:
        The rows to evaluate, the pool of all usable rows, and what was dropped.

    Raises:
        InputError: An unknown name, field or ``spans``, arguments that do not go together or are of another kind, ``limit`` below 1.
        DataError: A missing, empty, damaged or differently shaped file; a column that is not there; repeated ids.
        SpanError: No row is left because annotations do not fit their questions, or an extractor gives something else than two
            segments of the question. Where some annotations fit, the others' rows are dropped as ``bad_annotation``.
        DownloadError: The hub cannot be reached or has no such set.
    """
    limit, seed = _draw(limit, seed)
    finder = span_finder(spans)
    origin = find_origin(name, path, config=config, split=split, revision=revision, dataset_name=dataset_name)
    named = check_columns(columns, origin.schema)
    if named and not origin.own:
        raise InputError(f"columns= names the columns of a file or table of your own; {name!r} has its fields. Leave it out.")
    rows = _read(origin, named)
    label, source = origin.name, origin.source
    texts = [canonical(row) for row in rows]
    hashes = [hashlib.sha256(text.encode("utf8", "surrogatepass")).hexdigest() for text in texts]
    places = [f"{source}, row {i + 1}" for i in range(len(rows))]
    records = [read_row(row, origin.schema, place) for row, place in zip(rows, places, strict=True)]
    ids = _example_ids(records, hashes, origin.schema, source)
    results = _pool_answers([_example(r, i, label, finder, place) for r, i, place in zip(records, ids, places, strict=True)])
    _check_annotations(results, source)
    drawn = range(len(rows)) if limit is None else sorted(random.Random(seed).sample(range(len(rows)), min(limit, len(rows))))
    reasons = Counter(result.reason for result in results if isinstance(result, Dropped))
    return QAData(
        name=label,
        examples=tuple(result for result in (results[i] for i in drawn) if isinstance(result, Example)),
        pool=tuple(result for result in results if isinstance(result, Example)),
        dropped=tuple(result for result in (results[i] for i in drawn) if isinstance(result, Dropped)),
        pool_dropped=dict(sorted(reasons.items())),
        source=source,
        sha256=hashlib.sha256("\n".join(texts).encode("utf8", "surrogatepass")).hexdigest(),
        limit=limit,
        seed=seed,
        form=form_of(origin.schema.name, (record.question for record in records)),
        spans=spans if isinstance(spans, str) else f"{callable_name(spans)} {fingerprint(spans)}",
    )
