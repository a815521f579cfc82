"""Attribution of patches: the first-order estimate of their effect (Nanda 2023).

The score of a patch is the sum over its positions and heads of (source's activation - target's
activation) times the gradient of the metric with respect to the target's activation. The gradients
at a site of all layers come from one forward and one backward pass of TransformerLens, so that a
site is the same tensor as for an exact patch. The score is exact where the metric is linear in the
activation, and it ignores saturated softmaxes, norms and activation functions elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from anchorlens.engine.hooked_passes import last_stream
from anchorlens.engine.patches import by_head, pad_rows
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter, Hook

StreamMetric = Callable[[Float[Tensor, "pos d_model"]], Float[Tensor, ""]]
"""Final stream of a prompt -> metric, with a gradient."""


@dataclass(frozen=True)
class SiteGradients:
    """Metric of a prompt, and activations and gradients at a site of every layer.

    Attributes:
        value: Metric of the prompt's own run.
        own: Activations, in the dtype of the model; of a pattern ``pos`` is the query and ``width``
            the key.
        gradient: Gradients of the metric with respect to ``own``.
    """

    value: float
    own: Float[Tensor, "layer pos head width"]
    gradient: Float[Tensor, "layer pos head width"]


def site_gradients(
    adapter: Adapter, ids: Sequence[int], metric: StreamMetric, site: str
) -> SiteGradients:
    """Return the metric of a prompt, and its gradients at a site of every layer, from one forward
    and one backward pass.

    Args:
        adapter: The model.
        ids: Tokens of the prompt.
        metric: Metric of its final stream.
        site: Hook site.

    Raises:
        InputError: If the metric does not depend on the site by operations that torch records.
    """
    seen: list[Tensor] = []

    def start(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        # The graph begins here: the weights of most models need no gradient.
        return value.detach().requires_grad_(True)

    def keep(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        seen.append(value)
        return value

    hooks: list[Hook] = [(adapter.hook_name("resid_pre", 0), start)]
    hooks += [(adapter.hook_name(site, layer), keep) for layer in range(adapter.n_layers)]
    stream = last_stream(adapter, pad_rows([list(ids)]), hooks, with_graph=True)
    with torch.enable_grad():
        value = metric(stream[0])
    gradients = torch.autograd.grad(value, seen, allow_unused=True)
    known: list[Tensor] = []
    for gradient in gradients:
        if gradient is None:
            raise InputError(
                f"site={site!r}: this model's metric has no gradient there. Use method='exact', or"
                " a site of the residual stream: resid_pre, resid_post.",
                argument="site",
            )
        known.append(gradient)
    return SiteGradients(
        value=float(value.detach()),
        own=_stack(adapter, [one.detach() for one in seen], site),
        gradient=_stack(adapter, known, site),
    )


def site_activations(
    adapter: Adapter, ids: Sequence[int], site: str
) -> Float[Tensor, "layer pos head width"]:
    """Return the activations of a prompt at a site of every layer."""
    seen: list[Tensor] = []

    def keep(value: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        seen.append(value)
        return value

    names = [adapter.hook_name(site, layer) for layer in range(adapter.n_layers)]
    hooks: list[Hook] = [(name, keep) for name in names]
    last_stream(adapter, pad_rows([list(ids)]), hooks)
    return _stack(adapter, seen, site)


def patch_scores(
    target: SiteGradients,
    source: Float[Tensor, "layer source_pos head width"],
    *,
    at: Sequence[int],
    by: Sequence[int],
    head: int | None = None,
) -> Float[Tensor, "layer"]:
    """Return the score of a patch in each layer, in float64 on the CPU and in the unit of the
    metric.

    Args:
        target: Gradients of the patched prompt.
        source: Activations of the prompt that is patched in.
        at: Patched positions.
        by: Positions of the source, in the same order.
        head: Patched head; if None, all.
    """
    heads = slice(None) if head is None else slice(head, head + 1)
    change = source[:, list(by), heads].double() - target.own[:, list(at), heads].double()
    gradient = target.gradient[:, list(at), heads].double()
    return einsum(change, gradient, "layer pos head width, layer pos head width -> layer").cpu()


def _stack(
    adapter: Adapter, values: Sequence[Tensor], site: str
) -> Float[Tensor, "layer pos head width"]:
    """Stack the activations of one prompt in every layer, on the device of the embedding."""
    return torch.stack([by_head(value, site)[0].to(adapter.device) for value in values])
