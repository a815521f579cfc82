"""Warnings located at the line of the user's call."""

import sys
import warnings

from anchorlens.display import escape_hidden

DECORATORS = frozenset({"contextlib", "torch.utils._contextlib"})
"""Modules with a frame of their own between a decorated function and its caller."""


def warn(message: str) -> None:
    """Emit a UserWarning at the line that called into this package."""
    frame = sys._getframe(1)
    level = 1
    place = 1
    while frame is not None:
        level += 1
        module = frame.f_globals.get("__name__", "")
        is_decorator = place == level - 1 and module in DECORATORS
        if module.partition(".")[0] == "anchorlens" or is_decorator:
            place = level
        frame = frame.f_back
    warnings.warn(escape_hidden(message), UserWarning, stacklevel=place + 1)
