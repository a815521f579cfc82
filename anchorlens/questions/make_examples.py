"""Rows of a question set become examples with the segments of their questions, or dropped rows."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from anchorlens.display import list_counts, shorten, warn
from anchorlens.errors import DataError, SpanError
from anchorlens.prompts.cells import find_bad_character, replace_bad_characters
from anchorlens.prompts.dataset import Dropped
from anchorlens.questions.answers import answer_type
from anchorlens.questions.data_source import Origin
from anchorlens.questions.drops import FIXES
from anchorlens.questions.example import Example, pool_answers, question_id
from anchorlens.questions.schemas import OWN_ID, Record, Row
from anchorlens.questions.spans.span_finder import BAD_ANNOTATION, SpanFinder
from anchorlens.questions.spans.templates import match_template

# Most characters of a question; no model of this package reads more, and its words take seconds.
_MOST_CHARACTERS = 100_000
# One encoder for all rows: json.dumps makes one for each.
_CANONICAL = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str
)
_NO_ANNOTATION = "If these columns are no annotation, remove them, or pass spans='rules'."


def canonical(row: Row) -> str:
    """Return a row as JSON with sorted keys and without spaces, the input of hashes."""
    return _CANONICAL.encode(row)


def hash_of(text: str) -> str:
    """Return the SHA-256 of a text."""
    # Rows with half of a character are dropped later, but hashed as they are.
    return hashlib.sha256(text.encode("utf8", "surrogatepass")).hexdigest()


def example_ids(
    records: Sequence[Record], rows: Sequence[Row], texts: Sequence[str], origin: Origin
) -> list[str]:
    """Return unique ids of the rows: the file's ids if they are unique, else row number and
    hash of its canonical text.

    Raises:
        DataError: If ids of the user's own repeat. In published files a question may stand in
            several rows.
    """
    file_ids = [record.file_id for record in records]
    counts = Counter(file_id for file_id in file_ids if file_id is not None)
    repeated = [file_id for file_id, n in counts.items() if n > 1]
    is_own = origin.schema.name == "own" and any(OWN_ID in row for row in rows)
    if repeated and is_own:
        raise DataError(
            f"{origin.source}: {len(repeated)} ids repeat, for example {shorten(repeated[0])}"
            f" ({counts[repeated[0]]} rows)."
            " Make them unique, or remove the id field to number the rows."
        )
    if repeated or None in file_ids:
        return [f"{i:06d}-{hash_of(text)[:8]}" for i, text in enumerate(texts)]
    return [str(file_id) for file_id in file_ids]


def make_example(
    record: Record, example_id: str, dataset: str, finder: SpanFinder, where: str
) -> Example | Dropped:
    """Return a row with its spans, or a dropped row with its reason."""
    first = record.answers[0] if record.answers else ""
    texts = {
        "id": example_id,
        "question": record.question,
        "answers": "".join(record.answers),
        "relation": record.relation or "",
        "cluster": record.cluster or "",
    }
    if bad := find_bad_character(texts):
        reason, detail = bad
        return Dropped(
            example_id=replace_bad_characters(example_id),
            dataset=dataset,
            question=replace_bad_characters(record.question),
            answer=replace_bad_characters(first),
            reason=reason,
            detail=f"{where}: {detail}",
        )
    reason = "empty_question" if not record.question else "no_answer" if not record.answers else ""
    if len(record.question) > _MOST_CHARACTERS:
        reason = "question_too_long"
    found = None if reason else finder.find(record, where)
    if found is None or found.subject is None or found.property is None:
        reason, detail = (reason, "") if found is None else (found.reason, found.detail)
        return Dropped(
            example_id=example_id,
            dataset=dataset,
            question=record.question,
            answer=first,
            reason=reason,
            detail=detail,
        )
    match = match_template(record.question) if record.templated and not record.relation else None
    return Example(
        example_id=example_id,
        question_id=question_id(record.question),
        dataset=dataset,
        question=record.question,
        answers=record.answers,
        subject=found.subject,
        property=found.property,
        relation=match.relation if match else record.relation,
        cluster=record.cluster,
        answer_type=record.answer_type or answer_type(first, record.question),
        span_source=found.source,
        popularity=record.popularity,
    )


_Kind = TypeVar("_Kind", Example, Dropped)


def only(kind: type[_Kind], results: Iterable[Example | Dropped]) -> tuple[_Kind, ...]:
    """Return the usable rows of a file, or the dropped ones."""
    return tuple(result for result in results if isinstance(result, kind))


def check_usable_rows(results: Sequence[Example | Dropped], source: str) -> None:
    """Warn if most rows are dropped, or half of them for their annotations; raise SpanError if
    annotations leave no row.
    """
    dropped = only(Dropped, results)
    bad = [row for row in dropped if row.reason == BAD_ANNOTATION]
    if bad and len(dropped) == len(results):
        message = bad[0].detail
        if len(results) > 1:
            message += f" No row of {len(results):,} can be used. {_NO_ANNOTATION}"
        raise SpanError(message)
    if bad and 2 * len(bad) >= len(results):
        warn(
            f"{source}: {len(bad):,} of {len(results):,} rows are dropped as {BAD_ANNOTATION}:"
            f" {bad[0].detail} {_NO_ANNOTATION}"
        )
    elif 2 * len(dropped) > len(results):
        reasons = Counter(row.reason for row in dropped).most_common()
        warn(
            f"{source}: {len(dropped):,} of {len(results):,} rows are dropped"
            f" ({list_counts(dict(reasons))}). {FIXES.get(reasons[0][0], '')}".rstrip()
        )


def share_answers(results: Sequence[Example | Dropped]) -> list[Example | Dropped]:
    """Add to each row the gold aliases of other rows with the same question, after its own (METHOD
    3).
    """
    pooled = pool_answers(only(Example, results))
    shared: list[Example | Dropped] = []
    for result in results:
        if isinstance(result, Example):
            answers = tuple(dict.fromkeys((*result.answers, *pooled[result.question_id])))
            if answers != result.answers:
                result = replace(result, answers=answers)
        shared.append(result)
    return shared
