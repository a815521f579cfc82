"""From the last stream to logits: final norm, unembedding and soft cap of the rows where P is read."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.components.unembed import Unembed

from anchorlens.models.blocks import is_norm
from anchorlens.models.devices import without_autocast

# Rows and columns of the unembedding that go through at once where only their sum is wanted: small enough for a CPU's cache, large
# enough that a GPU is not kept waiting for launches.
READ_SLICE = {"cpu": (256, 4096), "cuda": (4096, 16384), "mps": (1024, 8192)}


Args = ParamSpec("Args")
Result = TypeVar("Result")


def _exact(method: "Callable[Concatenate[Read, Args], Result]") -> "Callable[Concatenate[Read, Args], Result]":
    """Without the caller's autocast."""

    @wraps(method)
    def exact(self: "Read", *args: Args.args, **named: Args.kwargs) -> Result:
        with without_autocast(self.device):
            return method(self, *args, **named)

    return exact


class Read:
    """What a model predicts where a row of the last stream stands, in float32 at least, whatever the model's type.

    Only the rows where P is read come here: unembedding every position would cost a fifth of a forward pass, and in bfloat16 the
    same row's P would move by 1e-2 with the size of the batch.

    Args:
        model: The model.
    """

    def __init__(self, model: HookedTransformer) -> None:
        self._model = model

    @property
    def device(self) -> torch.device:
        """Where streams have to be."""
        return self._model.unembed.W_U.device

    @_exact
    def logits(
        self, stream: Float[Tensor, "row d_model"], tokens: Sequence[int] | None = None
    ) -> Float[Tensor, "row d_vocab"]:
        """Logits of single rows; of a few tokens in float64.

        Args:
            stream: Rows that left the last block.
            tokens: Only the logits of these; all where it is left out.
        """
        unembed, x = self._model.unembed, self._normed(stream)
        if tokens is None:
            if unembed.W_U.dtype == x.dtype:
                return self._capped(_unembedded(x, unembed.W_U, unembed.b_U))
            # In slices, so that not all of it stands there in float32.
            columns = READ_SLICE.get(x.device.type, READ_SLICE["cpu"])[1]
            parts = zip(unembed.W_U.split(columns, 1), unembed.b_U.split(columns), strict=True)
            return self._capped(torch.cat([_unembedded(x, weight, bias) for weight, bias in parts], -1))
        return self._capped(_unembedded(x.to(_wide(x)), unembed.W_U[:, list(tokens)], unembed.b_U[list(tokens)]))

    @_exact
    def scores(
        self, stream: Float[Tensor, "row d_model"], tokens: Int[Tensor, "row token"]
    ) -> tuple[Float[Tensor, "row token"], Float[Tensor, "row"]]:
        """Logits of a few tokens of each row, and the logarithm of the sum over the whole vocabulary, as :meth:`logits` gives them.

        A float32 product over d_model is off by some 3e-6, more in large batches, which is most of what P is off by. So the
        tokens that matter are taken again in float64: those that are asked for, and the largest of each slice of the vocabulary.
        In slices, because then no [row d_vocab] table is ever held; slices of the vocabulary outside, so that half-precision weights
        become float32 once. Both are float64 (float32 on Apple's GPUs).
        """
        unembed, x = self._model.unembed, self._normed(stream)
        tokens = tokens.to(x.device)
        rows, columns = READ_SLICE.get(x.device.type, READ_SLICE["cpu"])
        parts = x.split(rows)
        picked = torch.cat([self._of_tokens(part, t) for part, t in zip(parts, tokens.split(rows), strict=True)])
        totals = [part.new_full((len(part),), -torch.inf, dtype=_wide(part)) for part in parts]
        for start in range(0, unembed.W_U.shape[1], columns):
            some = slice(start, start + columns)
            # Padding may have a bias of minus infinity, and a slice of padding alone no largest logit.
            weight, bias = unembed.W_U[:, some].to(x.dtype), unembed.b_U[some].clamp(min=torch.finfo(unembed.b_U.dtype).min)
            for i, part in enumerate(parts):
                logits = self._capped(_unembedded(part, weight, bias))
                top, at = logits.max(-1)
                others = (logits - top[:, None]).exp_().sum(-1) - 1.0
                exact = self._of_tokens(part, start + at[:, None])[:, 0]
                whole = top + torch.log(others.clamp(min=0.0) + (exact - top).exp())
                totals[i] = torch.logaddexp(totals[i], whole)
        return picked, torch.cat(totals)

    def _of_tokens(self, x: Float[Tensor, "row d_model"], tokens: Int[Tensor, "row token"]) -> Float[Tensor, "row token"]:
        """Logits of each row's own tokens."""
        return self._capped(_of_tokens(x.to(_wide(x)), self._model.unembed, tokens))

    def _normed(self, stream: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """The final norm, in float32."""
        model, cfg = self._model, self._model.cfg
        x = stream.to(self.device).to(torch.float32)
        kind = cfg.normalization_type
        if kind is not None and not is_norm(model.ln_final):
            return model.ln_final(x.to(cfg.dtype)[None])[0].to(torch.float32)
        if kind is not None:
            centred = kind.startswith("LN") and not cfg.final_rms
            if centred:
                x = x - x.mean(-1, keepdim=True)
            x = x / (x.pow(2).mean(-1, keepdim=True) + cfg.eps).sqrt()
            if not kind.endswith("Pre"):
                x = x * _parameter(model.ln_final, "w")
                x = x + _parameter(model.ln_final, "b") if centred else x
        return x

    def _capped(self, logits: Float[Tensor, "row token"]) -> Float[Tensor, "row token"]:
        cap = self._model.cfg.output_logits_soft_cap
        return cap * torch.tanh(logits / cap) if cap is not None and cap > 0 else logits


def _unembedded(
    x: Float[Tensor, "row d_model"], weight: Float[Tensor, "d_model token"], bias: Float[Tensor, "token"]
) -> Float[Tensor, "row token"]:
    logits = einsum(x, weight.to(x.dtype), "row d_model, d_model token -> row token")
    return logits + bias.to(x.dtype)


def _of_tokens(
    x: Float[Tensor, "row d_model"], unembed: Unembed, tokens: Int[Tensor, "row token"]
) -> Float[Tensor, "row token"]:
    weight = unembed.W_U.T[tokens].to(x.dtype)
    return einsum(x, weight, "row d_model, row token d_model -> row token") + unembed.b_U[tokens].to(x.dtype)


def _wide(x: Float[Tensor, "..."]) -> torch.dtype:
    """The most exact type of a device."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def _parameter(norm: torch.nn.Module, name: str) -> Float[Tensor, "d_model"]:
    return norm.get_parameter(name).to(torch.float32)


__all__ = ["READ_SLICE", "Read"]
