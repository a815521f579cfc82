"""Questions with gold answers and the two spans of their exact question tokens; sets of them."""

import hashlib
import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anchorlens.display import escape_hidden, list_counts
from anchorlens.prompts.dataset import CountsDropped, Dropped
from anchorlens.questions.spans.accuracy import describe_accuracy

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, order=True)
class Span:
    """Span of characters ``text[start:end]``.

    Examples:
        >>> import anchorlens as al
        >>> al.Span(10, 14).of("Who wrote Emma?")
        'Emma'

    Attributes:
        start: Index of the first character, from 0.
        end: Index one past the last character.
    """

    start: int
    end: int

    def of(self, text: str) -> str:
        """Return the characters of ``text`` in this span."""
        return text[self.start : self.end]

    def overlaps(self, other: "Span") -> bool:
        """Return True if the two spans share a character."""
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, kw_only=True)
class Example:
    """Row of a question set.

    Examples:
        >>> import anchorlens as al
        >>> row = al.load_qa([("Who wrote Emma?", "Jane Austen")]).examples[0]
        >>> row.subject.of(row.question), row.answers, row.answer_type
        ('Emma', ('Jane Austen',), 'person')

    Attributes:
        example_id: Unique id within the data set.
        question_id: Hash of the normalised question, always resampled as a
            whole.
        dataset: Name of the data set.
        question: Text of the question.
        answers: Gold aliases, at least one; the first is the canonical one.
        subject: First segment of E_Q, characters of ``question``.
        property: Second segment of E_Q, characters of ``question``; does not overlap ``subject``.
        relation: Relation of the question, such as ``capital``. If None, unknown.
        cluster: Unit of resampling where the data name at least ten. If None, the relation.
        answer_type: ``year``, ``number``, ``person``, ``place``, ``yes/no`` or ``other``.
        span_source: Source of the spans: ``annotation``, ``annotation+rules`` (one annotated, the
            other by rules), ``template``, ``rules``, ``spacy:NAME`` or ``callable:NAME``.
        popularity: Monthly page views of the subject (PopQA's ``s_pop``). If None, unknown.
    """

    example_id: str
    question_id: str
    dataset: str
    question: str
    answers: tuple[str, ...]
    subject: Span
    property: Span
    relation: str | None = None
    cluster: str | None = None
    answer_type: str = "other"
    span_source: str = "rules"
    popularity: float | None = None

    def drop(self, reason: str, detail: str = "") -> Dropped:
        """Return the record of this example as a row that was left out.

        Args:
            reason: Name under which dropped rows are counted, such as ``no_donor``.
            detail: Circumstances of this row.
        """
        return Dropped(
            example_id=self.example_id,
            dataset=self.dataset,
            question=self.question,
            answer=self.answers[0],
            reason=reason,
            detail=detail,
        )


@dataclass(frozen=True, kw_only=True)
class QAData(CountsDropped):
    """Question set with the segments of every question, returned by :func:`~anchorlens.load_qa`.

    Examples:
        >>> import anchorlens as al
        >>> data = al.load_qa("popqa-sample", limit=20)
        >>> len(data), len(data.pool), data.dropped_counts
        (20, 220, {})

    Attributes:
        name: Name of the set, such as ``popqa`` or ``popqa-sample``.
        examples: Drawn rows with both segments, in file order.
        pool: Usable rows of the whole file, from which donors are drawn; contains ``examples``.
        dropped: Drawn rows without a question, answer or segment, with reasons;
            :meth:`dropped_frame` returns a table.
        pool_dropped: Reason -> number of dropped rows of the whole file.
        source: ``hub:akariasai/PopQA[test]``, ``file:popqa.jsonl``, ``sample:popqa``, ``frame``,
            ``dataset`` or ``list``.
        sha256: Hash of the rows in canonical JSON, after ``columns=`` and ``answers_sep=``.
        limit: Number of rows drawn. If None, all.
        seed: Random seed of the draw.
        form: Form of the questions (``popqa``, ``triviaqa``, ``hotpotqa``, ``nq``), which
            determines the expected accuracy of spans.
        spans: Value of ``load_qa(spans=)``; for a function its name and fingerprint.
        reading: Values of ``columns=`` and ``answers_sep=`` that differ from their defaults, and
            what was recognised: ``delimiter``, ``encoding``, and ``stream`` (the rows read).
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
    reading: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def question_share(self) -> float:
        """Mean share of the question's characters in E_Q over ``examples``, in [0, 1]; NaN without
        examples.
        """
        if not self.examples:
            return float("nan")
        shares: list[float] = []
        for example in self.examples:
            question = example.question
            covered = len(example.subject.of(question)) + len(example.property.of(question))
            shares.append(covered / len(question))
        return sum(shares) / len(shares)

    def _facts(self) -> dict[str, str]:
        reasons = list_counts(self.dropped_counts)
        sources = Counter(example.span_source for example in self.examples)
        expectation = describe_accuracy(self.form, sources)
        return {
            "examples": f"{len(self.examples):,}",
            "dropped": f"{len(self.dropped):,}" + (f" ({reasons})" if reasons else ""),
            "pool": f"{len(self.pool):,}",
            "spans": list_counts(dict(sorted(sources.items()))) or "none",
            **({"expected accuracy": expectation} if expectation else {}),
            "subject and property, share of question": f"{self.question_share:.2f}",
            "limit": str(self.limit),
            "seed": str(self.seed),
            "source": self.source,
            "sha256": self.sha256[:12],
        }

    def __repr__(self) -> str:
        facts = " | ".join(f"{key} {value}" for key, value in self._facts().items())
        return escape_hidden(f"QAData({self.name!r}: {facts})")

    def _repr_html_(self) -> str:
        rows = ""
        for key, value in self._facts().items():
            rows += f"<tr><th>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>"
        return f"<table><caption>QAData: {html.escape(self.name)}</caption>{rows}</table>"

    def record(self) -> dict[str, object]:
        """Return name, source, content hash and sizes for ``run.json``."""
        return {
            "name": self.name,
            "source": self.source,
            "sha256": self.sha256,
            "limit": self.limit,
            "seed": self.seed,
            "spans": self.spans,
            "examples": len(self.examples),
            "pool": len(self.pool),
            "pool_dropped": dict(self.pool_dropped),
            **({"reading": dict(self.reading)} if self.reading else {}),
        }

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row per example.

        Returns:
            ``example_id question_id dataset question answers relation cluster answer_type subject
            property``, first and last (exclusive) character of the segments (``subject_start`` and
            so on), ``span_source`` and ``popularity``; answers are a list.
        """
        import pandas

        columns = (
            "example_id question subject property answers relation cluster answer_type span_source"
            " popularity subject_start subject_end property_start property_end question_id dataset"
        )
        rows: list[dict[str, Any]] = []
        for example in self.examples:
            row = {**vars(example), "answers": list(example.answers)}
            for name, span in (("subject", example.subject), ("property", example.property)):
                row |= {
                    name: span.of(example.question),
                    f"{name}_start": span.start,
                    f"{name}_end": span.end,
                }
            rows.append(row)
        return pandas.DataFrame(rows, columns=columns.split())


# Signs that are written as words, and variants of one sign.
_WORDED = {"%": " percent ", "°": " degrees ", "♯": "#", "−": "-", "⁄": " ", "_": "_"}
# Signs that distinguish answers: of a number (-40), at the end of a name or grade (C++, C#, A+,
# AB-), in a sum (2 + 2).
_SIGNS = re.compile(
    r"""( (?<!\S)-(?=\d)
        | (?<=[^\s+\#-])(?:\++|\#)(?!\w)
        | (?:(?<=(?<!\S)[^\W\d_])|(?<=(?<!\S)[^\W\d_]{2}))-(?!\S)
        | (?<=\d\ )\+(?=\ \d)
        ) | [-+\#]+""",
    re.VERBOSE,
)
_SUM = re.compile(r"(?<=\d)\+(?=\d)")
# Equates "C++11" and "C++ 11".
_PLUSES_END = re.compile(r"(?<=\+\+)(?=\w)")


class _Table(dict[int, str]):
    """Table for ``str.translate`` that is filled on demand."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = made = self._rule(chr(code))
        return made


def _drop_invisible(char: str) -> str:
    """Map zero-width joiners, variation selectors and trade marks to nothing, zero-width spaces and
    lone accents to a space.
    """
    # Tag characters distinguish flags, modifiers distinguish emoji: both are kept.
    if char in "™®©℠" or "\ufe00" <= char <= "\ufe0f":
        return ""
    if char == "\u200b":
        return " "
    category = unicodedata.category(char)
    if category == "Cf" and not "\U000e0020" <= char <= "\U000e007f":
        return ""
    return " " if category == "Sk" and char < "\U0001f3fb" else char


def _map_character(char: str) -> str:
    """Map a character to itself within a word, to a word of its own, or to a space."""
    if char in _WORDED:
        return _WORDED[char]
    category = unicodedata.category(char)
    # Vowels of Indic and Thai scripts are combining marks.
    if category[0] in "LNM" or category == "Cf" or char in "+#-":
        return char
    if category == "Pd":
        return "-"
    # In ASCII, "`" is a quote and "^", "+", "<" are parts of a formula.
    sign = category in {"Sc", "So"} or (category in {"Sk", "Sm"} and not char.isascii())
    return f" {char} " if sign else " "


_VISIBLE = _Table(_drop_invisible)
_WORDS = _Table(_map_character)


def normalise(text: str) -> str:
    """Return a text without case, punctuation, extra white space and variants of accents, for
    comparison.

    Scripts, combining marks and distinctive signs are kept: "C++" is not "C", "-40" not "40", "$5"
    not "5%". A text of punctuation only is kept.

    >>> normalise("  The U.S.A.! "), normalise("C++, -40 and 1914-18")
    ('the u s a', 'c++ -40 and 1914 18')
    """
    if text.isascii():
        folded = text.casefold()
    else:
        folded = unicodedata.normalize("NFKC", text.translate(_VISIBLE)).casefold()
        folded = unicodedata.normalize("NFKC", folded)
    words = folded.translate(_WORDS)
    if "+" in words or "-" in words or "#" in words:
        words = _SIGNS.sub(
            lambda sign: sign[1] or " ", _PLUSES_END.sub(" ", _SUM.sub(" + ", words))
        )
    return " ".join(words.split()) or " ".join(folded.split())


def question_id(question: str) -> str:
    """Return a hash of 16 hex digits of a question's normalised text."""
    return hashlib.sha256(normalise(question).encode("utf8")).hexdigest()[:16]


def pool_answers(examples: Iterable[Example]) -> dict[str, tuple[str, ...]]:
    """Return ``question_id`` -> gold aliases of all rows with this question, since an answer of one
    row is right for the others.
    """
    pooled: dict[str, dict[str, None]] = {}
    for example in examples:
        pooled.setdefault(example.question_id, {}).update(dict.fromkeys(example.answers))
    return {question: tuple(answers) for question, answers in pooled.items()}
