"""The space between a prompt and its answer: warn where it is missing, or add it."""

import re
from collections.abc import Sequence
from dataclasses import replace

from anchorlens.display import shorten, warn
from anchorlens.prompts.invisible import has_invisible
from anchorlens.prompts.pairs import AnswerText, AnyOf, PromptPair, TokenText, list_answers

KEEP_SPACES = "keep"
ADD_SPACE = "add"
ANSWER_SPACES = (KEEP_SPACES, ADD_SPACE)
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
