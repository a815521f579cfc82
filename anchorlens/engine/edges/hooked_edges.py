"""The reference for edges: TransformerLens hooks and full forward passes, one edge at a time.

The change is added where the sender writes to the stream. On the way to the receiver, the outputs
of attention (and of MLPs, with ``direct``) are replaced by those of the target's own run, so that
the receiver reads the stream that METHOD 4b defines. Its output is then patched in a pass of its
own.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.edges.graph import ATTENTION_INPUTS, EMBED, HEAD, LOGITS, MLP, Edge, Node
from anchorlens.engine.hooked_passes import full_reader, last_stream
from anchorlens.engine.patches import by_head, pad_rows
from anchorlens.engine.readouts import Reader
from anchorlens.errors import HookError
from anchorlens.models.adapter import Adapter, Hook

Activation = Float[Tensor, "1 pos *width"]


class ReferenceEdges:
    """Effects of edges of one pair by hooks.

    Args:
        adapter: The model.
        prompts: Target and source.
        reader: Reader of the metric, of one row.
        metric: Name of the metric in the reader's results.
        between: ``direct`` or ``mlps``.
        downstream: ``flow`` or ``freeze``.
    """

    def __init__(
        self,
        adapter: Adapter,
        prompts: EdgePrompts,
        reader: Reader,
        *,
        metric: str,
        between: str = "direct",
        downstream: str = "flow",
    ) -> None:
        self.adapter = adapter
        self.prompts = prompts
        self.reader = full_reader(reader)
        self.metric = metric
        self.between = between
        self.downstream = downstream
        self._known_hooks: dict[str, bool] = {}
        self.top = adapter.hook_name("resid_post", adapter.n_layers - 1)

    @torch.no_grad()
    def before(self) -> float:
        """Return the metric of the target's run."""
        return self._value([])

    @torch.no_grad()
    def value(self, edge: Edge) -> float:
        """Return the metric with one edge changed."""
        write = (self._site_of(edge.sender), self._add(self._delta(edge.sender)))
        frozen = self._frozen_between(edge)
        if edge.receiver.kind == LOGITS:
            return self._value([write, *frozen])
        name = self._input_hook(edge.receiver)
        new = self._read(self.prompts.target, [name], [write, *frozen])[name]
        heads = self._heads_at(edge.receiver)
        patch = (name, partial(self._replace, new=new, heads=heads))
        if self.downstream == "flow":
            return self._value([patch])
        layer = edge.receiver.layer
        out = self.adapter.hook_name("mlp_out" if edge.receiver.kind == MLP else "attn_out", layer)
        # Hooks at one point run in order: the patch comes before what is read.
        after = self._read(self.prompts.target, [out], [patch])[out]
        own = self._read(self.prompts.target, [out], [])[out]
        return self._value([(self.top, self._add((after - own)[0].float(), every=True))])

    def _value(self, hooks: Sequence[Hook]) -> float:
        """Return the metric of the target's run with hooks."""
        stream = last_stream(self.adapter, pad_rows([self.prompts.target]), hooks)
        states = stream[0, self.reader.position.to(stream.device)]
        return float(self.reader.metrics(self.adapter, states).values[self.metric].flatten()[0])

    def _read(
        self, ids: tuple[int, ...], names: Sequence[str], hooks: Sequence[Hook]
    ) -> dict[str, Activation]:
        """Return activations of one forward pass, by hook."""
        seen: dict[str, Tensor] = {}

        def keep(value: Tensor, hook: Any, name: str) -> Tensor:  # noqa: ARG001
            seen[name] = value.clone()
            return value

        reads: list[Hook] = [(name, partial(keep, name=name)) for name in names]
        last_stream(self.adapter, pad_rows([ids]), [*hooks, *reads])
        return seen

    def _delta(self, sender: Node) -> Float[Tensor, "pos d_model"]:
        """Return the change of what a sender adds, at the exchanged positions."""
        prompts = self.prompts
        source = self._contribution(sender, prompts.source, prompts.by)
        target = self._contribution(sender, prompts.target, prompts.at)
        return source - target

    def _contribution(
        self, sender: Node, ids: tuple[int, ...], at: Sequence[int]
    ) -> Float[Tensor, "pos d_model"]:
        if sender.kind != HEAD:
            name = self._site_of(sender)
            return self._read(ids, [name], [])[name][0, list(at)].float()
        name = self.adapter.hook_name("z", sender.layer)
        z = self._read(ids, [name], [])[name][0, list(at)]
        with self.adapter.blocks().load(sender.layer) as block:
            return block.head_shares(z)[:, sender.head]

    def _site_of(self, sender: Node) -> str:
        """Return the hook at which a sender writes to the stream."""
        site = {EMBED: "resid_pre", HEAD: "attn_out", MLP: "mlp_out"}[sender.kind]
        return self.adapter.hook_name(site, sender.layer)

    def _add(self, delta: Float[Tensor, "pos d_model"], *, every: bool = False) -> Any:
        """Return a hook function that adds a change at the exchanged positions, or at every
        position.
        """

        def add(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
            out = value.clone()
            at = slice(None) if every else list(self.prompts.at)
            out[0, at] = (value[0, at].float() + delta.to(value.device)).to(value.dtype)
            return out

        return add

    def _heads_at(self, receiver: Node) -> slice | None:
        """Return the heads of a receiver at its hook; None for all of it.

        With ``ungroup_grouped_query_attention`` a key or value head is there once for each query
        head of its group.
        """
        if receiver.head < 0:
            return None
        shape = self.adapter.shape
        n_copies = 1
        if receiver.kind in ("k", "v"):
            n_copies = self.adapter.n_heads(receiver.kind) // shape.n_kv_heads
        return slice(receiver.head * n_copies, (receiver.head + 1) * n_copies)

    def _replace(
        self,
        value: Tensor,
        hook: Any,  # noqa: ARG002
        new: Activation,
        heads: slice | None = None,
    ) -> Tensor:
        """Replace an activation, or some heads of it."""
        if heads is None:
            return new
        out = value.clone()
        by_head(out, "z")[:, :, heads] = by_head(new, "z")[:, :, heads]
        return out

    def _frozen_between(self, edge: Edge) -> list[Hook]:
        """Return hooks that keep the target's own activations between sender and receiver."""
        sender, receiver, _ = edge
        # A block's attention runs before its MLP; in parallel blocks both read the same stream.
        with self.adapter.blocks().load(0) as block:
            parallel = block.parallel
        first = 0 if sender.kind == EMBED else sender.layer + 1
        attention = range(first, receiver.layer)
        after_own = sender.kind == HEAD and not parallel
        mlps = range(sender.layer if after_own else first, receiver.layer)
        if receiver.kind == MLP and not parallel:
            attention = range(first, receiver.layer + 1)
        names = [self.adapter.hook_name("attn_out", layer) for layer in attention]
        if self.between == "direct" and "mlp_out" in self.adapter.sites:
            names += [self.adapter.hook_name("mlp_out", layer) for layer in mlps]
        own = self._read(self.prompts.target, names, [])
        return [(name, partial(self._replace, new=own[name])) for name in names]

    def _input_hook(self, receiver: Node) -> str:
        """Return the hook of what a receiver computes from its input: normed and rotated queries or
        keys, values, or what the MLP adds.
        """
        kind, layer = receiver.kind, receiver.layer
        if kind not in ATTENTION_INPUTS:
            return self.adapter.hook_name("mlp_out", layer)
        rotated = self.adapter.attention_hook(layer, f"rot_{kind}")
        if kind != "v" and self._fires(rotated):
            return rotated
        return self.adapter.hook_name(kind, layer)

    def _fires(self, name: str) -> bool:
        """Return whether a hook fires; some bridges have hooks of rotation that do not."""
        if name not in self._known_hooks:
            self._known_hooks[name] = name in self.adapter.model.hook_dict
            if self._known_hooks[name]:
                try:
                    _ = self._read(self.prompts.target, [name], [])
                except HookError:
                    self._known_hooks[name] = False
        return self._known_hooks[name]
