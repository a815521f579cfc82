"""TransformerLens, optimised by hand; all anchors and nulls of a layer in one batch."""

from careful import careful
from ours import load
from protocol import Job, Sweep
from transformer_lens import HookedTransformer

LIBRARIES = ("torch", "transformer-lens", "transformers")


def run(model: HookedTransformer, job: Job) -> Sweep:
    return careful(model, job, together=True)


__all__ = ["LIBRARIES", "load", "run"]
