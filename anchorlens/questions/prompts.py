"""How a question becomes the text before the answer: ``qa``, ``fewshot(k, seed)`` and ``chat``.

A prompt only makes text. It says where in that text the question stands and what separates the prompt from the answer, so that
spans of the question can be moved into the whole input without searching for them.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from transformers import PreTrainedTokenizerBase

from anchorlens.errors import InputError
from anchorlens.questions.example import Example


@dataclass(frozen=True)
class PromptText:
    """A prompt as text.

    Attributes:
        text: Everything before the answer, without the separator.
        question_start: Index in ``text`` of the question's first character.
        separator: What stands between prompt and answer (a space, or nothing after a chat template).
    """

    text: str
    question_start: int
    separator: str


@runtime_checkable
class Prompt(Protocol):
    """What makes a prompt of a question; write your own by giving it a ``name`` and ``render``."""

    @property
    def name(self) -> str:
        """Written into every output."""
        ...

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> PromptText:
        """The text before the answer."""
        ...


PromptLike: TypeAlias = "str | Prompt"


@dataclass(frozen=True)
class QAPrompt:
    """``Q: {question}\\nA:`` and then the answer after a space."""

    name: str = "qa"

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> PromptText:  # noqa: ARG002
        """The text before the answer; the tokenizer is not needed."""
        return PromptText(text=f"Q: {question}\nA:", question_start=3, separator=" ")


@dataclass(frozen=True)
class FewShotPrompt:
    """``k`` answered questions in the ``qa`` form, a blank line after each, and then the question.

    Attributes:
        name: ``fewshot(k, seed=s)``.
        shots: Question and answer of each shot.
        shot_ids: ``question_id`` of each shot: these rows are never evaluated and never donors.
    """

    name: str
    shots: tuple[tuple[str, str], ...]
    shot_ids: frozenset[str]

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> PromptText:  # noqa: ARG002
        """The text before the answer; the tokenizer is not needed."""
        head = "".join(f"Q: {shot}\nA: {answer}\n\n" for shot, answer in self.shots)
        return PromptText(text=f"{head}Q: {question}\nA:", question_start=len(head) + 3, separator=" ")


@dataclass(frozen=True)
class ChatPrompt:
    """The tokenizer's own chat template with the question as the user's only message.

    The template's text is rendered first and tokenised like any other, so BOS that the template itself writes is not added again.
    """

    name: str = "chat"

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> PromptText:
        """The template's text up to where the assistant begins to speak.

        Raises:
            InputError: The tokenizer has no chat template, or the template changes the question's text.
        """
        if not tokenizer.chat_template:
            raise InputError("prompt='chat' needs a tokenizer with a chat template, and this one has none. Use prompt='qa'.")
        messages = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)  # tokenize=False
        start = text.rfind(question)
        if not question.strip() or start < 0:
            raise InputError(f"The chat template does not carry the question as it is: {question[:80]!r}.")
        return PromptText(text=text, question_start=start, separator="")


TRUTH_QUESTION = "Is this answer correct? Answer yes or no."


def truth_question(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> str:
    """What follows the answer for the readout ``p_true``: the question whether it is right, up to where yes or no is said.

    For ``chat`` it is a further turn of the user in the tokenizer's own template; else a line, and ``A:`` again.

    Source:
        Kadavath et al. 2022, P(True); the words are ours.
    """
    if not isinstance(prompt, ChatPrompt):
        return f"\n{TRUTH_QUESTION}\nA:"
    mark = "The answer stands here."
    messages = [
        {"role": "user", "content": "A question."},
        {"role": "assistant", "content": mark},
        {"role": "user", "content": TRUTH_QUESTION},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)  # tokenize=False
    _, found, after = text.rpartition(mark)
    if not found or TRUTH_QUESTION not in after:
        raise InputError("This chat template cannot carry a second question after an answer. Use prompt='qa'.")
    return after


_FEWSHOT = re.compile(r"fewshot(?:\(\s*(?:k\s*=\s*)?(\d+)\s*(?:,\s*(?:seed\s*=\s*)?(\d+)\s*)?\))?")


def make_prompt(prompt: PromptLike, evaluated: Sequence[Example], pool: Sequence[Example], seed: int) -> Prompt:
    """The prompt that a name stands for.

    Args:
        prompt: ``"qa"``, ``"fewshot"``, ``"fewshot(k)"``, ``"fewshot(k, seed)"``, ``"chat"``, or a :class:`Prompt` of your own.
        evaluated: The rows that will be measured.
        pool: All rows of the file; shots are taken from those that are not evaluated. Where there are too few of them, shots
            are taken from the evaluated rows, which the caller then drops (:attr:`FewShotPrompt.shot_ids`).
        seed: Draws the shots where the name gives no seed of its own.

    Raises:
        InputError: No prompt goes by this name, or there are fewer rows than shots.
    """
    if not isinstance(prompt, str):
        return prompt
    simple: dict[str, Callable[[], Prompt]] = {"qa": QAPrompt, "chat": ChatPrompt}
    if prompt in simple:
        return simple[prompt]()
    match = _FEWSHOT.fullmatch(prompt.strip())
    if match is None:
        raise InputError(f"Unknown prompt {prompt!r}. Use 'qa', 'fewshot(4)', 'fewshot(4, seed=1)' or 'chat'.")
    k = int(match[1]) if match[1] else 4
    shot_seed = int(match[2]) if match[2] else seed
    return _few_shot(k, shot_seed, evaluated, pool)


def _few_shot(k: int, seed: int, evaluated: Sequence[Example], pool: Sequence[Example]) -> FewShotPrompt:
    taken = {example.question_id for example in evaluated}
    free = list({e.question_id: e for e in pool if e.question_id not in taken}.values())
    rest = list({e.question_id: e for e in evaluated}.values())
    if k < 1 or k >= len(free) + len(rest):
        raise InputError(
            f"fewshot({k}) needs at least one shot and fewer shots than the {len(free) + len(rest)} questions at hand."
        )
    rng = random.Random(f"{seed}:shots")
    shots = rng.sample(free, min(k, len(free)))
    if len(shots) < k:
        shots += rng.sample(rest, k - len(shots))
    return FewShotPrompt(
        name=f"fewshot({k}, seed={seed})",
        shots=tuple((shot.question, shot.answers[0]) for shot in shots),
        shot_ids=frozenset(shot.question_id for shot in shots),
    )
