"""Clean and corrupted prompts: pairs as they are read, and tokenized pairs with their aligned
positions: by a list, position by position, by segments, or by common beginning and end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import override

from anchorlens.display import escape_hidden, list_counts
from anchorlens.prompts.dataset import CountsDropped, Dropped, RowDropped
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt

if TYPE_CHECKING:
    import pandas


TokenText: TypeAlias = str | tuple[int, ...]
"""Text, or token ids that are used as they are."""


@dataclass(frozen=True)
class AnyOf:
    """Alternative answers, of which any counts."""

    answers: tuple[TokenText, ...]


AnswerText: TypeAlias = TokenText | AnyOf
"""Answer, or alternative answers."""

Alignment: TypeAlias = tuple[tuple[int, int], ...]
"""Paired (clean position, corrupted position) of tokens."""


def list_answers(answer: AnswerText | None) -> tuple[TokenText, ...]:
    """Return the alternatives of an answer; one for an answer without, none for None."""
    if isinstance(answer, AnyOf):
        return answer.answers
    return () if answer is None else (answer,)


@dataclass(frozen=True, kw_only=True)
class PromptPair:
    """Clean and corrupted prompt, with the answer to the clean one and a wrong answer.

    Attributes:
        id: Unique name of the pair.
        group: Pairs of one group are always resampled together; the pair's id if the data give
            none.
        template: Template of the prompts; unit of resampling where the data name at least ten, and
            of the control ``other_pair``. None if unknown.
        clean: Prompt that leads to the answer.
        corrupted: Changed prompt.
        answer: Right continuation of the clean prompt, with its leading space if it has one. None
            without one; several alternatives as :class:`AnyOf`.
        wrong: Wrong continuation. None without one; several alternatives as :class:`AnyOf`.
        segments: Name -> the segment in the clean and in the corrupted prompt.
        alignment: Paired (clean position, corrupted position) of tokens, BOS counted. If None,
            positions are paired by rule.
        extra: Name -> value of further columns, for metric functions that take the pair's row.
    """

    id: str
    group: str
    template: str | None = None
    clean: TokenText
    corrupted: TokenText
    answer: AnswerText | None = None
    wrong: AnswerText | None = None
    segments: Mapping[str, tuple[TokenText, TokenText]] = field(default_factory=dict)
    alignment: Alignment | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return the row that metric functions get: id, group, prompts, answers and further
        columns.
        """
        names = ("clean", "corrupted", "answer", "wrong")
        texts = {name: _plain(getattr(self, name)) for name in names}
        return {"id": self.id, "group": self.group, **texts, **self.extra}


def content_of(pair: PromptPair) -> dict[str, Any]:
    """Return the content of a pair that its data set's hash covers; further columns only if there
    are any.
    """
    content = {name: value for name, value in vars(pair).items() if name != "extra" or value}
    for name, value in content.items():
        if isinstance(value, AnyOf):
            content[name] = {"any_of": value.answers}
    return content


def _plain(value: AnswerText | None) -> object:
    """Return texts as they are, token ids and alternatives as lists."""
    if isinstance(value, AnyOf):
        return [_plain(one) for one in value.answers]
    return list(value) if isinstance(value, tuple) else value


def _with_list(answer: AnswerText | None) -> object:
    """Return alternatives as a list, other answers as they are."""
    return _plain(answer) if isinstance(answer, AnyOf) else answer


@dataclass(frozen=True, kw_only=True)
class PairData(CountsDropped):
    """Data set of prompt pairs, returned by :func:`anchorlens.load_pairs`.

    Examples:
        >>> import anchorlens as al
        >>> data = al.load_pairs("ioi-pairs", limit=2)
        >>> len(data), data.pairs[0].answer
        (2, ' John')

    Attributes:
        name: Name of the data set in outputs.
        pairs: Pairs in the order of the data.
        dropped: Rows that were left out, with reasons; :meth:`dropped_frame` returns a table.
        source: ``file:pairs.csv``, ``sample:ioi-pairs``, ``frame``, ``dataset`` or ``list``.
        sha256: Hash of the pairs.
        limit: Number of rows loaded. If None, all.
        reading: Values of ``columns=``, ``answer_space=`` and ``numbers=`` that differ from their
            defaults, and what was recognised: ``delimiter``, ``encoding`` and ``stream``.
    """

    name: str
    pairs: tuple[PromptPair, ...]
    dropped: tuple[Dropped, ...]
    source: str
    sha256: str
    limit: int | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.pairs)

    def __repr__(self) -> str:
        reasons = list_counts(self.dropped_counts)
        dropped = f"{len(self.dropped)}" + (f" ({reasons})" if reasons else "")
        facts = f"pairs {len(self)} | dropped {dropped} | source {self.source}"
        return escape_hidden(f"PairData({self.name!r}: {facts})")

    def record(self) -> dict[str, Any]:
        """Return name, source, content hash and sizes for ``run.json``."""
        facts = {name: getattr(self, name) for name in ("name", "source", "sha256", "limit")}
        if self.reading:
            facts["reading"] = dict(self.reading)
        return {**facts, "seed": 0, "examples": len(self.pairs)}

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row per pair: ``id group template clean corrupted answer wrong segments
        alignment``; then columns for metrics.
        """
        import pandas

        columns = [name for name in PromptPair.__dataclass_fields__ if name != "extra"]
        for pair in self.pairs[:1]:
            columns += pair.extra
        rows: list[dict[str, Any]] = []
        for pair in self.pairs:
            answers = {name: _with_list(getattr(pair, name)) for name in ("answer", "wrong")}
            rows.append({**vars(pair), **answers, **pair.extra})
        return pandas.DataFrame(rows, columns=columns)


@dataclass(frozen=True, kw_only=True)
class PairPrompt(TokenizedPrompt):
    """Tokenized prompt of a pair; ``positions`` has ``pos:0``, ``pos:1``, ..., ``last`` and the
    named segments.
    """

    text: str
    pair: PromptPair
    answer_text: str = ""
    wrong_text: str = ""

    @override
    def columns(self) -> dict[str, object]:
        return {
            "question": self.text,
            "answer": self.answer_text,
            "wrong_answer": self.wrong_text,
            "text": self.text,
        }


@dataclass(frozen=True, kw_only=True)
class TokenizedPair:
    """Tokenized pair of prompts.

    Attributes:
        clean: Clean prompt, without the answer.
        corrupted: Corrupted prompt, without the answer.
        answer: Token ids of the answer; empty without one. Of several alternatives the first
            tokens, each once.
        wrong: Token ids of the wrong answer, in the same way.
        alignment: Paired (clean position, corrupted position), in the order of the clean prompt.
        any_of: Whether answer and wrong answer are first tokens of which any counts.
    """

    clean: PairPrompt
    corrupted: PairPrompt
    answer: tuple[int, ...]
    wrong: tuple[int, ...]
    alignment: Alignment
    any_of: bool = False

    @property
    def unpaired(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Positions without a partner, of the clean and of the corrupted prompt."""
        clean, corrupted = zip(*self.alignment, strict=True)
        in_clean = set(range(len(self.clean.ids)))
        in_corrupted = set(range(len(self.corrupted.ids)))
        return (
            tuple(sorted(in_clean.difference(clean))),
            tuple(sorted(in_corrupted.difference(corrupted))),
        )


def drop_pair(pair: PromptPair, dataset: str, reason: str, detail: str) -> Dropped:
    """Return the record of a pair that was left out."""
    return Dropped(
        example_id=pair.id,
        dataset=dataset,
        question=as_text(pair.clean),
        answer=as_text(pair.answer),
        reason=reason,
        detail=detail,
    )


def as_text(given: AnswerText | None) -> str:
    """Return a text as it is, token ids as a list, alternatives with "|" between them, and "" for
    None.
    """
    if isinstance(given, AnyOf):
        return " |".join(as_text(one) for one in given.answers)
    return given if isinstance(given, str) else "" if given is None else str(list(given))


Spans: TypeAlias = Sequence[tuple[range, range]]
"""Positions of each segment in the clean and in the corrupted prompt."""


def align_positions(
    clean: Sequence[int],
    corrupted: Sequence[int],
    segments: Spans = (),
    explicit: Alignment | None = None,
) -> Alignment:
    """Pair the positions of two prompts.

    An explicit alignment is used as it is. Prompts of equal length pair position by position.
    Otherwise segments of equal length pair inside, and the text before, between and after the
    segments by its common beginning and end; without segments the whole prompts do. If the segments
    stand in another order, only the text before the first and after the last segment is paired so.

    Args:
        clean: Token ids of the clean prompt.
        corrupted: Token ids of the corrupted prompt.
        segments: Positions of each segment in both prompts; segments of one prompt do not overlap.
        explicit: Pairs given by the user.

    Returns:
        Pairs in the order of the clean prompt; each position occurs once at most.

    Raises:
        RowDropped: If an explicit pair is invalid, or no position has a partner.
    """
    if explicit is not None:
        return check_alignment(explicit, len(clean), len(corrupted))
    if len(clean) == len(corrupted):
        return tuple((p, p) for p in range(len(clean)))
    pairs: list[tuple[int, int]] = []
    for a, b in segments:
        if len(a) == len(b):
            pairs += zip(a, b, strict=True)
    for a, b in _gaps(segments, len(clean), len(corrupted)):
        pairs += _common_ends(clean, corrupted, a, b)
    if not pairs:
        raise RowDropped(
            "no_paired_position", "the prompts have neither a common beginning nor a common end"
        )
    return tuple(sorted(pairs))


def check_alignment(pairs: Alignment, n_clean: int, n_corrupted: int) -> Alignment:
    """Return an explicit alignment in order; raise RowDropped if a position is outside its prompt
    or occurs twice.
    """
    clean, corrupted = zip(*pairs, strict=True) if pairs else ((), ())
    for which, length, own in (("clean", n_clean, clean), ("corrupted", n_corrupted, corrupted)):
        for p in own:
            if not 0 <= p < length:
                raise RowDropped(
                    "bad_alignment", f"{which} position {p}, the prompt has {length} tokens"
                )
        if len(set(own)) < len(own):
            raise RowDropped(
                "bad_alignment", f"{which} position {max(own, key=own.count)} occurs twice"
            )
    return tuple(sorted(pairs))


def _gaps(segments: Spans, n_clean: int, n_corrupted: int) -> list[tuple[range, range]]:
    """Return the stretches of both prompts before, between and after the segments."""
    if not segments:
        return [(range(n_clean), range(n_corrupted))]
    ordered = sorted(segments, key=lambda spans: spans[0].start)
    corrupted = [b for _, b in ordered]
    between: list[tuple[range, range]] = []
    for (a, b), (next_a, next_b) in pairwise(ordered):
        between.append((range(a.stop, next_a.start), range(b.stop, next_b.start)))
    if corrupted != sorted(corrupted, key=lambda span: span.start):
        # In another order the text between two segments of one prompt has no counterpart.
        between = []
    first = min(span.start for span in corrupted)
    last = max(span.stop for span in corrupted)
    start = range(ordered[0][0].start), range(first)
    end = range(ordered[-1][0].stop, n_clean), range(last, n_corrupted)
    return [start, *between, end]


def _common_ends(
    clean: Sequence[int], corrupted: Sequence[int], a: range, b: range
) -> list[tuple[int, int]]:
    """Return the pairs of the common beginning and the common end of two stretches; no position is
    used twice.
    """
    longest = min(len(a), len(b))
    start = 0
    while start < longest and clean[a[start]] == corrupted[b[start]]:
        start += 1
    end = 0
    while end < longest - start and clean[a[-1 - end]] == corrupted[b[-1 - end]]:
        end += 1
    return [
        *zip(a[:start], b[:start], strict=True),
        *zip(a[len(a) - end :], b[len(b) - end :], strict=True),
    ]
