"""A question taken apart for the span rules: words, the wh-word, the phrase it asks for, quotations."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from anchorlens.questions.example import Span
from anchorlens.questions.words import (
    AUX,
    BE,
    DETERMINERS,
    DO_OR_MODAL,
    IMPERATIVES,
    MONTHS,
    PREPOSITIONS,
    STOP,
    WH,
    Word,
    is_verb,
    split_words,
)

# A quotation longer than this is a sentence, not a name.
LONGEST_QUOTE = 120
_DOUBLED = re.compile(r'""([^"]+)""')
_PLAIN = re.compile(r'"([^"]+)"')
_TYPOGRAPHIC = re.compile(r"“([^“”]+)”|„([^„“”]+)[“”]|«([^«»]+)»|``([^`']+)''|`([^`'’]+)['’]")
# Single quotes: opened where no word character stands before, closed where none follows; inside, an apostrophe between letters
# ("Hobson's") does not close. Decades ('80s) do not open.
_SINGLE = re.compile(r"(?<!\w)'(?!\d\ds)([^\s'][^']*(?:(?<=\w)'(?=\w)[^']*)*)'(?!\w)|(?<!\w)‘([^\s‘][^‘’]*(?:(?<=\w)’(?=\w)[^‘’]*)*)’(?!\w)")
_LINKS = re.compile(r"""[\s,"'“”‘’«»]*\b(?:and|or|vs\.?|versus)\b[\s"'“”‘’«»]*""", re.IGNORECASE)
# "Which of the following ...", "what other ...": between the wh-word and the noun it asks for.
_FILLERS = frozenset("exactly other two three four of the following these those one".split())
# "What type of tree": the noun after "of" belongs to the property.
_KINDS = frozenset("type types kind kinds sort sorts form forms style breed species genre brand category".split())


@dataclass(frozen=True)
class Parsed:
    """What the rules see of a question.

    Attributes:
        text: The question.
        words: Its words.
        wh: Index of the word that asks; None in a statement, a command or a yes/no question.
        phrase: Indices of the noun phrase that is asked for, first and one past the last; None where there is none.
        phrase_kind: ``asked`` (right after the wh-word: "which *city*", "how *old*", "name the *planet*"), ``copula`` ("what is the
            *capital*") or ``none``.
        quotes: Quotations, without their marks, in order.
        cased: Whether capitals tell names apart: not in lower-case questions, nor Where Every Word Has One.
    """

    text: str
    words: tuple[Word, ...]
    wh: int | None
    phrase: tuple[int, int] | None
    phrase_kind: str
    quotes: tuple[Span, ...]
    cased: bool

    def span(self, first: int, end: int) -> Span:
        """The characters of words ``first`` to ``end`` (one past the last)."""
        return Span(self.words[first].start, self.words[end - 1].end)

    def verb(self, index: int) -> bool:
        """Whether a word is taken for a verb."""
        return is_verb(self.words[index], self.cased, self.after_do(index))

    def after_do(self, index: int) -> bool:
        """Whether "do" or a modal stands before a word in its sentence, after the wh-word."""
        first = 0 if self.wh is None else self.wh
        return any(self.words[i].low in DO_OR_MODAL for i in range(first, min(index, first + 12)))

    def content(self, index: int) -> bool:
        """Whether a word is noun-like: no small word, no verb, not the wh-word."""
        word = self.words[index]
        if self.cased and word.capital and not word.opens and word.low not in STOP:
            return True
        return word.low not in STOP and not self.verb(index)

    def in_phrase(self, index: int) -> bool:
        """Whether a word belongs to the noun phrase that is asked for."""
        return self.phrase is not None and self.phrase[0] <= index < self.phrase[1]

    def asks(self, span: Span) -> bool:
        """Whether a span covers the word that asks."""
        return self.wh is not None and span.overlaps(self.span(self.wh, self.wh + 1))


def find_quotes(text: str, kinds: Iterable[re.Pattern[str]] = (_DOUBLED, _PLAIN, _TYPOGRAPHIC, _SINGLE)) -> tuple[Span, ...]:
    """Quotations of every kind, without their marks, none inside another.

    A question that stands in quotation marks as a whole (as in TriviaQA, where inner marks are doubled) is not a quotation.

    >>> text = '"Who wrote ""Dune""?"'
    >>> [span.of(text) for span in find_quotes(text)]
    ['Dune']
    """
    found: list[Span] = []
    doubled = '""' in text
    for kind in kinds:
        if kind is _PLAIN and doubled:
            continue
        for match in kind.finditer(text):
            group = match.lastindex
            if group is None:
                continue
            start, end = match.span(group)
            while start < end and text[start].isspace():
                start += 1
            while end > start and (text[end - 1].isspace() or text[end - 1] in ",.;"):
                end -= 1
            span = Span(start, end)
            whole = text[: match.start()].strip() == "" and text[match.end() :].strip(" ?.!") == ""
            usable = end - start <= LONGEST_QUOTE and any(char.isalnum() for char in span.of(text)) and not whole
            if usable and not any(span.overlaps(other) for other in found):
                found.append(span)
    return tuple(_linked(text, sorted(found)))


def _linked(text: str, quotes: list[Span]) -> list[Span]:
    """Quotations that only "and" or "or" keeps apart, made one."""
    linked: list[Span] = []
    for span in quotes:
        if linked and _LINKS.fullmatch(text[linked[-1].end : span.start]) and span.end - linked[-1].start <= LONGEST_QUOTE:
            linked[-1] = Span(linked[-1].start, span.end)
        else:
            linked.append(span)
    return linked


def _wh_rank(words: tuple[Word, ...], index: int) -> int:
    """How surely a wh-word is the one that asks; 0 is surest. Relative pronouns ("the man who ...") come last."""
    word = words[index]
    clause = index
    while clause > 0 and not words[clause].breaks and index - clause < 4:
        clause -= 1
    leading = all(words[i].low in PREPOSITIONS or words[i].low in {"q", "and", "so"} for i in range(clause, index))
    first = clause == 0 and leading
    follows_aux = index + 1 < len(words) and (words[index + 1].low in AUX or words[index + 1].owned)
    conjunction = word.low in {"when", "where", "while"} and not follows_aux
    if first and not conjunction:
        return 0
    if word.low in {"what", "whose", "how", "whats"} or (index == len(words) - 1 and word.low != "whom"):
        return 1
    if word.low in {"which", "whom"} and not (word.breaks and word.low == "which"):
        return 2
    if leading and words[clause].breaks and not conjunction:
        return 3
    return 5 if conjunction else 4


def find_wh(words: tuple[Word, ...], quotes: tuple[Span, ...]) -> int | None:
    """Index of the word that asks, or None.

    >>> [split_words(q)[find_wh(split_words(q), ())].text for q in ("In which city did the man who wrote Emma die?",
    ...     "The inventor who discovered what effect had a prize named after him?")]
    ['which', 'what']
    """
    places = [i for i, word in enumerate(words) if word.low in WH]
    if words and words[0].low in AUX and not words[0].breaks:
        # "Is X the man who ...?" asks with its verb.
        places = [i for i in places if words[i].low in {"what", "how"} and i < 4]
    outside = [i for i in places if not any(q.start <= words[i].start < q.end for q in quotes)]
    return min(outside, key=lambda i: (_wh_rank(words, i), i), default=None)


def _noun_phrase(view: Parsed, first: int, kinds: bool = True) -> tuple[int, int] | None:
    """The run of noun-like words that begins at ``first``, "and" between two of them and "of X" after a word such as "type" included."""
    words, i = view.words, first
    while i < len(words) and (i == first or not words[i].breaks):
        low = words[i].low
        more = i + 1 < len(words) and not words[i + 1].breaks and view.content(i + 1)
        if i > first and words[i].owned:
            # "hope brady's mother": the phrase that is asked for is what is owned.
            first = i
        if view.content(i) or (i > first and low == "and" and more and not words[i].capital):
            i += 1
        elif kinds and low == "of" and more and i > first and words[i - 1].low in _KINDS:
            i += 1
        else:
            break
    while i > first and words[i - 1].low == "and":
        i -= 1
    return (first, i) if i > first else None


def _skip(words: tuple[Word, ...], i: int, what: frozenset[str]) -> int:
    """The first place from ``i`` on whose word is not in ``what``, or that follows a break."""
    start = i
    while i < len(words) and words[i].low in what and (i == start or not words[i].breaks):
        i += 1
    return i


def _phrase(view: Parsed) -> tuple[tuple[int, int] | None, str]:
    """The noun phrase that is asked for, and how it is asked for."""
    words = view.words
    if view.wh is None:
        opening = next((i for i, word in enumerate(words) if word.opens and word.low in IMPERATIVES), None)
        if opening is None:
            return None, "none"
        return _noun_phrase(view, _skip(words, opening + 1, DETERMINERS | _FILLERS)), "asked"
    wh = words[view.wh]
    after = view.wh + 1
    if after >= len(words):
        return None, "none"
    asked = wh.low in {"what", "which", "whose", "how", "whichever"}
    if wh.low == "how":
        after = _skip(words, after, frozenset({"many", "much"}))
        return (_noun_phrase(view, after) if after < len(words) else None), "asked"
    if words[after].low in BE or words[after].owned or wh.low.endswith("s") and wh.low != "whose":
        after = after if words[after].low not in BE else after + 1
        if wh.low.startswith(("when", "where", "why")):
            return None, "none"
        return _noun_phrase(view, _skip(words, after, DETERMINERS | _FILLERS)), "copula"
    if words[after].low in {"has", "had", "have", "holds", "held"}:
        return _noun_phrase(view, _skip(words, after + 1, DETERMINERS | _FILLERS)), "copula"
    if not asked:
        return None, "none"
    return _noun_phrase(view, _skip(words, after, _FILLERS)), "asked"


def parse(text: str) -> Parsed:
    """Takes a question apart.

    >>> view = parse("What type of tree was Newton under?")
    >>> view.span(*view.phrase).of(view.text)
    'type of tree'
    """
    words = split_words(text)
    quotes = find_quotes(text)
    wh = find_wh(words, quotes)
    inner = [word for word in words if not word.opens and word.text[0].isalpha()]
    capitals = sum(word.capital and word.low not in MONTHS for word in inner)
    small = sum(word.low in STOP for word in inner if not word.capital)
    cased = capitals > 0 and (small > 0 or capitals < 4)
    quotes = tuple(q for q in quotes if wh is None or not q.overlaps(Span(words[wh].start, words[wh].end)))
    view = Parsed(text, words, wh, None, "none", quotes, cased)
    phrase, kind = _phrase(view)
    return Parsed(text, words, wh, phrase, kind if phrase else "none", quotes, cased)
