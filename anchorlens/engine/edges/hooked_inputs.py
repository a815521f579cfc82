"""Queries, keys and values of changed streams in every layer, by one forward pass with hooks.

In each layer the stream before the block is replaced by that of the unchanged run plus a change. So
a layer's queries, keys and values read the change, and nothing that they cause reaches the next
layer. All norms are the model's own.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.engine.hooked_passes import last_stream
from anchorlens.engine.patches import TokenBatch, by_head
from anchorlens.models.adapter import Adapter, Hook

# Tokens beyond which changes run one after the other.
_TOGETHER = 4096


class HookedInputs:
    """Queries, keys or values of a run, and of the same run with changed streams.

    Args:
        adapter: The model.
        tokens: Token ids of the run.
        component: ``q``, ``k`` or ``v``.
        layers: Layers that are read.

    Attributes:
        own: Layer -> queries, keys or values of the unchanged run, as the model's hooks see them.
    """

    @torch.no_grad()
    def __init__(
        self,
        adapter: Adapter,
        tokens: Int[Tensor, "batch pos"],
        component: str,
        layers: Sequence[int],
    ) -> None:
        self._adapter = adapter
        self._tokens = tokens.to(adapter.device)
        self._component = component
        self._streams: dict[int, Float[Tensor, "batch pos d_model"]] = {}
        self.own: dict[int, Float[Tensor, "batch pos head d_head"]] = {}

        def keep(value: Tensor, hook: Any, layer: int, is_stream: bool) -> Tensor:  # noqa: ARG001
            kept = value if is_stream else by_head(value, component)
            (self._streams if is_stream else self.own)[layer] = kept.to(adapter.device, copy=True)
            return value

        hooks: list[Any] = []
        for layer in layers:
            for site in ("resid_pre", component):
                read = partial(keep, layer=layer, is_stream=site == "resid_pre")
                hooks.append((adapter.hook_name(site, layer), read))
        # With left padding the model's own call makes another mask than adapter.forward.
        adapter.model.run_with_hooks(self._tokens, fwd_hooks=hooks)

    @torch.no_grad()
    def with_changes(
        self, changes: Float[Tensor, "change batch pos d_model"], layers: Sequence[int]
    ) -> dict[int, Float[Tensor, "change batch pos head d_head"]]:
        """Return queries, keys or values of changed streams, by layer.

        Where a change is 0 they have the bits of the unchanged run.

        Args:
            changes: Changes of the stream, in float32.
            layers: Layers that are changed and read, of those given when the object was made.
        """
        changes = changes.to(self._adapter.device)
        found: dict[int, list[Tensor]] = {layer: [] for layer in layers}
        for some in changes.split(max(1, _TOGETHER // self._tokens.numel())):
            for layer, values in self._read(some, layers).items():
                found[layer].append(values)
        is_changed = rearrange(changes != 0, "change batch pos d -> change batch pos 1 d").any(
            -1, keepdim=True
        )
        out: dict[int, Tensor] = {}
        for layer, parts in found.items():
            before = self.own[layer]
            out[layer] = torch.where(is_changed, torch.cat(parts), before)
        return out

    def _read(
        self, changes: Float[Tensor, "change batch pos d_model"], layers: Sequence[int]
    ) -> dict[int, Float[Tensor, "change batch pos head d_head"]]:
        """Return queries, keys or values of changed streams, from one forward pass."""
        adapter = self._adapter
        found: dict[int, Tensor] = {}

        def change(value: Tensor, hook: Any, layer: int) -> Tensor:  # noqa: ARG001
            changed = (self._streams[layer].float() + changes).to(value)
            return rearrange(changed, "change batch pos d_model -> (change batch) pos d_model")

        def read(value: Tensor, hook: Any, layer: int) -> Tensor:  # noqa: ARG001
            heads = by_head(value, self._component).to(adapter.device, copy=True)
            found[layer] = heads.unflatten(0, changes.shape[:2])
            return value

        hooks: list[Hook] = []
        for layer in layers:
            hooks.append((adapter.hook_name("resid_pre", layer), partial(change, layer=layer)))
            name = adapter.hook_name(self._component, layer)
            hooks.append((name, partial(read, layer=layer)))
        rows = repeat(self._tokens.cpu(), "batch pos -> (change batch) pos", change=len(changes))
        tokens = TokenBatch(rows, torch.ones_like(rows, dtype=torch.bool))
        last_stream(adapter, tokens, hooks)
        return found
