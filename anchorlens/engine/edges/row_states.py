"""Activations of one prompt at every layer, with which the effects of edges are computed."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from anchorlens.models.adapter import Adapter
from anchorlens.models.blocks import Block

Stream = Float[Tensor, "pos d_model"]


@dataclass(frozen=True, kw_only=True)
class LayerStates:
    """Activations of one prompt in one block.

    Attributes:
        pre: Stream before the block.
        q: Queries, normed and rotated.
        k: Keys, normed and rotated.
        v: Values, [pos kv_head d_head].
        z: Heads' outputs.
        mid: Stream between attention and MLP.
        mlp: Output of the MLP, as it is added to the stream; None without an MLP.
    """

    pre: Stream
    q: Float[Tensor, "pos head d_head"]
    k: Float[Tensor, "pos kv_head d_head"]
    v: Float[Tensor, "pos kv_head d_head"]
    z: Float[Tensor, "pos head d_head"]
    mid: Stream
    mlp: Stream | None

    @property
    def post(self) -> Stream:
        """Stream after the block."""
        return self.mid if self.mlp is None else self.mid + self.mlp


def embed_row(adapter: Adapter, ids: tuple[int, ...]) -> Float[Tensor, "_ d_model"]:
    """Return the stream before block 0 of a prompt, [pos d_model]."""
    tokens = torch.tensor(ids, device="cpu").to(adapter.device)
    return adapter.embed(tokens, torch.arange(len(ids), device="cpu").to(adapter.device))


def run_block(block: Block, x: Stream) -> LayerStates:
    """Run one block on the stream of one prompt."""
    at = torch.arange(len(x), device=x.device)
    block.reserve(len(x) - 1)
    q, k, v = project_and_rotate(block, x, at)
    z = attend(block, q[None], k[None], v[None], at)[0]
    mid = x + block.attn_out(z)
    mlp = block.mlp_out(x if block.parallel else mid)
    return LayerStates(pre=x, q=q, k=k, v=v, z=z, mid=mid, mlp=mlp)


def run_layers(
    adapter: Adapter, x: Float[Tensor, "_ d_model"], first: int = 0
) -> Iterator[tuple[Block, LayerStates]]:
    """Yield each block from ``first`` on with the activations of one prompt in it, from the stream
    ``x`` before it; the weights are in memory until the next one.
    """
    blocks = adapter.blocks()
    for layer in range(first, adapter.n_layers):
        with blocks.load(layer) as block:
            states = run_block(block, x.to(block.device))
            yield block, states
            x = states.post


def project_and_rotate(
    block: Block, x: Float[Tensor, "token d_model"], positions: Int[Tensor, "token"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of streams at positions, normed and rotated."""
    q, k, v = block.project(x)
    angles = block.angles(positions)
    return block.rotate_(q, angles), block.rotate_(k, angles), v


def attend(
    block: Block,
    q: Float[Tensor, "_ query head d_head"],
    k: Float[Tensor, "_ key kv_head d_head"],
    v: Float[Tensor, "_ key kv_head d_head"],
    positions: Int[Tensor, "query"],
) -> Float[Tensor, "case query head d_head"]:
    """Compute the heads' outputs of queries at some positions of a prompt, of which all keys are
    given.

    Scores, softmax and sums are float32. A size of 1 of ``case`` is shared by all cases.
    """
    rep = q.shape[2] // k.shape[2]
    queries = rearrange(
        q.float() / block.scale, "case query (kv rep) d -> case kv (query rep) d", rep=rep
    )
    table = queries @ rearrange(k.float(), "case key kv d -> case kv d key")
    if block.soft_cap is not None:
        table = block.soft_cap * torch.tanh(table / block.soft_cap)
    scores = rearrange(table, "case kv (query rep) key -> case (kv rep) query key", rep=rep)
    keys = torch.arange(k.shape[1], device=k.device)
    steps = keys[None, :] - positions[:, None]
    if block.slopes is not None:
        scores = scores + block.slopes[:, None, None] * steps
    unseen = steps > 0
    if block.window is not None:
        unseen = unseen | (steps <= -block.window)
    scores = scores.masked_fill(unseen, -torch.inf)
    if block.sinks is not None:  # a sink is a key without a value
        sinks = block.sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    weights = rearrange(weights, "case (kv rep) query key -> case kv (query rep) key", rep=rep)
    found = weights @ rearrange(v.float(), "case key kv d -> case kv key d")
    out = rearrange(found, "case kv (query rep) d -> case query (kv rep) d", rep=rep)
    return out.to(v.dtype)
