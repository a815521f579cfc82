"""Find invisible characters that the script of a text does not need.

A joiner belongs to words of Persian or Hindi and to emoji. At the end of "Paris" it is a remnant of
a web page, and would be a part of the gold answer.
"""

import re
from typing import NamedTuple

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
