"""Runs of capitalised words in a question, and the subject rules based on them
(:mod:`~anchorlens.questions.spans.rules`).
"""

from collections.abc import Iterator

from anchorlens.questions.example import Span
from anchorlens.questions.spans.lexicon import (
    AUX,
    DETERMINERS,
    IMPERATIVES,
    NATIONS,
    PREPOSITIONS,
    STOP,
    TIME_WORDS,
    WEAK,
    Word,
    is_demonym,
    is_year,
    word_set,
)
from anchorlens.questions.spans.parse import Parsed, Run
from anchorlens.questions.spans.subject_rules import CUES, MAKE

# Small words between two capitalised words of a name.
_NAME_JOINERS = word_set(
    "of the and & or de la le les von van der den di da del du al bin ibn for v vs y à et und"
)
# Small words at the start of a name: "painter van Gogh".
_PARTICLES = word_set("van von der den de da di du del bin ibn")
# Small words within a title (after a word such as "film") or a name that opens a statement.
_TITLE_JOINERS = _NAME_JOINERS | word_set("in on at from with to a an by my no but")
_PLACES = word_set("in on at from with")
# Words before the last item of a list.
_LINKS = word_set("and or &")


def _name_run(view: Parsed, first: int, joiners: frozenset[str] = _NAME_JOINERS) -> Run:
    """Return the run from ``first`` of capitalised words, numbers, and small words between two
    capitalised ones.
    """
    words = view.words
    end = i = first + 1
    while i < len(words):
        # "wrote Murder in the Rectory", but not "wrote Emma in Bath"
        is_work = first > 0 and (
            words[first - 1].low in MAKE or words[first].low in {"the", "a", "an"}
        )
        work = is_work and i + 1 < len(words) and words[i + 1].low == "the"
        nickname = (
            words[i].breaks
            and i == end
            and words[i].capital
            and view.gap(i) in {'"', ' "', '" ', "/"}
        )
        if words[i].breaks and not nickname:
            break
        if (words[i].capital and i != view.wh) or (words[i].number and i == end):
            end = i + 1
        elif (
            not ((words[i].low in joiners or (work and words[i].low in _PLACES)) and i - end < 2)
            or words[i].owned
        ):
            break
        i += 1
    return first, end


def _merge_lists(view: Parsed, runs: list[Run]) -> list[Run]:
    """Merge runs of a list ("Gus Grissom, Ed White and Roger Chaffee") and of a place with its
    region ("Point Anne, Ontario").
    """
    words = view.words
    merged: list[Run] = []
    i = 0
    while i < len(runs):
        last = i
        while (
            last + 1 < len(runs)
            and runs[last][1] == runs[last + 1][0]
            and view.gap(runs[last + 1][0]) == ", "
        ):
            last += 1
        end = runs[last][1]
        # The last item of a list follows "and", within the run or after ", and".
        inside = view.has_any(_LINKS, runs[last])
        behind = False
        if last + 1 < len(runs) and end < len(words):
            item = runs[last + 1]
            behind = (
                words[end].low in {"and", "or"}
                and item[0] == end + 1
                and view.gap(end) in {" ", ", "}
                and not all(map(is_demonym, words[slice(*item)]))
            )
        place = False
        if last == i + 1 and runs[i][0] > 0:
            before = words[runs[i][0] - 1].low
            place = before in {"in", "of", "at", "near", "from"} and not _frames(view, runs[i])
            # "the co-founder of Apple, Steve Jobs, started": a run between two commas is no region.
            if before == "of" and end < len(words) and words[end].breaks:
                place = False
        if behind:
            merged.append((runs[i][0], runs[last + 1][1]))
            last += 1
        elif last > i and (inside or place):
            merged.append((runs[i][0], end))
        else:
            merged += runs[i : last + 1]
        i = last + 1
    return merged


def _name_runs(view: Parsed) -> Iterator[Run]:
    """Yield the capitalised runs without small words that open a sentence and single months."""
    words = view.words
    i = 0
    while i < len(words):
        word = words[i]
        opener = word.opens and (word.low in STOP or view.verbs[i] or word.low in WEAK)
        # "Who Was Marie Curie's husband?"
        opener = opener or (view.wh is not None and i == view.wh + 1 and word.low in AUX)
        alone = word.low in {"i", "a"} and not (
            i + 1 < len(words) and words[i + 1].capital and not words[i + 1].breaks
        )
        if not word.capital or i == view.wh or opener or alone:
            i += 1
            continue
        announced = i > 0 and words[i - 1].low in CUES and not word.breaks
        first, end = _name_run(view, i, _TITLE_JOINERS if announced else _NAME_JOINERS)
        i = end
        while (
            first > 1
            and words[first - 1].low in _PARTICLES
            and not words[first].breaks
            and not words[first].owned
        ):
            first -= 1
        if first > 0 and words[first - 1].number and not words[first].breaks:
            # "127 Hours" and "the 1976 Olympics", but not "in 1960 Khrushchev".
            first -= not is_year(words[first - 1]) or (first > 1 and words[first - 2].low == "the")
        if (
            view.phrase is not None
            and view.phrase[0] <= first < view.phrase[1] < end
            and words[view.phrase[1]].low in {"of", "for"}
        ):
            # "the Vice-President for George Bush": the first name is queried, the second is the
            # subject.
            first = view.phrase[1] + 1
            while first < end and not words[first].capital:
                first += 1
        if words[0].low in AUX and words[end - 1].low in NATIONS and end - first > 1:
            # "Is Bob Smith British?": the name excludes the predicate.
            end -= 1
        if words[first].low in TIME_WORDS and (end == first + 1 or words[first + 1].number):
            first += 1
            while first < end and (words[first].number or not words[first].capital):
                first += 1
        if first < end:
            yield first, end


def _capitals(view: Parsed, run: Run) -> int:
    """Count the capitalised words of a run, without the region of a place ("Point Anne,
    Ontario").
    """
    is_list = view.has_any(_LINKS, run)
    n = 0
    for i in range(*run):
        if i > run[0] and not is_list and view.gap(i) == ", ":
            break
        n += view.words[i].capital and view.words[i].low not in NATIONS
    return n


def _is_outside(view: Parsed, run: Run) -> bool:
    """Return True if a run does not overlap the queried phrase."""
    return view.phrase is None or run[1] <= view.phrase[0] or view.phrase[1] <= run[0]


def _longest_names(view: Parsed, outside: bool, demonyms: bool) -> Span | None:
    """Return the run with most capitalised words, preferring runs that do not open the sentence."""
    if not view.cased:
        return None
    runs = []
    for run in _merge_lists(view, list(_name_runs(view))):
        opens = view.words[run[0]].opens
        words = view.words[slice(*run)]
        origin = all(is_demonym(word) or word.low in _NAME_JOINERS for word in words)
        if (
            (opens and _capitals(view, run) < 2)
            or origin != demonyms
            or _is_outside(view, run) != outside
        ):
            continue
        if opens and view.wh is not None and run[0] > view.wh:
            # "What colour is 10 Downing Street? White or Brown?"
            continue
        rank = (
            not _introduces(view, run),
            _capitals(view, run),
            not opens and not _frames(view, run),
            not _modifies(view, run),
        )
        runs.append((rank, run))
    best = max(runs, key=lambda item: item[0], default=None)
    return None if best is None else view.span(*best[1])


def _introduces(view: Parsed, run: Run) -> bool:
    """Return True if a run qualifies the noun of another name: "*England Rugby* player Dylan
    Hartley".
    """
    words = view.words
    after = run[1]
    last = min(len(words), run[1] + 3)
    while (
        after < last and view.content[after] and not (words[after].capital or words[after].breaks)
    ):
        after += 1
    return (
        run[1] < after < len(words)
        and words[after].capital
        and not words[after].breaks
        and not words[after].owned
    )


def _modifies(view: Parsed, run: Run) -> bool:
    """Return True if a lower-case noun follows an acronym: "the *US* state of Ohio"."""
    after = run[1]
    if after >= len(view.words) or not all(map(_acronym, view.words[slice(*run)])):
        return False
    return view.content[after] and not view.words[after].breaks and not view.words[after].capital


def _frames(view: Parsed, run: Run) -> bool:
    """Return True if a run follows a preposition before the wh-word: "In *Dallas*, who shot
    J.R.?"
    """
    return view.wh is not None and run[1] <= view.wh and view.words[0].low in PREPOSITIONS


def _acronym(word: Word) -> bool:
    return len(word.text) > 1 and word.text.isupper()


def opening_name(view: Parsed) -> Span | None:
    """Return a name that opens a statement before its verb: "*Metz* is the capital of which region
    of France?"
    """
    words = view.words
    if not view.cased or not words or (view.wh is not None and view.wh < 2):
        return None
    first = int(words[0].low in {"the", "both"})
    small = words[0].low in (STOP - {"the", "both", "a"}) | IMPERATIVES | WEAK
    if first >= len(words) or not words[first].capital or (small and not _acronym(words[0])):
        return None
    later = [run for run in _name_runs(view) if run[0] > first]
    runs = _merge_lists(view, [_name_run(view, first, _TITLE_JOINERS), *later])
    end = runs[0][1]
    if end >= len(words) or words[end].opens or (is_demonym(words[first]) and end == first + 1):
        return None
    verb = words[end].low in AUX or view.verbs[end]
    aside = view.gap(end) == ", " and words[end].low in DETERMINERS | {"who", "which", "whose"}
    return view.span(*runs[0]) if aside or (verb and not words[end].breaks) else None


def longest_name(view: Parsed) -> Span | None:
    """Return the longest capitalised run outside the queried phrase: "Who founded the *Bank of
    England*?"
    """
    return _longest_names(view, outside=True, demonyms=False)


def longest_name_inside(view: Parsed) -> Span | None:
    """Return the longest capitalised run inside the queried phrase: "Which *Verdi* opera is the
    longest?"
    """
    return _longest_names(view, outside=False, demonyms=False)


def origin(view: Parsed) -> Span | None:
    """Return an adjective of origin, if there is nothing else: "Which *English* king was the
    first?"
    """
    return _longest_names(view, outside=False, demonyms=True) or _longest_names(
        view, outside=True, demonyms=True
    )
