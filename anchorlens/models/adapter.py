"""Adapter of a HookedTransformer for the engines: sizes, sites, and forward passes with hooks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
from transformer_lens.hook_points import HookPoint

from anchorlens.errors import InputError, did_you_mean
from anchorlens.fingerprint import call_user_function, callable_name
from anchorlens.models.devices import without_autocast
from anchorlens.models.placement import block_devices, devices_of, inputs_follow_blocks
from anchorlens.models.read import Read
from anchorlens.models.shape import Shape
from anchorlens.typing import Stream

_SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
SITES = {name: f"blocks.{{layer}}.hook_{name}" for name in _SITES}

# Name of a hook point, and the function that is applied to its value.
Hook: TypeAlias = tuple[str, Callable[[Tensor, HookPoint], Tensor]]

# A named site, or a function from a layer to the name of a hook that carries [example pos d_model].
SiteLike: TypeAlias = "str | Callable[[int], str]"
ReadSite: TypeAlias = tuple[SiteLike, int]
"""Site and layer of the states that are read."""


def site_name(site: SiteLike) -> str:
    """Return the name of a site in outputs; raise InputError if it is neither a string nor a function."""
    if isinstance(site, str) or callable(site):
        return site if isinstance(site, str) else callable_name(site)
    raise InputError(f"site={site!r}: not a site. Give one of {', '.join(SITES)}, or layer -> hook name.", argument="site")


class Adapter:
    """Wrapper of a HookedTransformer with the operations that the engines use."""

    def __init__(self, model: HookedTransformer) -> None:
        if not isinstance(model, HookedTransformer):
            raise InputError(
                f"model: an object of type {type(model).__name__}, not a HookedTransformer. Load it with al.load_model(...).",
                argument="model",
            )
        self.model, self.shape, self.read = model, Shape.of(model), Read(model)
        self.n_layers, self.d_model = self.shape.n_layers, self.shape.d_model
        self.device, self.devices = model.embed.W_E.device, devices_of(model)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that every block of the model has (parallel blocks have no ``resid_mid``)."""
        hooks = self.model.hook_dict
        # Blocks without an MLP have the hook of its output, but it never fires.
        sites = {name: hook for name, hook in SITES.items() if name != "mlp_out" or self.shape.d_mlp}
        return tuple(name for name, hook in sites.items() if all(hook.format(layer=i) in hooks for i in range(self.n_layers)))

    def hook_name(self, site: SiteLike, layer: int) -> str:
        """Return the name of the hook that carries ``site`` of a layer, [example pos d_model]; raise InputError if there is none."""
        if isinstance(site, str):
            if site not in self.sites:
                hint = "" if site in SITES else " " + did_you_mean(site, SITES)
                raise InputError(f"site={site!r}: not in this model. Known: {', '.join(self.sites)}.{hint}", argument="site")
            return SITES[site].format(layer=layer)
        site_name(site)
        name = call_user_function("site", site, layer=layer)
        if not isinstance(name, str) or name not in self.model.hook_dict:
            raise InputError(
                f"site: returned the hook name {name!r}, which this model does not have. "
                "Return the name of a hook that carries [example pos d_model], such as f'blocks.{layer}.hook_resid_pre'.",
                argument="site",
            )
        return name

    @torch.no_grad()
    def embed(self, ids: Int[Tensor, "token"], positions: Int[Tensor, "token"]) -> Float[Tensor, "token d_model"]:
        """Compute the residual stream before block 0."""
        x = self.model.embed(ids[None])[0]
        return x + self.model.pos_embed.W_pos[positions] if self.model.cfg.positional_embedding_type == "standard" else x

    @torch.no_grad()
    def forward(
        self,
        ids: Int[Tensor, "example pos"],
        mask: Int[Tensor, "example pos"],
        hooks: Sequence[Hook] = (),
        cache: TransformerLensKeyValueCache | None = None,
    ) -> Stream:
        """Run TransformerLens's forward pass over all blocks and return the final residual stream.

        The call extends ``cache``. It uses ``no_grad``, not ``inference_mode``: TransformerLens may store a longer rotary table in
        the model, and an inference tensor could not be used with gradients later.
        """
        with _disable_ungrouping(self.model) if cache is not None else nullcontext(), inputs_follow_blocks(self.model):
            return self.model.run_with_hooks(
                ids,
                fwd_hooks=list(hooks),
                stop_at_layer=self.n_layers,
                past_kv_cache=cache,
                attention_mask=mask,
                prepend_bos=False,
                padding_side="right",
            )

    def empty_cache(self) -> TransformerLensKeyValueCache:
        """Make an empty key-value cache for one row, for :meth:`forward`."""
        cache = TransformerLensKeyValueCache.init_cache(self.model.cfg, self.device, 1)
        for entry, device in zip(cache.entries, block_devices(self.model), strict=True):
            entry.past_keys, entry.past_values = entry.past_keys.to(device), entry.past_values.to(device)
        return cache

    @torch.no_grad()
    def whole(self, ids: Int[Tensor, "pos"]) -> tuple[Float[Tensor, "pos d_model"], Float[Tensor, "pos d_vocab"]]:
        """Run TransformerLens's forward pass over one row and return its final residual stream and logits."""
        stream = self.forward(ids[None], torch.ones_like(ids[None]))
        last = stream.to(self.read.device)
        with without_autocast(last.device):
            logits = self.model(last, start_at_layer=self.n_layers, prepend_bos=False, padding_side="right")
        assert isinstance(logits, Tensor)
        return stream[0], logits[0]


@contextmanager
def _disable_ungrouping(model: HookedTransformer) -> Iterator[None]:
    """Switch ``ungroup_grouped_query_attention`` off, which TransformerLens's cache does not support."""
    cfg = model.cfg
    before, cfg.ungroup_grouped_query_attention = cfg.ungroup_grouped_query_attention, False
    try:
        yield
    finally:
        cfg.ungroup_grouped_query_attention = before
