"""The options that a question names: "Which is larger, Belgium or Russia?" names two, "What do both X and Y play?" none."""

import re
from functools import lru_cache

from anchorlens.questions.example import normalise

YES_NO = ("yes", "no")

# Words of a name: capitals and numbers, with small words between them.
_NAME = r"[\"“'‘]?[A-Z0-9À-ÖØ-Þ][^\s,;:?()]*"
_SMALL = r"(?:(?:of|the|and|&|in|on|at|for|de|la|le|von|van|der|to|a|with)\s+){0,3}"
_NAMES = rf"(?:(?:[Tt]he|[Aa]n?)\s+)?{_NAME}(?:\s+{_SMALL}{_NAME})*"
_NAMES_LAST = re.compile(rf"(?:^|\s)({_NAMES})$")
_NAMES_FIRST = re.compile(_NAMES)
# All of this reads a text with single spaces, and only this far: a hostile one takes no longer than its length.
_FAR = 200
_BETWEEN = re.compile(
    rf"\b(?:between|(?:out|one) of) (.{{1,{_FAR}}}?) and (.{{1,{_FAR}}}?)"
    r" ?(?:,|$|\b(?:which|who|whose|what|is|are|was|were|has|have|had|does|did)\b)",
    re.IGNORECASE,
)
# "Is Ann Lee or Bo Ray older?", "In case 3: is it Alpha or Beta?": these words are no part of the name.
_OPENER = re.compile(r"^(?:is|are|was|were|do|does|did|has|have|had|can|will|would|q:) (?:(?:it|this|that) )?", re.IGNORECASE)
# Inside a question they are not written large, as "Will Smith" is, and a modal verb may be his.
_OPENER_INSIDE = re.compile(r"^(?:is|are|was|were|do|does|did) (?:(?:it|this|that) )?")
_OR = re.compile(r",? or ", re.IGNORECASE)
# Words of an option that no capital ends.
_LONGEST = 8
_BREAK = re.compile(r"[,;:?]\s+|\s[-–—]\s|-\s")


def option_key(text: str) -> str:
    """What two writings of one option share: normalised, without its article.

    >>> option_key("the Sun"), option_key("The Beatles"), option_key("The")
    ('sun', 'beatles', 'the')
    """
    plain = normalise(text)
    first, _, rest = plain.partition(" ")
    return rest if first in {"the", "a", "an"} and rest else plain


@lru_cache(maxsize=2**14)
def find_options(question: str) -> tuple[str, str] | None:
    """Return the two options of a question, as :func:`option_key`; None where it names no such pair.

    They stand beside the last "or", else after "between", "out of" or "one of" beside "and".

    >>> find_options("Which is larger, Belgium or Russia?"), find_options("What sport do both Ann Lee and Bo Ray play?")
    (('belgium', 'russia'), None)
    """
    text = _OPENER.sub("", " ".join(question.split()).rstrip("?!. "))
    found = list(_OR.finditer(text))
    if found:
        sides = _sides(text[: found[-1].start()], text[found[-1].end() :])
    else:
        between = _BETWEEN.search(text)
        if between is None:
            return None
        sides = between[1], between[2]
    first, second = (option_key(side) for side in sides)
    return (first, second) if first and second and first != second else None


def _sides(left: str, right: str) -> tuple[str, str]:
    """The option at the end of one text and that at the start of the other."""
    behind, ahead = _BREAK.split(left)[-1], _BREAK.split(right)[0].rstrip(", ")
    # "Which is larger, the dog" breaks before the options, and they run to its end; "Who is older Ann Lee" does not.
    listed = behind != left and len(behind.split()) <= _LONGEST
    to_the_end = ahead == right and len(ahead.split()) <= _LONGEST
    behind, ahead = (_OPENER_INSIDE.sub("", side) for side in (behind, ahead))
    before, after = _NAMES_LAST.search(left[-_FAR:]), _NAMES_FIRST.match(ahead[:_FAR])
    first = behind if listed else before[1] if before else ""
    return first, after[0] if after and not (listed and to_the_end) else ahead
