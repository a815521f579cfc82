"""Subject rules for questions without informative capitals: "who plays the baker in *low tide*"."""

from anchorlens.questions.example import Span
from anchorlens.questions.spans.lexicon import (
    AUX,
    BASE_VERBS,
    BE,
    DETERMINERS,
    IMPERATIVES,
    PREPOSITIONS,
    TIME_WORDS,
    VERBS,
    WEAK,
    WH,
    is_year,
    word_set,
)
from anchorlens.questions.spans.noun_runs import noun_runs
from anchorlens.questions.spans.parse import Parsed, Run, nouns_before

# Words before a title or a mention.
CUES = word_set(
    """
    movie film song book novel show series album musical play game episode poem opera hymn cartoon
    sitcom anime soap drama documentary ballad phrase word term saying expression name
    """
)
# Words that are no topic next to another: "the *voice* of the tin robot", "the *theme song* for the
# office".
GENERIC = (
    WEAK
    | CUES
    | word_set(
        """
        voice lead female male stars cast theme lyrics tv television movies films songs books season
        seasons episodes world history beginning front top bottom use purpose lot total plot
        soundtrack version video music singer actor actress actors author setting
        """
    )
)
_PRONOUNS = word_set(
    "i you he she it we they me him them one someone something anything people somebody everyone"
    " everybody anyone there"
)
_PERFORM = word_set(
    "play plays played playing portray portrays portrayed voices voiced star stars starred starring"
)
MAKE = word_set("sing sings sang sung recorded wrote writes written")
# Small words that occur in titles but not in noun phrases: "how we lost our cat", "i will wait for
# you".
_SENTENCE = (
    WH
    | word_set(
        "i you it me my your them it's i'm you're we're"
        " don't can't won't ain't if me just not never always"
    )
) - {"whose"}
_LEFT_OVER = (
    word_set(
        """
        about called first again originally originate in on from for with at by to of and or the a
        an get most likely probably ever right
        """
    )
    | AUX
)
# "the movie *beyond* the dunes", but "the song *from* the movie"
_OPEN_TITLES = word_set(
    "beyond under over after before behind into around without above across within among"
)
# Words before a cue.
_BEFORE_CUES = (
    DETERMINERS | PREPOSITIONS | AUX | word_set("tv television hit new and theme animated original")
)
_NO_TITLE = (
    (PREPOSITIONS - _OPEN_TITLES) | AUX | {"and", "or", "that", "which", "who", "title", "titles"}
)
_HEADS = GENERIC | {"last", "next", "most", "only"}
_SMALL = DETERMINERS | PREPOSITIONS | AUX
_WEAK = GENERIC | TIME_WORDS | _PRONOUNS
_ASKING = word_set("when where why how what")
_FINITE = AUX | VERBS | BASE_VERBS
_RELATIVE = word_set("that which who whose where whom")
_JOINERS = word_set("of vs and or")
_LINKS = word_set("to and or")
# Prepositions that end a noun phrase: all but that of "the king *of* spain".
_BARRIERS = PREPOSITIONS - {"of"}


def _strength(view: Parsed, run: Run) -> int:
    """Count the words of a run that can be a topic alone."""
    weak = _WEAK
    if view.phrase is not None and view.phrase_kind == "asked" and view.phrase[0] < run[0]:
        # "what president is the only president to ...": the queried word is not the topic.
        weak |= {word.low for word in view.words[slice(*view.phrase)]}
    n = 0
    for i in range(*run):
        word = view.words[i]
        n += view.content[i] and word.low not in weak and not is_year(word)
    return n


def _last(view: Parsed) -> int:
    """Return the index after the last word of the first interrogative clause."""
    begin = 0 if view.wh is None else view.wh + 1
    words = view.words
    for i in range(begin + 1, len(words)):
        if words[i].opens:
            return i
        # "who made velcro *and how* does it stick"
        if words[i - 1].low == "and" and words[i].low in _ASKING:
            return i - 1
    return len(words)


def _rest(view: Parsed) -> int:
    """Return the index of the first word after the wh-word and the queried phrase."""
    begin = 0 if view.wh is None else view.wh + 1
    if view.phrase is None or (view.wh is not None and view.phrase[0] < view.wh):
        return begin
    return view.phrase[1]


def _span(view: Parsed, run: Run | None) -> Span | None:
    """Return a run as a subject, or None if no topic is left in it.

    Small words around it and a generic head before "of" are removed: "the *last season of* the
    wire".
    """
    if run is None:
        return None
    words = view.words
    first, end = run
    while first < end and words[end - 1].low in _LEFT_OVER:
        end -= 1
    while first < end and not view.content[end - 1] and words[end - 1].low.endswith("ly"):
        end -= 1
    moved = True
    cut = False
    while moved:
        start = first
        while first < end and words[first].low in _SMALL:
            first += 1
        # "last time lebron", "voice of the monster"
        head = first
        while head < end and words[head].low in _HEADS:
            head += 1
        joined = head < end and words[head].low in {"of", "for", "in", "on"}
        # "game of thrones", but "last season of the wire"
        joined = joined and not (
            words[head].low == "of" and words[head - 1].low in CUES and head == first + 1
        )
        timed = head > first and words[head - 1].low == "time"
        if first < head < end and (joined or timed):
            first = head
            cut = cut or timed
        moved = first > start
    if cut:
        end = view.find(_FINITE, first + 1, end)
    return view.span(first, end) if first < end and _strength(view, (first, end)) else None


def _title(view: Parsed, run: Run) -> Span | None:
    """Return the title after a cue in the run: "the movie *salt and pepper*".

    A small word after the cue announces no title; the result is then None.
    """
    words = view.words
    for i in range(run[0], run[1] - 1):
        follower = words[i + 1].low
        small = words[i + 1].number or follower in _NO_TITLE
        made = view.verbs[i + 1] and i + 2 < len(words) and words[i + 2].low in PREPOSITIONS
        before = words[i - 1] if i > 0 else None
        led = (
            before is None
            or before.low in _BEFORE_CUES
            or before.number
            or view.verbs[i - 1]
            or i == view.wh
        )
        if (
            words[i].low in CUES
            and led
            and not view.verbs[i]
            and not small
            and not made
            and not words[i + 1].breaks
        ):
            end = run[1]
            while end > i + 2 and words[end - 1].low in _LEFT_OVER:
                end -= 1
            end = _cut_maker(view, i + 2, end)
            lows = {word.low for word in words[i + 1 : end]}
            return None if lows <= GENERIC | _PRONOUNS else view.span(i + 1, end)
    return None


def _cut_maker(view: Parsed, first: int, end: int) -> int:
    """Return the end of a title without its maker: "*salt* by ann lee", but "*side by side*"."""
    words = view.words
    for k in range(first, end - 1):
        follower = words[k + 1].low
        if words[k].low == "by" and follower not in _PRONOUNS and words[k - 1].low != follower:
            return k
    return end


def _inversion(view: Parsed) -> Run | None:
    """Return the run between auxiliary and verb: "when did *the titanic* sink", "how many seasons
    of *lost* are there".
    """
    words = view.words
    end = _last(view)
    at = _rest(view)
    if view.wh is None or view.phrase_kind == "copula" or at >= end:
        return None
    if words[at].low == "of":
        closing = view.find(AUX, at + 2, end)
        return (at + 1, closing) if closing < end else None
    while (
        at < end
        and words[at].low in PREPOSITIONS | DETERMINERS
        and at > _rest(view) - 1
        and words[at].low not in AUX
    ):
        at += 1
        while at < end and view.content[at]:
            at += 1
    if at >= end or words[at].low not in AUX:
        return None
    first = at + 1
    while first < end and words[first].low in DETERMINERS | AUX:
        first += 1
    placed = (
        first < end
        and words[first].low in PREPOSITIONS
        and words[view.wh].low not in {"when", "where"}
    )
    if first >= end or view.verbs[first] or placed:
        return None
    is_be = words[at].low in BE
    if is_be:
        end = view.find({"that", "who", "which"}, first + 1, end)
    verbs: list[int] = []
    for i in range(first + 1, end):
        # "where are mucosa *associated* tissues found": a participle before a noun qualifies it.
        qualifies = is_be and words[i].low.endswith("ed") and i + 1 < end and view.content[i + 1]
        if view.verbs[i] and not qualifies:
            verbs.append(i)
    at_end = bool(verbs) and not any(view.content[verbs[-1] + 1 : end])
    # "begin to be sold", "begin and end": the first verb of those at the end.
    closing = len(verbs) - 1
    while closing > 0 and view.has_any(_LINKS, (verbs[closing - 1] + 1, verbs[closing])):
        closing -= 1
    small = min(view.find(_BARRIERS, first, end), view.find_break(first + 1, end))
    helped = words[at].low in {"do", "does", "did", "will"} and end > first + 1
    if not verbs and small == end and helped and view.content[end - 1]:
        # The last word is a bare verb: "when does the blacklist *resume*".
        return first, end - 1
    stop = verbs[closing] if at_end else verbs[0] if verbs else small
    return (first, stop) if stop > first else None


def subject_after_aux(view: Parsed) -> Span | None:
    """Return the subject after its auxiliary: "what year did *salt and pepper* come out"."""
    run = _inversion(view)
    if run is None:
        return None
    helped = run[0] + 1 < len(view.words) and view.words[run[0] + 1].low in AUX
    if view.words[run[0]].low in _PRONOUNS and not helped:
        return None
    if view.words[run[0]].low in PREPOSITIONS:
        return view.span(*run) if run[1] > run[0] + 1 and _strength(view, run) else None
    return _title(view, run) or _span(view, run)


def title_after_cue(view: Parsed) -> Span | None:
    """Return the title after a cue: "who starred in the movie *salt and pepper*"."""
    return _title(view, (_rest(view), _last(view)))


def opening_subject(view: Parsed) -> Span | None:
    """Return the subject of a statement with a gap: "*marmots* are native to which continent"."""
    words = view.words
    if (
        not words
        or (view.wh is not None and view.wh < 2)
        or words[0].low in PREPOSITIONS | WH | AUX | IMPERATIVES
    ):
        return None
    end = len(words) if view.wh is None else view.wh
    # The subject ends before the auxiliary or, without one, before the first verb ...
    close = None
    helper = view.find(AUX, 1, end)
    if helper < end:
        close = helper
    elif any(view.verbs[1:end]):
        close = view.verbs.index(True, 1)
    # ... and before a relative clause, an infinitive or a bracket.
    stop = end
    for i in range(1, end):
        bracket = words[i].breaks and view.gap(i) != ", "
        if bracket or words[i].low in _RELATIVE or view.is_infinitive(i):
            stop = i
            break
    if view.wh is None and view.phrase is not None and close is not None:
        # "the king *of kalinga* was": the queried phrase precedes the subject.
        return _span(view, (view.phrase[1], close)) if close > view.phrase[1] else None
    return None if close is None else _span(view, (int(words[0].low == "if"), min(stop, close)))


def name_after_verb(view: Parsed) -> Span | None:
    """Return the name after "called" or "named": "which bone is also called *the collarbone*",
    "what animal is named *baloo*".
    """
    words = view.words
    end = _last(view)
    for i in range(_rest(view), end - 1):
        known_as = words[i].low == "known" and words[i + 1].low == "as"
        if words[i].low in {"called", "named", "nicknamed", "termed"} or known_as:
            behind = i + 2 if known_as else i + 1
            if behind >= end or (words[i + 1].low in PREPOSITIONS and not known_as):
                return None
            stop = min(view.find(_BARRIERS, behind + 1, end), view.find_break(behind + 1, end))
            return _span(view, (behind, stop))
    return None


def complement(view: Parsed) -> Span | None:
    """Return the complement of the queried phrase: "what is the SI unit of *electric charge*"."""
    if view.phrase_kind != "copula" or view.phrase is None or view.phrase[1] >= len(view.words):
        return None
    follower = view.words[view.phrase[1]]
    if follower.low != "of" or follower.breaks or not _strength(view, view.phrase):
        return None
    for run in noun_runs(view, joiners=_JOINERS):
        if run[0] > view.phrase[1]:
            return _span(view, run)
    return None


def _first_verb(view: Parsed) -> int | None:
    """Return the index of the first verb after the wh-word and the queried phrase."""
    for i in range(_rest(view), _last(view)):
        if view.verbs[i]:
            return i
    return None


def work_of_role(view: Parsed) -> Span | None:
    """Return the work after "in" for questions about a role: "who plays the baker in *low
    tide*".
    """
    words = view.words
    end = _last(view)
    verb = _first_verb(view)
    if verb is None or words[verb].low not in _PERFORM:
        return None
    if verb + 1 < end and words[verb + 1].low in PREPOSITIONS - {"in", "on"}:
        return None
    for kinds in ({"in", "on"}, {"from"}):
        place = view.find(kinds, verb + 1, end)
        if place < end:
            work = _title(view, (place + 1, end)) or _span(view, (place + 1, end))
            return work or _span(view, (verb + 1, place))
    return None


def title_after_verb(view: Parsed) -> Span | None:
    """Return a title in sentence form after a verb of singing or writing: "who sang *i will wait
    for you*".
    """
    words = view.words
    end = _last(view)
    verb = _first_verb(view)
    if verb is None or verb + 1 >= end:
        return None
    if words[verb].low not in MAKE and words[verb + 1].low not in _SENTENCE | {"so"}:
        return None
    stop = end
    for i in range(verb + 3, end - 1):
        # "who sang ring of fire *in 1963*", but "i was here *with you*"
        adjunct = words[i].low in {"in", "with", "on", "at"}
        if adjunct and words[i + 1].low not in _SENTENCE | _PRONOUNS:
            stop = i
            break
    for i in range(verb + 1, stop - 1):
        if words[i].low == "and" and words[i + 1].low in WH:
            stop = i
            break
    while stop > verb + 3 and words[stop - 1].low in {"originally", "first", "again", "and"}:
        stop -= 1
    title = (verb + 1, stop)
    is_sentence = view.has_any(_SENTENCE, title)
    if not view.has_any(_RELATIVE | CUES | {"and"}, title):
        is_sentence = is_sentence or view.has_any(AUX, title)
    return view.span(*title) if is_sentence and stop > verb + 2 else None


def sentence_title(view: Parsed) -> Span | None:
    """Return a title in sentence form after "in" or "on": "the uncle on *how we lost our cat*"."""
    words = view.words
    end = _last(view)
    for i in range(_rest(view), end - 2):
        if words[i].low in {"in", "on"} and words[i + 1].low in _SENTENCE - _RELATIVE:
            return view.span(i + 1, end)
    return None


def owner(view: Parsed) -> Span | None:
    """Return the owner of the queried phrase: "who was *hope brady*'s mother"."""
    if view.phrase is None or not view.words[view.phrase[0]].owned:
        return None
    return _span(view, nouns_before(view, view.phrase[0]))


def longest_topic(view: Parsed) -> Span | None:
    """Return the longest run of noun-like words, the later of equals: "the name of the cook in
    *pride and glory*".
    """
    named = (
        view.phrase_kind == "copula" and view.phrase is not None and _strength(view, view.phrase)
    )
    later = -1 if named else 1
    inverted = _inversion(view)
    # "where would you find the stapes": the topic is the object of the pronoun's verb.
    begin = inverted[1] if inverted is not None and view.words[inverted[0]].low in _PRONOUNS else 0
    later_runs = (run for run in noun_runs(view, joiners=_JOINERS) if run[0] >= begin)
    runs = [run for run in later_runs if _strength(view, run)]
    if view.wh is None and view.words and view.words[0].low in AUX:
        return _span(view, runs[0]) if runs else None
    best = max(runs, key=lambda run: (_strength(view, run), later * run[0]), default=None)
    return _span(view, best)
