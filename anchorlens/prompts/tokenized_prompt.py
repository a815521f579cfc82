"""Tokenized prompts with named token positions, the input of every protocol."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TokenizedPrompt:
    """Tokenized prompt with named positions.

    Attributes:
        id: Unique name of the input within its data set.
        group: Resampling unit; inputs of one group (a question, a prompt pair) are resampled together.
        ids: Token ids, with BOS if the tokenizer adds it.
        positions: Name ("exact_question", "subject", "pos:17", ...) -> token positions, in pairing order.
    """

    id: str
    group: str
    ids: tuple[int, ...]
    positions: Mapping[str, tuple[int, ...]]

    def columns(self) -> dict[str, object]:
        """Return additional columns of ``examples.parquet``."""
        return {}
