"""How many rows go through the model at once, chosen for the memory at hand."""

import psutil
import torch

from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter

# Beyond this many tokens a batch gains nothing on a CPU or a GPU that fits it, and a smaller one keeps the progress bar moving.
_MOST_TOKENS = {"cpu": 1024, "cuda": 16384, "mps": 4096}


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def row_bytes(adapter: Adapter, width: int) -> int:
    """Upper estimate of the bytes that one row of ``width`` tokens takes while it passes through a block, plus its read.

    Streams, queries, keys, values and both sides of a gated MLP live at the same time; attention scores and pattern in every head;
    logits of a handful of reads in float32.
    """
    cfg = adapter.model.cfg
    item = torch.finfo(cfg.dtype).bits // 8
    wide = 8 * cfg.d_model + 4 * cfg.n_heads * cfg.d_head + 3 * (cfg.d_mlp or 4 * cfg.d_model)
    attention = 4 * cfg.n_heads * width * width * max(item, 4)
    return width * wide * max(item, 4) + attention + 8 * cfg.d_vocab * 4


def rows_per_batch(adapter: Adapter, width: int, batch_size: int | None) -> int:
    """Rows in one batch.

    Args:
        adapter: The model.
        width: Tokens of the longest row.
        batch_size: The user's choice, taken as it is; None: chosen here from half of the free memory.

    Raises:
        InputError: ``batch_size`` is below 1.
    """
    if batch_size is not None:
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}.")
        return batch_size
    by_memory = free_memory(adapter.device) // 2 // row_bytes(adapter, width)
    by_tokens = _MOST_TOKENS.get(adapter.device.type, 1024) // max(width, 1)
    return max(1, min(int(by_memory), by_tokens))
