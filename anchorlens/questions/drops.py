"""Fixes for questions that were dropped, and the error of a sweep for which none is left
(docs/errors.md).
"""

from collections.abc import Sequence

from anchorlens.errors import EmptySweepError
from anchorlens.prompts.dataset import PAIR_FIXES, Dropped, explain_drops

MORE_QUESTIONS = "more questions (a larger limit= or another set)"
# Reason that dropped a question or a pair -> fix, for the reason that dropped most of them.
FIXES = {
    **PAIR_FIXES,
    "empty_question": "Fill in the questions of these rows.",
    "question_too_long": "Use questions of at most 100,000 characters.",
    "no_subject": (
        "The rules found no subject. Add the columns subject and property, or pass another spans=."
    ),
    "no_property": (
        "The rules found no property. Add the columns subject and property, or pass another spans=."
    ),
    "not_english": (
        "The rules support English only."
        " Add the columns subject and property, or pass a function as spans=."
    ),
    "no_annotation": (
        "These rows have no annotated segments."
        " Add the columns subject and property, or pass spans='auto'."
    ),
    "bad_annotation": (
        "The annotated segments do not fit their questions. Correct them, or pass spans='rules'."
    ),
    "no_spans": (
        "The function or pipeline of spans= found no segment."
        " Pass spans='auto' or another function."
    ),
    "used_as_shot": (
        "All rows serve as shots of the prompt."
        f" Use {MORE_QUESTIONS}, or a prompt with fewer shots."
    ),
    "not_known": (
        "The model answers no question correctly."
        " Pass prompt='fewshot(2)', an easier set, or known_only=False."
    ),
    "answer_not_alone": (
        "The model answers in sentences. Pass prompt='fewshot(2)', which elicits the answer alone."
    ),
    "no_exact_answer": (
        "The generated texts contain no answer. Use another prompt, or a larger max_new_tokens=."
    ),
    "unfinished_thinking": (
        "The generated thinking did not end."
        " Pass a larger max_new_tokens=, or disable thinking in the template."
    ),
    "answer_retokenised": "The answers have other tokens in this input. Use another prompt.",
    "prompt_not_prefix": "The answers merge with the prompt's last token. Use another prompt.",
    "answer_in_prompt": "The answers' first token belongs to the prompt. Use another prompt.",
    "anchor_at_position_0": (
        "A segment includes the first token. Use a prompt with words before the question."
    ),
    "anchor_text_mismatch": (
        "The tokens of the segments decode to another text. Pass other segments."
    ),
    "answer_in_question": (
        "The answers occur in their questions."
        f" Use {MORE_QUESTIONS}, or questions in both directions."
    ),
    "answer_word_in_question": (
        f"The answers share words with their questions. Use {MORE_QUESTIONS}."
    ),
    "no_distractor": (
        f"No other row's answer can be false here. Use {MORE_QUESTIONS}, or distractor='random'."
    ),
    "no_donor": (
        "Use more rows (donors come from the whole file), donors='random', or align='last'."
    ),
    "no_other_question": (
        "Other questions share an answer with these, change its tokens or are too long."
        f" Use {MORE_QUESTIONS}."
    ),
    "predicted_false": (
        f"The probe predicts false for all true answers. Use {MORE_QUESTIONS}, or base='all'."
    ),
    "no_edge": "The edges cut nothing. Pass edges= whose target comes after the source.",
}


def no_rows_left(dropped: Sequence[Dropped], what: str) -> EmptySweepError:
    """Return the error of a sweep without rows, with the most frequent reason and its fix.

    Args:
        dropped: Rows that were dropped, with their reasons.
        what: Description of the rows, such as ``in quiz.csv``.
    """
    return EmptySweepError(explain_drops(dropped, what, FIXES))
