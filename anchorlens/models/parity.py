"""Compare a loaded model with its Hugging Face model on a few tokens, at every load."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from anchorlens.errors import ParityError
from anchorlens.models.hf_model import language_model, text_config

# Bounds on the maximum and the mean of |Δ log-probability|. Exact implementations differ by up to
# 0.96 in bfloat16 and 0.095 in float16 at single improbable tokens, so the mean is bounded as well.
TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.25, torch.bfloat16: 2.0}
MEAN_TOLERANCE = {
    torch.float64: 1e-3,
    torch.float32: 1e-3,
    torch.float16: 0.05,
    torch.bfloat16: 0.2,
}
LENGTH = 24
# Longest sliding window that the tokens exceed.
LONGEST_WINDOW = 128
ROTARY_LENGTH = 2048


@dataclass(frozen=True)
class Reference:
    """Tokens, log-probabilities and rotary tables of a Hugging Face model, in float32 on
    the CPU.
    """

    tokens: Int[Tensor, "example pos"]
    log_probs: Float[Tensor, "example pos d_vocab"]
    rotary: dict[str, tuple[Float[Tensor, "position rotary"], Float[Tensor, "position rotary"]]]

    @classmethod
    def of(
        cls, model: PreTrainedModel, weights: AbstractContextManager[object] | None = None
    ) -> "Reference":
        """Run a Hugging Face model on a few tokens, in the context ``weights`` if given."""
        tokens = parity_tokens(model)
        with torch.no_grad(), weights or nullcontext(), plain_forward(model):
            embedding: Any = model.get_input_embeddings()
            logits = model(input_ids=tokens.to(embedding.weight.device), use_cache=False).logits
        log_probs = logits.to(device="cpu", dtype=torch.float32).log_softmax(-1)
        return cls(tokens, log_probs, rotary_tables(model, ROTARY_LENGTH))

    def compare(
        self,
        logits: Float[Tensor, "example pos d_vocab"],
        dtype: torch.dtype,
        name: str,
        tolerance: float | None,
    ) -> float:
        """Return max |Δ log-probability| of a model's logits for :attr:`tokens`, in nats; raise
        ParityError if it is too large.
        """
        log_probs = logits.to(device="cpu", dtype=torch.float32).log_softmax(-1)
        return check_log_probs(log_probs, self.log_probs, dtype, name, tolerance)


def parity_tokens(model: PreTrainedModel) -> Int[Tensor, "example pos"]:
    """Return a fixed row of random ids that starts with BOS, if there is one, and exceeds a window
    of up to 128 tokens.
    """
    config = text_config(model.config)
    window = getattr(config, "sliding_window", None) or 0
    length = max(LENGTH, window + 8) if window <= LONGEST_WINDOW else LENGTH
    length = min(length, int(getattr(config, "max_position_embeddings", length)))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, int(config.vocab_size), (1, length), generator=generator)
    bos = config.bos_token_id
    if isinstance(bos, int) and 0 <= bos < int(config.vocab_size):
        tokens[0, 0] = bos
    return tokens


@contextmanager
def plain_forward(model: PreTrainedModel) -> Iterator[None]:
    """Switch the model to evaluation mode with eager attention and experts during a ``with``
    statement.
    """
    training = model.training
    experts = getattr(model.config, "_experts_implementation", None)
    before = [
        (model.set_attn_implementation, model.config._attn_implementation),
        (model.set_experts_implementation, experts),
    ]
    changed = [(set_kind, kind) for set_kind, kind in before if kind not in (None, "eager")]
    model.eval()
    for set_kind, _ in changed:
        set_kind("eager")
    try:
        yield
    finally:
        for set_kind, kind in changed:
            set_kind(kind)
        model.train(training)


def rotary_tables(
    model: PreTrainedModel, length: int
) -> dict[str, tuple[Float[Tensor, "position rotary"], Float[Tensor, "position rotary"]]]:
    """Return Hugging Face's rotary cosines and sines per attention type (``global``, ``local``); {}
    without rotary positions, and of GPT-J, whose module has another form: sine before cosine, for
    pairs of neighbours, up to the context's length.
    """
    rotary: Any = getattr(language_model(model), "rotary_emb", None)
    config: Any = text_config(model.config)
    if rotary is None or not hasattr(config, "rope_parameters"):
        return {}
    rotary = getattr(rotary, "original_component", None) or rotary
    device = next(rotary.buffers()).device
    positions = torch.arange(length, device=device)[None]
    like = torch.zeros(1, device=device, dtype=torch.float32)
    kinds = {"global": "full_attention", "local": "sliding_attention"}
    ropes = (config.rope_parameters or {}).values()
    if any(isinstance(rope, dict) for rope in ropes):  # a rope for each layer type
        tables: dict[str, tuple[Tensor, Tensor]] = {}
        for ours, theirs in kinds.items():
            if theirs in config.layer_types:
                tables[ours] = _table(rotary(like, positions, theirs))
        return tables
    return dict.fromkeys(kinds, _table(rotary(like, positions)))


def _table(angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return angles[0][0].cpu(), angles[1][0].cpu()


def check_log_probs(
    ours: Float[Tensor, "example pos d_vocab"],
    theirs: Float[Tensor, "example pos d_vocab"],
    dtype: torch.dtype,
    name: str,
    tolerance: float | None = None,
) -> float:
    """Return max |Δ log-probability| in nats; raise ParityError if it is too large or shapes
    differ.
    """
    if ours.shape != theirs.shape:
        raise ParityError(
            f"{name}: logits of shape {tuple(ours.shape)}, Hugging Face's have"
            f" {tuple(theirs.shape)}."
        )
    bound = TOLERANCE[dtype] if tolerance is None else tolerance
    # Padding rows of a vocabulary give -inf in both.
    gaps = torch.where(ours == theirs, torch.zeros_like(ours), (ours - theirs).abs())
    gap = float(gaps.max())
    mean = float(gaps.mean())
    if not (gap < bound and (mean < MEAN_TOLERANCE[dtype] or tolerance is not None)):
        raise ParityError(
            f"{name}: the loaded model's log-probabilities differ from Hugging Face's by up to"
            f" {gap:.3g}, by {mean:.2g} on average (allowed in {str(dtype).removeprefix('torch.')}:"
            f" {bound:g}). The mapping is wrong for this checkpoint; please report its config.json."
            " If the difference is only rounding, raise parity_tolerance=.",
            argument="parity_tolerance",
        )
    return gap
