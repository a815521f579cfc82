"""Entries of the logits that a metric reads, found by changing the logits."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

Metric = Callable[[Tensor], Tensor | float]
# Largest share of the vocabulary that is unembedded token by token.
_FEW = 1 / 8
_DRAWS = 2


@torch.no_grad()
def find_reads(metric: Metric, logits: Float[Tensor, "batch pos d_vocab"]) -> list[int]:
    """Return the positions whose logits change the metric: each is replaced in turn by shuffled, noisy logits and restored."""
    before, reads = torch.as_tensor(metric(logits)), list[int]()
    generator = torch.Generator().manual_seed(0)
    draws = [_draw(logits[:, 0], generator) for _ in range(_DRAWS)]
    for p in range(logits.shape[1]):
        kept = logits[:, p].clone()
        for order, noise in draws:
            logits[:, p] = _other(kept, order, noise)
            if not torch.equal(torch.as_tensor(metric(logits)), before):
                reads.append(p)
                break
        logits[:, p] = kept
    return reads


def find_tokens(metric: Metric, logits: Float[Tensor, "batch pos d_vocab"], positions: Sequence[int]) -> list[int] | None:
    """Return the tokens whose logits at ``positions`` the metric reads; None if they are many or cannot be found.

    They are the tokens with a gradient. The others are then changed together, which must leave the metric unchanged.
    """
    at, full = list(positions), logits.detach().clone()
    try:
        with torch.enable_grad():
            leaf = full[:, at].clone().requires_grad_()
            full[:, at] = leaf
            value = torch.as_tensor(metric(full))
            # Random weights, so that gradients of several values do not cancel.
            weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(2)).to(value)
            (gradient,) = torch.autograd.grad((weights * value).sum(), leaf)
    except RuntimeError:  # the metric is no differentiable function of these logits
        return None
    is_read = (gradient != 0).flatten(0, 1).any(0)
    tokens = is_read.nonzero()[:, 0].tolist()
    if not tokens or len(tokens) > _FEW * len(is_read):
        return None
    generator, before = torch.Generator().manual_seed(1), torch.as_tensor(metric(logits))
    with torch.no_grad():
        for _ in range(_DRAWS):
            changed = logits.clone()
            changed[:, at] = torch.where(is_read, changed[:, at], _other(changed[:, at], *_draw(changed[:, at], generator)))
            if not torch.equal(torch.as_tensor(metric(changed)), before):
                return None
    return tokens


def _draw(logits: Float[Tensor, "*row d_vocab"], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw an order of the vocabulary and standard normal noise."""
    order = torch.randperm(logits.shape[-1], generator=generator).to(logits.device)
    return order, torch.randn(logits.shape, generator=generator).to(logits.device, logits.dtype)


def _other(logits: Float[Tensor, "*row d_vocab"], order: Tensor, noise: Tensor) -> Float[Tensor, "*row d_vocab"]:
    """Return logits in another order, with noise of their standard deviation."""
    return logits[..., order] + logits.std() * noise
