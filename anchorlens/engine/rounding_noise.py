"""Rounding noise of a model: how far its own results move when it rounds in another way.

Two right engines add up the same numbers in another order, and in half precision the last digit of
an activation has a weight. How far their results differ depends on model, prompt and dtype. So it
is measured: the model runs again, with each residual stream moved at random by up to one unit in
its last place.

Another batch size or padding alone is no measure of it: on a CPU most small checkpoints give the
same bits. Over 28 models, with and without massive activations, two engines differed in their
logits by 0.04 to 0.9 times this noise, in bfloat16 and in float16.
"""

from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from anchorlens.models.adapter import Adapter, Hook

# A difference of two engines up to this many times the root mean square of the noise is rounding.
TIMES_NOISE = 3.0
# Numbers of times that the model runs with other rounding: first, and where a difference is larger
# than that noise. A mixture of experts may choose other experts for a token in one draw of several.
N_DRAWS = (2, 8)


def rounding_hooks(adapter: Adapter, seed: int) -> list[Hook]:
    """Return hooks that move the residual stream before each block by up to one unit in its last
    place.

    ``seed``: seed of the draw.
    """

    def move(value: Tensor, hook: Any, layer: int) -> Tensor:  # noqa: ARG001
        generator = torch.Generator(value.device).manual_seed(seed * adapter.n_layers + layer)
        drawn = torch.rand(value.shape, generator=generator, device=value.device)
        step = torch.finfo(value.dtype).eps * (2 * drawn - 1)
        return (value * (1 + step)).to(value.dtype)

    hooks: list[Hook] = []
    for layer in range(adapter.n_layers):
        name = adapter.hook_name("resid_pre", layer)
        hooks.append((name, partial(move, layer=layer)))
    return hooks


def round_anew(adapter: Adapter, seed: int = 0) -> Adapter:
    """Return the same model whose forward passes round in another way.

    Example:
        >>> noisy = round_anew(adapter, seed=1)  # doctest: +SKIP
        >>> (noisy.whole(ids)[1] - adapter.whole(ids)[1]).std()  # doctest: +SKIP
    """
    other = copy(adapter)
    moves = rounding_hooks(adapter, seed)
    run = adapter.forward

    # The name of the argument is that of the method.
    def forward(
        ids: Tensor,
        mask: Tensor,
        hooks: Sequence[Hook] = (),
        cache: Any = None,
        *,
        with_graph: bool = False,
    ) -> Tensor:
        return run(ids, mask, [*hooks, *moves], cache, with_graph=with_graph)

    other.forward = forward
    return other


def root_mean_square(
    differences: Sequence[Float[Tensor, "*value"]],
) -> Float[Tensor, "*value"]:
    """Return the root mean square of differences, entry by entry; entries that are not finite count
    as 0.
    """
    finite = torch.stack([one.double() for one in differences]).nan_to_num(0.0, 0.0, 0.0)
    return finite.square().mean(0).sqrt()
