"""TransformerLens as a careful user writes it, all anchors and nulls of a layer in one batch."""

from careful import careful
from protocol import Job, Sweep
from transformer_lens import HookedTransformer
from worker_transformer_lens import LIBRARIES, load


def run(model: HookedTransformer, job: Job) -> Sweep:
    return careful(model, job, together=True)


__all__ = ["LIBRARIES", "load", "run"]
