"""Tokenized prompts with named token positions: the input of every protocol and the only input that the engines know."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TokenizedPrompt:
    """One tokenized input.

    Attributes:
        id: Unique name of the input within its data set.
        group: Resampling unit; inputs of one group (a question, a prompt pair) are drawn together.
        ids: Token ids, BOS included where the tokenizer adds it.
        positions: Name ("exact_question", "subject", "pos:17", ...) -> token positions, in pairing order.
    """

    id: str
    group: str
    ids: tuple[int, ...]
    positions: Mapping[str, tuple[int, ...]]

    def columns(self) -> dict[str, object]:
        """Return columns of ``examples.parquet`` beside ids, tokens and positions."""
        return {}
