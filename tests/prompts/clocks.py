"""Set the clock of chat templates, that of transformers included."""

from datetime import datetime

import transformers.utils.chat_template_utils

from anchorlens.prompts import chat_template
from anchorlens.runs import provenance


def set_time(monkeypatch, text):
    """Let the clock that a chat template can read stand at a local time."""

    class Standing(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromisoformat(text)

    for module in (transformers.utils.chat_template_utils, chat_template, provenance):
        monkeypatch.setattr(module, "datetime", Standing)
