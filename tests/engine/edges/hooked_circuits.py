"""Circuits by hooks of TransformerLens, in one forward pass with separate inputs of heads."""

from collections.abc import Collection

import torch

from anchorlens.engine.edges.graph import Edge, Graph
from anchorlens.models.load import adapt


def circuit_logits(model, graph: Graph, kept, rows, edges: Collection[Edge], places=None):
    """Logits of the kept prompt, [pos d_vocab]: each receiver reads the running contributions of
    its edges, and the (mean) ablated contributions of all other senders. ``places``: positions of
    each place of the edges.
    """
    flags = ("use_split_qkv_input", "use_hook_mlp_in")
    before = {flag: getattr(model.cfg, flag) for flag in flags}
    for flag in flags:
        setattr(model.cfg, flag, True)
    try:
        ablated = [_contributions(model, graph, ids) for ids in rows]
        mean = {name: sum(one[name] for one in ablated) / len(ablated) for name in ablated[0]}
        everywhere = {"all": list(range(len(kept)))}
        return _run(model, graph, kept, mean, edges, places or everywhere)
    finally:
        for flag, value in before.items():
            setattr(model.cfg, flag, value)


def _shares(model, layer, z):
    with adapt(model).blocks().load(layer) as block:
        return block.head_shares(z)


def _contributions(model, graph, ids):
    """What each sender adds, and the streams that receivers read."""
    _, cache = model.run_with_cache(torch.tensor([ids]))
    out = {"embed": cache["blocks.0.hook_resid_pre"][0]}
    for layer in range(graph.n_layers):
        for head, share in enumerate(_shares(model, layer, cache["z", layer][0]).unbind(1)):
            out[f"a{layer}.h{head}"] = share
        if graph.has_mlps:
            out[f"m{layer}"] = cache["mlp_out", layer][0]
        out[f"read {layer}"] = cache["resid_pre", layer][0]
        out[f"mid {layer}"] = cache["resid_pre" if graph.parallel else "resid_mid", layer][0]
    out["final"] = cache["resid_post", graph.n_layers - 1][0]
    return out


def _run(model, graph, ids, ablated, edges, places):
    now = {"embed": _contributions(model, graph, ids)["embed"]}
    of = {}
    for edge in edges:
        of.setdefault(edge.receiver.name, []).append((edge.sender.name, places[edge.place]))

    def read(receiver, stream):
        total = ablated[stream].clone()
        for sender, at in of.get(receiver, ()):
            total[at] += (now[sender] - ablated[sender])[at]
        return total

    hooks = []
    for layer in range(graph.n_layers):
        for kind, n in (("q", graph.n_heads), ("k", graph.n_kv_heads), ("v", graph.n_kv_heads)):

            def give(value, hook, layer=layer, kind=kind, n=n):
                heads = [read(f"a{layer}.h{i}.{kind}", f"read {layer}") for i in range(n)]
                out = torch.stack(heads, 1)[None]
                assert out.shape == value.shape
                return out

            hooks.append((f"blocks.{layer}.hook_{kind}_input", give))

        def keep_heads(value, hook, layer=layer):
            for head, share in enumerate(_shares(model, layer, value[0]).unbind(1)):
                now[f"a{layer}.h{head}"] = share

        hooks.append((f"blocks.{layer}.attn.hook_z", keep_heads))
        if graph.has_mlps:

            def give_mlp(value, hook, layer=layer):
                return read(f"m{layer}", f"mid {layer}")[None]

            def keep_mlp(value, hook, layer=layer):
                now[f"m{layer}"] = value[0]

            hooks.append((f"blocks.{layer}.hook_mlp_in", give_mlp))
            hooks.append((f"blocks.{layer}.hook_mlp_out", keep_mlp))

    def give_final(value, hook):
        return read("logits", "final")[None]

    hooks.append((f"blocks.{graph.n_layers - 1}.hook_resid_post", give_final))
    return model.run_with_hooks(torch.tensor([ids]), fwd_hooks=hooks)[0]
