"""TransformerLens's activation patching: ``patching.generic_activation_patch`` over the layers,
once for each anchor or null.

Its interface passes all logits of all positions to the metric. The metric stores P of every row,
because its return value is one number for the whole batch. The donors' run caches only
``resid_pre``.
"""

import pandas as pd
import torch
from ours import load
from protocol import Job, Sweep
from tensors import Part, Rows, probability
from torch import Tensor
from transformer_lens import ActivationCache, HookedTransformer
from transformer_lens.patching import generic_activation_patch

LIBRARIES = ("torch", "transformer-lens", "transformers")


@torch.inference_mode()
def run(model: HookedTransformer, job: Job) -> Sweep:
    rows = Rows.of(job, model.cfg.device)
    _, donors = model.run_with_cache(
        rows.donor_ids,
        return_type=None,
        names_filter=[f"blocks.{layer}.hook_resid_pre" for layer in job["layers"]],
        padding_side="right",
    )
    assert isinstance(donors, ActivationCache)

    def read(logits: Tensor, part: Rows | Part) -> list[float]:
        return probability(logits[part.row, part.read], part.token)

    out = Sweep(p_before=read(model(rows.ids, padding_side="right"), rows))
    for place in job["places"]:
        part, p = Part.of(job, [place], rows), []

        def put(base: Tensor, index: list[int], donor: Tensor, part: Part = part) -> Tensor:  # noqa: ARG001
            base[part.slot_row, part.target] = donor[part.donor_row, part.source]
            return base

        def metric(logits: Tensor, p: list[list[float]] = p, part: Part = part) -> Tensor:
            p.append(read(logits, part))
            return torch.tensor(p[-1]).mean()

        generic_activation_patch(
            model,
            part.ids,
            donors,
            metric,
            put,
            "resid_pre",
            index_df=pd.DataFrame({"layer": job["layers"]}),
        )
        out.p[place] = p
    return out


__all__ = ["LIBRARIES", "load", "run"]
