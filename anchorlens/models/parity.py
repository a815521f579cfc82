"""Is the HookedTransformer the model that Hugging Face runs? Measured at every load, on a few tokens.

The measure is the largest absolute difference of a log-probability over all positions and the whole vocabulary, against Hugging
Face's model with eager attention. Rotary tables are compared too: a wrong scaling hardly shows on a few tokens, but grows with
the position.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer
from transformers import PreTrainedModel

from anchorlens.errors import ParityError
from anchorlens.models.mapping import text_config
from anchorlens.models.placement import following, home
from anchorlens.models.positions import LAYERED_ROPE
from anchorlens.models.weights import language_model

# Largest allowed |Δ log-probability|, and largest allowed mean of it. In half precision two exact implementations differ by as
# much at single improbable tokens (measured on small random models: bfloat16 up to 0.96, float16 up to 0.095), so the mean,
# which noise hardly moves and a wrong mapping does, is bounded as well.
TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.25, torch.bfloat16: 2.0}
MEAN_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
ROTARY_TOLERANCE = 0.02
LENGTH = 24
# Beyond a sliding window this small the check goes by itself; real windows of thousands would cost too much at every load.
LONGEST_WINDOW = 128


def parity_tokens(model: PreTrainedModel) -> Int[Tensor, "example pos"]:
    """A fixed pseudo-random row of ids that starts with BOS (if there is one) and reaches past a window of up to 128."""
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
    """The model in evaluation mode with eager attention and experts; put back as it was afterwards."""
    training, attention = model.training, model.config._attn_implementation or "eager"
    experts = getattr(model.config, "_experts_implementation", None) or "eager"
    model.eval()
    if attention != "eager":
        model.set_attn_implementation("eager")
    if experts != "eager":
        model.set_experts_implementation("eager")
    try:
        yield
    finally:
        if attention != "eager":
            model.set_attn_implementation(attention)
        if experts != "eager":
            model.set_experts_implementation(experts)
        model.train(training)


def reference_log_probs(model: PreTrainedModel, tokens: Int[Tensor, "example pos"]) -> Float[Tensor, "example pos d_vocab"]:
    """Hugging Face's log-probabilities, in float32 on the CPU."""
    with torch.no_grad(), plain_forward(model):
        # Of a model whose weights come layer by layer, the embedding is there.
        embedding: Any = model.get_input_embeddings()
        logits = model(input_ids=tokens.to(embedding.weight.device), use_cache=False).logits
    return logits.to(device="cpu", dtype=torch.float32).log_softmax(-1)


def hooked_log_probs(model: HookedTransformer, tokens: Int[Tensor, "example pos"]) -> Float[Tensor, "example pos d_vocab"]:
    """The HookedTransformer's log-probabilities, in float32 on the CPU."""
    with torch.no_grad(), following(model):
        logits = model(tokens.to(home(model.cfg, "embed")), return_type="logits")
    return logits.to(device="cpu", dtype=torch.float32).log_softmax(-1)


def rotary_tables(model: PreTrainedModel, length: int) -> dict[str, Float[Tensor, "pos rotary"]]:
    """Hugging Face's rotary cosines per attention type (``global``, ``local``), float32 on the CPU; empty without rotary."""
    rotary: Any = getattr(language_model(model), "rotary_emb", None)
    if rotary is None:
        return {}
    device = next(rotary.buffers()).device
    positions = torch.arange(length, device=device)[None]
    like = torch.zeros(1, device=device, dtype=torch.float32)
    config = text_config(model.config)
    if config.model_type in LAYERED_ROPE:
        types = {"global": "full_attention", "local": "sliding_attention"}
        return {
            ours: rotary(like, positions, theirs)[0][0].cpu() for ours, theirs in types.items() if theirs in config.layer_types
        }
    cosines = rotary(like, positions)[0][0].cpu()
    return {"global": cosines, "local": cosines}


def check_rotary(model: HookedTransformer, tables: dict[str, Float[Tensor, "pos rotary"]], name: str) -> None:
    """Compare the rotary tables, also at positions that the few tokens do not reach.

    Raises:
        ParityError: They differ.
    """
    for index, block in enumerate(model.blocks):
        kind = str(block.attn.attn_type)
        if kind not in tables:
            continue
        ours = block.attn.rotary_cos.to(device="cpu", dtype=torch.float32)
        # gpt-oss's table is half as wide: each angle stands there once, not twice.
        length, width = min(len(ours), len(tables[kind])), tables[kind].shape[1]
        gap = float((ours[:length, :width] - tables[kind][:length]).abs().max())
        if not gap < ROTARY_TOLERANCE:
            raise ParityError(
                f"{name}: rotary positions of layer {index} ({kind}) differ from Hugging Face's by {gap:.2g}. The mapping of its "
                "rope is wrong for this model; please report its config.json."
            )


def check_log_probs(
    ours: Float[Tensor, "example pos d_vocab"],
    theirs: Float[Tensor, "example pos d_vocab"],
    dtype: torch.dtype,
    name: str,
    tolerance: float | None = None,
) -> float:
    """The largest difference of a log-probability, if it is small enough.

    Args:
        ours: Of the HookedTransformer.
        theirs: Of Hugging Face's model.
        dtype: The parameters' type, which sets the bound.
        name: The model, for the message.
        tolerance: Another bound.

    Returns:
        max |Δ log-probability|, in nats.

    Raises:
        ParityError: It exceeds the bound, is not a number, or the vocabularies differ in size.
    """
    if ours.shape != theirs.shape:
        raise ParityError(f"{name}: logits of shape {tuple(ours.shape)}, Hugging Face's have {tuple(theirs.shape)}.")
    bound = TOLERANCE[dtype] if tolerance is None else tolerance
    # Where both give -inf (padding rows of a vocabulary) they agree.
    gaps = torch.where(ours == theirs, torch.zeros_like(ours), (ours - theirs).abs())
    gap, mean = float(gaps.max()), float(gaps.mean())
    if not (gap < bound and (mean < MEAN_TOLERANCE[dtype] or tolerance is not None)):
        raise ParityError(
            f"{name}: the loaded model's log-probabilities differ from Hugging Face's by up to {gap:.3g}, by {mean:.2g} on "
            f"average (allowed in {str(dtype).removeprefix('torch.')}: {bound:g}). It is not the same model and is not returned: "
            "the mapping is wrong for this checkpoint; please report its config.json. (Where you know the difference to be "
            "rounding, as in a very deep model, raise parity_tolerance=.)"
        )
    return gap
