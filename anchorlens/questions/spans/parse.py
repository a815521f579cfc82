"""Parse a question for the span rules: words, wh-word, queried phrase and quotations."""

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from anchorlens.questions.example import Span
from anchorlens.questions.spans.lexicon import (
    AUX,
    BASE_VERBS,
    BE,
    DETERMINERS,
    DO_OR_MODAL,
    IMPERATIVES,
    MONTHS,
    PREPOSITIONS,
    VERBS,
    WH,
    Word,
    small_flags,
    split_words,
    verb_flags,
    word_set,
)

# A quotation longer than this is a sentence, not a name.
LONGEST_QUOTE = 120
_DOUBLED = re.compile(r'""([^"]+)""')
_PLAIN = re.compile(r'"([^"]+)"')
_TYPOGRAPHIC = re.compile(r"“([^“”]+)”|„([^„“”]+)[“”]|«([^«»]+)»|``([^`']+)''|`([^`'’]+)['’]")
# Single quotes open only after and close only before a non-word character; an apostrophe between
# letters ("Hobson's") does not close, a decade ('80s) does not open.
_SINGLE = re.compile(
    r"(?<!\w)'(?!\d\ds)([^\s'][^']*(?:(?<=\w)'(?=\w)[^']*)*)'(?!\w)"
    r"|(?<!\w)‘([^\s‘][^‘’]*(?:(?<=\w)’(?=\w)[^‘’]*)*)’(?!\w)"
)
_LINKS = re.compile(r"""[\s,"'“”‘’«»]*\b(?:and|or|vs\.?|versus)\b[\s"'“”‘’«»]*""", re.IGNORECASE)
# Words between the wh-word and its noun: "Which of the following ...", "what other ...".
_FILLERS = word_set(
    "exactly other another two three four five of the following these those one most least more"
    " fewer only last next all same"
)
# "What type of tree": the noun after "of" belongs to the property.
_KINDS = word_set(
    "type types kind kinds sort sorts form forms style breed species genre brand category"
)

# Run of words: index of the first, and one past the last.
Run = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """Parsed question: flags of each word, queried noun phrase and quotations."""

    text: str
    words: tuple[Word, ...]
    after_do: tuple[bool, ...]  # follows "do" or a modal within 12 words of the wh-word
    verbs: tuple[bool, ...]
    content: tuple[bool, ...]  # noun-like: no small word, no verb
    wh: int | None  # None in a statement, a command or a yes/no question
    phrase: Run | None  # queried noun phrase
    # "asked" (right after the wh-word: "which *city*"), "copula" ("what is the *capital*"), "none"
    phrase_kind: str
    quotes: tuple[Span, ...]  # without quotation marks
    cased: bool  # capitals mark names: not in lower-case questions, nor If Every Word Has One

    def span(self, first: int, end: int) -> Span:
        """Return the span of words ``first`` to ``end`` (exclusive)."""
        return Span(self.words[first].start, self.words[end - 1].end)

    def gap(self, index: int) -> str:
        """Return the characters between a word and the previous word."""
        return self.text[self.words[index - 1].end : self.words[index].start]

    def find(self, lows: Container[str], first: int, end: int) -> int:
        """Return the index of the first word of ``lows`` in ``first:end``, or ``end``."""
        for i in range(first, end):
            if self.words[i].low in lows:
                return i
        return end

    def has_any(self, lows: Container[str], run: Run) -> bool:
        """Return True if a run contains a word of ``lows``."""
        return self.find(lows, *run) < run[1]

    def find_break(self, first: int, end: int) -> int:
        """Return the index of the first word in ``first:end`` after a break, or ``end``."""
        for i in range(first, end):
            if self.words[i].breaks:
                return i
        return end

    def is_infinitive(self, index: int) -> bool:
        """Return True if a word is the "to" of a verb."""
        after = index + 1
        return (
            self.words[index].low == "to"
            and after < len(self.words)
            and self.words[after].low in BASE_VERBS
        )

    def has_wh(self, span: Span) -> bool:
        """Return True if a span covers the wh-word."""
        return self.wh is not None and span.overlaps(self.span(self.wh, self.wh + 1))


def find_quotes(
    text: str, kinds: Iterable[re.Pattern[str]] = (_DOUBLED, _PLAIN, _TYPOGRAPHIC, _SINGLE)
) -> tuple[Span, ...]:
    """Find the quotations of a text without their marks; nested quotations are skipped.

    Quotation marks around the whole question (as in TriviaQA, with doubled inner marks) do not
    count.

    >>> text = '"Who wrote ""Dune""?"'
    >>> [span.of(text) for span in find_quotes(text)]
    ['Dune']
    """
    quotes: list[Span] = []
    doubled = '""' in text
    for kind in kinds:
        if kind is _PLAIN and doubled:
            continue
        for match in kind.finditer(text):
            group = match.lastindex
            if group is None:
                continue
            body = match[group].lstrip()
            start = match.end(group) - len(body)
            end = start + len(re.sub(r"[\s,.;]+\Z", "", body))
            span = Span(start, end)
            whole = text[: match.start()].strip() == "" and text[match.end() :].strip(" ?.!") == ""
            has_words = (
                any(char.isalnum() for char in span.of(text)) and span.of(text).lower() not in WH
            )
            usable = (
                end - start <= LONGEST_QUOTE
                and has_words
                and not whole
                and not _is_nickname(text, match.span(), span)
            )
            if usable and not any(span.overlaps(other) for other in quotes):
                quotes.append(span)
    return tuple(_link_quotes(text, sorted(quotes)))


def _is_nickname(text: str, marked: tuple[int, int], span: Span) -> bool:
    """Return True if one quoted word lies between two capitalised ones, as in Andrew "Andy"
    Spade.
    """
    start, end = marked
    before = text[max(0, start - 2) : start]
    after = text[end : end + 2]
    if " " in span.of(text) or before[1:] != " " or after[:1] != " ":
        return False
    if not (before[:1].isalnum() and after[1:].isupper()):
        return False
    first = text.rfind(" ", max(0, start - 40), start - 1) + 1
    return first > 0 and text[first].isupper()


def _link_quotes(text: str, quotes: list[Span]) -> list[Span]:
    """Merge quotations that are separated only by "and" or "or"."""
    linked: list[Span] = []
    for span in quotes:
        if linked:
            previous = linked[-1]
            between = text[previous.end : span.start]
            if _LINKS.fullmatch(between) and span.end - previous.start <= LONGEST_QUOTE:
                linked[-1] = Span(previous.start, span.end)
                continue
        linked.append(span)
    return linked


def _wh_rank(words: tuple[Word, ...], index: int) -> int:
    """Return how unlikely a wh-word is to be the interrogative, from 0 to 5.

    Relative pronouns ("the man who ...") rank last.
    """
    word = words[index]
    clause = index
    while clause > 0 and not words[clause].breaks and index - clause < 4:
        clause -= 1
    openers = PREPOSITIONS | {"q", "and", "so"}
    leading = all(one.low in openers for one in words[clause:index])
    first = clause == 0 and leading
    follows_aux = index + 1 < len(words) and (words[index + 1].low in AUX or words[index + 1].owned)
    conjunction = word.low in {"when", "where", "while"} and not follows_aux
    if first and not conjunction:
        return 0
    introduced = words[0].low in PREPOSITIONS | {"if", "when", "while"}
    if leading and words[clause].breaks and introduced and not conjunction:
        return 1
    if word.low in {"what", "how", "whats"} or (index == len(words) - 1 and word.low != "whom"):
        return 1
    if word.low in {"which", "whom"} and not (word.breaks and word.low == "which"):
        return 2
    if leading and words[clause].breaks and not conjunction:
        return 3
    return 5 if conjunction else 4


def find_wh(words: tuple[Word, ...], quotes: tuple[Span, ...]) -> int | None:
    """Return the index of the interrogative wh-word; None if there is none.

    >>> words = split_words("In which city did the man who wrote Emma die?")
    >>> words[find_wh(words, ())].text
    'which'
    >>> words = split_words("The inventor who discovered what effect had a prize named after him?")
    >>> words[find_wh(words, ())].text
    'what'
    """
    # "Is X the man who ...?" is a yes/no question.
    is_yes_no = bool(words) and words[0].low in AUX and not words[0].breaks
    places: list[int] = []
    for i, word in enumerate(words):
        if word.low not in WH or (is_yes_no and (i >= 4 or word.low not in {"what", "how"})):
            continue
        if not any(quote.start <= word.start < quote.end for quote in quotes):
            places.append(i)
    return min(places, key=lambda i: (_wh_rank(words, i), i), default=None)


def _noun_phrase(view: Parsed, first: int, kinds: bool = True) -> Run | None:
    """Return the run of noun-like words from ``first``, including "and" between two words and "of
    X" after words such as "type".
    """
    words = view.words
    i = first
    while i < len(words) and (i == first or not words[i].breaks):
        low = words[i].low
        more = i + 1 < len(words) and not words[i + 1].breaks and view.content[i + 1]
        if i > first and words[i].owned:
            # "hope brady's mother": the queried phrase follows the possessive.
            first = i
        joined = i > first and low == "and" and more and not words[i].capital
        joined = joined or (
            kinds and i > first and low == "of" and more and words[i - 1].low in _KINDS
        )
        if not (joined or view.content[i]):
            break
        i += 1
    while i > first and words[i - 1].low == "and":
        i -= 1
    return (first, i) if i > first else None


def _skip(words: tuple[Word, ...], i: int, what: frozenset[str]) -> int:
    """Return the first index from ``i`` whose word is not in ``what`` or follows a break."""
    start = i
    while i < len(words) and words[i].low in what and (i == start or not words[i].breaks):
        i += 1
    return i


def _cut_verb(view: Parsed, run: Run | None) -> Run | None:
    """Remove a last word in "-s" that is a verb before a determiner: "what phrase *indicates* that
    ...".
    """
    if run is None or run[1] - run[0] < 2 or run[1] >= len(view.words):
        return run
    last = view.words[run[1] - 1]
    follower = view.words[run[1]]
    before = view.words[run[1] - 2]
    third_person = (
        last.low.endswith("s")
        and not last.low.endswith(("ss", "us", "is", "ies"))
        and not last.capital
    )
    if (
        third_person
        and not before.low.endswith("s")
        and not follower.breaks
        and follower.low in DETERMINERS | {"from", "to"}
    ):
        return run[0], run[1] - 1
    return run


def nouns_before(view: Parsed, end: int) -> Run | None:
    """Return the noun-like run that ends before the word ``end``; None if there is none."""
    first = end
    while first > 0 and view.content[first - 1] and (first == end or not view.words[first].breaks):
        first -= 1
    return (first, end) if first < end else None


def _statement_phrase(view: Parsed) -> Run | None:
    """Return the queried phrase of a command or a phrase: "name the *planet*", "*cast* of law &
    order".
    """
    words = view.words
    for i, word in enumerate(words):
        if word.opens and word.low in IMPERATIVES:
            return _noun_phrase(view, _skip(words, i + 1, DETERMINERS | _FILLERS))
    if not words or words[0].low in AUX:
        return None
    run = _noun_phrase(view, _skip(words, 0, DETERMINERS), kinds=False)
    if run is None or run[1] + 1 >= len(words):
        return None
    follower = words[run[1]]
    return run if follower.low == "of" and not follower.breaks else None


def _phrase(view: Parsed) -> tuple[Run | None, str]:
    """Return the queried noun phrase and its kind (``Parsed.phrase_kind``)."""
    words = view.words
    if view.wh is None:
        return _statement_phrase(view), "asked"
    wh = words[view.wh]
    after = view.wh + 1
    if after >= len(words):
        # "... is the fear of what?"
        of = view.wh > 1 and words[view.wh - 1].low == "of"
        return (nouns_before(view, view.wh - 1) if of else None), "asked"
    takes_noun = wh.low in {"what", "which", "whose", "how", "whichever"}
    if wh.low == "how":
        after = _skip(words, after, frozenset({"many", "much"}))
        run = _noun_phrase(view, after) if after < len(words) else None
        if run is not None and run[0] == view.wh + 2:
            # "how many students *attend* the sorbonne"
            verb = view.find(BASE_VERBS, run[0] + 1, run[1] - 1)
            if verb < run[1] - 1:
                run = run[0], verb
        return run, "asked"
    if words[after].low in BE or words[after].owned or (wh.low.endswith("s") and wh.low != "whose"):
        if words[after].low in BE:
            after += 1
        if wh.low.startswith(("when", "where", "why")):
            return None, "none"
        return _noun_phrase(view, _skip(words, after, DETERMINERS | _FILLERS)), "copula"
    if words[after].low in {"has", "had", "have", "holds", "held"}:
        return _noun_phrase(view, _skip(words, after + 1, DETERMINERS | _FILLERS)), "copula"
    if not takes_noun:
        return None, "none"
    return _cut_verb(view, _noun_phrase(view, _skip(words, after, _FILLERS))), "asked"


def parse(text: str) -> Parsed:
    """Parse a question.

    >>> view = parse("What type of tree was Newton under?")
    >>> view.span(*view.phrase).of(view.text)
    'type of tree'
    """
    words = split_words(text)
    quotes = find_quotes(text)
    wh = find_wh(words, quotes)
    inner = [word for word in words if not word.opens and word.text[0].isalpha()]
    capitals = 0
    n_small = 0
    for word in inner:
        capitals += word.capital and word.low not in MONTHS
        n_small += not word.capital
    headline = (
        bool(inner) and capitals == len(inner) and (text.isupper() or _has_capital_verb(words, wh))
    )
    cased = capitals > 0 and (n_small > 0 or capitals < 4) and not headline
    if wh is not None:
        asking = Span(words[wh].start, words[wh].end)
        quotes = tuple(quote for quote in quotes if not quote.overlaps(asking))
    after_do = _after_do(words, 0 if wh is None else wh)
    verbs = verb_flags(words, cased, after_do)
    content: list[bool] = []
    for verb, small in zip(verbs, small_flags(words, cased), strict=True):
        content.append(not (verb or small))
    view = Parsed(
        text=text,
        words=words,
        after_do=after_do,
        verbs=verbs,
        content=tuple(content),
        wh=wh,
        phrase=None,
        phrase_kind="none",
        quotes=quotes,
        cased=cased,
    )
    phrase, kind = _phrase(view)
    return replace(view, phrase=phrase, phrase_kind=kind if phrase else "none")


def _after_do(words: tuple[Word, ...], start: int) -> tuple[bool, ...]:
    """Return for each word whether it follows "do" or a modal that is near ``start``."""
    flags = [False] * len(words)
    for i in range(start, min(len(words), start + 12)):
        if words[i].low in DO_OR_MODAL:
            flags[i + 1 :] = [True] * (len(words) - i - 1)
            break
    return tuple(flags)


def _has_capital_verb(words: tuple[Word, ...], wh: int | None) -> bool:
    """Return True if a capitalised verb follows the wh-word: "WHO WROTE EMMA?", "Who Wrote
    Emma?"
    """
    follower = None if wh is None or wh + 1 >= len(words) else words[wh + 1]
    return (
        follower is not None and follower.capital and (follower.low in AUX or follower.low in VERBS)
    )
