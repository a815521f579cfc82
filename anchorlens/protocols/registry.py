"""The protocols by name. To add one: a folder beside this file, and a line here.

A protocol's folder ``NAME`` has ``spec.py`` with its specification, which imports nothing heavy (a shell's help reads it), and
``protocol.py`` with its ``PROTOCOL``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from anchorlens.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from anchorlens.protocols.plug import SweepProtocol
    from anchorlens.protocols.specification import Specification

PROTOCOLS = {
    "swap": "Swap streams at an anchor with a donor's, read the answer's probability",
    "knockout": "Cut attention from the question, read a truth probe, split into pathways",
    "patch_tokens": "Put another question's exact tokens in, keep the answer, read a truth probe",
    "answer_only": "Take the question away, keep the answer, read a truth probe by pathway",
}
"""Name of the folder -> what it does."""


def specification_of(name: str) -> "type[Specification]":
    """The specification of a protocol.

    Raises:
        InputError: No protocol goes by this name.
    """
    if not isinstance(name, str) or name not in PROTOCOLS:
        raise InputError(f"Unknown protocol {name!r}. {did_you_mean(str(name), PROTOCOLS)}")
    module = import_module(f"anchorlens.protocols.{name}.spec")
    return getattr(module, class_of(name))


def class_of(name: str) -> str:
    """What a protocol's specification is called: ``patch_tokens`` has ``PatchTokens``."""
    return "".join(part.title() for part in name.split("_"))


def protocol_of(name: str) -> "SweepProtocol[Any, Any]":
    """The protocol that goes by a name, with all that it needs.

    Raises:
        InputError: None does.
    """
    specification_of(name)
    return import_module(f"anchorlens.protocols.{name}.protocol").PROTOCOL


__all__ = ["PROTOCOLS", "class_of", "protocol_of", "specification_of"]
