"""Prompts: the text before the answer, with the place of the question in it."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from transformers import PreTrainedTokenizerBase

from anchorlens.display import as_whole, described, listed, shortened
from anchorlens.errors import InputError
from anchorlens.fingerprint import call_user_function, takes
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
    """``k`` answered questions in the ``qa`` form, a blank line after each, and then the question."""

    name: str
    shots: tuple[tuple[str, str], ...]
    shot_ids: frozenset[str]

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> PromptText:  # noqa: ARG002
        """The text before the answer; the tokenizer is not needed."""
        head = "".join(f"Q: {shot}\nA: {answer}\n\n" for shot, answer in self.shots)
        return PromptText(text=f"{head}Q: {question}\nA:", question_start=len(head) + 3, separator=" ")


def _chat_text(tokenizer: PreTrainedTokenizerBase, *turns: tuple[str, str]) -> str:
    messages = [{"role": role, "content": text} for role, text in turns]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)  # tokenize=False
    return text


@dataclass(frozen=True)
class ChatPrompt:
    """The tokenizer's own chat template with the question as the user's only message.

    The template's text is rendered first and tokenised like any other, so BOS that the template itself writes is not added again.
    """

    name: str = "chat"

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> PromptText:
        """The template's text up to where the assistant begins to speak."""
        if not tokenizer.chat_template:
            raise InputError("prompt='chat' needs a tokenizer with a chat template, and this one has none. Use prompt='qa'.")
        text = _chat_text(tokenizer, ("user", question))
        start = text.rfind(question)
        if not question.strip() or start < 0:
            raise InputError(f"The chat template does not carry the question as it is: {question[:80]!r}.")
        return PromptText(text=text, question_start=start, separator="")


@dataclass(frozen=True)
class TemplatePrompt:
    """A text around the question, such as ``Question: {question}\\nAnswer:``, and the answer after a space.

    Spaces at the template's end are the separator; after other white space there is none. ``name`` is the template, its line ends
    written as ``\\n``.
    """

    name: str
    before: str
    after: str
    separator: str

    @classmethod
    def of(cls, template: str) -> "TemplatePrompt":
        """Make the prompt of a template; ``\\`` and ``n``, as typed in a shell, are a line's end."""
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
    """Return what follows the answer for the readout ``p_true``: the question whether it is right (Kadavath et al. 2022)."""
    if not isinstance(prompt, ChatPrompt):
        return f"\n{TRUTH_QUESTION}\nA:"
    mark = "The answer stands here."
    turns = (("user", "A question."), ("assistant", mark), ("user", TRUTH_QUESTION))
    _, found, after = _chat_text(tokenizer, *turns).rpartition(mark)
    if not found or TRUTH_QUESTION not in after:
        raise InputError("This chat template cannot carry a second question after an answer. Use prompt='qa'.")
    return after


_FEWSHOT = re.compile(r"fewshot(?:\(\s*(?:k\s*=\s*)?(\d+)\s*(?:,\s*(?:seed\s*=\s*)?(\d+)\s*)?\))?")


def check_prompt(prompt: Any) -> Prompt:
    """An object as a prompt."""
    how = f"A prompt is {_KINDS}, or an object with a name and render(question, tokenizer) that gives a PromptText"
    name, render = getattr(prompt, "name", None), getattr(prompt, "render", None)
    if isinstance(prompt, type) or not callable(render) or not takes(render, 2) or not isinstance(name, str) or not name:
        raise InputError(f"{how}; got {described(prompt)}.")
    return prompt


def rendered(prompt: Prompt, question: str, tokenizer: PreTrainedTokenizerBase) -> PromptText:
    """The prompt's text, checked: the question stands where the prompt says."""
    made: Any = call_user_function("prompt", prompt.render, question=question, tokenizer=tokenizer)
    name = shortened(prompt.name)
    start = as_whole(made.question_start) if isinstance(made, PromptText) else None
    if start is None or not isinstance(made.text, str) or not isinstance(made.separator, str):
        cure = "it must give a PromptText with two texts and a whole number"
        raise InputError(f"render of the prompt {name} gave {described(made)}; {cure}.")
    if start < 0 or made.text[start : start + len(question)] != question:
        places = [i for i in range(len(made.text)) if made.text.startswith(question, i)] if question else []
        where = f"stands at {listed(places, most=3)} of its text" if places else "is not in its text as it is"
        cure = "give the index of its first character."
        raise InputError(f"The prompt {name} says question_start={start}, but the question {where}: {cure}")
    return made


def make_prompt(prompt: PromptLike, evaluated: Sequence[Example], pool: Sequence[Example], seed: int) -> Prompt:
    """Make the prompt of a name.

    Shots are drawn from rows of ``pool`` that are not ``evaluated``; where these are too few, from the evaluated ones, which the
    caller then drops (``FewShotPrompt.shot_ids``). ``seed`` draws them where the name gives none.
    """
    if not isinstance(prompt, str):
        return check_prompt(prompt)
    if prompt in ("qa", "chat"):
        return QAPrompt() if prompt == "qa" else ChatPrompt()
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
