"""Activation patching in TransformerLens, optimised by hand.

The residual streams of bases and donors are cached once. For each layer they are changed, and the
model runs from there (``start_at_layer``) to its last residual stream. Only the read position is
unembedded.
"""

import torch
from protocol import Job, Sweep
from tensors import Part, Rows, probability
from torch import Tensor
from transformer_lens import ActivationCache, HookedTransformer


@torch.inference_mode()
def careful(model: HookedTransformer, job: Job, *, together: bool) -> Sweep:
    """Measure the cells of a job.

    Args:
        model: The model.
        job: Job as in :mod:`protocol`.
        together: If True, all anchors and nulls of a layer are one batch; else they are separate
            batches.
    """
    rows, end = Rows.of(job, model.cfg.device), model.cfg.n_layers
    names = {layer: f"blocks.{layer}.hook_resid_pre" for layer in job["layers"]}

    def clean(ids: Tensor) -> tuple[Tensor, ActivationCache]:
        last, streams = model.run_with_cache(
            ids, names_filter=list(names.values()), stop_at_layer=end, padding_side="right"
        )
        assert isinstance(last, Tensor) and isinstance(streams, ActivationCache)
        return last, streams

    def read(last: Tensor, part: Rows | Part) -> list[float]:
        return probability(
            model.unembed(model.ln_final(last[part.row, part.read][:, None]))[:, 0], part.token
        )

    _, donors = clean(rows.donor_ids)
    last, bases = clean(rows.ids)
    out = Sweep(p_before=read(last, rows), p={place: [] for place in job["places"]})
    for places in [job["places"]] if together else [[place] for place in job["places"]]:
        part = Part.of(job, places, rows)
        for layer, name in names.items():
            stream = bases[name][part.rows]
            stream[part.slot_row, part.target] = donors[name][part.donor_row, part.source]
            p = read(model(stream, start_at_layer=layer, stop_at_layer=end), part)
            for place, values in zip(places, part.by_place(p), strict=True):
                out.p[place].append(values)
    return out
