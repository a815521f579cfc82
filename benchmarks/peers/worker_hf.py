"""Plain Hugging Face: a forward pre-hook on one decoder layer, all rows in one batch, one pass for each cell.

The final norm and the unembedding see only the positions that are read, as anybody would write it who knows the model.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from protocol import Job, Sweep
from tensors import Cells, Rows, load_hf, probability
from torch import Tensor

LIBRARIES = ("torch", "transformers")


def load(directory: Path) -> Any:
    return load_hf(directory)


@torch.inference_mode()
def run(model: Any, job: Job) -> Sweep:
    rows = Rows.of(job)
    blocks = model.model.layers
    streams: dict[int, Tensor] = {}

    def read() -> list[float]:
        states = model.model(input_ids=rows.ids, use_cache=False).last_hidden_state
        return probability(model.lm_head(states[rows.row, rows.read]), rows.token)

    def keep(layer: int) -> Callable[[Any, tuple[Tensor, ...]], None]:
        def hook(_: Any, args: tuple[Tensor, ...]) -> None:
            streams[layer] = args[0]

        return hook

    handles = [blocks[layer].register_forward_pre_hook(keep(layer)) for layer in job["layers"]]
    model.model(input_ids=rows.donor_ids, use_cache=False)
    for handle in handles:
        handle.remove()

    def put(layer: int, cells: Cells) -> Callable[[Any, tuple[Tensor, ...]], tuple[Tensor, ...]]:
        def hook(_: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            changed = args[0].clone()
            changed[cells.row, cells.target] = streams[layer][cells.row, cells.source]
            return (changed, *args[1:])

        return hook

    out = Sweep(p_before=read())
    for anchor in job["anchors"]:
        cells = Cells.of(job, anchor)
        out.p[anchor] = []
        for layer in job["layers"]:
            handle = blocks[layer].register_forward_pre_hook(put(layer, cells))
            out.p[anchor].append(read())
            handle.remove()
    return out
