"""Tokenize questions; a question that cannot be tokenized is dropped with a reason."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anchorlens.errors import EmptySweepError
from anchorlens.prompts.dataset import Dropped
from anchorlens.questions.example import Example
from anchorlens.questions.tokens import Answer, RowDropped, RowTokenizer, TokenRow

MORE_QUESTIONS = "more questions (a larger limit= or another set)"
# Fix for the reason that dropped most rows (docs/errors.md lists them for single rows).
FIXES = {
    "empty_question": "Fill in the questions of these rows.",
    "empty_cell": "Fill in the prompts of these pairs.",
    "empty_answer": "Leave empty answers out, or give white space as token ids.",
    "bad_cell": "Write prompts and answers as text or as lists of token ids.",
    "bad_segments": "Write segments as {name: text}, or {name: [clean text, corrupted text]}.",
    "bad_alignment": "Write the alignment as a list of [clean position, corrupted position], each position once.",
    "same_prompts": "Change a token of the corrupted prompts.",
    "bos_twice": "Remove the BOS token from the texts; it is added.",
    "bos_differs": "Begin both prompts with BOS, or neither.",
    "answer_equals_wrong": "Give wrong answers that differ from the answers in a token.",
    "token_outside_vocabulary": "Give token ids of this model's tokenizer.",
    "segment_not_found": "Give segments that occur in both prompts.",
    "segment_not_unique": "Give longer segments, which occur once.",
    "segments_overlap": "Give segments that share no token.",
    "no_segment": "Name segments in the pairs, or use by='position'.",
    "no_wrong_answer": "Fill in the wrong answers, or use metric='logprob'.",
    "length_differs": "Use prompts of equal length, or another site than pattern.",
    "no_paired_position": "Add a column segments or alignment.",
    "no_answer": "Fill in the answers of these rows.",
    "lone_surrogate": "Save the file as UTF-8 again.",
    "control_character": "Remove the control characters from these rows.",
    "no_subject": "The rules found no subject. Add the columns subject and property, or pass another spans=.",
    "no_property": "The rules found no property. Add the columns subject and property, or pass another spans=.",
    "not_english": "The rules support English only. Add the columns subject and property, or pass a function as spans=.",
    "no_annotation": "These rows have no annotated segments. Add the columns subject and property, or pass spans='auto'.",
    "bad_annotation": "The annotated segments do not fit their questions. Correct them, or pass spans='rules'.",
    "no_spans": "The function or pipeline of spans= found no segment. Pass spans='auto' or another function.",
    "used_as_shot": f"All rows serve as shots of the prompt. Use {MORE_QUESTIONS}, or a prompt with fewer shots.",
    "not_known": "The model answers no question correctly. Pass prompt='fewshot(2)', an easier set, or known_only=False.",
    "answer_not_alone": "The model answers in sentences. Pass prompt='fewshot(2)', which elicits the answer alone.",
    "too_long": "The model's context is shorter than these inputs. Use shorter questions, or a prompt with fewer shots.",
    "no_exact_answer": "The generated texts contain no answer. Use another prompt, or a larger max_new_tokens=.",
    "unfinished_thinking": "The generated thinking did not end. Pass a larger max_new_tokens=, or disable thinking in the template.",
    "answer_retokenised": "The answers have other tokens in this input. Use another prompt.",
    "prompt_not_prefix": "The answers merge with the prompt's last token. Use another prompt.",
    "answer_in_prompt": "The answers' first token belongs to the prompt. Use another prompt.",
    "anchor_at_position_0": "A segment includes the first token. Use a prompt with words before the question.",
    "anchor_text_mismatch": "The tokens of the segments decode to another text. Pass other segments.",
    "answer_in_question": f"The answers occur in their questions. Use {MORE_QUESTIONS}, or questions in both directions.",
    "answer_word_in_question": f"The answers share words with their questions. Use {MORE_QUESTIONS}.",
    "no_distractor": f"No other row's answer can be false here. Use {MORE_QUESTIONS}, or distractor='random'.",
    "no_donor": "Use more rows (donors come from the whole file), donors='random', or align='last'.",
    "no_other_question": f"Other questions share an answer with these, change its tokens or are too long. Use {MORE_QUESTIONS}.",
    "predicted_false": f"The probe predicts false for all true answers. Use {MORE_QUESTIONS}, or base='all'.",
    "no_edge": "The edges cut nothing. Pass edges= whose target comes after the source.",
}


@dataclass(frozen=True)
class Rows:
    """Token rows and the dropped examples."""

    rows: tuple[TokenRow, ...]
    dropped: tuple[Dropped, ...]


def drop(example: Example, reason: str, detail: str = "") -> Dropped:
    """Return the record of a dropped example."""
    return Dropped(example.example_id, example.dataset, example.question, example.answers[0], reason, detail)


def make_rows(examples: Iterable[Example], tokenizer: RowTokenizer, answers: dict[str, Answer] | None = None) -> Rows:
    """Tokenize examples with the answer of each ``example_id``; if ``answers`` is None, with the first gold alias."""
    rows: list[TokenRow] = []
    dropped: list[Dropped] = []
    for example in examples:
        try:
            rows.append(tokenizer.row(example, answers[example.example_id] if answers is not None else None))
        except RowDropped as error:
            dropped.append(drop(example, error.reason, error.detail))
    return Rows(tuple(rows), tuple(dropped))


def check_not_empty(kept: Sequence[object], dropped: Sequence[Dropped], what: str) -> None:
    """Raise EmptySweepError with the most frequent reason and its fix if no row is left."""
    if not kept:
        counts = Counter(d.reason for d in dropped)
        reasons = ", ".join(f"{reason} {n}" for reason, n in counts.most_common()) or "the data set is empty"
        first = counts.most_common(1)[0][0] if counts else ""
        fix = FIXES.get(first, "A segment has no token of its own. Pass longer segments." if first.endswith("_token") else "")
        raise EmptySweepError(f"No row is left to measure {what}. Dropped: {reasons}. {fix}".rstrip())
