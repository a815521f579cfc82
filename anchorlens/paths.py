"""Resolve the paths that users give."""

import os
from pathlib import Path

from anchorlens.display import short_repr
from anchorlens.errors import InputError


def resolve_path(value: object, argument: str, what: str = "a run directory") -> Path:
    """Return a user's path as an absolute one, with ``~`` expanded and links followed.

    Every path is resolved once, where it enters the package. A later change of the current folder
    has no effect on it, and no library expands ``~`` in another way.

    Args:
        value: Value of the argument.
        argument: Name of the argument, for the message.
        what: Noun phrase for the thing at the path, for the message.

    Raises:
        InputError: If the value is no path, or a link in it leads to itself.
    """
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise InputError(f"{argument}={value!r}: must be the path of {what}.", argument=argument)
    try:
        # Path.expanduser raises for an unknown user.
        path = Path(os.path.realpath(os.path.expanduser(value)))  # noqa: PTH111
        # All links are followed, except those of a loop.
        loop = next((one for one in (path, *path.parents) if one.is_symlink()), None)
    except ValueError as why:  # a null character, or a surrogate
        raise InputError(
            f"{argument}={short_repr(value)}: is no path ({why}). Correct it.", argument=argument
        ) from why
    except OSError as why:
        problem = (
            f"{argument}={str(value)!r}: cannot be resolved ({why.strerror}). Choose another path."
        )
        raise InputError(problem, argument=argument) from why
    if loop is not None:
        problem = (
            f"{argument}={str(value)!r}: the link {loop} leads to itself."
            " Choose another path, or remove the link."
        )
        raise InputError(problem, argument=argument)
    return path
