"""Tokenize questions; a question that cannot be tokenized is dropped with a reason."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anchorlens.prompts.dataset import Dropped
from anchorlens.prompts.drop_reasons import PAIR_FIXES, check_not_empty
from anchorlens.questions.example import Example
from anchorlens.questions.tokens import Answer, RowDropped, RowTokenizer, TokenRow

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


@dataclass(frozen=True)
class Rows:
    """Token rows and the dropped examples."""

    rows: tuple[TokenRow, ...]
    dropped: tuple[Dropped, ...]


def drop(example: Example, reason: str, detail: str = "") -> Dropped:
    """Return the record of a dropped example."""
    return Dropped(
        example_id=example.example_id,
        dataset=example.dataset,
        question=example.question,
        answer=example.answers[0],
        reason=reason,
        detail=detail,
    )


def make_rows(
    examples: Iterable[Example], tokenizer: RowTokenizer, answers: dict[str, Answer] | None = None
) -> Rows:
    """Tokenize examples with their answers, and drop those that cannot be measured.

    ``answers`` has the answer of each ``example_id``. If None, the first gold alias is the answer.
    """
    rows: list[TokenRow] = []
    dropped: list[Dropped] = []
    for example in examples:
        try:
            rows.append(
                tokenizer.row(example, answers[example.example_id] if answers is not None else None)
            )
        except RowDropped as error:
            dropped.append(drop(example, error.reason, error.detail))
    return Rows(tuple(rows), tuple(dropped))


def check_rows_left(kept: Sequence[object], dropped: Sequence[Dropped], what: str) -> None:
    """Raise EmptySweepError with the most frequent reason and its fix if no question is left."""
    check_not_empty(kept, dropped, what, FIXES)
