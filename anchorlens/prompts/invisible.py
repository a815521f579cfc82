"""Characters that are easily overlooked: invisible ones that no script there needs, and the space
between a prompt and its answer.

A joiner belongs to words of Persian or Hindi and to emoji. At the end of "Paris" it is a remnant of
a web page, and would be a part of the gold answer.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from anchorlens.display import shorten, warn
from anchorlens.prompts.pairs import AnswerText, AnyOf, PromptPair, TokenText, list_answers

# Zero width space, word joiner, invisible operators, byte order mark and soft hyphen.
_NEVER_NEEDED = frozenset("\u200b\u2060\u2061\u2062\u2063\u2064\ufeff\u00ad")

# Scripts that are written with joiners: Arabic and its relatives, and those of India and South East
# Asia, and Mongolian.
_JOINED = (
    "\u0600-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u18af\u1900-\u1cff\ua800-\ua8ff\ua930-\uabff"
    "\ufb50-\ufdff\ufe70-\ufefe\U00010a00-\U00011fff\U0001e900-\U0001e95f"
)
_EMOJI = "\u00a9\u00ae\u203c\u2049\u2100-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_HAN = "\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_JAMO = "\u1100-\u115e\u1161-\u11ff\ua960-\ua97f\ud7b0-\ud7ff"
_OLD_JAMO = "\u3131-\u3163\u3165-\u318e\uffa1-\uffdc"
_MARKS = "\u0300-\u034e\u0350-\u036f\u0591-\u05ea"
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefe\U00010800-\U00010fff]")
_DIRECTION_MARKS = frozenset("\u200e\u200f\u061c")


class _Need(NamedTuple):
    """Characters, and the neighbours that need them."""

    characters: str
    before: re.Pattern[str]
    after: re.Pattern[str]


def _either_side(characters: str, neighbours: str) -> _Need:
    pattern = re.compile(f"[{neighbours}]")
    return _Need(characters, pattern, pattern)


_NEEDS = (
    _Need(
        "\u200c\u200d",
        re.compile(f"[{_JOINED}{_EMOJI}{_SELECTORS}]"),
        re.compile(f"[{_JOINED}{_EMOJI}]"),
    ),
    _either_side("\u115f\u1160", _JAMO),
    _either_side("\u3164\uffa0", _OLD_JAMO),
    _either_side("\u034f", _MARKS),
    _either_side("\u17b4\u17b5", "\u1780-\u17b3\u17b6-\u17ff"),
    _either_side("\u180b-\u180f", "\u1800-\u180a\u1810-\u18af"),
    # A selector stands after its character; "1" has one before the frame of a key.
    _Need(
        _SELECTORS,
        re.compile(f"[{_EMOJI}{_HAN}{_SELECTORS}\u1000-\u109f\ua840-\ua87f]"),
        re.compile(f"[\u20e3{_SELECTORS}]"),
    ),
)
# Characters that no text needs at its ends, whatever stands beside them.
_NOT_AT_ENDS = frozenset("\u200c\u200d\u3164\uffa0\u034f\u180e") | _DIRECTION_MARKS
# A joiner after one of these signs of India, which silence a vowel, ends a word in Malayalam.
_VIRAMA = re.compile(
    "[\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d\u0dca\u1039\u103a\u17d2]"
)
_JOINERS = frozenset("\u200c\u200d")
_ALL = "".join(need.characters for need in _NEEDS)
_CANDIDATE = re.compile(f"[{''.join((*_NEVER_NEEDED, *_DIRECTION_MARKS))}{_ALL}]")
_NEED_OF = tuple((re.compile(f"[{need.characters}]"), need) for need in _NEEDS)


def find_visible(text: str) -> "range | list[int]":
    """Return the indices of the characters of a text that stay: all but blanks at its ends and
    invisible characters that their neighbours do not need.

    Args:
        text: The text of a cell.

    Returns:
        Indices in increasing order; a range if no character inside of the text is removed.
    """
    if text.isascii() or not _CANDIDATE.search(text):
        start = len(text) - len(text.lstrip())
        return range(start, max(start, len(text.rstrip())))
    given = [index for index, one in enumerate(text) if one not in _NEVER_NEEDED]
    is_right_to_left = _RIGHT_TO_LEFT.search(text) is not None
    kept: list[int] = []
    for place, index in enumerate(given):
        before = text[kept[-1]] if kept else ""
        after = text[given[place + 1]] if place + 1 < len(given) else ""
        if _is_needed(text[index], before, after, is_right_to_left):
            kept.append(index)
    start = 0
    end = len(kept)
    while start < end and _is_blank(text[kept[start]]):
        start += 1
    while start < end and _is_blank(text[kept[end - 1]]):
        one = text[kept[end - 1]]
        before = text[kept[end - 2]] if end - start > 1 else ""
        if one in _JOINERS and _VIRAMA.match(before):
            break
        end -= 1
    return kept[start:end]


def _is_needed(one: str, before: str, after: str, is_right_to_left: bool) -> bool:
    if one in _DIRECTION_MARKS:
        return is_right_to_left
    for characters, need in _NEED_OF:
        if characters.match(one):
            return bool(need.before.match(before) or need.after.match(after))
    return True


def _is_blank(one: str) -> bool:
    return one.isspace() or one in _NOT_AT_ENDS


def has_invisible(text: str) -> bool:
    """Return whether a text has characters of width zero that :func:`find_visible` leaves out."""
    if text.isascii() or not _CANDIDATE.search(text):
        return False
    kept = set(find_visible(text))
    return any(index not in kept and not one.isspace() for index, one in enumerate(text))


KEEP = "keep"
ADD = "add"
ANSWER_SPACES = (KEEP, ADD)
"""Values of ``answer_space=``."""

# Scripts without spaces between words: of South East Asia, and of East Asia without Hangul.
_NO_SPACES = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\uabff\uf900-\uffff]")
# Punctuation after which a space is usual. A bracket, quotation mark or slash may open a word.
_CLOSING = ":,.;?!)"
_CURE = "or pass load_pairs(..., answer_space='add')"


def join_by_space(pair: PromptPair) -> PromptPair:
    """Return a pair with one space between its prompts and its answers, at the answers' beginning.

    Token ids, and answers that begin with white space, stay as they are.
    """
    answer = _with_spaces(pair.answer, pair.clean)
    wrong = _with_spaces(pair.wrong, pair.clean)
    clean = _without_end_spaces(pair.clean)
    corrupted = _without_end_spaces(pair.corrupted)
    return replace(pair, clean=clean, corrupted=corrupted, answer=answer, wrong=wrong)


def _without_end_spaces(prompt: TokenText) -> TokenText:
    """Return a prompt without spaces at its end; token ids stay as they are."""
    return prompt.rstrip(" ") if isinstance(prompt, str) else prompt


def _with_spaces(answer: AnswerText | None, prompt: TokenText) -> AnswerText | None:
    if isinstance(answer, AnyOf):
        return AnyOf(tuple(_with_space(one, prompt) for one in answer.answers))
    return None if answer is None else _with_space(answer, prompt)


def _with_space(answer: TokenText, prompt: TokenText) -> TokenText:
    if not isinstance(answer, str) or answer[:1].isspace():
        return answer
    # A line break or tab separates the answer already.
    is_separated = isinstance(prompt, str) and prompt.rstrip(" ")[-1:].isspace()
    return answer if is_separated else f" {answer}"


def warn_of_spaces(pairs: Sequence[PromptPair]) -> None:
    """Warn once of answers without a space after their prompt, of spaces at the end of prompts, and
    of characters of width zero.
    """
    joined: list[tuple[str, str]] = []
    spaced: list[str] = []
    invisible: list[str] = []
    for pair in pairs:
        both = (*list_answers(pair.answer), *list_answers(pair.wrong))
        answers = [one for one in both if isinstance(one, str)]
        if isinstance(pair.clean, str):
            continued = [one for one in answers if _continues_word(pair.clean, one)]
            joined += [(pair.clean, one) for one in continued]
            if answers and pair.clean.endswith(" "):
                spaced.append(pair.clean)
        texts = [one for one in (pair.clean, pair.corrupted, *answers) if isinstance(one, str)]
        invisible += [one for one in texts if has_invisible(one)]
    if joined:
        prompt, answer = joined[0]
        n = "1 answer begins" if len(joined) == 1 else f"{len(joined)} answers begin"
        if all(one.isdecimal() for _, one in joined):
            n = f"Are these token ids? Pass numbers='ids'. As texts, {n}"
        warn(
            f"{n} without a space after a word: {shorten(prompt[-20:])} + {shorten(answer)}. Its"
            " first token is that of a continued word."
            f" Write {f' {answer}'!r}, {_CURE}, if the answer is a word of its own."
        )
    if spaced:
        n = "1 prompt ends" if len(spaced) == 1 else f"{len(spaced)} prompts end"
        warn(
            f"{n} in a space: {shorten(spaced[0][-20:])}. Most tokenizers have the space in the"
            f" answer's first token. Write the space before the answer, {_CURE}."
        )
    if invisible:
        n = "1 text has" if len(invisible) == 1 else f"{len(invisible)} texts have"
        warn(
            f"{n} characters of width zero, which are tokens: {invisible[0][-40:]!a}. Remove them,"
            " if they are not meant."
        )


def _continues_word(prompt: str, answer: str) -> bool:
    """Return whether an answer continues the last word of its prompt."""
    first = answer[:1]
    last = prompt[-1:]
    if not first.isalnum() or _NO_SPACES.match(first) or _NO_SPACES.match(last):
        return False
    if first.isdecimal() and not last.isalpha():
        return False  # a number is meant to be continued, such as a year or a decimal
    return last.isalnum() or last in _CLOSING
