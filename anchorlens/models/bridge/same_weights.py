"""A new Hugging Face model with the weights of a TransformerBridge, for comparison."""

import re
from typing import Any

from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import PreTrainedModel

from anchorlens.models.hf_model import make_empty_model
from anchorlens.models.parity import ROTARY_LENGTH, Reference, rotary_tables

_COMPONENT = re.compile(r"\._original_component\b")


def reference_of(model: TransformerBridge) -> Reference | str:
    """Run a new Hugging Face model that shares the bridge's weights; return the reason if there is
    none.
    """
    if getattr(model, "_weights_processed", False):
        return "the bridge's weights are processed, so Hugging Face's model does not have them"
    empty = _empty(model)
    tensors: dict[str, Tensor] = {}
    for stored, tensor in model.original_model.state_dict().items():
        own = _COMPONENT.sub("", stored)
        tensors[own] = tensor
    wanted = set(empty.state_dict())
    missing = wanted - set(tensors)
    if missing:
        return f"the bridge lacks {min(missing)} of Hugging Face's weights"
    empty.load_state_dict({name: tensors[name] for name in wanted}, assign=True)
    devices: Any = model.original_model
    # Moves the buffers; the weights are there.
    return Reference.of(empty.to(next(devices.parameters()).device))


def rotary_gap(model: TransformerBridge) -> float | None:
    """Return the largest difference of the rotary tables from those of the configuration; None
    without such tables.
    """
    hf: Any = model.original_model
    ours = rotary_tables(hf, ROTARY_LENGTH)
    theirs = rotary_tables(_empty(model), ROTARY_LENGTH)
    gaps: list[float] = []
    for kind, tables in theirs.items():
        for a, b in zip(ours[kind], tables, strict=True):
            gaps.append(float((a.cpu() - b.cpu()).abs().max()))
    return max(gaps, default=None)


def _empty(model: TransformerBridge) -> PreTrainedModel:
    hf: Any = model.original_model
    return make_empty_model(hf.config, next(hf.parameters()).dtype)
