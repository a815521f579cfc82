"""Subject and property of a free question by rules (METHOD: where spans come from, rule 3).

Every rule is a small function; the lists ``SUBJECT_RULES`` and ``PROPERTY_RULES`` say in which order they are asked, and the first
that finds something decides. Readings of the method that the rules settle:

* A comparison asks about one contiguous segment: in "Which is larger, Russia or Belgium?" the subject is "Russia or Belgium".
* A capitalised run that opens the sentence counts with two capitals or more ("Hermann Göring was ..."), with one where its verb
  follows ("Metz is ..."): the first capital of a sentence alone is no evidence. Small words that open it ("The", "In") are not part
  of the run.
* A list is one segment: "Gus Grissom, Ed White and Roger Chaffee".
* Names inside the phrase that is asked for ("which *Verdi* opera") are asked after names outside of it, and adjectives of origin
  ("which *British* composer") last of all: they qualify the property.
* The property is that phrase without the subject and without leading names: "early Bob Dylan *album*".
* Nothing is guessed: where no rule finds a segment, there is none, and the row is dropped under ``no_subject`` or ``no_property``, a
  question in another language under ``not_english``. A question of the form "What is a ganglion?" has a subject and no property.
"""

from collections.abc import Callable, Iterator

from anchorlens.questions.example import Span
from anchorlens.questions.parse import Parsed, parse
from anchorlens.questions.topics import (
    CUES,
    MAKE,
    announced_title,
    complement,
    inverted_subject,
    longest_topic,
    named_thing,
    opening_subject,
    owner,
    performed_work,
    sentence_title,
    sung_title,
)
from anchorlens.questions.words import (
    AUX,
    BASE_VERBS,
    DETERMINERS,
    IMPERATIVES,
    NATIONS,
    PREPOSITIONS,
    STOP,
    TIME_WORDS,
    WEAK,
    WH,
    Word,
    is_demonym,
    is_foreign,
    is_year,
    word_set,
)

# Small words that may stand inside a capitalised name, between two capitalised words.
_NAME_JOINERS = word_set("of the and & or de la le les von van der den di da del du al bin ibn for v vs y à et und")
# Small words that may stand inside a noun-like run.
_NOUN_JOINERS = word_set("of vs")
# Small words that may open a name: "painter van Gogh".
_PARTICLES = word_set("van von der den de da di du del bin ibn")
# Small words that may stand inside a name where a word such as "film" announces a title, or where a name opens a statement.
_TITLE_JOINERS = _NAME_JOINERS | word_set("in on at from with to a an by my no but")
_PLACES = word_set("in on at from with")
_LONGEST_TAIL = 14

Run = tuple[int, int]


def alternatives(view: Parsed) -> Span | None:
    """The things to choose from, at the end after a comma or colon: "Which is larger, *Russia or Belgium*?" """
    if view.wh is None or not 0 <= view.wh < 3:
        return None
    words, n = view.words, len(view.words)
    last = max((i for i in range(view.wh + 2, n - 1) if words[i].low in {"or", "and"}), default=None)
    if last is None or n - last > 8:
        return None
    first = next((i for i in range(view.wh + 2, n) if words[i].breaks), n)
    between = view.text[words[first - 1].end : words[first].start] if first < n else ""
    if first >= last or n - first > _LONGEST_TAIL or not any(char in between for char in ",:;-"):
        return None
    pair = words[first].capital and words[last + 1].capital and not words[first - 1].capital
    if words[last].low == "and" and not pair:
        return None
    if words[first].low in STOP - DETERMINERS or any(view.verbs[i] for i in range(first, n)):
        return None
    first += words[first].low in DETERMINERS and not words[first].capital
    return view.span(first, n)


def options(view: Parsed) -> Span | None:
    """The things to choose from, between commas: "Which director, *Ann Lee or Jo Ray*, is also a writer?" """
    if view.phrase is None or view.phrase_kind != "asked" or view.phrase[1] >= len(view.words):
        return None
    words, first = view.words, view.phrase[1]
    if not (words[first].breaks and words[first].capital):
        return None
    end = next((i for i in range(first + 1, len(words)) if words[i].breaks), len(words))
    return view.span(first, end) if end < len(words) and any(words[i].low == "or" for i in range(first + 1, end - 1)) else None


def quoted_span(view: Parsed) -> Span | None:
    """The first quotation: "Who wrote '*Emma*'?" """
    return view.quotes[0] if view.quotes else None


def _name_run(view: Parsed, first: int, joiners: frozenset[str] = _NAME_JOINERS) -> Run:
    """The capitalised run that begins at ``first``: capitalised words, numbers, and small words between two capitalised ones."""
    words, end, i = view.words, first + 1, first + 1
    while i < len(words):
        # "wrote Murder in the Rectory", but not "wrote Emma in Bath"
        made = first > 0 and (words[first - 1].low in MAKE or words[first].low in {"the", "a", "an"})
        work = made and i + 1 < len(words) and words[i + 1].low == "the"
        nickname = words[i].breaks and i == end and words[i].capital and _gap(view, i) in {'"', ' "', '" ', "/"}
        if words[i].breaks and not nickname:
            break
        if (words[i].capital and i != view.wh) or (words[i].number and i == end):
            end = i + 1
        elif not ((words[i].low in joiners or (work and words[i].low in _PLACES)) and i - end < 2) or words[i].owned:
            break
        i += 1
    return first, end


def _gap(view: Parsed, index: int) -> str:
    """The characters between a word and the one before it."""
    return view.text[view.words[index - 1].end : view.words[index].start]


def _listed(view: Parsed, runs: list[Run]) -> list[Run]:
    """Runs of a list made one: "Gus Grissom, Ed White and Roger Chaffee"; and a place with its region: "Point Anne, Ontario"."""
    words, merged, i = view.words, [], 0
    while i < len(runs):
        last = i
        while last + 1 < len(runs) and runs[last][1] == runs[last + 1][0] and _gap(view, runs[last + 1][0]) == ", ":
            last += 1
        end = runs[last][1]
        # The last of a list stands behind "and": in the run itself, or behind ", and".
        inside = any(words[k].low in {"and", "or", "&"} for k in range(*runs[last]))
        behind = last + 1 < len(runs) and end < len(words) and words[end].low in {"and", "or"} and runs[last + 1][0] == end + 1
        behind = behind and _gap(view, end) in {" ", ", "} and not all(is_demonym(words[k]) for k in range(*runs[last + 1]))
        place = last == i + 1 and runs[i][0] > 0 and words[runs[i][0] - 1].low in {"in", "of", "at", "near", "from"}
        place = place and not _frames(view, runs[i])
        # "the co-founder of Apple, Steve Jobs, started": what stands between two commas is no region.
        place = place and (end == len(words) or not words[end].breaks or words[runs[i][0] - 1].low != "of")
        if behind and last >= i:
            merged.append((runs[i][0], runs[last + 1][1]))
            last += 1
        elif last > i and (inside or place):
            merged.append((runs[i][0], end))
        else:
            merged += runs[i : last + 1]
        i = last + 1
    return merged


def _name_runs(view: Parsed) -> Iterator[Run]:
    """All capitalised runs, small words that open a sentence and lone months cut off."""
    words, i = view.words, 0
    while i < len(words):
        word = words[i]
        opener = word.opens and (word.low in STOP or view.verbs[i] or word.low in WEAK)
        # "Who Was Marie Curie's husband?"
        opener = opener or (view.wh is not None and i == view.wh + 1 and word.low in AUX)
        alone = word.low in {"i", "a"} and not (i + 1 < len(words) and words[i + 1].capital and not words[i + 1].breaks)
        if not word.capital or i == view.wh or opener or alone:
            i += 1
            continue
        announced = i > 0 and words[i - 1].low in CUES and not word.breaks
        first, end = _name_run(view, i, _TITLE_JOINERS if announced else _NAME_JOINERS)
        i = end
        while first > 1 and words[first - 1].low in _PARTICLES and not words[first].breaks and not words[first].owned:
            first -= 1
        if first > 0 and words[first - 1].number and not words[first].breaks:
            # "127 Hours" and "the 1976 Olympics", but not "in 1960 Khrushchev".
            first -= not is_year(words[first - 1]) or (first > 1 and words[first - 2].low == "the")
        if (
            view.phrase is not None
            and view.phrase[0] <= first < view.phrase[1] < end
            and words[view.phrase[1]].low in {"of", "for"}
        ):
            # "the Vice-President for George Bush" asks for the first and is about the second.
            first = view.phrase[1] + 1
            while first < end and not words[first].capital:
                first += 1
        if words[0].low in AUX and words[end - 1].low in NATIONS and end - first > 1:
            # "Is Bob Smith British?": the predicate is no part of the name.
            end -= 1
        if words[first].low in TIME_WORDS and (end == first + 1 or words[first + 1].number):
            first += 1
            while first < end and (words[first].number or not words[first].capital):
                first += 1
        if first < end:
            yield first, end


def _capitals(view: Parsed, run: Run) -> int:
    """Capitalised words of a run; of a place with its region ("Point Anne, Ontario") those of the place."""
    joined = any(view.words[i].low in {"and", "or", "&"} for i in range(*run))
    region = None if joined else next((i for i in range(run[0] + 1, run[1]) if _gap(view, i) == ", "), None)
    return sum(view.words[i].capital and view.words[i].low not in NATIONS for i in range(run[0], region or run[1]))


def _outside(view: Parsed, run: Run) -> bool:
    """Whether a run shares no word with the phrase that is asked for."""
    return view.phrase is None or run[1] <= view.phrase[0] or view.phrase[1] <= run[0]


def _longest_names(view: Parsed, outside: bool, demonyms: bool) -> Span | None:
    """The capitalised run with most capitalised words, those that do not open the sentence first."""
    if not view.cased:
        return None
    runs = []
    for run in _listed(view, list(_name_runs(view))):
        opens = view.words[run[0]].opens
        origin = all(is_demonym(view.words[i]) or view.words[i].low in _NAME_JOINERS for i in range(*run))
        if (opens and _capitals(view, run) < 2) or origin != demonyms or _outside(view, run) != outside:
            continue
        if opens and view.wh is not None and run[0] > view.wh:
            # "What colour is 10 Downing Street? White or Brown?"
            continue
        runs.append(
            (
                not _introduces(view, run),
                _capitals(view, run),
                not opens and not _frames(view, run),
                not _modifies(view, run),
                run,
            )
        )
    best = max(runs, key=lambda item: item[:4], default=None)
    return None if best is None else view.span(*best[4])


def _introduces(view: Parsed, run: Run) -> bool:
    """Whether a run qualifies the noun of another name: "*England Rugby* player Dylan Hartley"."""
    words, after = view.words, run[1]
    while (
        after < len(words)
        and after < run[1] + 3
        and view.content[after]
        and not words[after].capital
        and not words[after].breaks
    ):
        after += 1
    return run[1] < after < len(words) and words[after].capital and not words[after].breaks and not words[after].owned


def _modifies(view: Parsed, run: Run) -> bool:
    """Whether a noun in lower case follows an acronym: "the *US* state of Ohio"."""
    after = run[1]
    acronym = all(_acronym(view.words[i]) for i in range(*run))
    return (
        acronym
        and after < len(view.words)
        and not view.words[after].breaks
        and view.content[after]
        and not view.words[after].capital
    )


def _frames(view: Parsed, run: Run) -> bool:
    """Whether a run stands in front of the wh-word behind a preposition: "In *Dallas*, who shot J.R.?" """
    return view.wh is not None and run[1] <= view.wh and view.words[0].low in PREPOSITIONS


def _acronym(word: Word) -> bool:
    """Whether a word has two letters or more, all of them capitals."""
    return len(word.text) > 1 and word.text.isupper()


def opening_name(view: Parsed) -> Span | None:
    """A name that opens a statement and whose verb follows: "*Metz* is the capital of which region of France?" """
    words = view.words
    if not view.cased or not words or (view.wh is not None and view.wh < 2):
        return None
    first = int(words[0].low in {"the", "both"})
    small = words[0].low in (STOP - {"the", "both", "a"}) | IMPERATIVES | WEAK
    if first >= len(words) or not words[first].capital or (small and not _acronym(words[0])):
        return None
    runs = _listed(view, [_name_run(view, first, _TITLE_JOINERS), *(run for run in _name_runs(view) if run[0] > first)])
    end = runs[0][1]
    if end >= len(words) or words[end].opens or (is_demonym(words[first]) and end == first + 1):
        return None
    verb = words[end].low in AUX or view.verbs[end]
    aside = _gap(view, end) == ", " and words[end].low in DETERMINERS | {"who", "which", "whose"}
    return view.span(*runs[0]) if aside or (verb and not words[end].breaks) else None


def capitalised_run(view: Parsed) -> Span | None:
    """The longest run of capitalised words outside the phrase that is asked for: "Who founded the *Bank of England*?" """
    return _longest_names(view, outside=True, demonyms=False)


def capitalised_run_inside(view: Parsed) -> Span | None:
    """The same inside that phrase: "Which *Verdi* opera is set in Egypt?", had it no "Egypt"."""
    return _longest_names(view, outside=False, demonyms=False)


def _noun_runs(view: Parsed, spare: Span | None = None) -> Iterator[Run]:
    """Runs of noun-like words outside ``spare`` and the phrase that is asked for, "of" (with a determiner) and "vs" between two
    of them included.
    """
    words, i = view.words, 0
    first, last = view.phrase or (0, 0)
    begin, end_ = (spare.start, spare.end) if spare else (0, 0)
    taken = [first <= k < last or (w.start < end_ and begin < w.end) for k, w in enumerate(words)]
    while i < len(words):
        if not view.content[i] or taken[i]:
            i += 1
            continue
        end = j = i + 1
        while j < len(words) and not words[j].breaks and not taken[j]:
            if view.content[j]:
                end = j + 1
            elif not (words[j].low in _NOUN_JOINERS and j == end) and not (words[j].low in DETERMINERS and j == end + 1):
                break
            j += 1
        yield i, end
        i = end


def _strong(view: Parsed, run: Run) -> int:
    """Noun-like words of a run that could stand as a subject alone."""
    return sum(view.content[i] and view.words[i].low not in WEAK | TIME_WORDS for i in range(*run))


def _noun_rank(view: Parsed, run: Run) -> tuple[bool, int, int, int]:
    """Longer runs first, then earlier ones; numbers only after words."""
    only_numbers = all(view.words[i].number for i in range(*run))
    return (not only_numbers, _strong(view, run), run[1] - run[0], -run[0])


def noun_run(view: Parsed) -> Span | None:
    """The longest noun-like run of non-stop-words: "who played the *middle sister* on full house"."""
    best = max((r for r in _noun_runs(view) if _strong(view, r)), key=lambda r: _noun_rank(view, r), default=None)
    return None if best is None else view.span(*best)


def origin(view: Parsed) -> Span | None:
    """An adjective of origin, when there is nothing else: "Which *English* king had six wives?", had it no wives."""
    return _longest_names(view, outside=False, demonyms=True) or _longest_names(view, outside=True, demonyms=True)


def compound(view: Parsed) -> Span | None:
    """All but the last word of the phrase that is asked for, when it is all there is: "who is the *chicago bears* quarterback"."""
    if view.phrase is None or view.phrase[1] - view.phrase[0] < 2:
        return None
    first, end = view.phrase
    if view.words[end - 2].low == "of":
        return view.span(end - 1, end)
    return view.span(first, end - 1) if _strong(view, (first, end - 1)) else None


def whole_phrase(view: Parsed) -> Span | None:
    """The phrase that is asked for, when all else is a verb: "who is the *first president* to be impeached"."""
    return None if view.phrase is None else view.span(*view.phrase)


SUBJECT_RULES: tuple[Callable[[Parsed], Span | None], ...] = (
    options,
    alternatives,
    quoted_span,
    opening_name,
    capitalised_run,
    complement,
    capitalised_run_inside,
    owner,
    inverted_subject,
    performed_work,
    announced_title,
    sung_title,
    sentence_title,
    named_thing,
    opening_subject,
    longest_topic,
    noun_run,
    origin,
    compound,
    whole_phrase,
)


def _free(view: Parsed, index: int, subject: Span) -> bool:
    """Whether a word can be part of the property: not the wh-word, no character shared with the subject."""
    return index != view.wh and not subject.overlaps(view.span(index, index + 1))


def asked_phrase(view: Parsed, subject: Span) -> Span | None:
    """The head of the phrase that is asked for: "which British *composer*", "how *old*", "what is the *main religion*"."""
    if view.phrase is None:
        return None
    first, end = view.phrase
    while end > first and not _free(view, end - 1, subject):
        end -= 1
    start = end
    while start > first and _free(view, start - 1, subject):
        start -= 1
    # Leading names qualify the head; where all words are names they are the head.
    heads = [i for i in range(start, end) if view.cased and view.words[i].capital]
    if heads and heads[-1] + 1 < end:
        start = heads[-1] + 1
    while start < end and view.words[start].low in {"of", "and", "vs"} | DETERMINERS:
        start += 1
    # "which 1939 *film*"
    start += start + 1 < end and is_year(view.words[start])
    # "spacecraft first to return", "actress best known as"
    while end > start + 1 and view.words[end - 1].low in {"first", "best", "better"}:
        end -= 1
    return view.span(start, end) if start < end else None


def main_verb(view: Parsed, subject: Span) -> Span | None:
    """The main content verb: "who *wrote* Emma", "when did Emma *appear*"; the first after the wh-word, else the last before it."""
    begin = 0 if view.wh is None else view.wh + 1
    order = [*range(begin, len(view.words)), *reversed(range(begin))]
    verbs = [i for i in order if _free(view, i, subject) and view.verbs[i] and view.words[i].low not in AUX]
    # "When was the man who *painted* Guernica *born*?": a verb of a relative clause only where there is no other.
    best = next((i for i in verbs if not _relative(view, i)), verbs[0] if verbs else None)
    return None if best is None else view.span(best, best + 1)


def _relative(view: Parsed, index: int) -> bool:
    """Whether a verb follows a relative pronoun, small words between them."""
    before = index - 1
    while before > max(0, index - 4) and not view.content[before] and view.words[before].low not in WH | {"that"}:
        before -= 1
    return before > 0 and before != view.wh and view.words[before].low in WH | {"that"}


def had(view: Parsed, subject: Span) -> Span | None:
    """What is had: "where do the oslo vikings have *spring training*"."""
    words = view.words
    verb = next(
        (i for i in range(len(words)) if words[i].low == "have" and view.after_do[i] and words[i].start >= subject.end), None
    )
    if verb is None:
        return None
    first = next((i for i in range(verb + 1, len(words)) if view.content[i] and _free(view, i, subject)), None)
    if first is None:
        return None
    end = first
    while end < len(words) and view.content[end] and not (end > first and words[end].breaks):
        end += 1
    return view.span(first, end)


def after_do(view: Parsed, subject: Span) -> Span | None:
    """After "do" or a modal, the first noun-like word behind the subject: "What did Otis *patent*?" """
    if view.wh is None:
        return None
    for i in range(view.wh + 1, len(view.words)):
        word = view.words[i]
        if word.start >= subject.end and view.after_do[i] and word.low not in STOP - BASE_VERBS:
            return view.span(i, i + 1) if _free(view, i, subject) else None
    return None


def predicate(view: Parsed, subject: Span) -> Span | None:
    """In a yes/no question or a statement, the longest noun-like run behind the subject: "Are Jo and Al *tennis players*?" """
    if view.wh is not None:
        return None
    runs = list(_noun_runs(view, subject))
    behind = [r for r in runs if view.words[r[0]].start >= subject.end]
    best = max(behind or runs, key=lambda r: (r[1] - r[0], -r[0]), default=None)
    return None if best is None else view.span(*best)


def remaining_nouns(view: Parsed, subject: Span) -> Span | None:
    """The longest other noun-like run, where a wh-word asks and no verb says what for: "where is the *capital* of Peru"."""
    best = max(_noun_runs(view, subject), key=lambda r: _noun_rank(view, r), default=None)
    return None if best is None else view.span(*best)


PROPERTY_RULES: tuple[Callable[[Parsed, Span], Span | None], ...] = (
    asked_phrase,
    had,
    main_verb,
    after_do,
    predicate,
    remaining_nouns,
)


def subject_of(view: Parsed) -> Span | None:
    """The first subject that a rule finds and that does not cover the wh-word."""
    for rule in SUBJECT_RULES:
        span = rule(view)
        if span is not None and span.start < span.end and not view.asks(span):
            return span
    return None


def property_of(view: Parsed, subject: Span) -> Span | None:
    """The first property that a rule finds and that does not touch the subject or the wh-word."""
    for rule in PROPERTY_RULES:
        span = rule(view, subject)
        if span is not None and span.start < span.end and not span.overlaps(subject) and not view.asks(span):
            return span
    return None


def rule_spans(question: str) -> tuple[Span | None, Span | None]:
    """Subject and property of a free question, each None where no rule finds it.

    >>> [span.of(q) for q in ("Which is larger, Russia or Belgium?",) for span in rule_spans(q)]
    ['Russia or Belgium', 'larger']
    """
    view = parse(question)
    subject = None if is_foreign(view.words) else subject_of(view)
    if subject is None:
        return None, None
    return subject, property_of(view, subject)
