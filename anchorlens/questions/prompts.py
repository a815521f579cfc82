"""How a question becomes the text before the answer: ``qa``, ``fewshot(k, seed)``, ``chat``, or a text with ``{question}`` in it.

A prompt only makes text. It says where in that text the question stands and what separates the prompt from the answer, so that
spans of the question can be moved into the whole input without searching for them.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from transformers import PreTrainedTokenizerBase

from anchorlens.callables import takes
from anchorlens.errors import InputError
from anchorlens.kinds import as_whole, described, listed, shortened
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


PromptLike: TypeAlias = str | Prompt

QUESTION = "{question}"
_KINDS = "'qa', 'fewshot(4)', 'fewshot(4, seed=1)', 'chat' or a text with {question} in it"


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


@dataclass(frozen=True)
class TemplatePrompt:
    """A text of the user's own around the question, such as ``Question: {question}\\nAnswer:``.

    The answer follows after a space. Where the template ends in white space nothing more is put between: spaces at its end are the
    separator, as in ``Answer: ``, and another white space, as a line's end, belongs to the prompt.

    Attributes:
        name: The template, a line's end written as ``\\n``; :func:`make_prompt` makes the same prompt of it.
        before: What stands before the question.
        after: What stands after it.
        separator: What stands between that and the answer.
    """

    name: str
    before: str
    after: str
    separator: str

    @classmethod
    def of(cls, template: str) -> "TemplatePrompt":
        """The prompt of a template.

        The two characters ``\\`` and ``n``, as they are typed in a shell, are a line's end. Other braces stay as they are.

        Raises:
            InputError: The question does not stand in it exactly once.
        """
        text = template.replace("\\n", "\n")
        n = text.count(QUESTION)
        if n != 1:
            raise InputError(f"prompt={shortened(template)} has {QUESTION} {n} times; a template has it once.")
        before, after = text.split(QUESTION)
        body = after.rstrip(" ")
        separator = after[len(body) :] or ("" if body and body[-1].isspace() else " ")
        return cls(name=text.replace("\n", "\\n"), before=before, after=body, separator=separator)

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> PromptText:  # noqa: ARG002
        """The text before the answer; the tokenizer is not needed."""
        return PromptText(f"{self.before}{question}{self.after}", len(self.before), self.separator)


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


def check_prompt(prompt: Any) -> Prompt:
    """An object as a prompt.

    Raises:
        InputError: It lacks what a prompt has: a ``name``, and ``render`` that takes a question and a tokenizer.
    """
    how = f"A prompt is {_KINDS}, or an object with a name and render(question, tokenizer) that gives a PromptText"
    if isinstance(prompt, type):
        raise InputError(f"prompt is the class {prompt.__name__}; give an instance of it: {prompt.__name__}(...).")
    name, render = getattr(prompt, "name", None), getattr(prompt, "render", None)
    if not callable(render):
        raise InputError(f"{how}; got {described(prompt)}.")
    if not isinstance(name, str) or not name:
        raise InputError(f"{how}; this {type(prompt).__name__} has no name: a text that stands in every output.")
    if not takes(render, 2):
        raise InputError(f"{how}; render of {shortened(name)} does not take these two.")
    return prompt


def rendered(prompt: Prompt, question: str, tokenizer: PreTrainedTokenizerBase) -> PromptText:
    """The prompt's text, checked: the question stands where the prompt says.

    Raises:
        InputError: It is no :class:`PromptText`, or the question does not stand at ``question_start``; the message says where.
    """
    made: Any = prompt.render(question, tokenizer)
    name = shortened(prompt.name)
    if not isinstance(made, PromptText):
        raise InputError(f"render of the prompt {name} gave {described(made)}; it must give a PromptText.")
    start = as_whole(made.question_start)
    if not isinstance(made.text, str) or not isinstance(made.separator, str) or start is None:
        raise InputError(
            f"render of the prompt {name} gave a PromptText whose text and separator are not texts, or whose question_start is no "
            "whole number."
        )
    if start < 0 or made.text[start : start + len(question)] != question:
        places = [i for i in range(len(made.text)) if made.text.startswith(question, i)] if question else []
        if not places:
            raise InputError(f"The prompt {name} does not hold the question {shortened(question)} as it is.")
        raise InputError(
            f"The prompt {name} says question_start={start}, but the question stands at {listed(places, most=3)} of its text: "
            "give the index of its first character."
        )
    return made


def make_prompt(prompt: PromptLike, evaluated: Sequence[Example], pool: Sequence[Example], seed: int) -> Prompt:
    """The prompt that a name stands for.

    Args:
        prompt: ``"qa"``, ``"fewshot"``, ``"fewshot(k)"``, ``"fewshot(k, seed)"``, ``"chat"``, a text with ``{question}`` in it
            (:class:`TemplatePrompt`), or a :class:`Prompt` of your own.
        evaluated: The rows that will be measured.
        pool: All rows of the file; shots are taken from those that are not evaluated. Where there are too few of them, shots
            are taken from the evaluated rows, which the caller then drops (:attr:`FewShotPrompt.shot_ids`).
        seed: Draws the shots where the name gives no seed of its own.

    Raises:
        InputError: No prompt goes by this name, it is no prompt, or there are fewer rows than shots.
    """
    if not isinstance(prompt, str):
        return check_prompt(prompt)
    simple: dict[str, Callable[[], Prompt]] = {"qa": QAPrompt, "chat": ChatPrompt}
    if prompt in simple:
        return simple[prompt]()
    if QUESTION in prompt:
        return TemplatePrompt.of(prompt)
    match = _FEWSHOT.fullmatch(prompt.strip())
    if match is None:
        raise InputError(f"Unknown prompt {shortened(prompt)}. Use {_KINDS}.")
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
