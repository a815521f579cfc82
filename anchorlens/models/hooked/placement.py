"""Devices of the parts of a model that is spread over several devices (``cfg.n_devices``).

TransformerLens moves the stream of block i to device ``first + i * n_devices // n_layers``. Its
loader may put the block on another device, so inputs are moved to the device of the weights.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.components.abstract_attention import AbstractAttention
from transformer_lens.utilities.multi_gpu import get_device_for_block_index


def device_of(cfg: HookedTransformerConfig, name: str) -> torch.device:
    """Return the device of a parameter or module, such as ``blocks.3.attn.W_Q`` or ``unembed``, in
    a loaded model.
    """
    if cfg.n_devices == 1:
        return torch.device(str(cfg.device))
    part, _, inside = name.partition(".")
    last = part in ("ln_final", "unembed")
    return get_device_for_block_index(
        int(inside.partition(".")[0]) if part == "blocks" else (cfg.n_layers - 1) * last, cfg
    )


def block_devices(model: HookedTransformer) -> list[torch.device]:
    """Return the device of each block; for streamed blocks, that of the embedding."""
    first = model.embed.W_E.device
    devices: list[torch.device] = []
    for device in map(_block_device, model.blocks):
        is_streamed = device.type == "meta"
        devices.append(first if is_streamed else device)
    return devices


def devices_of(model: HookedTransformer) -> tuple[torch.device, ...]:
    """Return the distinct devices of a model in layer order."""
    return tuple(
        dict.fromkeys([model.embed.W_E.device, *block_devices(model), model.unembed.W_U.device])
    )


@contextmanager
def inputs_follow_blocks(model: HookedTransformer) -> Iterator[None]:
    """Move streams and masks to each block's device during a ``with`` statement; TransformerLens
    moves the stream only.
    """
    with ExitStack() as stack:
        for block in model.blocks if len(devices_of(model)) > 1 else ():
            stack.enter_context(block.register_forward_pre_hook(_move_inputs, with_kwargs=True))
        yield


def _block_device(block: nn.Module) -> torch.device:
    """Return the device of a block's attention; RMS norms move to that of their input."""
    return next(iter(block.get_submodule("attn").parameters())).device


def _move_inputs(block: nn.Module, args: Any, kwargs: Any) -> Any:
    attn: Any = block.attn
    device = _block_device(block)
    args, kwargs = tree_map(
        lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, (args, kwargs)
    )
    if attn.cfg.positional_embedding_type == "alibi":
        mask = kwargs.get("attention_mask")
        # The mask includes cached tokens.
        length = args[0].shape[1] if mask is None else mask.shape[-1]
        if attn.alibi is None or attn.alibi.device != device or attn.alibi.shape[-1] < length:
            attn.alibi = AbstractAttention.create_alibi_bias(attn.cfg.n_heads, length, device)
    return args, kwargs
