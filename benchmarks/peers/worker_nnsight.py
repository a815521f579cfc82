"""nnsight: one trace reads the donors; then one trace per layer, with one invoke per anchor or
null.

This follows its documentation for a grid of patches. The clean run is stored once, and the cells of
a layer share one forward pass as invokes. A last invoke covers the whole batch, reads the required
positions and stops the run before the model unembeds all positions.
"""

from pathlib import Path
from typing import Any

import nnsight
import torch
from nnsight import TransformersModel
from protocol import Job, Sweep
from tensors import Part, Rows, probability

LIBRARIES = ("torch", "nnsight", "transformers")


def load(directory: Path) -> Any:
    return TransformersModel(
        str(directory), task="text-generation", dispatch=True, dtype=torch.float32
    )


@torch.inference_mode()
def run(model: Any, job: Job) -> Sweep:
    rows, layers, places = Rows.of(job), job["layers"], job["places"]
    parts = [Part.of(job, [place], rows) for place in places]
    whole = Part.of(job, places, rows)
    blocks, norm, head = model.model.layers, model.model.norm, model.lm_head

    with model.trace(rows.donor_ids, use_cache=False) as tracer:
        streams = nnsight.save([])
        for layer in layers:
            streams.append(blocks[layer].input)
        tracer.stop()

    with model.trace(rows.ids, use_cache=False) as tracer:
        logits = nnsight.save(head(norm.output[rows.row, rows.read]))
        tracer.stop()
    out = Sweep(p_before=probability(logits, rows.token), p={place: [] for place in places})

    for layer, stream in zip(layers, streams, strict=True):
        with model.trace(use_cache=False) as tracer:
            for part in parts:
                with tracer.invoke(part.ids):
                    blocks[layer].input[part.slot_row, part.target] = stream[
                        part.donor_row, part.source
                    ]
            with tracer.invoke():
                logits = nnsight.save(head(norm.output[whole.row, whole.read]))
                tracer.stop()
        for place, p in zip(places, whole.by_place(probability(logits, whole.token)), strict=True):
            out.p[place].append(p)
    return out
