"""Prompts: the text before an answer and the position of the question in it."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeAlias, runtime_checkable

from transformers import PreTrainedTokenizerBase

from anchorlens.display import as_int, join_words, short_repr, shorten
from anchorlens.errors import InputError
from anchorlens.fingerprint import call_user_function, takes
from anchorlens.prompts.chat_template import Clock, render_chat
from anchorlens.questions.example import Example


@dataclass(frozen=True)
class PromptText:
    """Text of a prompt, returned by ``render`` of a custom prompt.

    Examples:
        >>> import anchorlens as al
        >>> class Shout:
        ...     name = "shout"
        ...
        ...     def render(self, question, tokenizer):
        ...         return al.PromptText(text=f"{question}!\\n", question_start=0, separator="")
        >>> Shout().render("Who wrote Emma?", None).text
        'Who wrote Emma?!\\n'

    Attributes:
        text: Text before the answer, without the separator.
        question_start: Index in ``text`` of the question's first character.
        separator: Text between prompt and answer: a space, or empty after a chat template.
    """

    text: str
    question_start: int
    separator: str


@runtime_checkable
class Prompt(Protocol):
    """Interface of a prompt; a custom prompt needs ``name`` and ``render``."""

    @property
    def name(self) -> str:
        """Name of the prompt in outputs."""
        ...

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> PromptText:
        """Return the text before the answer."""
        ...


PromptLike: TypeAlias = str | Prompt

QUESTION = "{question}"
# Question that no template contains.
_MARK = "Which question stands here?"
_KINDS = (
    "'qa', 'fewshot(4)', 'fewshot(4, seed=1)', 'chat', 'chat(2026-11-27)' or a text with {question}"
    " in it"
)


@dataclass(frozen=True)
class QAPrompt:
    """Prompt ``Q: {question}\\nA:``, followed by a space and the answer."""

    name: str = "qa"

    def render(
        self,
        question: str,
        tokenizer: PreTrainedTokenizerBase,  # noqa: ARG002
    ) -> PromptText:
        """Return the text before the answer; the tokenizer is not used."""
        return PromptText(text=f"Q: {question}\nA:", question_start=3, separator=" ")


@dataclass(frozen=True)
class FewShotPrompt:
    """Prompt of answered questions in the ``qa`` form, each followed by a blank line, and the
    question.
    """

    name: str
    shots: tuple[tuple[str, str], ...]
    shot_ids: frozenset[str]  # question_id of the shots

    def render(
        self,
        question: str,
        tokenizer: PreTrainedTokenizerBase,  # noqa: ARG002
    ) -> PromptText:
        """Return the text before the answer; the tokenizer is not used."""
        head = "".join(f"Q: {shot}\nA: {answer}\n\n" for shot, answer in self.shots)
        return PromptText(
            text=f"{head}Q: {question}\nA:", question_start=len(head) + 3, separator=" "
        )


@dataclass(frozen=True)
class ChatPrompt:
    """Chat template of the tokenizer with the question as the only user message.

    The rendered text is tokenized like any other prompt; a BOS in the template is not added again.
    A template that writes the date reads it from ``clock``, so all rows have the same one.
    """

    name: str = "chat"
    clock: Clock = field(default_factory=Clock)

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> PromptText:
        """Return the template's text up to the start of the model's turn."""
        if not tokenizer.chat_template:
            raise InputError(
                "prompt='chat': the tokenizer has no chat template. Use prompt='qa'.",
                argument="prompt",
            )
        text = render_chat(tokenizer, [("user", question)], self.clock)
        start = text.rfind(question)
        if not question.strip() or start < 0:
            raise InputError(
                "prompt='chat': the chat template changes the"
                f" question {question[:80]!r}. Use prompt='qa'.",
                argument="prompt",
            )
        # A short question may also occur in the template's own text.
        if text.count(question) > 1:
            n = render_chat(tokenizer, [("user", _MARK)], self.clock).count(_MARK)
            if n > 1:
                raise InputError(
                    f"prompt='chat': the chat template writes the question {n} times, and only one"
                    " of them would be patched. Use prompt='qa', or another template.",
                    argument="prompt",
                )
        return PromptText(text=text, question_start=start, separator="")


@dataclass(frozen=True)
class TemplatePrompt:
    """Prompt with the user's text around the question, such as ``Question: {question}\\nAnswer:``.

    Spaces at the template's end are the separator; after other white space it is empty, else one
    space. ``name`` is the template with line ends written as ``\\n``.
    """

    name: str
    before: str
    after: str
    separator: str

    @classmethod
    def of(cls, template: str) -> "TemplatePrompt":
        """Make the prompt of a template; ``\\`` followed by ``n``, as typed in a shell, is a line
        end.
        """
        text = template.replace("\\n", "\n")
        n = text.count(QUESTION)
        if n != 1:
            raise InputError(
                f"prompt={shorten(template)}: contains {QUESTION} {n} times. Write it once.",
                argument="prompt",
            )
        before, after = text.split(QUESTION)
        body = after.rstrip(" ")
        separator = after[len(body) :] or ("" if body and body[-1].isspace() else " ")
        return cls(name=text.replace("\n", "\\n"), before=before, after=body, separator=separator)

    def render(
        self,
        question: str,
        tokenizer: PreTrainedTokenizerBase,  # noqa: ARG002
    ) -> PromptText:
        """Return the text before the answer; the tokenizer is not used."""
        return PromptText(f"{self.before}{question}{self.after}", len(self.before), self.separator)


_OWN_PROMPTS = (QAPrompt, FewShotPrompt, ChatPrompt, TemplatePrompt)


TRUTH_QUESTION = "Is this answer correct? Answer yes or no."


def truth_question(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text after an answer for the readout ``p_true``, which asks whether the answer is
    correct (Kadavath et al. 2022).
    """
    if not isinstance(prompt, ChatPrompt):
        return f"\n{TRUTH_QUESTION}\nA:"
    mark = "The answer stands here."
    turns = (("user", "A question."), ("assistant", mark), ("user", TRUTH_QUESTION))
    _, has_mark, after = render_chat(tokenizer, turns, prompt.clock).rpartition(mark)
    if not has_mark or TRUTH_QUESTION not in after:
        raise InputError(
            "prompt='chat': the chat template drops a second"
            " question after an answer. Use prompt='qa'.",
            argument="prompt",
        )
    return after


_CHAT = re.compile(r"chat\((.*)\)")
_FEWSHOT = re.compile(r"fewshot(?:\(\s*(?:k\s*=\s*)?(\d+)\s*(?:,\s*(?:seed\s*=\s*)?(\d+)\s*)?\))?")


def check_prompt(prompt: Any) -> Prompt:
    """Return an object that has the interface of a prompt; raise InputError otherwise."""
    if type(prompt) in _OWN_PROMPTS:  # subclasses may have another render
        return prompt
    name = getattr(prompt, "name", None)
    render = getattr(prompt, "render", None)
    if (
        isinstance(prompt, type)
        or not callable(render)
        or not takes(render, 2)
        or not isinstance(name, str)
        or not name
    ):
        raise InputError(
            f"prompt={short_repr(prompt)}: must be {_KINDS}, or an object with name and"
            " render(question, tokenizer).",
            argument="prompt",
        )
    return prompt


def render_prompt(prompt: Prompt, question: str, tokenizer: PreTrainedTokenizerBase) -> PromptText:
    """Return the text of a prompt; check that of a custom one and the position of the question in
    it.
    """
    if type(prompt) in _OWN_PROMPTS:  # subclasses may have another render
        return prompt.render(question, tokenizer)
    text: Any = call_user_function("prompt", prompt.render, question=question, tokenizer=tokenizer)
    name = shorten(prompt.name)
    start = as_int(text.question_start) if isinstance(text, PromptText) else None
    if start is None or not isinstance(text.text, str) or not isinstance(text.separator, str):
        fix = "Return al.PromptText(text=..., question_start=..., separator=' ')"
        raise InputError(
            f"prompt={name}: render returned {short_repr(text)}. {fix}.", argument="prompt"
        )
    if start < 0 or text.text[start : start + len(question)] != question:
        where = "its text does not contain the question"
        if question and question in text.text:
            places = [i for i in range(len(text.text)) if text.text.startswith(question, i)]
            where = f"the question is at {join_words(places, most=3)}"
        fix = "Return the index of the question's first character."
        raise InputError(
            f"prompt={name}: render returned question_start={start}, but {where}. {fix}",
            argument="prompt",
        )
    return text


def reads_more_than_arguments(prompt: Prompt) -> bool:
    """Return whether rendered prompts depend on the clock or on code of the user, beside arguments,
    data and tokenizer.
    """
    if type(prompt) is ChatPrompt:
        return prompt.clock.is_read
    return type(prompt) not in _OWN_PROMPTS


def make_prompt(
    prompt: PromptLike, evaluated: Sequence[Example], pool: Sequence[Example], seed: int
) -> Prompt:
    """Make the prompt of a name, or check a custom prompt.

    Shots are drawn from rows of ``pool`` that are not ``evaluated``; if these are too few, also
    from ``evaluated``, and the caller drops them (``FewShotPrompt.shot_ids``). A seed in the name
    overrides ``seed``.
    """
    if not isinstance(prompt, str):
        return check_prompt(prompt)
    if prompt in ("qa", "chat"):
        return QAPrompt() if prompt == "qa" else ChatPrompt()
    if QUESTION in prompt:
        return TemplatePrompt.of(prompt)
    if chat := _CHAT.fullmatch(prompt.strip()):
        return ChatPrompt(clock=Clock(_parse_time(prompt, chat[1])))
    match = _FEWSHOT.fullmatch(prompt.strip())
    if match is None:
        hint = f"Write {QUESTION} where the question belongs" if "{" in prompt else f"Use {_KINDS}"
        raise InputError(f"prompt={shorten(prompt)}: unknown. {hint}.", argument="prompt")
    k = int(match[1]) if match[1] else 4
    shot_seed = int(match[2]) if match[2] else seed
    return _few_shot(k, shot_seed, evaluated, pool)


def _parse_time(prompt: str, text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        time = None
    if time is None or time.tzinfo is not None:
        fix = "Write a date or a local time, such as chat(2026-11-27) or chat(2026-11-27T09:30:00)"
        raise InputError(f"prompt={shorten(prompt)}: not a time. {fix}.", argument="prompt")
    return time


def _few_shot(
    k: int, seed: int, evaluated: Sequence[Example], pool: Sequence[Example]
) -> FewShotPrompt:
    # One row per question: its last.
    evaluated_by_id = {example.question_id: example for example in evaluated}
    pool_by_id = {example.question_id: example for example in pool}
    free = [one for name, one in pool_by_id.items() if name not in evaluated_by_id]
    rest = list(evaluated_by_id.values())
    if k < 1 or k >= len(free) + len(rest):
        raise InputError(
            f"prompt='fewshot({k})': needs at least one shot and fewer shots than the"
            f" {len(free) + len(rest)} questions loaded.",
            argument="prompt",
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
