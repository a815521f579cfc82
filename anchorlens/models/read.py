"""Logits of rows of the final residual stream: final norm, unembedding and soft cap."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer

from anchorlens.models.blocks import is_norm
from anchorlens.models.devices import without_autocast

# Rows and columns of one product with the unembedding: small enough for a CPU's cache, large enough for a GPU.
READ_SLICE = {"cpu": (256, 4096), "cuda": (4096, 16384), "mps": (1024, 8192)}
F = TypeVar("F", bound=Callable[..., Any])


def _without_autocast(method: F) -> F:
    @wraps(method)
    def exact(self: "Read", *args: object, **named: object) -> object:
        with without_autocast(self.device):
            return method(self, *args, **named)

    return cast(F, exact)


class Read:
    """Final norm and unembedding of a model, in float32 or float64 for models of any dtype, without autocast."""

    def __init__(self, model: HookedTransformer) -> None:
        self._model = model

    @property
    def device(self) -> torch.device:
        """Device of the unembedding, to which streams are moved."""
        return self._model.unembed.W_U.device

    @_without_autocast
    def logits(self, stream: Float[Tensor, "row d_model"], tokens: Sequence[int] | None = None) -> Float[Tensor, "row d_vocab"]:
        """Compute the logits of rows: in float64 for ``tokens``; if None, of the whole vocabulary."""
        unembed, x = self._model.unembed, self._apply_final_norm(stream)
        if tokens is None:
            if unembed.W_U.dtype == x.dtype:
                return self._apply_soft_cap(_unembed(x, unembed.W_U, unembed.b_U))
            # In slices, so that only a part of the unembedding is converted to float32 at once.
            columns = READ_SLICE.get(x.device.type, READ_SLICE["cpu"])[1]
            parts = zip(unembed.W_U.split(columns, 1), unembed.b_U.split(columns), strict=True)
            return self._apply_soft_cap(torch.cat([_unembed(x, weight, bias) for weight, bias in parts], -1))
        return self._apply_soft_cap(_unembed(x.to(_wide(x)), unembed.W_U[:, list(tokens)], unembed.b_U[list(tokens)]))

    @_without_autocast
    def scores(
        self, stream: Float[Tensor, "row d_model"], tokens: Int[Tensor, "row token"]
    ) -> tuple[Float[Tensor, "row token"], Float[Tensor, "row"]]:
        """Compute the logits of ``tokens`` in each row, and the logsumexp over the whole vocabulary.

        Both are float64 (float32 on Apple's GPUs). A float32 product over d_model has an error of 3e-6, which would dominate that of
        P. ``tokens`` and the largest logit of each vocabulary slice are therefore computed in float64.
        """
        unembed, x = self._model.unembed, self._apply_final_norm(stream)
        tokens = tokens.to(x.device)
        rows, columns = READ_SLICE.get(x.device.type, READ_SLICE["cpu"])
        parts = x.split(rows)
        picked = torch.cat([self._of_tokens(part, t) for part, t in zip(parts, tokens.split(rows), strict=True)])
        totals = [part.new_full((len(part),), -torch.inf, dtype=_wide(part)) for part in parts]
        for start in range(0, unembed.W_U.shape[1], columns):
            some = slice(start, start + columns)
            # Padding tokens may have a bias of minus infinity.
            weight, bias = unembed.W_U[:, some].to(x.dtype), unembed.b_U[some].clamp(min=torch.finfo(unembed.b_U.dtype).min)
            for i, part in enumerate(parts):
                logits = self._apply_soft_cap(_unembed(part, weight, bias))
                top, at = logits.max(-1)
                others = (logits - top[:, None]).exp_().sum(-1) - 1.0
                exact = self._of_tokens(part, start + at[:, None])[:, 0]
                whole = top + torch.log(others.clamp(min=0.0) + (exact - top).exp())
                totals[i] = torch.logaddexp(totals[i], whole)
        return picked, torch.cat(totals)

    def _of_tokens(self, x: Float[Tensor, "row d_model"], tokens: Int[Tensor, "row token"]) -> Float[Tensor, "row token"]:
        unembed, x = self._model.unembed, x.to(_wide(x))
        logits = einsum(x, unembed.W_U.T[tokens].to(x.dtype), "row d_model, row token d_model -> row token")
        return self._apply_soft_cap(logits + unembed.b_U[tokens].to(x.dtype))

    def _apply_final_norm(self, stream: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """Apply the final norm in float32."""
        cfg = self._model.cfg
        x, kind = stream.to(self.device).to(torch.float32), cfg.normalization_type
        if kind is None:  # there is no ln_final
            return x
        norm = self._model.ln_final
        if not is_norm(norm):
            return norm(x.to(cfg.dtype)[None])[0].to(torch.float32)
        centred = kind.startswith("LN") and not cfg.final_rms
        if centred:
            x = x - x.mean(-1, keepdim=True)
        x = x / (x.pow(2).mean(-1, keepdim=True) + cfg.eps).sqrt()
        if kind.endswith("Pre"):
            return x
        x = x * norm.get_parameter("w").to(torch.float32)
        return x + norm.get_parameter("b").to(torch.float32) if centred else x

    def _apply_soft_cap(self, logits: Float[Tensor, "row token"]) -> Float[Tensor, "row token"]:
        cap = self._model.cfg.output_logits_soft_cap
        return cap * torch.tanh(logits / cap) if cap is not None and cap > 0 else logits


def _unembed(
    x: Float[Tensor, "row d_model"], weight: Float[Tensor, "d_model token"], bias: Float[Tensor, "token"]
) -> Float[Tensor, "row token"]:
    logits = einsum(x, weight.to(x.dtype), "row d_model, d_model token -> row token")
    return logits + bias.to(x.dtype)


def _wide(x: Float[Tensor, "..."]) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64
