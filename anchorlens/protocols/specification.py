"""Specifications: frozen, validated arguments of a protocol, readable from TOML and from
``run.json``.

Each argument is a field that is declared once (:mod:`anchorlens.protocols.arguments`). Only light
modules are imported here; layers, heads and sites are checked when the model is loaded.
"""

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import BaseModel, ByteSize, ConfigDict, Field, StrictBool, ValidationError
from typing_extensions import override

from anchorlens.constants import ENGINES
from anchorlens.display import as_int, short_repr
from anchorlens.errors import InputError, did_you_mean
from anchorlens.fingerprint import callable_name, fingerprint
from anchorlens.protocols.arguments import (
    Argument,
    Choice,
    Indices,
    Int,
    Kind,
    MemorySize,
    PythonOnly,
    argument,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

LayersLike: TypeAlias = "int | str | Sequence[int] | None"
S = TypeVar("S", bound="Specification")
# Step between the layers of a quick look.
_QUICK_STEP = 4


def read_toml(source: str | Path) -> dict[str, Any]:
    """Parse a TOML text or file. Raise InputError if it cannot be read or is not TOML."""
    try:
        text = source.read_text(encoding="utf-8-sig") if isinstance(source, Path) else source
    except UnicodeDecodeError as error:
        raise InputError(f"Cannot read {source}: it is not UTF-8.") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise InputError(f"Cannot read {source}: {getattr(error, 'strerror', error)}.") from error
    try:
        return tomllib.loads(text)
    # ValueError: also a number of more than 4,300 digits.
    except (ValueError, RecursionError) as error:
        what = source if isinstance(source, Path) else "The text"
        raise InputError(f"{what} is not TOML: {error}.") from error


class PromptLike(Kind):
    """Prompt: a name, a template or an object; names are resolved when the data is loaded."""

    metavar: ClassVar[str] = "PROMPT"

    @override
    def check(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and value.strip():
            return "fewshot(4)" if value.strip() == "fewshot" else value
        has_name = isinstance(getattr(value, "name", None), str)
        if hasattr(value, "render") and has_name and not isinstance(value, type):
            return value
        raise InputError(
            f"{name}={short_repr(value)} must be 'qa', 'fewshot(4)', 'chat', a text with"
            " {question} in it, or an object with a name and render(question, tokenizer)."
        )


LAYERS = argument(
    None, "Layers to measure, such as 0-11, 0,4,8, 0-28:4, -1 or -4: (the last 4). If None, all."
)
QUICK = argument(
    False,
    "Whether to take a quick look: fewer layers and donors, no nulls, no claims. Measured are every"
    " fourth layer and the last, one donor for each row, no nulls or placebos. Verdict and"
    " figure say that nothing is claimed. If layers or n_donors are given, these are measured.",
)
ADD_BOS = argument(
    None,
    "Whether to add BOS before the text. If None, as the Hugging Face tokenizer does.",
    metavar="yes|no",
)


class Specification(BaseModel):
    """Arguments of every protocol."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    NAME: ClassVar[str] = ""
    DATA: ClassVar[str] = "questions"

    QUICK_VALUES: ClassVar[Mapping[str, Any]] = {}
    """Argument -> value with ``quick=True``, unless it is given; layers are thinned by all."""
    QUICK_NULLS: ClassVar[Collection[str]] = ()
    """Arguments of :attr:`QUICK_VALUES` on nulls, which contradict ``quick=True``."""

    layers: Annotated[LayersLike, Indices()] = LAYERS
    quick: StrictBool = QUICK
    n_resamples: Annotated[int, Int(2, most=10**6)] = argument(
        1000, "Number of bootstrap resamples for the bands.", group="statistics", flag="--resamples"
    )
    seed: Annotated[int, Int(most=2**63 - 1)] = argument(
        0, "Random seed of all draws; no global state is changed.", group="statistics"
    )
    batch_size: Annotated[int | None, Int(1, none="what fits")] = argument(
        None,
        "Number of rows in one pass. If None, chosen for the available memory.",
        execution_only=True,
    )
    engine: Annotated[str, Choice(ENGINES)] = argument(
        "cone",
        "cone: one pass for all layers; reference: a full forward pass per cell, slow.",
        execution_only=True,
    )
    max_memory: Annotated[Annotated[ByteSize, Field(gt=0)] | None, MemorySize()] = argument(
        None,
        "Memory limit beside the model, such as 2GB or 512MiB. If None, half of the free memory.",
        execution_only=True,
    )
    n_spot_checks: Annotated[int | None, Int()] = argument(
        4,
        "Number of random cells that the reference engine measures again. A difference in the first"
        " batch stops the sweep, a later difference marks the run.",
        execution_only=True,
    )
    on_plan: Annotated[
        Callable[[Any], object] | None, PythonOnly("a function that takes the plan")
    ] = argument(
        None,
        "Function called with the plan (batches, predicted FLOPs, seconds and memory) before"
        " measuring; an exception stops the sweep.",
        execution_only=True,
        in_shell=False,
    )
    progress: StrictBool = argument(
        True, "Whether to show a progress bar.", execution_only=True, in_shell=False
    )

    def __init__(self, **values: Any) -> None:
        known = self.arguments()
        self.check_names(values, known)
        if values.get("quick") is True:
            values = self._quick_values(values)
        try:
            super().__init__(**values)
        except ValidationError as failed:
            first = failed.errors()[0]
            name = str(first["loc"][0])
            problem = first["msg"].replace("Input should", "must")
            raise InputError(
                f"{name}={short_repr(values[name])}: {problem}. Meaning: {known[name].help}",
                argument=name,
            ) from None

    @classmethod
    def _quick_values(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a quick look; given ones are kept.

        Raises:
            InputError: If a given argument asks for what a quick look does not measure.
        """
        layers = values.get("layers")
        if isinstance(layers, str) and layers.strip().lower() == "all":
            raise InputError(
                f"layers={layers!r}: quick=True measures every fourth layer. Leave one of them out,"
                " or name the layers.",
                argument="layers",
            )
        for name in cls.QUICK_NULLS:
            if values.get(name) and values[name] != cls.QUICK_VALUES[name]:
                raise InputError(
                    f"{name}={short_repr(values[name])}: quick=True measures no controls. Leave one"
                    " of them out.",
                    argument=name,
                )
        return {**cls.QUICK_VALUES, **values}

    def __setattr__(self, name: str, value: Any) -> None:
        raise InputError(f"A specification is frozen. Make a copy with spec.replace({name}=...).")

    def replace(self: S, **values: Any) -> S:
        """Return a validated copy with some arguments replaced."""
        # Defaults are left out: quick=True changes them, and keeps what is given.
        own = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**own | values)

    def each_direction(self: S) -> tuple[S, ...]:
        """Return the specifications of the sweeps to measure: this one, unless a protocol measures
        several for it.
        """
        return (self,)

    @override
    def model_post_init(self, context: Any) -> None:
        self.check_together()

    @classmethod
    def description(cls) -> str:
        """Return the docstring without its examples, which are Python: for ``--help``, and for the
        function that has examples of its own.
        """
        return inspect.cleandoc(cls.__doc__ or "").partition("\n\nExamples:\n")[0]

    @classmethod
    def check_names(cls, names: Iterable[str], known: Iterable[str]) -> None:
        """Raise InputError if an argument is not ``known``."""
        for name in names:
            if name not in known:
                raise InputError(
                    f"{cls.NAME} has no argument {name!r}. {did_you_mean(name, known)}",
                    argument=name,
                )

    def check_together(self) -> None:
        """Raise InputError if two arguments contradict each other."""

    @classmethod
    def arguments(cls) -> dict[str, Argument]:
        """Return all arguments by name: those of the protocol first, then shared ones."""
        arguments: dict[str, Argument] = {}
        for one in cls.__mro__:
            for name in vars(one).get("__annotations__", {}):
                if name in cls.model_fields and name not in arguments:
                    extra: Any = cls.model_fields[name].json_schema_extra
                    arguments[name] = extra["argument"]
        return arguments

    @classmethod
    def default_of(cls, name: str) -> Any:
        """Return the default of an argument."""
        return cls.model_fields[name].get_default()

    def constant_columns(self) -> dict[str, object]:
        """Return the constant columns of the samples: site, window, direction, ..."""
        return {}

    def layers_of(self, n_layers: int) -> tuple[int, ...]:
        """Return the layers to measure in a model with ``n_layers`` layers.

        Raise InputError if it lacks one of them.
        """
        layers: Any = self.layers
        if layers is None and self.quick:
            return tuple(sorted({*range(0, n_layers, _QUICK_STEP), n_layers - 1}))
        if layers is None:
            return tuple(range(n_layers))
        return Indices().resolve("layers", layers, n_layers)

    def fix_clock(self: S, time: str) -> S:  # noqa: ARG002
        """Return a copy whose prompts read this local time."""
        return self

    def resolve(self: S, *, n_layers: int, n_heads: int) -> S:
        """Return a copy whose layers and heads count from 0.

        Raise InputError if the model lacks one of them.
        """
        sizes = {"layers": n_layers, "heads": n_heads}
        resolved: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            for kind in field.metadata:
                if isinstance(kind, Indices) and value is not None:
                    resolved[name] = kind.resolve(name, value, sizes[kind.of])
        return self.replace(**resolved)

    def _values(self) -> dict[str, Any]:
        """Return the arguments that affect the numbers."""
        values: dict[str, Any] = {}
        for name, one in self.arguments().items():
            if not one.execution_only:
                values[name] = getattr(self, name)
        return values

    def identity(self) -> dict[str, Any]:
        """Return the arguments that affect the numbers as JSON values; user objects by name."""
        return {name: _plain(value) for name, value in self._values().items()}

    def own_code(self) -> dict[str, str]:
        """Return argument -> fingerprint of user functions and objects."""
        fingerprints: dict[str, str] = {}
        for name, value in self._values().items():
            if is_user_object(value):
                fingerprints[name] = _code(value)
        return fingerprints

    def to_toml(self) -> str:
        """Return the arguments that differ from their defaults as TOML, without Python-only
        arguments.

        Raises:
            InputError: If an argument that affects the numbers is a user object.
        """
        import tomli_w

        changed: dict[str, Any] = {}
        for name, one in self.arguments().items():
            value = getattr(self, name)
            is_default = value == self.default_of(name) and not (
                self.quick and name in self.QUICK_VALUES
            )
            if is_default or (one.execution_only and not one.in_shell):
                continue
            if is_user_object(value):
                raise InputError(
                    f"{name}={short_repr(value)} cannot be written to a file. Leave it out, or use"
                    " Python.",
                    argument=name,
                )
            changed[name] = list(value) if isinstance(value, tuple) else value
        return tomli_w.dumps(changed)

    @classmethod
    def from_toml(cls: type[S], text: str) -> S:
        """Parse a specification written by :meth:`to_toml`.

        Raises:
            InputError: If the text is not TOML, or an argument is invalid.
        """
        if not isinstance(text, str):
            raise InputError(f"text={short_repr(text)} must be a string.", argument="text")
        return cls.of(read_toml(text))

    @classmethod
    def of(cls: type[S], values: Mapping[str, Any]) -> S:
        """Build a specification from the values of a file; keys are argument names or flags, with
        ``-`` or ``_``.
        """
        flags: dict[str, str] = {}
        for name, one in cls.arguments().items():
            if one.flag:
                flags[one.flag.lstrip("-").replace("-", "_")] = name
        arguments: dict[str, Any] = {}
        for key, value in values.items():
            plain = str(key).replace("-", "_")
            name = flags.get(plain, plain)
            if name in arguments:
                raise InputError(
                    f"{cls.NAME}: {name} is given twice, once as '{key}'.", argument=name
                )
            arguments[name] = value
        return cls(**arguments)

    @classmethod
    def from_config(cls: type[S], config: Mapping[str, Any]) -> S:
        """Build the specification of a sweep from its ``config`` in run.json.

        Raises:
            InputError: If the sweep used a user function, which is not stored.
        """
        values = {name: value for name, value in config.items() if name in cls.model_fields}
        functions = [name for name, value in values.items() if _is_function_name(value)]
        if functions or config.get("own_code"):
            function = functions[0] if functions else "see own_code"
            raise InputError(
                f"This sweep used a function of yours ({function}). Give it again in Python."
            )
        return cls(**values)


class QuestionSpecification(Specification):
    """Arguments of all protocols on questions and answers."""

    layers: Annotated[LayersLike, Indices()] = (
        LAYERS  # repeated, so that it precedes `prompt` in signatures
    )
    prompt: Annotated[Any, PromptLike()] = argument(
        "qa",
        "Prompt around the question: qa, fewshot(k), fewshot(k, seed=s), chat, chat(2026-11-27) to"
        " set the date of a template, or a text with {question} in it.",
    )
    add_bos: StrictBool | None = ADD_BOS
    max_new_tokens: Annotated[int, Int(1)] = argument(
        16, "Maximum length of generated answers, in tokens."
    )

    @override
    def fix_clock(self, time: str) -> "QuestionSpecification":
        return self.replace(prompt=f"chat({time})") if self.prompt == "chat" else self

    @property
    def has_truth_question(self) -> bool:
        """Whether the input ends with a question about the answer's truth."""
        return getattr(self, "readout", "") == "p_true"


def is_user_object(value: Any) -> bool:
    """Return whether a value is a user object: not None, a string, a number or a sequence."""
    return (
        value is not None
        and not isinstance(value, (str, bool, float, tuple, list))
        and as_int(value) is None
    )


def _code(value: Any) -> str:
    """Return the fingerprint of a user object; fitted probes have an attribute for it."""
    stored = getattr(value, "fingerprint", None)
    if isinstance(stored, str):
        return stored
    return fingerprint(value if callable(value) else value.render)


def _plain(value: Any) -> Any:
    if not is_user_object(value):
        return list(value) if isinstance(value, tuple) else value
    if callable(value):
        return callable_name(value)
    return str(getattr(value, "name", type(value).__name__))


def _is_function_name(value: Any) -> bool:
    """Return whether a stored value is the name of a user function."""
    return isinstance(value, str) and value.startswith("callable:")
