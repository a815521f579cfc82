"""Find one example of a sweep by its id, its number or words of its question."""

import difflib
import re
from collections.abc import Mapping, Sequence

from anchorlens.display import as_int, short_repr, shorten
from anchorlens.errors import InputError
from anchorlens.prompts.dataset import Dropped

# Maximum number of questions listed in a message.
_MOST = 5
# Minimum similarity of a suggestion; below it "Poland" would suggest "play".
_ALIKE = 0.8


def find_example(
    wanted: object,
    rows: Mapping[str, tuple[str, str]],
    dropped: Sequence[Dropped] = (),
    *,
    text: str = "question",
) -> str:
    """Return the id of one measured example.

    Args:
        wanted: Id of an example, its index among the measured rows (negative from the end), or
            words of its question in any order and case. Whole words take precedence over parts of
            words: "mali" does not match Somalia.
        rows: Id -> question and answer, in the order of the sweep.
        dropped: Dropped rows; the message names one that matches.
        text: Word for the first text of a row: ``question`` or ``prompt``.

    Raises:
        InputError: If no measured example matches, or several; the message lists these.
    """
    if isinstance(wanted, str):
        return wanted if wanted in rows else _of_words(wanted, rows, dropped, text)
    place = as_int(wanted)
    if place is None:
        raise InputError(
            f"example={short_repr(wanted)}: give an id, a whole number or words of the {text}.",
            argument="example",
        )
    if not -len(rows) <= place < len(rows):
        raise InputError(
            f"example={place}: {len(rows)} examples were measured, numbered from 0 to"
            f" {len(rows) - 1}.",
            argument="example",
        )
    return list(rows)[place]


def _of_words(
    wanted: str, rows: Mapping[str, tuple[str, str]], dropped: Sequence[Dropped], text: str
) -> str:
    gone = {row.example_id: row for row in dropped}
    found = (
        []
        if wanted in gone
        else _holding(wanted, {name: question for name, (question, _) in rows.items()})
    )
    if len(found) == 1:
        return found[0]
    if found:
        listed = ""
        for name in found[:_MOST]:
            question, answer = rows[name]
            listed += f"\n  {name!r}: {question} ({answer})"
        more = f"\n  and {len(found) - _MOST} more" if len(found) > _MOST else ""
        raise InputError(
            f"example={shorten(wanted)} matches {len(found)} measured {text}s. Give one of these"
            f" ids, or more words:{listed}{more}",
            argument="example",
        )
    left_out = (
        [wanted]
        if wanted in gone
        else _holding(wanted, {name: row.question for name, row in gone.items()})
    )
    if left_out:
        one = gone[left_out[0]]
        cure = f"{one.example_id!r} was dropped ({one.reason}): {one.question}"
    else:
        cure = _near(wanted, rows, text)
    raise InputError(
        f"example={shorten(wanted)} matches no id and no {text}. {cure}", argument="example"
    )


def _holding(text: str, questions: Mapping[str, str]) -> list[str]:
    """Return the ids of the questions that contain all words of a text; if some contain them as
    whole words, only these.
    """
    words = _words(text)
    if not words:
        return []
    part: list[str] = []
    for name, question in questions.items():
        folded = question.casefold()
        if all(word in folded for word in words):
            part.append(name)
    return [name for name in part if words <= _words(questions[name])] or part


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def _near(wanted: str, rows: Mapping[str, tuple[str, str]], text: str) -> str:
    """Return a suggestion of similar ids or words, or a hint where to find ids."""
    words = sorted(set().union(*(_words(question) for question, _ in rows.values())))
    near = difflib.get_close_matches(wanted, list(rows), n=3, cutoff=_ALIKE)
    for word in sorted(_words(wanted)):
        is_part = any(word in known for known in words)
        if not is_part:
            near += difflib.get_close_matches(word, words, n=3, cutoff=_ALIKE)
    if near:
        return "Did you mean " + " or ".join(f"'{one}'" for one in dict.fromkeys(near)) + "?"
    return (
        f"All ids and {text}s: samples_with_inputs()[['example_id', 'question']].drop_duplicates()."
    )


__all__ = ["find_example"]
