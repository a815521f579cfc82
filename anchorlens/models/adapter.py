"""The few things the engine needs of a model. Everything else about it stays behind this seam."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.components.unembed import Unembed
from transformer_lens.hook_points import HookPoint

from anchorlens.callables import callable_name
from anchorlens.errors import InputError, did_you_mean

SITES = {
    "resid_pre": "blocks.{layer}.hook_resid_pre",
    "resid_mid": "blocks.{layer}.hook_resid_mid",
    "resid_post": "blocks.{layer}.hook_resid_post",
    "attn_out": "blocks.{layer}.hook_attn_out",
    "mlp_out": "blocks.{layer}.hook_mlp_out",
}

# Columns of the unembedding that go through at once where only their sum is wanted.
_VOCAB_SLICE = 4096
_READ_SLICE = 256

# A hook's name, and what it does with the value that passes there.
Hook: TypeAlias = tuple[str, Callable[[Tensor, HookPoint], Tensor]]

# A site of the user's own: layer -> name of a hook that carries [example pos d_model].
SiteLike: TypeAlias = "str | Callable[[int], str]"


def site_name(site: SiteLike) -> str:
    """The name of a site as outputs write it.

    Raises:
        InputError: It is neither a name nor a function.
    """
    if not isinstance(site, str) and not callable(site):
        raise _no_site(site)
    return site if isinstance(site, str) else callable_name(site)


def _no_site(site: object) -> InputError:
    names = ", ".join(repr(name) for name in SITES)
    return InputError(f"site={site!r} is no site: give one of {names}, or a function from a layer to a hook's name.")


class Adapter:
    """A HookedTransformer as the engine sees it.

    Attributes:
        model: The model itself.
        n_layers: L; layers are 0 .. L-1.
        d_model: Width of the residual stream.
        device: Where its embedding lies.
    """

    def __init__(self, model: HookedTransformer) -> None:
        if not isinstance(model, HookedTransformer):
            raise InputError(
                f"A HookedTransformer is needed here, not an object of type {type(model).__name__}: load it with al.load_model(...)."
            )
        self.model = model
        self.n_layers = int(model.cfg.n_layers)
        self.d_model = int(model.cfg.d_model)
        self.device = model.embed.W_E.device

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites that every block of this architecture has (parallel blocks have no ``resid_mid``)."""
        hooks = self.model.hook_dict
        return tuple(name for name, hook in SITES.items() if all(hook.format(layer=i) in hooks for i in range(self.n_layers)))

    def hook_name(self, site: SiteLike, layer: int) -> str:
        """The hook that carries ``site`` of one layer, [example pos d_model].

        Raises:
            InputError: It is no site, or this architecture lacks it.
        """
        if callable(site):
            name = site(layer)
        elif not isinstance(site, str):
            raise _no_site(site)
        elif site in self.sites:
            return SITES[site].format(layer=layer)
        else:
            has = ", ".join(self.sites)
            hint = "" if site in SITES else " " + did_you_mean(site, SITES)
            raise InputError(f"This model has no site {site!r}; it has {has}.{hint}")
        if not isinstance(name, str) or name not in self.model.hook_dict:
            raise InputError(
                f"Your site gave the hook name {name!r}, which this model does not have. "
                "Return the name of a hook that carries [example pos d_model], such as f'blocks.{layer}.hook_resid_pre'."
            )
        return name

    def logits(
        self, stream: Float[Tensor, "row d_model"], tokens: Sequence[int] | None = None
    ) -> Float[Tensor, "row d_vocab"]:
        """Final norm, unembedding and soft cap of single rows, in float32 whatever the model's dtype; of a few tokens in float64.

        Only the rows where P is read come here: unembedding every position would cost a fifth of a forward pass, and in bfloat16
        the same row's P would move by 1e-2 with the size of the batch.

        Args:
            stream: Rows that left the last block.
            tokens: Only the logits of these; all where it is left out.
        """
        unembed, x = self.model.unembed, self._normed(stream)
        if tokens is None:
            return self._capped(_unembedded(x, unembed.W_U, unembed.b_U))
        return self._capped(_unembedded(x.to(_wide(x)), unembed.W_U[:, list(tokens)], unembed.b_U[list(tokens)]))

    def scores(
        self, stream: Float[Tensor, "row d_model"], tokens: Int[Tensor, "row token"]
    ) -> tuple[Float[Tensor, "row token"], Float[Tensor, "row"]]:
        """Logits of a few tokens of each row, and the logarithm of the sum over the whole vocabulary, as :meth:`logits` gives them.

        A float32 product over d_model is off by some 3e-6, more in large batches, which is most of what P is off by. So the
        tokens that matter are taken again in float64: those that are asked for, and the largest of each slice of the vocabulary.
        In slices, and rows too, because then no [row d_vocab] table is ever held. Both are float64 (float32 on Apple's GPUs).
        """
        if len(stream) > _READ_SLICE:
            parts = [self.scores(x, t) for x, t in zip(stream.split(_READ_SLICE), tokens.split(_READ_SLICE), strict=True)]
            return torch.cat([picked for picked, _ in parts]), torch.cat([total for _, total in parts])
        unembed, x = self.model.unembed, self._normed(stream)
        wide = x.to(_wide(x))
        picked = self._capped(_of_tokens(wide, unembed, tokens))
        total = wide.new_full((len(x),), -torch.inf)
        for start in range(0, unembed.W_U.shape[1], _VOCAB_SLICE):
            part = slice(start, start + _VOCAB_SLICE)
            logits = self._capped(_unembedded(x, unembed.W_U[:, part], unembed.b_U[part]))
            top, at = logits.max(-1)
            others = (logits - top[:, None]).exp_().sum(-1) - 1.0
            exact = self._capped(_of_tokens(wide, unembed, start + at[:, None]))[:, 0]
            total = torch.logaddexp(total, top + torch.log(others.clamp(min=0.0) + (exact - top).exp()))
        return picked, total

    def _normed(self, stream: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """The final norm, in float32."""
        model, cfg = self.model, self.model.cfg
        x = stream.to(torch.float32)
        kind = cfg.normalization_type
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
        cap = self.model.cfg.output_logits_soft_cap
        return cap * torch.tanh(logits / cap) if cap is not None and cap > 0 else logits


def _unembedded(
    x: Float[Tensor, "row d_model"], weight: Float[Tensor, "d_model token"], bias: Float[Tensor, "token"]
) -> Float[Tensor, "row token"]:
    logits = einsum(x, weight.to(x.dtype), "row d_model, d_model token -> row token")
    return logits + bias.to(x.dtype)


def _of_tokens(
    x: Float[Tensor, "row d_model"], unembed: Unembed, tokens: Int[Tensor, "row token"]
) -> Float[Tensor, "row token"]:
    """Logits of each row's own tokens."""
    weight = unembed.W_U.T[tokens].to(x.dtype)
    return einsum(x, weight, "row d_model, row token d_model -> row token") + unembed.b_U[tokens].to(x.dtype)


def _wide(x: Float[Tensor, "..."]) -> torch.dtype:
    """The most exact type of a device."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def _parameter(norm: torch.nn.Module, name: str) -> Float[Tensor, "d_model"]:
    return norm.get_parameter(name).to(torch.float32)
