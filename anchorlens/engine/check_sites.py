"""Check that the hooks of a sweep's sites run before anything is measured.

Custom sites are functions of the user, and hooks inside a compiled part of a model may never run.
Both are checked in one forward pass over the trial row; other models and sites cost no pass.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter, Hook, SiteLike, site_name

# Site that every engine changes or reads, whatever the sites of the sweep are.
_ALWAYS = "resid_pre"


def check_sites(adapter: Adapter, ids: Int[Tensor, "pos"], sites: Sequence[SiteLike]) -> None:
    """Check the hooks of custom sites, and of all sites if a part of the model is compiled, in one
    forward pass.

    Args:
        adapter: The model.
        ids: Token ids of the trial row.
        sites: Sites that the sweep reads or changes.

    Raises:
        InputError: If a hook does not fire once, or that of a custom site carries no
            [example pos d_model].
    """
    compiled = list(_find_compiled_parts(adapter.model))
    checked = [site for site in sites if not isinstance(site, str)]
    if compiled:
        checked = [_ALWAYS, *sites]
    if not checked:
        return
    shapes = _run_hooks(adapter, ids, checked)
    for site in checked:
        for layer in range(adapter.n_layers):
            name = adapter.hook_name(site, layer)
            around = _part_around(name, compiled)
            _check_hook(adapter, site, name, shapes[name], len(ids), around)


def _run_hooks(
    adapter: Adapter, ids: Int[Tensor, "pos"], sites: Sequence[SiteLike]
) -> dict[str, list[tuple[int, ...]]]:
    """Return hook name -> shape of its activation at each time that it fires in one pass over a
    row; () for a value that is no tensor.
    """
    shapes: dict[str, list[tuple[int, ...]]] = {}

    def note(value: Any, hook: Any, *, name: str) -> Any:  # noqa: ARG001
        shapes[name].append(tuple(value.shape) if isinstance(value, Tensor) else ())
        return value

    hooks: list[Hook] = []
    for site in sites:
        for layer in range(adapter.n_layers):
            name = adapter.hook_name(site, layer)
            if name not in shapes:
                shapes[name] = []
                hooks.append((name, partial(note, name=name)))
    adapter.forward(ids[None], torch.ones_like(ids)[None], hooks)
    return shapes


def _check_hook(
    adapter: Adapter,
    site: SiteLike,
    name: str,
    shapes: Sequence[tuple[int, ...]],
    n_pos: int,
    compiled: str | None,
) -> None:
    """Raise InputError if a hook did not fire once, or is that of a custom site and carried another
    shape than [1 pos d_model].
    """
    if len(shapes) != 1 and compiled is not None:
        raise InputError(
            f"model: {compiled} is compiled, so the hook {name} fires {len(shapes)} times in a"
            " forward pass instead of once. Pass the model with this part as it was before"
            " torch.compile.",
            argument="model",
        )
    if isinstance(site, str):
        return
    cure = "Return the name of a hook that does, such as f'blocks.{layer}.ln2.hook_normalized'."
    if len(shapes) != 1:
        raise InputError(
            f"site={site_name(site)}: the hook {name} fires {len(shapes)} times in a forward pass"
            f" through the blocks. The hook of a site must fire once. {cure}",
            argument="site",
        )
    expected = (1, n_pos, adapter.d_model)
    if shapes[0] != expected:
        raise InputError(
            f"site={site_name(site)}: the hook {name} carries the shape {list(shapes[0])} for a row"
            f" of {n_pos} tokens. The hook of a site must carry [example pos d_model], here"
            f" {list(expected)}. {cure} For heads use patch_sweep(site='z').",
            argument="site",
        )


def _find_compiled_parts(model: nn.Module) -> Iterator[str]:
    """Yield the names of modules that torch.compile replaced, or that were compiled in place."""
    for name, module in model.named_modules():
        in_place = getattr(module, "_compiled_call_impl", None) is not None
        if name and (in_place or "_orig_mod" in module._modules):
            yield name


def _part_around(hook: str, parts: Sequence[str]) -> str | None:
    """Return the compiled part that holds a hook; None if none does."""
    return next((part for part in parts if hook.startswith(f"{part}.")), None)
