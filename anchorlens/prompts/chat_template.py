"""Render a tokenizer's chat template at a fixed time, so that its text can be rendered again on
another day.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from transformers import PreTrainedTokenizerBase

from anchorlens.display import one_line
from anchorlens.errors import InputError
from anchorlens.prompts.chat_process import CHAT_PROCESS


@dataclass(frozen=True)
class Clock:
    """Fixed local time for chat templates; remembers which texts were read.

    Attributes:
        time: Local time without a zone, as transformers passes it to a template.
        texts: Format of ``strftime`` -> text, for each format that a template has read.
    """

    time: datetime = field(default_factory=lambda: datetime.now().replace(microsecond=0))
    texts: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_read(self) -> bool:
        """Whether a template has read the clock."""
        return bool(self.texts)


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[tuple[str, str]],
    clock: Clock,
    *,
    add_generation_prompt: bool = True,
) -> str:
    """Render the chat template of a tokenizer.

    Args:
        tokenizer: Tokenizer with a chat template.
        turns: (role, text) of each message.
        clock: Time that the template reads; its ``texts`` are extended.
        add_generation_prompt: Whether the text ends with the start of the model's turn.

    Raises:
        InputError: If the template refuses the messages, is damaged, or exceeds the limits of time
            and memory.
    """
    request: dict[str, Any] = {
        "messages": [{"role": role, "content": text} for role, text in turns],
        "values": {
            **tokenizer.special_tokens_map,
            "add_generation_prompt": add_generation_prompt,
        },
        "time": clock.time.isoformat(),
        "texts": clock.texts,
    }
    try:
        request["template"] = tokenizer.get_chat_template()
        reply: dict[str, Any] = CHAT_PROCESS.render(request)
    except (OSError, ValueError) as error:  # no process can be started; no template is the default
        reply = {"error": one_line(error)}
    if "error" in reply:
        name = one_line(tokenizer.name_or_path or "the model")
        raise InputError(
            f"prompt='chat': the chat template of {name} cannot be used ({reply['error']}). Use"
            " prompt='qa', or correct the template (chat_template.jinja or tokenizer_config.json).",
            argument="prompt",
        )
    clock.texts.update(reply["texts"])
    return reply["text"]
