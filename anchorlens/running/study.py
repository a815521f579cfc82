"""Define studies: several models, data sets and protocols, checked before a model is loaded."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from anchorlens.display import short_repr
from anchorlens.errors import InputError, did_you_mean
from anchorlens.models.source import check_model, existing_path, name_in_results
from anchorlens.prompts.dataset import PromptDataset
from anchorlens.protocols.registry import PROTOCOLS, measurement_of, specification_of
from anchorlens.protocols.specification import Specification, read_toml
from anchorlens.questions.example import QAData
from anchorlens.questions.prompts import make_prompt
from anchorlens.questions.tokens import QUESTIONS
from anchorlens.running.dataset_spec import DatasetSpec
from anchorlens.running.executors import Loading


@dataclass(frozen=True)
class Study:
    """Study: every specification on every model and data set.

    Examples:
        >>> import anchorlens as al
        >>> study = al.Study(
        ...     models="smollm2-135m-instruct",
        ...     data=[al.DatasetSpec("popqa-sample", limit=20), "nq-sample"],
        ...     specifications=[al.Swap(layers=(0, 24)), al.Knockout()],
        ... )
        >>> len(study.data), len(study.specifications)
        (2, 2)
        >>> al.Study.from_toml("study.toml")  # the same from a file  # doctest: +SKIP

    Attributes:
        models: Names, paths or live models; stored as a tuple. Paths are relative to the current
            folder.
        data: Data sets: names, files, :class:`DatasetSpec` or loaded sets; stored as a tuple.
        specifications: Specifications such as ``al.Swap()``; stored as a tuple.
        device: Device of the models. If None, the best one.
        dtype: Number type of the models. If None, that of their files.
        stream: Whether the weights of named models are read layer by layer.
        n_devices: Number of devices over which a named model is spread.
        backend: ``hooked`` or ``bridge``, as in :func:`anchorlens.load_model`. If None, as there.
    """

    models: Any
    data: Any
    specifications: Any
    device: str | None = None
    dtype: str | None = None
    stream: bool = False
    n_devices: int = 1
    backend: str | None = None

    def __post_init__(self) -> None:
        for name, single, what in (
            ("models", (str, os.PathLike), "names, paths or models"),
            (
                "data",
                (str, os.PathLike, DatasetSpec, PromptDataset),
                "names, files, DatasetSpec or QAData",
            ),
            ("specifications", (Specification,), "specifications such as al.Swap()"),
        ):
            given = getattr(self, name)
            listed = (
                [given]
                if isinstance(given, single)
                else list(given)
                if isinstance(given, Sequence)
                else None
            )
            if not listed or (
                name != "models" and not all(isinstance(one, single) for one in listed)
            ):
                raise InputError(
                    f"{name}={short_repr(given)}: must be {what}, one or more in a list.",
                    argument=name,
                )
            if name == "data":
                listed = list(map(_as_request, listed))
            object.__setattr__(self, name, tuple(listed))
        if not isinstance(self.stream, bool):
            raise InputError(
                f"stream={short_repr(self.stream)}: not a bool. Give True, or leave it out.",
                argument="stream",
            )

    @classmethod
    def from_toml(cls, path: "str | os.PathLike[str]") -> "Study":
        """Read a study file: ``models``, options of loading, tables ``[[data]]``, ``[[protocol]]``.

        Paths of data are relative to the file, paths of models to the current folder.

        Raises:
            InputError: If the file cannot be read, or a key or value is invalid.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise InputError(f"path={short_repr(path)} is no path of a file.", argument="path")
        file = Path(os.path.expanduser(path))  # noqa: PTH111 - Path raises for an unknown user
        values = read_toml(file)
        loading = ("device", "n_devices", "dtype", "stream", "backend")
        _check_keys(values, ("models", "data", "protocol", *loading), f"{file}: unknown key")
        data = [_data_request(one, file) for one in _tables(values, "data", file)]
        specifications: list[Specification] = []
        for one in _tables(values, "protocol", file):
            name = one.pop("name", None)
            if not isinstance(name, str):
                raise InputError(
                    f"{file}: a [[protocol]] needs a name. {did_you_mean('', PROTOCOLS)}"
                )
            specifications.append(specification_of(name).of(one))
        return cls(
            values.get("models", ()),
            data,
            specifications,
            **{name: values[name] for name in loading if name in values},
        )

    @property
    def loading(self) -> Loading:
        """Options for loading the models."""
        return Loading(
            device=self.device,
            dtype=self.dtype,
            stream=self.stream,
            n_devices=self.n_devices,
            backend=self.backend,
        )

    @property
    def single_specifications(self) -> list[Any]:
        """Specification of each sweep of a model and data set: a swap in both directions has
        two.
        """
        found: list[Any] = []
        for spec in self.specifications:
            found += spec.each_direction()
        return found

    def check(self, *, models: bool = True) -> list[PromptDataset]:
        """Check everything that needs no model, and return the loaded data.

        Args:
            models: Also check that the models exist and can be loaded.

        Raises:
            InputError: If a name, path or argument is invalid.
            DownloadError: If the hub lacks a model or data set, or cannot be reached.
        """
        twice = _find_duplicate([model for model in self.models if isinstance(model, str)])
        if twice is not None:
            raise InputError(
                f"model={twice!r} is named twice. Name each model once.", argument="model"
            )
        self._check_specifications()
        if models:
            self._check_models()
        of_pairs = measurement_of(self.specifications[0].NAME).source is not QUESTIONS
        loaded: list[PromptDataset] = []
        for one in self.data:
            data = one.load(pairs=of_pairs) if isinstance(one, DatasetSpec) else one
            loaded.append(data)
        if (again := _find_duplicate([data.name for data in loaded])) is not None:
            raise InputError(
                f"Two data sets have the name {again!r}. Give different names: name= in a study's"
                " [[data]], dataset_name= in Python."
            )
        for data in loaded:
            if isinstance(data, QAData):
                for spec in self.single_specifications:
                    make_prompt(spec.prompt, data.examples, data.pool, spec.seed)
        return loaded

    def _check_models(self) -> None:
        """Raise an error if a model cannot be loaded, or if two have one name in results."""
        again = _find_duplicate([name_in_results(model) for model in self.models])
        if again is not None:
            raise InputError(
                f"Two models have the name {again!r} in results. Rename the folder of one, or make"
                " a study of each.",
                argument="models",
            )
        for model in self.models:
            stream = self.stream and isinstance(model, (str, os.PathLike))
            check_model(
                model,
                device=self.device,
                dtype=self.dtype,
                stream=stream,
                n_devices=self.n_devices,
                backend=self.backend,
            )

    def _check_specifications(self) -> None:
        """Raise InputError if a specification occurs twice, or questions and pairs mix."""
        identities: list[tuple[Any, ...]] = []
        for spec in self.single_specifications:
            identity = spec.identity()
            identities.append((spec.NAME, identity, spec.own_code()))
        if _find_duplicate(identities) is not None:
            fix = (
                "Change an argument other than engine, batch_size, max_memory and n_spot_checks,"
                " which affect no number."
            )
            raise InputError(
                f"A specification occurs twice in this study. {fix}", argument="specifications"
            )
        if len({spec.DATA for spec in self.specifications}) > 1:
            raise InputError(
                "specifications=: questions and pairs do not mix. Make a study of each.",
                argument="specifications",
            )


def _as_request(data: Any) -> Any:
    """Return a data set; one that is given by its name or path, as the request to load it."""
    return DatasetSpec(str(data)) if isinstance(data, (str, os.PathLike)) else data


def _find_duplicate(values: Sequence[Any]) -> Any:
    before: list[Any] = []
    for one in values:
        if one in before:
            return one
        before.append(one)
    return None


def _check_keys(table: Mapping[str, Any], known: Sequence[str], problem: str) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"{problem} '{key}'. {did_you_mean(key, known)}")


def _tables(values: Mapping[str, Any], key: str, file: Path) -> list[dict[str, Any]]:
    """Return the tables of a key in a study file; a string stands for a table with that name."""
    given = values.get(key, [])
    tables: list[dict[str, Any]] = []
    for one in given if isinstance(given, list) else [given]:
        table = {"name": one} if isinstance(one, str) else one
        if not isinstance(table, dict):
            raise InputError(f"{file}: [[{key}]] takes a table or a name, got {short_repr(table)}.")
        tables.append(dict(table))
    return tables


def _data_request(table: dict[str, Any], file: Path) -> DatasetSpec:
    """Return the data set of a table; paths are relative to the study file."""
    _check_keys(
        table, [one.name for one in fields(DatasetSpec)], f"{file}: [[data]] has an unknown key"
    )
    for key in ("name", "path"):
        if not isinstance(table.get(key, ""), str):
            raise InputError(
                f"{file}: [[data]] {key}={short_repr(table[key])} must be text.", argument=key
            )
    if (
        "path" not in table
        and (beside := existing_path(str(file.parent / table.get("name", ""))))
        and beside.is_file()
    ):
        table["path"] = table.pop("name")
    if "path" in table:
        # Path.expanduser raises for an unknown user.
        path = os.path.expanduser(table["path"])  # noqa: PTH111
        table["path"] = str(file.parent / path)
    return DatasetSpec(**{"name": None, **table})
