"""Render a tokenizer's chat template at a fixed time, so that its text can be rendered again on
another day.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

# Name of the function by which transformers lets a template read the clock.
_CLOCK_FUNCTION = "strftime_now"
# Start of the error by which the macro asks for a format that it has no text for.
_NO_TEXT = "anchorlens: no text for the format "
# transformers passes a template plain values, no functions. A macro shadows the function in this
# one template, and reads the texts from a dictionary. The line end belongs to the last tag
# (trim_blocks), so the template begins at the start of a line as before.
_CLOCK_MACRO = (
    f"{{% macro {_CLOCK_FUNCTION}(format) %}}{{{{ anchorlens_clock[format] if format in"
    f" anchorlens_clock else raise_exception('{_NO_TEXT}' ~ format) }}}}{{% endmacro %}}\n"
)


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
        jinja2.TemplateError: If the template refuses the messages.
    """
    messages = [{"role": role, "content": text} for role, text in turns]
    template = tokenizer.get_chat_template()
    if _CLOCK_FUNCTION not in template:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        assert isinstance(text, str)  # tokenize=False
        return text
    while True:
        try:
            text = tokenizer.apply_chat_template(
                messages,
                chat_template=_CLOCK_MACRO + template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                anchorlens_clock=clock.texts,
            )
            assert isinstance(text, str)  # tokenize=False
            return text
        except TemplateError as why:
            wanted, has_format, time_format = str(why).partition(_NO_TEXT)
            if wanted or not has_format or time_format in clock.texts:
                raise
            clock.texts[time_format] = clock.time.strftime(time_format)
