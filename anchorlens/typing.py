"""Named tensor types, and the glossary of dimension names.

==========  =========================================================================
example     rows of a batch: one question with its answer (in a sweep: one per donor)
pos         token positions of a right-padded batch
layer       blocks of the model, 0 .. L-1
anchor      roles whose activations are changed
donor       donor runs of one example
slot        patched positions of one row, in pairing order
head        attention heads
d_model     width of the residual stream
d_vocab     tokens of the vocabulary
resample    bootstrap resamples
==========  =========================================================================
"""

from typing import TypeAlias

from jaxtyping import Float
from torch import Tensor

Stream: TypeAlias = Float[Tensor, "example pos d_model"]
"""A residual stream, or the output of attention or MLP that is added to it."""

SlotStreams: TypeAlias = Float[Tensor, "layer example slot d_model"]
"""Activations at chosen positions of every layer."""
