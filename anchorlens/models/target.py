"""Last steps of loading, common to both backends: tokenizer and card."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from anchorlens.models.adapter import LensModel
from anchorlens.models.card import CARD, adds_bos, make_card

M = TypeVar("M", bound=LensModel)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Local files of a model, or a live model."""

    name: str
    kind: str
    path: Path
    revision: str | None = None
    config: PretrainedConfig | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """Options of a conversion: devices, parity check, origin and tokenizer."""

    device: str
    n_devices: int
    check_parity: bool
    tolerance: float | None
    source: Source
    tokenizer: PreTrainedTokenizerBase


def finish(model: M, target: Target, architecture: str, parity: float | None, n_params: int) -> M:
    """Attach tokenizer and card to a new model."""
    attach_tokenizer(model, target.tokenizer)
    source = target.source
    card = make_card(
        model=model,
        name=source.name,
        source=source.kind,
        revision=source.revision,
        architecture=architecture,
        parity=parity,
        n_params=n_params,
    )
    object.__setattr__(model, CARD, card)
    return model


def attach_tokenizer(model: LensModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set the model's tokenizer, with padding on the right; TransformerLens's ``set_tokenizer``
    would switch BOS on.
    """
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    model.tokenizer = tokenizer
    # With equal values to_tokens neither adds nor removes BOS.
    model.cfg.tokenizer_prepends_bos = model.cfg.default_prepend_bos = adds_bos(tokenizer)
