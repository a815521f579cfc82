"""Versions of TransformerLens and their model classes: HookedTransformer (3.9), TransformerBridge
(3.9 and 4.x).
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from packaging.version import Version
from torch import nn

from anchorlens.constants import BACKENDS
from anchorlens.errors import InputError, did_you_mean

# Attribute of a streamed model and of its blocks that holds the loader of their weights.
STREAM = "anchorlens_stream"


def check_version(installed: str) -> None:
    """Raise InputError if a version of TransformerLens is not supported."""
    if not Version("3.9") <= Version(installed) < Version("5"):
        raise InputError(
            f"transformer-lens {installed} is installed; anchorlens works with 3.9 and 4.x. "
            "Install one: pip install 'transformer-lens>=3.9,<5'."
        )


TRANSFORMER_LENS = version("transformer-lens")
check_version(TRANSFORMER_LENS)
# HookedTransformer was removed in 4.0.
HAS_HOOKED = Version(TRANSFORMER_LENS) < Version("4")

# After the check of its version.
from transformer_lens.model_bridge import TransformerBridge  # noqa: E402

if TYPE_CHECKING or HAS_HOOKED:
    from transformer_lens import HookedTransformer

    LensModel: TypeAlias = HookedTransformer | TransformerBridge
else:
    LensModel = TransformerBridge


def is_hooked(model: object) -> "TypeGuard[HookedTransformer]":
    """Return whether a model is a HookedTransformer."""
    return HAS_HOOKED and isinstance(model, HookedTransformer)


def is_bridge(model: object) -> TypeGuard[TransformerBridge]:
    """Return whether a model is a TransformerBridge."""
    return isinstance(model, TransformerBridge)


def is_lens_model(model: object) -> TypeGuard[LensModel]:
    """Return whether a model is a HookedTransformer or a TransformerBridge."""
    return is_hooked(model) or is_bridge(model)


def pick_backend(backend: Any) -> str:
    """Return ``hooked`` or ``bridge``; if None, ``hooked`` where TransformerLens has it.

    Raise InputError for others.
    """
    if backend is None:
        return "hooked" if HAS_HOOKED else "bridge"
    if backend not in BACKENDS:
        raise InputError(
            f"backend={backend!r}: unknown. {did_you_mean(str(backend), BACKENDS)}",
            argument="backend",
        )
    if backend == "hooked" and not HAS_HOOKED:
        raise InputError(
            f"backend='hooked': transformer-lens {TRANSFORMER_LENS} has no HookedTransformer. Leave"
            " backend out, or install 'transformer-lens>=3.9,<4'.",
            argument="backend",
        )
    return str(backend)


def stream_of(model: nn.Module) -> Any:
    """Return the loader of a streamed model; None if its weights are in memory."""
    return getattr(model, STREAM, None)


def act_name(name: str, layer: int) -> str:
    """Return the hook name of TransformerLens's short name of an activation, such as ``resid_pre``
    or ``z``.
    """
    from transformer_lens.utilities.components_utils import get_act_name

    return get_act_name(name, layer)


def patching_result_class() -> Any:
    """Return TransformerLens 4's class of patching results; None with 3.9."""
    import transformer_lens.patching

    return getattr(transformer_lens.patching, "PatchingResult", None)
