"""TransformerLens as a careful user writes it, one anchor or null after the other."""

from careful import careful
from ours import load
from protocol import Job, Sweep
from transformer_lens import HookedTransformer

LIBRARIES = ("torch", "transformer-lens", "transformers")


def run(model: HookedTransformer, job: Job) -> Sweep:
    return careful(model, job, together=False)


__all__ = ["LIBRARIES", "load", "run"]
