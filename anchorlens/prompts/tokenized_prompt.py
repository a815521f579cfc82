"""Tokenized prompts with named token positions, the input of every protocol."""

from collections.abc import Mapping
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from anchorlens.errors import InputError
from anchorlens.models.card import adds_bos


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


def resolve_add_bos(tokenizer: PreTrainedTokenizerBase, add_bos: bool | None) -> bool:
    """Return whether BOS is added; if None, as the tokenizer does. Raise InputError if the tokenizer has no BOS."""
    if add_bos and tokenizer.bos_token_id is None:
        raise InputError("add_bos=True: the tokenizer has no BOS token. Leave add_bos out.", argument="add_bos")
    return adds_bos(tokenizer) if add_bos is None else add_bos
