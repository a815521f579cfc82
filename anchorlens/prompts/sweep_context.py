"""Context of a sweep: model, data set and tokenization."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anchorlens.models.adapter import Adapter
from anchorlens.prompts.dataset import Dropped, PromptDataset


@dataclass(frozen=True, kw_only=True)
class SweepContext:
    """Data, model and prompt of a sweep, as a protocol prepares its inputs from them.

    Attributes:
        prefix: Tokens that all inputs begin with.
        token_text: Function from a token id to its text.
        prompts_sha256: Hash of the rendered prompts; None if they follow from arguments, data and
            tokenizer.
        clock: Local time that the prompts were rendered with; None if they do not depend on it.
    """

    adapter: Adapter
    model_name: str
    data: PromptDataset
    dropped: tuple[Dropped, ...]
    progress: bool
    prompt: str
    add_bos: bool
    prefix: tuple[int, ...]
    token_text: Callable[[int], str]
    prompts_sha256: str | None = None
    clock: str | None = None


@dataclass(frozen=True)
class DataSource:
    """Functions by which a protocol loads its data set and sets up a sweep.

    Attributes:
        load: (data set or user's input, seed) -> data set.
        set_up: (adapter, data set, specification) -> context of a sweep.
        token_text: tokenizer -> function token id -> text, as :attr:`SweepContext.token_text`.
    """

    load: Callable[[Any, int], PromptDataset]
    set_up: Callable[[Any, Any, Any], SweepContext]
    token_text: Callable[[Any], Callable[[int], str]]
