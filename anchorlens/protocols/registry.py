"""Registry of protocols. To add one, make a folder beside this file and a line below, and name its
function in :mod:`anchorlens.running.sweeps` and ``anchorlens/__init__.pyi``.

The folder ``NAME`` has ``spec.py`` with the specification (light imports, for ``--help``),
``analysis.py`` with ``ANALYSIS`` (no torch) and ``measurement.py`` with ``MEASUREMENT``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from anchorlens.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from anchorlens.protocols.base import Measurement
    from anchorlens.protocols.specification import Specification
    from anchorlens.results.analysis import Analysis

PROTOCOLS = {
    "swap": "Swap activations at an anchor with a donor's, read the answer's probability",
    "knockout": "Cut attention from the question, read a truth probe, split into pathways",
    "patch_tokens": "Replace the exact question tokens, keep the answer, read a truth probe",
    "patch": (
        "Patch activations of a clean prompt into a corrupted one, by position, segment or head"
    ),
    "edges": (
        "Exchange what a sender adds to the stream in the input of one receiver: path patching"
    ),
    "answer_only": "Remove the question, keep the answer, read a truth probe by pathway",
}
"""Name of the protocol -> description."""


def specification_of(name: str) -> "type[Specification]":
    """Return the specification class of a protocol.

    Raises:
        InputError: If there is no protocol of this name.
    """
    if not isinstance(name, str) or name not in PROTOCOLS:
        raise InputError(f"Unknown protocol {name!r}. {did_you_mean(str(name), PROTOCOLS)}")
    module = import_module(f"anchorlens.protocols.{name}.spec")
    return getattr(module, class_of(name))


def class_of(name: str) -> str:
    """Return the class name of a protocol's specification: ``PatchTokens`` for ``patch_tokens``."""
    return name.title().replace("_", "")


def function_of(name: str) -> str:
    """Return the name of a protocol's function: ``swap_sweep``; ``edge_sweep`` for ``edges``."""
    return "edge_sweep" if name == "edges" else f"{name}_sweep"


def measurement_of(name: str) -> "Measurement[Any, Any, Any]":
    """Return the measurement of a protocol; imports torch.

    Raises:
        InputError: If there is no protocol of this name.
    """
    specification_of(name)
    return import_module(f"anchorlens.protocols.{name}.measurement").MEASUREMENT


def analysis_of(name: str) -> "Analysis":
    """Return the analysis of a protocol; imports no torch.

    Raises:
        InputError: If there is no protocol of this name.
    """
    specification_of(name)
    return import_module(f"anchorlens.protocols.{name}.analysis").ANALYSIS
