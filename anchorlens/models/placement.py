"""A model that lies on several devices: where its parts belong, where they are, and how its own forward pass stays with them.

TransformerLens spreads a model over neighbouring CUDA devices (``cfg.n_devices``): its forward pass brings the stream of block i to
device ``first + i * n_devices // n_layers``. Blocks that load_model spreads lie exactly there; embeddings with the first block, last
norm and unembedding with the last, because TransformerLens moves the stream to no other place for them. TransformerLens itself puts
a part where the most memory is free, which may be another device than its forward pass goes to. So blocks are followed to where
their weights are, wherever that is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.components.abstract_attention import AbstractAttention
from transformer_lens.utilities.multi_gpu import get_device_for_block_index


def home(cfg: HookedTransformerConfig, name: str) -> torch.device:
    """Where a part of a model belongs.

    Args:
        cfg: The model's configuration.
        name: A parameter or module, for example ``blocks.3.attn.W_Q`` or ``unembed``.
    """
    if cfg.n_devices == 1:
        return torch.device(str(cfg.device))
    part, _, inside = name.partition(".")
    last = part in ("ln_final", "unembed")
    return get_device_for_block_index(int(inside.partition(".")[0]) if part == "blocks" else (cfg.n_layers - 1) * last, cfg)


def block_devices(model: HookedTransformer) -> list[torch.device]:
    """Where each block's weights lie; those that are on ``meta`` until they are read come to where the embedding is."""
    first = model.embed.W_E.device
    return [first if device.type == "meta" else device for device in map(_device_of, model.blocks)]


def devices_of(model: HookedTransformer) -> tuple[torch.device, ...]:
    """The devices that a model lies on, each once, in the order in which a stream comes to them."""
    return tuple(dict.fromkeys([model.embed.W_E.device, *block_devices(model), model.unembed.W_U.device]))


@contextmanager
def following(model: HookedTransformer) -> Iterator[None]:
    """In a ``with`` block the model's own forward pass brings streams and masks to the device of each block.

    TransformerLens brings the stream alone: scores then go to the mask's device and back, and attention sinks and alibi, which
    stay, cannot be joined with them. Nothing is left on the model afterwards.
    """
    several = len(devices_of(model)) > 1
    held = [block.register_forward_pre_hook(_brought, with_kwargs=True) for block in model.blocks if several]
    try:
        yield
    finally:
        for one in held:
            one.remove()


def _device_of(block: nn.Module) -> torch.device:
    """Of its attention: TransformerLens's RMS norms move to whatever they are given."""
    return next(iter(block.get_submodule("attn").parameters())).device


def _brought(block: nn.Module, args: Any, kwargs: Any) -> Any:
    """What a block is given, on its device."""
    attn: Any = block.attn
    device = _device_of(block)
    args, kwargs = tree_map(lambda one: one.to(device) if isinstance(one, Tensor) else one, (args, kwargs))
    if attn.cfg.positional_embedding_type == "alibi":
        mask = kwargs.get("attention_mask")
        length = args[0].shape[1] if mask is None else mask.shape[-1]  # a cache's tokens stand in the mask
        if attn.alibi is None or attn.alibi.device != device or attn.alibi.shape[-1] < length:
            attn.alibi = AbstractAttention.create_alibi_bias(attn.cfg.n_heads, length, device)
    return args, kwargs


__all__ = ["block_devices", "devices_of", "following", "home"]
