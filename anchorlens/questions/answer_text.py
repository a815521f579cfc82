"""Find the answer in a generated text without the gold answer, and grade it (METHOD 3)."""

import re
from collections.abc import Sequence

from anchorlens.questions.example import Span, normalise

# Phrases before an answer, stripped for right and wrong answers alike; few on purpose, so that the
# rule cannot depend on the answer.
_LEAD_IN = re.compile(
    r"""^(?:
        (?:a|answer)\s*:                                       # "A:", "Answer:"
      | (?:sure|certainly|of\ course)[,!.:]
      | the\ (?:correct\ |right\ )?answer\ (?:to\ [^:]{1,80}\ )?(?:is|was)\b:?
      | (?:it|he|she|this|that|they)\ (?:is|was|are|were)\b
      | the\ [^.,;:]{1,80}?\ (?:is|was|are|were)
        \ (?:called\ |named\ |known\ as\ |located\ in\ |in\ |by\ )?
    )\s*""",
    re.IGNORECASE | re.VERBOSE,
)
_OPEN = "\"'“”‘’«([*_ \t"
_CLOSE = "\"'“”‘’»)]*_ \t.,;:!?"


# Tags of a reasoning model's thinking; some templates open the block themselves, so that only its
# end is generated.
_THINKING = "think|thinking|thought|reasoning"
_THOUGHT = re.compile(rf"<(?:{_THINKING})>|\[THINK\]", re.IGNORECASE)
_THOUGHT_END = re.compile(rf"</(?:{_THINKING})>|\[/THINK\]", re.IGNORECASE)
# "Paris, the capital of France" has an apposition; "The Good, the Bad and the Ugly" continues in
# capitals.
_APPOSITION = re.compile(r",\s(?=(?:an?\s\w|(?:the|one\sof)\s[a-z]|which\b|who(?:se)?\b|where\b))")


def answer_line(text: str, *, opened: bool = False) -> Span | None:
    """Return the first line of a generated text after any thinking, which holds the answer; None if
    there is none.

    >>> answer_line("<think>Rome? No.</think>\\n\\nParis is it.\\nQ: And?")
    Span(start=26, end=38)
    """
    start = _after_thinking(text, opened)
    if start is None:
        return None
    start += len(text[start:]) - len(text[start:].lstrip())
    line = text[start:].split("\n", 1)[0].rstrip()
    return Span(start, start + len(line)) if line else None


def has_open_thinking(text: str, *, opened: bool = False) -> bool:
    """Return True if a text ends inside a block of thinking, so that it holds no answer yet.

    ``opened`` is True for a prompt that has opened the block itself.
    """
    return _after_thinking(text, opened) is None


def is_thinking_tag(text: str) -> bool:
    """Return True if a text is exactly one opening or closing tag of thinking."""
    return bool(_THOUGHT.fullmatch(text) or _THOUGHT_END.fullmatch(text))


def _after_thinking(text: str, opened: bool) -> int | None:
    """Return the end of the last block of thinking, 0 if there is none, None if one is
    still open.
    """
    ends = [match.end() for match in _THOUGHT_END.finditer(text)]
    end = max(ends, default=0)
    return None if (opened and not ends) or _THOUGHT.search(text, end) else end


def exact_answer(text: str, *, opened: bool = False) -> Span | None:
    """Find the short answer in the line of :func:`answer_line`, without lead-in, quotes and
    trailing text.

    >>> exact_answer("The capital of France is Paris. It lies on the Seine.")
    Span(start=25, end=30)
    """
    span = answer_line(text, opened=opened)
    if span is None:
        return None
    offset = span.start
    line = span.of(text)
    for _ in range(2):
        match = _LEAD_IN.match(line)
        if match is None or not line[match.end() :].strip(_CLOSE):
            break
        offset = offset + match.end()
        line = line[match.end() :]
    stripped = line.lstrip(_OPEN)
    offset = offset + len(line) - len(stripped)
    line = stripped
    # A full stop ends the sentence only after four letters, which keeps "St. Louis" and "J. K.
    # Rowling" whole.
    line = re.split(r"(?<=\w{4})\.(?=\s|$)|[!?;](?=\s|$)|\s[-–—]\s|\s\(", line, maxsplit=1)[0]
    line = _APPOSITION.split(line, maxsplit=1)[0].rstrip(_CLOSE)
    return Span(offset, offset + len(line)) if line else None


def is_right(line: str, gold: Sequence[str]) -> bool:
    """Return True if a gold alias occurs in an answer's line as whole words after ``normalise``."""
    words = f" {normalise(line)} "
    return any(f" {normalise(alias)} " in words for alias in gold if normalise(alias))


def names_gold(exact: str, line: str, gold: Sequence[str]) -> bool:
    """Return True if the exact answer of a line is a gold alias alone, so that its first token is
    the right answer's.

    An article before it, a place or date after a comma, and a line that equals an alias are
    allowed.

    >>> names_gold("Paris, France", "It is Paris, France.", ["Paris"])
    True
    >>> names_gold("Abraham Lincoln", "Abraham Lincoln", ["Abraham"])
    False
    """
    aliases = {_bare(alias) for alias in gold} - {""}
    return not aliases.isdisjoint({_bare(exact), _bare(exact.split(", ", 1)[0]), _bare(line)})


def _bare(text: str) -> str:
    return re.sub(r"^(?:the|an?) (?=.)", "", normalise(text))
