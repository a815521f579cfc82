"""Choose the engine: the cone engine if it reproduces the model's numbers, else the reference
engine.

Both are compared on a short row at the start of every sweep, because a live model may have changed
since the last one. On the same row the hooks of custom sites, which are functions of the user, and
of models with compiled parts, whose hooks may never run, are checked in one more forward pass.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from anchorlens.display import warn
from anchorlens.engine.cone import ConeEngine, find_cone_obstacle
from anchorlens.engine.cost import out_of_memory
from anchorlens.engine.engine import Engine
from anchorlens.engine.patches import TokenBatch
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.engine.rounding_noise import N_DRAWS, round_anew
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter, Hook, SiteLike, site_name

# Tolerance of log-probabilities on the trial row by dtype: RMS difference over the likelier half of
# the vocabulary, relative to the spread there. Measured with SmolLM2: 6e-6, 0.01, 0.1 in float32,
# float16, bfloat16; 1.4 with the sign of one MLP flipped. In half precision the difference may also
# be this many times the model's own noise.
_TOLERANCE = {torch.float64: 2e-4, torch.float32: 2e-4, torch.float16: 0.03, torch.bfloat16: 0.25}
_TIMES_OWN_NOISE = 2.0
_TRIAL_TOKENS = 16
# Errors of a forward pass through mismatched or replaced modules; MemoryError and signals are not
# caught.
_FORWARD_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError)
# Site that every engine changes or reads, whatever the sites of the sweep are.
_ALWAYS = "resid_pre"


def choose_engine(
    adapter: Adapter, engine: str, trial: Sequence[int], sites: Sequence[SiteLike] = ()
) -> Engine:
    """Return the chosen engine, or the reference engine with a warning if the cone engine cannot be
    used.

    Both are compared on the first 16 token ids of ``trial``; ``sites`` are all sites that are read
    or changed.

    Raises:
        InputError: If the model's forward pass fails, its logits do not follow from its last
            residual stream, or the hook of a custom site or of a compiled part does not run as
            needed (:func:`check_sites`).
    """
    ids = torch.tensor(list(trial)[:_TRIAL_TOKENS], device="cpu").to(adapter.device)
    try:
        stream, logits = adapter.whole(ids)
    except _FORWARD_ERRORS as why:
        if out_of_memory(why):
            raise
        fix = (
            "Its parts must agree in dtype and device: move a HookedTransformer with model.to(...),"
            " which updates its cfg too."
        )
        if isinstance(why, AttributeError):
            fix = (
                "The installed transformer-lens may not know this version of transformers: install"
                " a newer one."
            )
        raise InputError(
            f"The model's forward pass fails on a row of {len(ids)} tokens: {type(why).__name__}:"
            f" {_first_line(why)}. {fix}",
            argument="model",
        ) from why
    # Minus infinity is the logit of a token that a model excludes.
    if bool((logits.isnan() | (logits == torch.inf)).any()):
        raise InputError(
            f"model: its logits on a row of {len(ids)} tokens are not finite. In float16 numbers"
            " above 65,504 are infinite: use dtype='bfloat16' or 'float32'. Otherwise check its"
            " weights and your hooks.",
            argument="model",
        )
    read = _gap(adapter, stream, logits)
    if not read <= _tolerance(adapter):
        raise InputError(
            "P cannot be read from this model: its logits differ from final norm and unembedding"
            f" of the last residual stream by {_format_gap(read)}. Remove your own hooks and"
            " modules behind the last block.",
            argument="model",
        )
    check_sites(adapter, ids, sites)
    if engine == "reference":
        _check_repeats(adapter, ids, logits)
        return ReferenceEngine(adapter)
    reason = find_cone_obstacle(adapter, sites)
    cone = ConeEngine(adapter) if reason is None else None
    reason = reason if cone is None else _difference(cone, ids, logits)
    if cone is not None and reason is None:
        return cone
    _check_repeats(adapter, ids, logits)
    warn(f"The cone engine cannot be used: {reason}. The slower reference engine is used instead.")
    return ReferenceEngine(adapter, reason or "")


def _check_repeats(adapter: Adapter, ids: Tensor, logits: Float[Tensor, "pos d_vocab"]) -> None:
    """Raise InputError if the model gives other logits when a row runs again, as with dropout; the
    cone engine has no such parts.
    """
    stream, _ = adapter.whole(ids)
    gap = _gap(adapter, stream, logits)
    if not gap <= _tolerance(adapter):
        raise InputError(
            f"model: a second pass over the same row differs by {_format_gap(gap)}, which would"
            " count as an effect. Call model.eval(), which switches dropout off, and remove hooks"
            " that draw at random.",
            argument="model",
        )


def describe_failure(why: Exception) -> str:
    """Return a description of an error that a model's own modules may cause; raise any other error
    again.
    """
    if not isinstance(why, _FORWARD_ERRORS) or out_of_memory(why):
        raise why
    return f"{type(why).__name__}: {_first_line(why)}"


def _difference(cone: ConeEngine, ids: Tensor, logits: Float[Tensor, "pos d_vocab"]) -> str | None:
    """Return the reason why the cone engine cannot be used: a difference from the model or an
    error; None if they agree.
    """
    tokens = TokenBatch(ids.cpu()[None], torch.ones(1, len(ids), dtype=torch.bool))
    try:
        gap = _gap(cone.adapter, cone.last_stream(tokens)[0], logits)
    except _FORWARD_ERRORS as why:  # the model itself may run them
        return f"it cannot run a trial row ({describe_failure(why)})"
    if gap <= _tolerance(cone.adapter):
        return None
    if cone.adapter.shape.is_half:
        draws = [round_anew(cone.adapter, seed).whole(ids)[0] for seed in range(N_DRAWS[1])]
        own = [_gap(cone.adapter, stream, logits) for stream in draws]
        if gap <= _TIMES_OWN_NOISE * sum(own) / len(own):
            return None
    return f"on a trial row it differs from the model by {_format_gap(gap)}"


@torch.no_grad()
def _gap(
    adapter: Adapter, stream: Float[Tensor, "pos d_model"], logits: Float[Tensor, "pos d_vocab"]
) -> float:
    """Compute the largest RMS difference of log-probabilities over positions, relative to their
    spread; NaN if a position is NaN.

    Only the likelier half of the vocabulary counts: padding tokens may have a bias of minus
    infinity.
    """
    wide = torch.float32 if logits.device.type == "mps" else torch.float64
    gaps: list[Tensor] = []
    # One position at a time in float64 to bound memory.
    for read, expected in zip(adapter.read.logits(stream), logits, strict=True):
        ours = read.to(logits.device, wide).log_softmax(-1)
        theirs = expected.to(logits.device, wide).log_softmax(-1)
        likelier = theirs >= theirs.median()
        ours = ours[likelier]
        theirs = theirs[likelier]
        error = (ours - theirs).pow(2).mean().sqrt()
        spread = (theirs - theirs.mean()).pow(2).mean().sqrt()
        gaps.append(torch.where(error == 0, error, error / spread))
    return float(torch.stack(gaps).max())


def _tolerance(adapter: Adapter) -> float:
    return _TOLERANCE.get(adapter.shape.dtype, _TOLERANCE[torch.float32])


def _first_line(why: Exception) -> str:
    return (str(why).strip().splitlines() or [""])[0][:160]


def _format_gap(gap: float) -> str:
    return f"{gap:.1e} of the spread of its log-probabilities"


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
