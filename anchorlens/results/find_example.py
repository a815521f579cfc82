"""One example of a sweep by its id, its number or words of its question."""

import difflib
import re
from collections.abc import Mapping, Sequence

from anchorlens.display import as_int, short_repr, shorten
from anchorlens.errors import InputError
from anchorlens.prompts.dataset import Dropped

# Questions that a message lists.
_MOST = 5
# Words that are spelt so much alike may have been meant; less, and "Poland" would be taken for "play".
_ALIKE = 0.8


def find_example(wanted: object, rows: Mapping[str, tuple[str, str]], dropped: Sequence[Dropped] = ()) -> str:
    """The id of the one example that is meant.

    An id comes first, then a whole number (the place among the measured rows, from 0; from the end where it is negative), then
    words of the question in any order and case. Words that stand whole in a question win over parts of words: "mali" is not Somalia.

    Args:
        wanted: What the user gave.
        rows: Id -> question and answer, in the order of the sweep.
        dropped: Rows that were left out, so that a message can say so.

    Raises:
        InputError: It means no measured example, or several; the message lists them.
    """
    if isinstance(wanted, str):
        return wanted if wanted in rows else _of_words(wanted, rows, dropped)
    place = as_int(wanted)
    if place is None:
        raise InputError(f"An example is chosen by its id, its number or words of its question; got {short_repr(wanted)}.")
    if not -len(rows) <= place < len(rows):
        raise InputError(f"There is no example {place}: {len(rows)} were measured, numbered from 0 to {len(rows) - 1}.")
    return list(rows)[place]


def _of_words(text: str, rows: Mapping[str, tuple[str, str]], dropped: Sequence[Dropped]) -> str:
    gone = {row.example_id: row for row in dropped}
    found = [] if text in gone else _holding(text, {name: question for name, (question, _) in rows.items()})
    if len(found) == 1:
        return found[0]
    if found:
        listed = "".join(f"\n  {name!r}: {rows[name][0]} ({rows[name][1]})" for name in found[:_MOST])
        more = f"\n  and {len(found) - _MOST} more" if len(found) > _MOST else ""
        raise InputError(
            f"{shorten(text)} stands in {len(found)} measured questions. Give one of these ids, or more words:{listed}{more}"
        )
    left_out = [text] if text in gone else _holding(text, {name: row.question for name, row in gone.items()})
    if left_out:
        one = gone[left_out[0]]
        cure = f"Dropped was {one.example_id!r}: {one.question} ({one.reason})."
    else:
        cure = _near(text, rows)
    raise InputError(f"No measured example has {shorten(text)} as its id or in its question. {cure}")


def _holding(text: str, questions: Mapping[str, str]) -> list[str]:
    """Names of the questions with all words of a text; those with whole words alone where there are any."""
    words = _words(text)
    if not words:
        return []
    part = [name for name, question in questions.items() if all(word in question.casefold() for word in words)]
    return [name for name in part if words <= _words(questions[name])] or part


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def _near(text: str, rows: Mapping[str, tuple[str, str]]) -> str:
    """What is spelt alike, and where nothing is, how to find an id."""
    words = sorted(set().union(*(_words(question) for question, _ in rows.values())))
    strange = [word for word in sorted(_words(text)) if not any(word in known for known in words)]
    near = difflib.get_close_matches(text, list(rows), n=3, cutoff=_ALIKE)
    near += [one for word in strange for one in difflib.get_close_matches(word, words, n=3, cutoff=_ALIKE)]
    if near:
        return "Did you mean " + " or ".join(f"'{one}'" for one in dict.fromkeys(near)) + "?"
    return "All ids and questions: samples_with_inputs()[['example_id', 'question']].drop_duplicates()."


__all__ = ["find_example"]
