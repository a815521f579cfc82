"""Warnings located at the line of the user's call."""

import sys
import warnings

from anchorlens.display import escape_hidden


def warn(message: str) -> None:
    """Emit a UserWarning at the line that called into this package."""
    frame = sys._getframe(1)
    level = 1
    place = 1
    while frame is not None:
        level += 1
        if frame.f_globals.get("__name__", "").partition(".")[0] == "anchorlens":
            place = level
        frame = frame.f_back
    warnings.warn(escape_hidden(message), UserWarning, stacklevel=place + 1)
