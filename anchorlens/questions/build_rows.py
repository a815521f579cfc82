"""Questions become token rows; what cannot become one is dropped, with its reason."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anchorlens.errors import EmptySweepError
from anchorlens.prompts.dataset import Dropped
from anchorlens.questions.example import Example
from anchorlens.questions.tokens import Answer, RowDropped, RowTokenizer, TokenRow

MORE_QUESTIONS = "more questions (a larger limit= or another set)"
# What helps where most rows left for this reason (docs/errors.md has the same for single rows).
CURES = {
    "empty_question": "Mend the file: these rows have no question.",
    "no_answer": "Mend the file: these rows have no answer.",
    "lone_surrogate": "Write the file as UTF-8 again.",
    "no_subject": "The rules found no subject: give the columns subject and property, or another spans=.",
    "no_property": "The rules found no property: give the columns subject and property, or another spans=.",
    "not_english": "The rules read English only: give the columns subject and property, or a function as spans=.",
    "no_annotation": "These rows have no segments of their own: give the columns subject and property, or spans='auto'.",
    "bad_annotation": "The given segments do not fit their questions: mend them, or give spans='rules'.",
    "no_spans": "The function or pipeline of spans= found no segment in these questions: give spans='auto' or another one.",
    "used_as_shot": f"All rows serve as shots of the prompt: take {MORE_QUESTIONS}, or a prompt with fewer shots.",
    "not_known": "The model knows none of these questions: leave known_only off, or take an easier set or another prompt.",
    "answer_not_alone": "The model answers in sentences: take prompt='fewshot(2)', so that it gives the answer alone.",
    "too_long": "The model's context is shorter than these inputs: take shorter questions, or a prompt with fewer shots.",
    "no_exact_answer": "The model wrote nothing that can be its answer: take another prompt, or a larger max_new_tokens=.",
    "unfinished_thinking": "The model was still thinking: give a larger max_new_tokens=, or switch thinking off in the template.",
    "answer_retokenised": "The answers have other tokens in this input: take another prompt.",
    "prompt_not_prefix": "The answers merge with the prompt's last token: take another prompt.",
    "answer_in_prompt": "The answers' first token belongs to the prompt: take another prompt.",
    "anchor_at_position_0": "A segment takes in the first token: take a prompt with words before the question.",
    "anchor_text_mismatch": "The segments' tokens do not say what the segments say: give other segments.",
    "answer_in_question": f"The answers stand in their questions: take {MORE_QUESTIONS}, or questions in both directions.",
    "no_distractor": f"No row has another's answer that could be false here: take {MORE_QUESTIONS}, or distractor='random'.",
    "no_donor": "Take more rows (donors come from the whole file), donors='random', or align='last'.",
    "no_other_question": f"Every other question shares an answer with these: take {MORE_QUESTIONS}.",
    "predicted_false": f"The probe takes all true answers for false: take {MORE_QUESTIONS}, or base='all'.",
    "no_edge": "The edges cut nothing: give edges= whose target comes after their source.",
}


@dataclass(frozen=True)
class Rows:
    """Token rows, and the examples that did not become one."""

    rows: tuple[TokenRow, ...]
    dropped: tuple[Dropped, ...]


def drop(example: Example, reason: str, detail: str = "") -> Dropped:
    """The record of an example that was left out."""
    return Dropped(example.example_id, example.dataset, example.question, example.answers[0], reason, detail)


def make_rows(examples: Iterable[Example], tokenizer: RowTokenizer, answers: dict[str, Answer] | None = None) -> Rows:
    """Tokenise examples with their first gold alias, or with the answers given by ``example_id``."""
    rows: list[TokenRow] = []
    dropped: list[Dropped] = []
    for example in examples:
        try:
            rows.append(tokenizer.row(example, answers[example.example_id] if answers is not None else None))
        except RowDropped as why:
            dropped.append(drop(example, why.reason, why.detail))
    return Rows(tuple(rows), tuple(dropped))


def check_not_empty(kept: Sequence[object], dropped: Sequence[Dropped], what: str) -> None:
    """Stop where no row is left."""
    if not kept:
        counts = Counter(d.reason for d in dropped)
        reasons = ", ".join(f"{reason} {n}" for reason, n in counts.most_common()) or "the data set is empty"
        first = counts.most_common(1)[0][0] if counts else ""
        cure = CURES.get(first, "A segment has no token of its own: give longer segments." if first.endswith("_token") else "")
        raise EmptySweepError(f"No row is left to measure {what}. Dropped: {reasons}. {cure}".rstrip())
