"""Errors that anchorlens raises on purpose, with one base class.

A message has the form "``name=value``: problem. Fix.". ``exit_code`` is the exit code of the command line: 2 if the user's input has
to change, 1 if the input was valid and the work failed.
"""

import difflib
from collections.abc import Iterable

# Names that a message lists, of examples for instance, of which there may be thousands.
_MOST = 40


class AnchorlensError(Exception):
    """Base of all errors of this package.

    Args:
        message: The problem and its fix.
        argument: Name of the Python argument that has to change; the command line adds its option.

    Attributes:
        arguments: Names of the arguments that have to change; empty if unknown.
    """

    exit_code: int = 1

    def __init__(self, *message: object, argument: str = "") -> None:
        super().__init__(*message)
        self.arguments = (argument,) if argument else ()


class InputError(AnchorlensError):
    """Invalid input: an argument, a file or a name."""

    exit_code = 2


class ModelNotFoundError(InputError):
    """No model goes by this name or lies at this path."""


class UnsupportedModelError(InputError):
    """The model exists, but this package cannot map it onto a HookedTransformer without changing its numbers."""


class CheckpointError(InputError):
    """The files of a model are damaged, incomplete or of an unreadable kind."""


class DownloadError(AnchorlensError):
    """A download failed or is not allowed (gated model, offline, no network)."""


class ParityError(AnchorlensError):
    """The loaded model does not give Hugging Face's own log-probabilities."""


class DataError(InputError):
    """A question file or frame cannot be read as the data set it was said to be."""


class SpanError(InputError):
    """A span does not lie inside its text, or the tokens of an anchor do not contain its text."""


class DonorError(InputError):
    """The donor rule cannot be applied, or it left no row."""


class EmptySweepError(InputError):
    """No row is left to measure. The message counts the reasons."""


class LeakError(InputError):
    """Something about the questions to be scored was known beforehand, so the scores would mean nothing."""


class ShapeError(InputError):
    """A tensor has another shape than the one asked for. The message names both."""


class HookError(AnchorlensError):
    """A hook did not fire as often as planned, so the numbers would not be those of the intervention."""


class CheckError(AnchorlensError):
    """A number that was computed twice, by independent ways, came out differently."""


class WorkerError(AnchorlensError):
    """Workers died again and again at the same piece of work."""


class RunError(InputError):
    """A run directory is missing, incomplete, of another schema version, or already there."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence with the nearest known names; if none is near, all of them (at most 40).

    >>> did_you_mean("popqq", ["popqa", "nq"])
    "Did you mean 'popqa'?"
    """
    names = sorted(known)
    # What has the word as a part is meant more often than what is spelt like it.
    part = [name for name in names if word and word in name.split("_")]
    near = list(dict.fromkeys([*part, *difflib.get_close_matches(word, names, n=3, cutoff=0.6)]))[:3]
    if near:
        return "Did you mean " + " or ".join(f"'{name}'" for name in near) + "?"
    more = f", and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"Known: {', '.join(names[:_MOST])}{more}."
