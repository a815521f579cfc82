"""Exceptions of anchorlens, with one base class.

A message has the form "``name=value``: problem. Fix.". ``exit_code`` is the exit code of the
command line: 2 if the user's input has to change, 1 if the input was valid and the work failed.
"""

import difflib
from collections.abc import Iterable

from anchorlens.display import escape_hidden

# Maximum number of names listed in a message.
_MOST = 40


class AnchorlensError(Exception):
    """Base class of the exceptions of this package.

    Args:
        message: The problem and its fix.
        argument: Name of the Python argument that has to change; the command line adds its option.

    Attributes:
        arguments: Names of the arguments that have to change; empty if unknown.

    Examples:
        >>> import anchorlens as al
        >>> try:
        ...     al.load_qa("popqq")
        ... except al.AnchorlensError as error:
        ...     print(error.arguments, error.exit_code)
        ('name',) 2
    """

    exit_code: int = 1

    def __init__(self, *message: object, argument: str = "") -> None:
        super().__init__(
            *(escape_hidden(part) if isinstance(part, str) else part for part in message)
        )
        self.arguments = (argument,) if argument else ()


class InputError(AnchorlensError):
    """Invalid input: an argument, a file or a name.

    Examples:
        >>> import anchorlens as al
        >>> try:
        ...     al.load_qa("popqa-sample", limit=0)
        ... except al.InputError as error:
        ...     print(error)
        limit=0: must be an integer >= 1, or None for all rows.
    """

    exit_code = 2


class ModelNotFoundError(InputError):
    """No model has this name or path."""


class UnsupportedModelError(InputError):
    """The model exists, but this package cannot map it onto a HookedTransformer without changing
    its numbers.
    """


class CheckpointError(InputError):
    """The files of a model are damaged, incomplete or in an unsupported format."""


class DownloadError(AnchorlensError):
    """A download failed or is not allowed (gated model, offline, no network)."""


class ParityError(AnchorlensError):
    """The loaded model does not reproduce the log-probabilities of Hugging Face."""


class DataError(InputError):
    """A question file or frame does not match the schema of its data set."""


class SpanError(InputError):
    """A span lies outside its text, or the tokens of an anchor do not contain its text."""


class DonorError(InputError):
    """The donor rule cannot be applied, or leaves no row."""


class EmptySweepError(InputError):
    """No row can be measured; the message gives the number of dropped rows by reason.

    Examples:
        >>> import anchorlens as al
        >>> model = "smollm2-135m-instruct"
        >>> data = al.load_qa("popqa-sample")
        >>> try:
        ...     sweep = al.swap_sweep(model, data, known_only=True)  # doctest: +SKIP
        ... except al.EmptySweepError:  # the model knows no answer
        ...     sweep = al.swap_sweep(model, data)
    """


class LeakError(InputError):
    """Test questions were used for training or selection, so the scores would be invalid.

    Examples:
        >>> import anchorlens as al
        >>> probe = al.TruthProbe().fit([[0.0], [1.0]], [0, 1], question_ids=["a", "b"])
        >>> try:
        ...     probe.predict([[0.5]], ["a"])
        ... except al.LeakError:
        ...     print(probe.predict([[0.9]], ["c"]))
        [1]
    """


class ShapeError(InputError):
    """A tensor has an unexpected shape; the message gives both shapes."""


class HookError(AnchorlensError):
    """A hook did not run as often as planned, so the intervention is incomplete.

    Examples:
        >>> import anchorlens as al
        >>> model = al.load_model("smollm2-135m-instruct")  # doctest: +SKIP
        >>> data = al.load_qa("popqa-sample")
        >>> try:
        ...     sweep = al.swap_sweep(model, data)  # doctest: +SKIP
        ... except al.HookError:  # an unusual model: ask which hook is at fault
        ...     print(al.doctor(model))
    """


class CheckError(AnchorlensError):
    """Two independent computations of a number disagree.

    Examples:
        >>> import anchorlens as al
        >>> model = al.load_model("smollm2-135m-instruct")  # doctest: +SKIP
        >>> data = al.load_qa("popqa-sample")
        >>> try:
        ...     sweep = al.swap_sweep(model, data)  # doctest: +SKIP
        ... except al.CheckError:  # a spot check failed: one full forward pass per cell
        ...     sweep = al.swap_sweep(model, data, engine="reference")
    """


class WorkerError(AnchorlensError):
    """Workers stopped repeatedly at the same shard."""


class RunError(InputError):
    """A run directory is missing, incomplete, of another schema version, or exists already.

    Examples:
        >>> import anchorlens as al
        >>> try:
        ...     al.load_run("no/such/run")
        ... except al.RunError:
        ...     print("measure it first")
        measure it first
    """


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence with the nearest known names; if none is near, all of them (at most 40).

    >>> did_you_mean("popqq", ["popqa", "nq"])
    "Did you mean 'popqa'?"
    """
    names = sorted(known)
    # Names that contain the word are better suggestions than names of similar spelling.
    part = [name for name in names if word and word in name.split("_")]
    alike = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    near = list(dict.fromkeys([*part, *alike]))[:3]
    if near:
        return "Did you mean " + " or ".join(f"'{name}'" for name in near) + "?"
    more = f", and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"Known: {', '.join(names[:_MOST])}{more}."
