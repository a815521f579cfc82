"""TransformerLens, optimised by hand; one anchor or null at a time."""

from careful import careful
from ours import load
from protocol import Job, Sweep
from transformer_lens import HookedTransformer

LIBRARIES = ("torch", "transformer-lens", "transformers")


def run(model: HookedTransformer, job: Job) -> Sweep:
    return careful(model, job, together=False)


__all__ = ["LIBRARIES", "load", "run"]
