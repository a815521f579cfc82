"""Checks of the hooks: each fires once, and a write changes what it must and nothing else.

A *write* adds a random vector to one position of one site in one layer. The batch has the same row
once unchanged and once for each layer, so that one pass tests a site in every layer. Everything is
compared with the unchanged row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.constants import SITE_ORDER
from anchorlens.diagnosis.case import SHORT, Case, count_faults, not_applicable
from anchorlens.diagnosis.model_check import ModelCheck
from anchorlens.engine.patches import TokenBatch, pad_rows
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter, Hook

ATTENTION = ("attn_scores", "pattern")
# Differences up to this share of a position's largest entry are rounding.
_QUIET = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 0.03, torch.bfloat16: 0.2}
_POSITION = 3


def check_hooks(case: Case) -> ModelCheck:
    """Check that the hooks of all sites, attention scores and patterns fire exactly once in a
    forward pass.
    """
    adapter = case.adapter
    layers = range(adapter.n_layers)
    names: list[str] = []
    for site in adapter.sites:
        names += [adapter.hook_name(site, layer) for layer in layers]
    for name in _attention(adapter):
        names += [adapter.attention_hook(layer, name) for layer in layers]
    fired = dict.fromkeys(names, 0)

    def counter(name: str) -> Hook:
        def count(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
            fired[name] += 1
            return value

        return name, count

    tokens = case.batch.to(adapter.device)
    adapter.forward(tokens.ids, tokens.mask.long(), [counter(name) for name in names])
    faults = [f"{name} fires {n} times" for name, n in fired.items() if n != 1]
    reason = attention_reason(adapter)
    return count_faults(faults, f"{len(names)} hooks" + (f"; {reason}" if reason else ""))


def attention_reason(adapter: Adapter) -> str:
    """Return the reason why hooks cannot change attention scores; empty if they can."""
    try:
        for layer in range(adapter.n_layers):
            adapter.attention_hook(layer, ATTENTION[0])
    except InputError as error:
        return str(error).removeprefix("model: ")
    return ""


def _attention(adapter: Adapter) -> tuple[str, ...]:
    return () if attention_reason(adapter) else ATTENTION


@dataclass
class _Writes:
    """Differences of each written row from the unchanged row, and the hooks that collect them."""

    adapter: Adapter
    tokens: TokenBatch
    moved: dict[tuple[str, int], Float[Tensor, "written pos"]] = field(default_factory=dict)

    def read(self, site: str, layer: int) -> Hook:
        def keep(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
            self.moved[site, layer] = _difference(value)
            return value

        return self.adapter.hook_name(site, layer), keep

    def run(self, writes: Sequence[Hook]) -> None:
        reads: list[Hook] = []
        for site in self.adapter.sites:
            reads += [self.read(site, layer) for layer in range(self.adapter.n_layers)]
        on = self.tokens.to(self.adapter.device)
        stream = self.adapter.forward(on.ids, on.mask.long(), [*writes, *reads])
        self.moved["final", self.adapter.n_layers] = _difference(stream)


def _difference(value: Float[Tensor, "row pos d_model"]) -> Float[Tensor, "written pos"]:
    """Return the largest difference of each later row from the first at each position, relative to
    that position's largest entry.
    """
    value = value.detach().float()
    largest = value[:1].abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny)
    return ((value[1:] - value[:1]).abs().amax(-1) / largest).nan_to_num(torch.inf).cpu()


def check_hook_writes(case: Case) -> ModelCheck:
    """Write to every site in every layer, and to attention scores and patterns."""
    adapter = case.adapter
    faults: list[str] = []
    row = case.draw_rows("rows", (SHORT,))[0]
    tokens = pad_rows([row] * (adapter.n_layers + 1))
    p = min(_POSITION, len(row) - 2)
    scale: dict[int, float] = {}
    generator = torch.Generator().manual_seed(case.seed)
    noise = torch.randn(adapter.d_model, generator=generator)

    def measure(layer: int) -> Hook:
        def keep(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
            scale[layer] = float(value[0, p].float().pow(2).mean().sqrt())
            return value

        return adapter.hook_name("resid_post", layer), keep

    def write(site: str, layer: int, wrong: dict[int, float]) -> list[Hook]:
        wanted: list[Tensor] = []

        def change(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
            out = value.clone()
            out[layer + 1, p] += (scale[layer] * noise).to(value.device, value.dtype)
            wanted.append(out[layer + 1, p].clone())
            return out

        def check(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
            wrong[layer] = float((value[layer + 1, p] - wanted[0]).abs().max())
            return value

        name = adapter.hook_name(site, layer)
        return [(name, change), (name, check)]

    layers = range(adapter.n_layers)
    clean = _Writes(adapter, tokens)
    clean.run([measure(layer) for layer in layers])
    quiet = _QUIET[case.dtype]
    for site in adapter.sites:
        result = _Writes(adapter, tokens)
        wrong: dict[int, float] = {}
        hooks: list[Hook] = []
        for layer in layers:
            hooks += write(site, layer, wrong)
        result.run(hooks)
        for layer, off in wrong.items():
            if off:
                faults.append(f"{site} of layer {layer}: the value read is not the one written")
        faults += _find_faults(result, site, p, quiet)
    for name in _attention(adapter):
        result = _Writes(adapter, tokens)
        result.run([_isolate(adapter, name, layer, p) for layer in layers])
        faults += _find_faults(result, name, p, quiet)
    sites = (*adapter.sites, *_attention(adapter))
    n = len(sites) * adapter.n_layers
    return count_faults(faults, f"{n} writes: sites {', '.join(sites)}")


def _isolate(adapter: Adapter, name: str, layer: int, query: int) -> Hook:
    """Cut all edges to one query, except from itself."""

    def cut(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        out = value.clone()
        out[layer + 1, :, query, :query] = -torch.inf if name == "attn_scores" else 0.0
        return out

    return adapter.attention_hook(layer, name), cut


def _find_faults(result: _Writes, site: str, p: int, quiet: float) -> list[str]:
    """Return the rules that writes to ``site`` at position ``p`` break, at most one per layer."""
    faults = [_fault(result, site, layer, p, quiet) for layer in range(result.adapter.n_layers)]
    return [fault for fault in faults if fault]


def _fault(result: _Writes, site: str, layer: int, p: int, quiet: float) -> str:
    """Return the first rule that a write to ``site`` of ``layer`` at position ``p`` breaks; empty
    if none.
    """
    adapter = result.adapter
    own = _order_of(site)
    is_attention = site in ATTENTION
    others = torch.arange(len(next(iter(result.moved.values()))[0])) != p
    for (read, k), moved in result.moved.items():
        row = moved[layer]
        what = f"{site} of layer {layer}: "
        where = f"{read} of layer {k}" if read != "final" else "the final residual stream"
        order = _order_of(read)
        # In parallel blocks (without resid_mid) the MLP does not read the output of attention.
        comes_before = order <= own if is_attention else order < own
        is_earlier = k < layer or (k == layer and comes_before)
        if is_earlier and bool((row > quiet).any()):
            return f"{what}changes {where}, which is computed before"
        changes_earlier_position = bool((row[:p] > quiet).any())
        if changes_earlier_position:
            earlier = int((row[:p] > quiet).nonzero()[0])
            return f"{what}at position {p} changes position {earlier} of {where}"
        # Only attention of this block could carry a change of resid_pre to another position.
        stays_at_position = is_attention or site != "resid_pre" or read == site
        is_in_layer = k == layer and not is_earlier
        if is_in_layer and stays_at_position and bool((row[others] > quiet).any()):
            other = int((row * others > quiet).nonzero()[0])
            return f"{what}at position {p} changes position {other} of {where}"
        carries_change = read in ("resid_pre", "resid_post", "final") and not is_earlier
        must_change = carries_change or (read, k) == (site, layer)
        if must_change and not bool(row[p] > quiet):
            return f"{what}does not change position {p} of {where}"
    attends = layer < adapter.n_layers - 1 or site == "resid_pre"
    last = result.moved["final", adapter.n_layers][layer]
    if attends and not bool((last[p + 1 :] > 0).any()):
        return f"{site} of layer {layer}: does not change any later position"
    return ""


def _order_of(site: str) -> int:
    """Return the number of a site in the order of a block; attention is between ``resid_pre`` and
    ``attn_out``, and the final stream before none.
    """
    return SITE_ORDER.index(site) if site in SITE_ORDER else 0


def check_heads(case: Case) -> ModelCheck:
    """Zero the pattern of single query heads, and double single value heads, and check which heads'
    outputs change.
    """
    adapter = case.adapter
    shape = case.adapter.shape
    faults: list[str] = []
    reason = attention_reason(adapter)
    if reason:
        return not_applicable(reason)
    row = case.draw_rows("rows", (SHORT,))[0]
    layers = sorted({0, adapter.n_layers // 2, adapter.n_layers - 1})
    hooks = adapter.model.hook_dict
    names = {name: adapter.attention_hook(0, name) for name in ("z", "v")}
    if missing := [name for name in names.values() if name not in hooks]:
        return not_applicable(f"the model has no {missing[0]}")
    for layer in layers:
        for name, n in (("pattern", shape.n_heads), ("v", shape.n_kv_heads)):
            moved = _head_changes(adapter, row, layer, name, n)
            group = shape.n_heads // n
            expected = torch.arange(shape.n_heads)[None] // group == torch.arange(n)[:, None]
            wrong = (moved > _QUIET[case.dtype]) != expected
            kind = "query head" if name == "pattern" else "value head"
            for i in wrong.any(1).nonzero()[:, 0].tolist():
                changed = (moved[i] > _QUIET[case.dtype]).nonzero()[:, 0].tolist()
                faults.append(f"layer {layer}, {kind} {i}: changes query heads {changed}")
    group = shape.n_heads // shape.n_kv_heads
    return count_faults(faults, f"layers {layers}: query head h reads key/value head h // {group}")


def _head_changes(
    adapter: Adapter, row: list[int], layer: int, name: str, n: int
) -> Float[Tensor, "changed head"]:
    """Return the relative change of each head's output when one of ``n`` heads is changed, one row
    each.
    """
    shape = adapter.shape
    moved: list[Tensor] = []

    def change(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        out = value.clone()
        heads = out
        if name != "pattern":
            heads = out.view(*out.shape[:2], n, shape.d_head).transpose(1, 2)
        for i in range(n):
            heads[i + 1, i] *= 0.0 if name == "pattern" else 2.0
        return out

    def keep(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        z = value.float().reshape(*value.shape[:2], shape.n_heads, -1)
        largest = z[:1].abs().amax((1, 3)).clamp(min=torch.finfo(torch.float32).tiny)
        moved.append(((z[1:] - z[:1]).abs().amax((1, 3)) / largest).cpu())
        return value

    tokens = pad_rows([row] * (n + 1)).to(adapter.device)
    hooks = [
        (adapter.attention_hook(layer, name), change),
        (adapter.attention_hook(layer, "z"), keep),
    ]
    adapter.forward(tokens.ids, tokens.mask.long(), hooks)
    return moved[0]
