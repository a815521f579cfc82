"""Hugging Face with hooks: a forward pre-hook on one decoder layer, all rows in one batch, one pass
for each cell.

Only the read positions go through the unembedding.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from protocol import Job, Sweep
from tensors import Part, Rows, load_hf, probability
from torch import Tensor

LIBRARIES = ("torch", "transformers")


def load(directory: Path) -> Any:
    return load_hf(directory)


@torch.inference_mode()
def run(model: Any, job: Job) -> Sweep:
    rows = Rows.of(job)
    blocks = model.model.layers
    streams: dict[int, Tensor] = {}

    def read(part: Rows | Part) -> list[float]:
        states = model.model(input_ids=part.ids, use_cache=False).last_hidden_state
        return probability(model.lm_head(states[part.row, part.read]), part.token)

    def keep(layer: int) -> Callable[[Any, tuple[Tensor, ...]], None]:
        def hook(_: Any, args: tuple[Tensor, ...]) -> None:
            streams[layer] = args[0]

        return hook

    handles = [blocks[layer].register_forward_pre_hook(keep(layer)) for layer in job["layers"]]
    model.model(input_ids=rows.donor_ids, use_cache=False)
    for handle in handles:
        handle.remove()

    def put(layer: int, part: Part) -> Callable[[Any, tuple[Tensor, ...]], tuple[Tensor, ...]]:
        def hook(_: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            changed = args[0].clone()
            changed[part.slot_row, part.target] = streams[layer][part.donor_row, part.source]
            return (changed, *args[1:])

        return hook

    out = Sweep(p_before=read(rows))
    for place in job["places"]:
        part = Part.of(job, [place], rows)
        out.p[place] = []
        for layer in job["layers"]:
            handle = blocks[layer].register_forward_pre_hook(put(layer, part))
            out.p[place].append(read(part))
            handle.remove()
    return out
