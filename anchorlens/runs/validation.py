"""Schema of ``run.json``, and column types and values of the tables; every reader of a run
directory uses them.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from anchorlens.constants import TRUTH_READOUTS
from anchorlens.display import short_repr
from anchorlens.errors import RunError
from anchorlens.runs.checksums import check_file
from anchorlens.runs.schema import TABLE_COLUMNS, TEXT_AUCS, VALUE_COLUMNS

_AGAIN = "Make the run again."
_INTEGERS = frozenset(
    (
        "layer",
        "position",
        "head",
        "window",
        "seed",
        "n",
        "n_clusters",
        "draw",
        "n_patched",
        "n_null_patched",
        "label",
        "test_split",
    )
)
_FLAGS = frozenset(("by_construction", "pre_answer_token_differs", "probe_above_chance"))
_LISTS = {"token_ids": pa.int64(), "tokens": pa.string(), "donor_ids": pa.string()}
_NUMBERS = frozenset(
    (
        *VALUE_COLUMNS,
        "p",
        "value",
        "ci_low",
        "ci_high",
        "sim_low",
        "sim_high",
        "auc",
        "auc_low",
        "auc_high",
        "noise_floor",
        "frac_null_incomplete",
        *TEXT_AUCS,
        "popularity",
        "qa_text_score",
        "n_effective",
    )
)
ROLES = ("base", "donor", "corrupt", "direction", "train", "validation", "test", "dropped")
"""Roles of the rows of ``examples.parquet``."""
# Explicit types, because lists that are empty in every row would be written as null columns.
LIST_TYPES = {name: pa.list_(kind) for name, kind in _LISTS.items()}


class _Part(BaseModel):
    """Object of the record; keys that only one protocol has are kept unchecked."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Model(_Part):
    name: str
    source: str
    revision: str | None
    dtype: str
    weights_sha256: str
    tokenizer_sha256: str | None
    backend: str
    weights_processed: bool


class _Data(_Part):
    name: str
    source: str
    sha256: str
    limit: int | None
    seed: int
    examples: int


class _Environment(_Part):
    versions: dict[str, str]
    code_sha256: str


class _Config(_Part):
    protocol: str
    seed: int
    layers: list[int]
    anchors: list[str]
    prompt: str
    add_bos: bool
    readout: str | None = None


Count = Annotated[int, Field(ge=0)]
Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Noise(_Part):
    floor: Size | None
    cells: Count


class _Checks(_Part):
    cells: Count
    known: Count
    largest_difference: Size | None
    failed: list[str]
    steps: Count = 0


class _Counts(_Part):
    evaluated: Count
    dropped: dict[str, Count]


class _Auc(_Part):
    auc: float
    ci_low: float
    ci_high: float


class _TestAuc(_Part):
    layers: dict[str, Annotated[list[float | None], Field(min_length=5, max_length=5)]]
    questions: Count


class _Probe(_Part):
    probe_layer: int | None
    probe_layers: list[int]
    test_auc: _TestAuc | None = None
    answer_text_auc: _Auc | None = None
    qa_text_auc: _Auc | None = None


TokenId = Annotated[int, Field(ge=0)]


class _Answers(_Part):
    answer_ids: list[TokenId]
    wrong_ids: list[TokenId]
    any_of: bool = False
    source_value: float | None = None
    row: dict[str, Any] | None = None


class _Sweep(_Part):
    run_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]  # names a folder of probes
    config: _Config
    model: _Model
    data: _Data
    environment: _Environment
    noise: _Noise
    probe: _Probe | None = None
    pairs: dict[str, _Answers] = Field(default_factory=dict)
    plan: dict[str, Any]
    checks: _Checks
    counts: _Counts
    verdict: str
    findings: dict[str, Any]
    rows: dict[str, Count]

    @model_validator(mode="after")
    def _check_probe(self) -> "_Sweep":
        if self.config.readout in TRUTH_READOUTS:
            if self.probe is None:
                raise ValueError("probe is missing")
            if self.config.protocol != "swap" and self.probe.answer_text_auc is None:
                raise ValueError("probe.answer_text_auc is missing")
            test_auc = self.probe.test_auc
            layers = list(map(str, self.config.layers))
            if test_auc is not None and list(test_auc.layers) != layers:
                raise ValueError("probe.test_auc.layers are not those of config.layers")
        return self


class _Run(_Part):
    """Record of a run directory, ``OUT/run.json``."""

    schema_version: int
    created: str
    pending: list[str]
    study: list[Any]
    sweeps: list[_Sweep]

    @field_validator("created")
    @classmethod
    def _check_time(cls, value: str) -> str:
        datetime.fromisoformat(value)
        return value


class _Planned(_Part):
    protocol: str
    model: str
    data: dict[str, Any]
    config: dict[str, Any]


class _Parts(_Part):
    """Record of an unfinished run, ``OUT.parts/run.json``."""

    version: int
    target: str
    command: dict[str, Any] | None
    started: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$")]
    sweeps: list[_Planned]


class _Plan(_Part):
    shards: Annotated[int, Field(ge=0)]


class _Memory(_Part):
    bytes: Annotated[int, Field(ge=0)]


class _Empty(_Part):
    why: str


RUN = _Run
PARTS = _Parts
NOTES: dict[str, type[BaseModel]] = {
    "plan.json": _Plan,
    "free_memory.json": _Memory,
    "empty.json": _Empty,
}
"""Form of the notes of a sweep, by file name; the others are only compared."""


def check_form(file: Path, value: Any, form: type[BaseModel], cure: str = _AGAIN) -> None:
    """Raise RunError, naming the first wrong entry, unless the value of a JSON file has
    this form.
    """
    try:
        form.model_validate(value)
    except ValidationError as why:
        first = why.errors()[0]
        where = ""
        for part in first["loc"]:
            where += f"[{part}]" if isinstance(part, int) else f".{part}"
        where = where.lstrip(".")
        raise RunError(f"{file} is damaged: {where or 'content'}: {first['msg']}. {cure}") from None


def read_table(folder: Path, name: str) -> pd.DataFrame:
    """Read a table of a run directory.

    Raise RunError if its bytes, columns or types differ from those that were written.
    """
    file = folder / f"{name}.parquet"
    check_file(folder, file.name)
    try:
        schema = pq.read_schema(file)
        table = pd.read_parquet(file)
    except (pa.ArrowException, OSError, ValueError, LookupError) as why:
        raise RunError(f"{file} is damaged ({why}). {_AGAIN}") from why
    wanted = TABLE_COLUMNS[name]
    if missing := [column for column in wanted if column not in schema.names]:
        raise RunError(f"{file} is damaged: it lacks the columns {', '.join(missing)}. {_AGAIN}")
    for column in wanted:
        kind = schema.field(column).type
        if not _fits(column, kind):
            raise RunError(f"{file} is damaged: column {column} has the type {kind}. {_AGAIN}")
        # pandas reads integers and flags with nulls as other types, if another program wrote the
        # file.
        if pa.types.is_integer(kind) and pd.api.types.is_float_dtype(table[column].dtype):
            table[column] = table[column].astype("Int64")
        if pa.types.is_boolean(kind) and table[column].dtype == object:
            table[column] = table[column].astype("boolean")
    return table


@dataclass(frozen=True)
class TableRows:
    """Rows of one sweep in a table of a run directory, whose values are checked.

    Attributes:
        file: File of the table.
        frame: Rows of the sweep, numbered from 0.
        start: Number of the first row in the file, from 0.
    """

    file: Path
    frame: pd.DataFrame
    start: int = 0

    def check(self, column: str, is_wrong: "npt.ArrayLike", problem: str) -> None:
        """Raise RunError at the first row where ``is_wrong``, naming file, row, column, value and
        the problem.
        """
        wrong = np.asarray(is_wrong, dtype=bool)
        if wrong.any():
            row = int(wrong.argmax())
            value = short_repr(self.frame[column].tolist()[row])
            raise RunError(
                f"{self.file} is damaged: row {self.start + row}:"
                f" {column}={value}: {problem}. {_AGAIN}"
            )

    def check_same(self, column: str, value: object) -> None:
        """Raise RunError if a column holds another value than that of the record; None stands for
        null.
        """
        own = self.frame[column]
        same = own.isna() if value is None else (own == value).fillna(value=False)
        self.check(column, ~same.to_numpy(dtype=bool), f"run.json has {short_repr(value)}")


def check_inputs(rows: TableRows) -> None:
    """Raise RunError if a row of ``examples.parquet`` has a wrong role or label, is there twice, or
    has wrong tokens.
    """
    table = rows.frame
    rows.check("role", ~table["role"].isin(ROLES), f"must be one of {', '.join(ROLES)}")
    for column in ("example_id", "question_id"):
        rows.check(column, table[column].isna(), "must be a text")
    rows.check(
        "example_id", table.duplicated(["example_id", "role"]), "is there twice with this role"
    )
    rows.check("label", table["label"].notna() & ~table["label"].isin((0, 1)), "must be 0 or 1")
    is_input = (table["role"] != "dropped").to_numpy(dtype=bool)
    ids = table["token_ids"].tolist()
    tokens = table["tokens"].tolist()
    rows.check(
        "token_ids",
        is_input & ~np.array([_are_ids(own) for own in ids], dtype=bool),
        "must be token ids, at least one",
    )
    sizes = np.array(
        [[_length(one), _length(other)] for one, other in zip(ids, tokens, strict=True)]
    ).reshape(-1, 2)
    rows.check(
        "tokens", is_input & (sizes[:, 0] != sizes[:, 1]), "must have as many tokens as token_ids"
    )
    rows.check(
        "donor_ids", [_length(one) < 0 for one in table["donor_ids"].tolist()], "must be a list"
    )


def _length(value: Any) -> int:
    """Return the length of a list; -1 for null and for a list with a null."""
    is_whole = isinstance(value, np.ndarray | list) and not any(one is None for one in value)
    return len(value) if is_whole else -1


def _are_ids(value: Any) -> bool:
    """Return whether the values of a list are token ids; a null makes them decimal numbers."""
    ids = np.asarray(value)
    return ids.dtype.kind == "i" and ids.ndim == 1 and len(ids) > 0 and int(ids.min()) >= 0


def _fits(column: str, kind: pa.DataType) -> bool:
    if column in _LISTS:
        return pa.types.is_list(kind) and kind.value_type == _LISTS[column]
    if column in _FLAGS:
        return pa.types.is_boolean(kind)
    if column in _INTEGERS:
        return pa.types.is_integer(kind)
    if column in _NUMBERS:
        return pa.types.is_integer(kind) or pa.types.is_floating(kind)
    # Columns without a value are texts, too.
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
