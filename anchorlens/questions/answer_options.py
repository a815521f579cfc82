"""Find the options of a question: two in "Which is larger, Belgium or Russia?", none in "What do
both X and Y play?".
"""

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
# Longest match in a text with single spaces, which bounds the time of hostile texts.
_FAR = 200
_BETWEEN = re.compile(
    rf"\b(?:between|(?:out|one) of) (.{{1,{_FAR}}}?) and (.{{1,{_FAR}}}?)"
    r" ?(?:,|$|\b(?:which|who|whose|what|is|are|was|were|has|have|had|does|did)\b)",
    re.IGNORECASE,
)
# Words before an option: "*Is* Ann Lee or Bo Ray older?", "In case 3: *is it* Alpha or Beta?".
_OPENER = re.compile(
    r"^(?:is|are|was|were|do|does|did|has|have|had|can|will|would|q:) (?:(?:it|this|that) )?",
    re.IGNORECASE,
)
# Inside a question only lower-case forms of "be" and "do": "Will Smith" is a name.
_OPENER_INSIDE = re.compile(r"^(?:is|are|was|were|do|does|did) (?:(?:it|this|that) )?")
_OR = re.compile(r",? or ", re.IGNORECASE)
# Largest number of words of an option without capitals.
_LONGEST = 8
_BREAK = re.compile(r"[,;:?]\s+|\s[-–—]\s|-\s")


def option_key(text: str) -> str:
    """Return a normalised option without its article.

    >>> option_key("the Sun"), option_key("The Beatles"), option_key("The")
    ('sun', 'beatles', 'the')
    """
    plain = normalise(text)
    first, _, rest = plain.partition(" ")
    return rest if first in {"the", "a", "an"} and rest else plain


@lru_cache(maxsize=2**14)
def find_options(question: str) -> tuple[str, str] | None:
    """Return the two options of a question as :func:`option_key`; None if it names no pair.

    Options lie beside the last "or", else beside "and" after "between", "out of" or "one of".

    >>> find_options("Which is larger, Belgium or Russia?")
    ('belgium', 'russia')
    >>> find_options("What sport do both Ann Lee and Bo Ray play?") is None
    True
    """
    text = _OPENER.sub("", " ".join(question.split()).rstrip("?!. "))
    matches = list(_OR.finditer(text))
    if matches:
        sides = _sides(text[: matches[-1].start()], text[matches[-1].end() :])
    else:
        between = _BETWEEN.search(text)
        if between is None:
            return None
        sides = between[1], between[2]
    first, second = (option_key(side) for side in sides)
    return (first, second) if first and second and first != second else None


def _sides(left: str, right: str) -> tuple[str, str]:
    """Return the option at the end of the left text and that at the start of the right text."""
    behind = _BREAK.split(left)[-1]
    ahead = _BREAK.split(right)[0].rstrip(", ")
    # "Which is larger, the dog" breaks before the options, which then extend to the end; "Who is
    # older Ann Lee" does not.
    after_break = behind != left and len(behind.split()) <= _LONGEST
    to_the_end = ahead == right and len(ahead.split()) <= _LONGEST
    behind, ahead = (_OPENER_INSIDE.sub("", side) for side in (behind, ahead))
    before = _NAMES_LAST.search(left[-_FAR:])
    after = _NAMES_FIRST.match(ahead[:_FAR])
    first = behind if after_break else before[1] if before else ""
    return first, after[0] if after and not (after_break and to_the_end) else ahead
