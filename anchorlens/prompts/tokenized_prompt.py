"""Tokenized prompts with named token positions, the input of every protocol."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TokenizedPrompt:
    """Tokenized prompt with named positions.

    Attributes:
        id: Unique name of the input within its data set.
        group: Question or prompt pair; inputs of one group are always resampled together.
        cluster: Relation or template of the group, whose groups are resampled together where there
            are at least ten; empty if unknown.
        ids: Token ids, with BOS if the tokenizer adds it.
        positions: Name ("exact_question", "subject", "pos:17", ...) -> token positions, in pairing
            order.
    """

    id: str
    group: str
    cluster: str = ""
    ids: tuple[int, ...]
    positions: Mapping[str, tuple[int, ...]]

    def columns(self) -> dict[str, object]:
        """Return additional columns of ``examples.parquet``."""
        return {}
