"""A specification: all that decides a protocol's numbers, frozen, checked, written to and read from TOML and ``run.json``.

A protocol's arguments are the fields of its specification, each declared once (:mod:`anchorlens.protocols.arguments`). Nothing heavy
is imported here: what depends on the model is checked once there is one (:meth:`Specification.fit_to`).
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from anchorlens.callables import callable_name, fingerprint
from anchorlens.errors import InputError, did_you_mean
from anchorlens.kinds import as_whole, described
from anchorlens.protocols.arguments import (
    Argument,
    Kind,
    Maybe,
    Memory,
    Numbers,
    Own,
    Switch,
    Whole,
    Word,
    argument,
    argument_of,
)
from anchorlens.vocabulary import ENGINES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

LayersLike: TypeAlias = "int | str | Sequence[int] | None"
S = TypeVar("S", bound="Specification")


class Prompt(Kind):
    """A prompt's name, a template, or an object."""

    def check(self, name: str, value: Any) -> Any:  # noqa: ARG002
        """Its name is looked up with the data; here only what can be no prompt at all is refused."""
        if isinstance(value, str) and value.strip():
            return value
        if hasattr(value, "render") and isinstance(getattr(value, "name", None), str) and not isinstance(value, type):
            return value
        raise InputError(
            "prompt takes 'qa', 'fewshot(4)', 'chat', a text with {question} in it, or an object with a name and "
            f"render(question, tokenizer); got {described(value)}."
        )


class Specification(BaseModel):
    """What every protocol has.

    Attributes:
        NAME: The protocol's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    NAME: ClassVar[str] = ""

    layers: LayersLike = argument(None, Numbers("0-11"), "Layers to measure: all, or for example 0-11, 0,4,8 or 0-28:4.")
    prompt: Any = argument(
        "qa",
        Prompt("P"),
        "What stands around the question: qa, fewshot(k), fewshot(k, seed=s), chat, or a text with {question} in it.",
    )
    add_bos: bool | None = argument(
        None, Maybe("yes|no"), "BOS before the text; as the Hugging Face tokenizer adds it if left out."
    )
    max_new_tokens: int = argument(16, Whole("N", 1), "Longest generated answer.")
    n_resamples: int = argument(1000, Whole("N", 2), "Bootstrap resamples of the bands.", flag="--resamples")
    seed: int = argument(0, Whole("N", 0), "Decides everything that is drawn. No global state is touched.")
    batch_size: int | None = argument(
        None, Whole("N", 1, none="what fits"), "Rows in one pass; chosen for the memory at hand if left out.", how=True
    )
    engine: str = argument(
        "cone", Word("NAME", ENGINES), "cone: one pass for all layers; reference: a full pass for each cell, slow and plain.",
        how=True,
    )  # fmt: skip
    max_memory: Any = argument(
        None,
        Memory("SIZE"),
        "Most memory beside the model, for example 2GB or 512MiB; half of what is free if left out.",
        how=True,
    )
    check_cells: int = argument(
        4,
        Whole("N", 0),
        "So many random cells are measured again by the reference engine; a difference in the first batch stops the sweep, a later "
        "one marks the run.",
        how=True,
    )
    on_plan: Callable[[Any], object] | None = argument(
        None, Own("", "a function that takes the plan"),
        "Called with the plan (batches, predicted FLOPs, seconds and memory) before anything is measured; what it raises stops the "
        "sweep.", how=True,
    )  # fmt: skip
    progress: bool = argument(True, Switch(""), "Show a progress bar with the time left.", how=True, shell=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as why:  # what the kinds of the arguments let through and pydantic does not
            said = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in why.errors())
            raise InputError(f"{self.NAME}: {said}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise InputError(f"A specification is frozen. Make another one: spec.changed({name}=...).")

    def __delattr__(self, name: str) -> None:
        raise InputError(f"A specification is frozen, and {name!r} stays in it.")

    def changed(self: S, **values: Any) -> S:
        """The same specification with other values, checked."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | values)

    @model_validator(mode="before")
    @classmethod
    def _each(cls, values: Any) -> Any:
        """Every argument by its kind, before pydantic looks at types."""
        known = cls.arguments()
        for name in values:
            if name not in known:
                raise InputError(f"{cls.NAME} has no argument {name!r}. {did_you_mean(name, known)}")
        given = {name: field.get_default() for name, field in cls.model_fields.items()} | dict(values)
        return {name: known[name].kind.check(name, value) for name, value in given.items()}

    @model_validator(mode="after")
    def _together(self: S) -> S:
        self.check_together()
        return self

    def check_together(self) -> None:
        """What several arguments must agree on.

        Raises:
            InputError: They do not.
        """

    @classmethod
    def arguments(cls) -> dict[str, Argument]:
        """Every argument by name: the protocol's own first, then what it shares with others, the nearest first."""
        classes = [one for one in cls.__mro__ if issubclass(one, Specification)]
        names = dict.fromkeys(
            name for one in classes for name in vars(one).get("__annotations__", {}) if name in cls.model_fields
        )
        return {name: argument_of(cls.model_fields[name]) for name in names}

    def layers_of(self, n_layers: int) -> tuple[int, ...]:
        """The layers to measure of a model with so many.

        Raises:
            InputError: The model has not all of them.
        """
        return whole_run(self.layers, n_layers, "layers")

    def identity(self) -> dict[str, Any]:
        """Everything that decides the numbers, as JSON has it; what is the user's own by name."""
        return {name: _plain(getattr(self, name)) for name, one in self.arguments().items() if not one.how}

    def own_code(self) -> dict[str, str]:
        """Fingerprints of what is the user's own: two functions of one name are two."""
        values = {name: getattr(self, name) for name, one in self.arguments().items() if not one.how}
        return {name: _code(value) for name, value in values.items() if is_own(value)}

    def to_toml(self) -> str:
        """The arguments that differ from the default, as TOML. What a file cannot say and no number hangs on is left out.

        Raises:
            InputError: One of them is an object of the user's own, which no file can hold.
        """
        import tomli_w

        changed: dict[str, Any] = {}
        for name, one in self.arguments().items():
            value = getattr(self, name)
            if value == type(self).model_fields[name].get_default():
                continue
            if one.how and not one.shell:
                continue
            if is_own(value):
                raise InputError(f"{name}= holds an object of your own, and a file cannot: leave it out, or stay in Python.")
            changed[name] = list(value) if isinstance(value, tuple) else value
        return tomli_w.dumps(changed)

    @classmethod
    def from_toml(cls: type[S], text: str) -> S:
        """The specification that :meth:`to_toml` wrote.

        Raises:
            InputError: The text is not TOML, or an argument is wrong.
        """
        if not isinstance(text, str):
            raise InputError(f"from_toml takes a text, got {described(text)}.")
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as why:
            raise InputError(f"This is not TOML: {why}.") from why
        return cls.of(values)

    @classmethod
    def of(cls: type[S], values: Mapping[str, Any]) -> S:
        """From the values of a file; its names may be those of arguments or of flags, with ``-`` or ``_``."""
        flags = {one.flag.lstrip("-").replace("-", "_"): name for name, one in cls.arguments().items() if one.flag}
        found: dict[str, Any] = {}
        for key, value in values.items():
            plain = str(key).replace("-", "_")
            name = flags.get(plain, plain)
            if name in found:
                raise InputError(f"{cls.NAME}: {name} is given twice, once as '{key}'.")
            found[name] = value
        return cls(**found)

    @classmethod
    def from_config(cls: type[S], config: Mapping[str, Any]) -> S:
        """From the ``config`` of a run.json.

        Raises:
            InputError: A function of the user's own took part, which only its code can bring back.
        """
        values = {name: value for name, value in config.items() if name in cls.model_fields}
        own = next((n for n, v in values.items() if isinstance(v, str) and v.startswith("callable:")), None)
        if own is not None or config.get("own_code"):
            raise InputError(f"This sweep was made with code of your own ({own or 'see own_code'}): give it again in Python.")
        return cls(**values)


def whole_run(numbers: Any, n: int, name: str) -> tuple[int, ...]:
    """Numbers below ``n``, all where there is None.

    Raises:
        InputError: Some are beyond.
    """
    if numbers is None:
        return tuple(range(n))
    if max(numbers) >= n:
        raise InputError(f"{name} must be different numbers from 0 to {n - 1}, got {described(tuple(numbers))}.")
    return tuple(numbers)


def is_own(value: Any) -> bool:
    """Whether a value is an object of the user's own: no text, number or list of these."""
    return value is not None and not isinstance(value, (str, bool, float, tuple, list)) and as_whole(value) is None


def _code(value: Any) -> str:
    """What tells an object of the user's own from another one of its name; fitted probes say it themselves."""
    own = getattr(value, "fingerprint", None)
    return own if isinstance(own, str) else fingerprint(value if callable(value) else value.render)


def _plain(value: Any) -> Any:
    if not is_own(value):
        return list(value) if isinstance(value, tuple) else value
    return callable_name(value) if callable(value) else str(getattr(value, "name", type(value).__name__))


__all__ = ["LayersLike", "Prompt", "Specification", "is_own", "whole_run"]
