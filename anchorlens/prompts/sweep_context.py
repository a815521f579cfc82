"""Context of a sweep: a model, a data set and its tokenizer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anchorlens.models.adapter import Adapter
from anchorlens.prompts.dataset import Dropped, PromptDataset


@dataclass(frozen=True)
class SweepContext:
    """Context of a sweep; ``prefix``: tokens that all inputs begin with, ``token_text``: token id -> its text."""

    adapter: Adapter
    model_name: str
    data: PromptDataset
    dropped: tuple[Dropped, ...]
    progress: bool
    prompt: str
    add_bos: bool
    prefix: tuple[int, ...]
    token_text: Callable[[int], str]


@dataclass(frozen=True)
class DataSource:
    """How a protocol gets its data set and starts from it.

    Attributes:
        load: Data set, or what a user may give in its place, and a seed -> data set.
        set_up: Adapter, data set and specification -> context of a sweep.
    """

    load: Callable[[Any, int], PromptDataset]
    set_up: Callable[[Any, Any, Any], SweepContext]
