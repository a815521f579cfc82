"""nnsight: donors are read in one trace; then one trace for each layer, with one invoke for each anchor.

That is how its documentation has a grid of patches done: the clean run is kept once, and the cells of a layer share one forward
pass as invokes. A last invoke sees the whole batch, reads the positions that are wanted and stops the run before the model's own
unembedding of all positions.
"""

from pathlib import Path
from typing import Any

import nnsight
import torch
from nnsight import TransformersModel
from protocol import Job, Sweep
from tensors import Cells, Rows, probability

LIBRARIES = ("torch", "nnsight", "transformers")


def load(directory: Path) -> Any:
    return TransformersModel(str(directory), task="text-generation", dispatch=True, dtype=torch.float32)


@torch.inference_mode()
def run(model: Any, job: Job) -> Sweep:
    rows, layers, anchors = Rows.of(job), job["layers"], job["anchors"]
    cells = [Cells.of(job, anchor) for anchor in anchors]
    blocks, norm, head = model.model.layers, model.model.norm, model.lm_head

    with model.trace(rows.donor_ids, use_cache=False) as tracer:
        streams = nnsight.save([])
        for layer in layers:
            streams.append(blocks[layer].input)
        tracer.stop()

    with model.trace(rows.ids, use_cache=False) as tracer:
        logits = nnsight.save(head(norm.output[rows.row, rows.read]))
        tracer.stop()
    out = Sweep(p_before=probability(logits, rows.token), p={anchor: [] for anchor in anchors})

    n, again = len(rows.row), len(anchors)
    all_rows, all_reads = torch.arange(n * again), rows.read.repeat(again)
    for layer, stream in zip(layers, streams, strict=True):
        with model.trace(use_cache=False) as tracer:
            for cell in cells:
                with tracer.invoke(rows.ids):
                    blocks[layer].input[cell.row, cell.target] = stream[cell.row, cell.source]
            with tracer.invoke():
                logits = nnsight.save(head(norm.output[all_rows, all_reads]))
                tracer.stop()
        p = probability(logits, rows.token.repeat(again))
        for i, anchor in enumerate(anchors):
            out.p[anchor].append(p[i * n : (i + 1) * n])
    return out
