"""Rules that read a generated text: where its answer stands, found without a look at the gold one, and if it is right (METHOD 3)."""

import re
from collections.abc import Sequence

from anchorlens.questions.example import Span, normalise

# Phrases with which a chat model repeats the question before it answers; stripped for right and wrong answers alike. They are few
# on purpose: the rule must not know the answer.
_LEAD_IN = re.compile(
    r"""^(?:
        (?:a|answer)\s*:                                       # "A:", "Answer:"
      | (?:sure|certainly|of\ course)[,!.:]
      | the\ (?:correct\ |right\ )?answer\ (?:to\ [^:]{1,80}\ )?(?:is|was)\b:?
      | (?:it|he|she|this|that|they)\ (?:is|was|are|were)\b
      | the\ [^.,;:]{1,80}?\ (?:is|was|are|were)\ (?:called\ |named\ |known\ as\ |located\ in\ |in\ |by\ )?
    )\s*""",
    re.IGNORECASE | re.VERBOSE,
)
_OPEN = "\"'“”‘’«([*_ \t"
_CLOSE = "\"'“”‘’»)]*_ \t.,;:!?"


# What a reasoning model writes before its answer. Some templates open the block themselves, so that only its end is generated.
_THINKING = "think|thinking|thought|reasoning"
_THOUGHT = re.compile(rf"<(?:{_THINKING})>|\[THINK\]", re.IGNORECASE)
_THOUGHT_END = re.compile(rf"</(?:{_THINKING})>|\[/THINK\]", re.IGNORECASE)
# "Paris, the capital of France": what follows only says what Paris is. "The Good, the Bad and the Ugly" goes on in capitals.
_APPOSITION = re.compile(r",\s(?=(?:an?\s\w|(?:the|one\sof)\s[a-z]|which\b|who(?:se)?\b|where\b))")


def answer_line(text: str, *, opened: bool = False) -> Span | None:
    """The line of a generated text in which the answer stands: the first one, after a reasoning model's thinking.

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
    """Whether a text, generated after a prompt that had ``opened`` a block of thinking or not, ends inside one."""
    return _after_thinking(text, opened) is None


def is_thinking_tag(text: str) -> bool:
    """Whether a text is what opens or ends a block of thinking, and nothing else."""
    return bool(_THOUGHT.fullmatch(text) or _THOUGHT_END.fullmatch(text))


def _after_thinking(text: str, opened: bool) -> int | None:
    """Where the last block of thinking ends, 0 where there is none; None where one is still open."""
    ends = [found.end() for found in _THOUGHT_END.finditer(text)]
    end = max(ends, default=0)
    return None if (opened and not ends) or _THOUGHT.search(text, end) else end


def exact_answer(text: str, *, opened: bool = False) -> Span | None:
    """Find the short answer in the line of :func:`answer_line`, without lead-in, quotes and what follows it.

    >>> exact_answer("The capital of France is Paris. It lies on the Seine.")
    Span(start=25, end=30)
    """
    whole = answer_line(text, opened=opened)
    if whole is None:
        return None
    offset, line = whole.start, whole.of(text)
    for _ in range(2):
        match = _LEAD_IN.match(line)
        if match is None or not line[match.end() :].strip(_CLOSE):
            break
        offset, line = offset + match.end(), line[match.end() :]
    stripped = line.lstrip(_OPEN)
    offset, line = offset + len(line) - len(stripped), stripped
    # A full stop ends the sentence only after a longer word, so that "St. Louis" and "J. K. Rowling" stay whole.
    line = re.split(r"(?<=\w{4})\.(?=\s|$)|[!?;](?=\s|$)|\s[-–—]\s|\s\(", line, maxsplit=1)[0]
    line = _APPOSITION.split(line, maxsplit=1)[0].rstrip(_CLOSE)
    return Span(offset, offset + len(line)) if line else None


def is_right(line: str, gold: Sequence[str]) -> bool:
    """Whether a gold alias occurs in an answer's line as whole words, case- and punctuation-insensitively (see ``normalise``)."""
    words = f" {normalise(line)} "
    return any(f" {normalise(alias)} " in words for alias in gold if normalise(alias))


def names_gold(exact: str, line: str, gold: Sequence[str]) -> bool:
    """Whether what was found in a line is a gold alias alone, so that its first token is the right answer's.

    An article before it, a place or date after a comma, and a part of an alias that takes the whole line are allowed.

    >>> names_gold("Paris, France", "It is Paris, France.", ["Paris"]), names_gold("Abraham Lincoln", "Abraham Lincoln", ["Abraham"])
    (True, False)
    """
    aliases = {_bare(alias) for alias in gold} - {""}
    return not aliases.isdisjoint({_bare(exact), _bare(exact.split(", ", 1)[0]), _bare(line)})


def _bare(text: str) -> str:
    return re.sub(r"^(?:the|an?) (?=.)", "", normalise(text))
