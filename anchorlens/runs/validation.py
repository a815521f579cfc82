"""Schema of ``run.json`` and column types of the tables; every reader of a run directory uses them."""

from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from anchorlens.constants import TRUTH_READOUTS
from anchorlens.errors import RunError
from anchorlens.missing_values import without_nulls
from anchorlens.runs.checksums import check_file
from anchorlens.runs.schema import TABLE_COLUMNS

_AGAIN = "Make the run again."
_INTEGERS = frozenset(("layer", "position", "head", "window", "seed", "n", "n_patched", "n_null_patched", "label", "test_split"))
_FLAGS = frozenset(("by_construction", "pre_answer_token_differs", "probe_above_chance"))
_LISTS = {"token_ids": pa.int64(), "tokens": pa.string(), "donor_ids": pa.string()}
_NUMBERS = frozenset(
    (
        "value_before", "value_after", "effect", "logp_before", "logp_after", "logit_diff_before", "logit_diff_after", "value",
        "ci_low", "ci_high", "sim_low", "sim_high", "p_before", "auc", "auc_low", "auc_high", "noise_floor", "frac_null_incomplete",
        "answer_text_auc", "qa_text_auc", "qa_text_auc_low", "popularity", "qa_text_score", "n_effective",
    )
)  # fmt: skip
# Explicit types, because lists that are empty in every row would be written as null columns.
LIST_TYPES = {name: pa.list_(kind) for name, kind in _LISTS.items()}


class _Part(BaseModel):
    """Object of the record; keys that only one protocol has are kept unchecked."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Model(_Part):
    name: str
    weights_sha256: str
    backend: str
    weights_processed: bool


class _Data(_Part):
    name: str
    source: str
    sha256: str


class _Environment(_Part):
    versions: dict[str, str]
    code_sha256: str


class _Config(_Part):
    protocol: str
    seed: int
    layers: list[int]
    anchors: list[str]
    prompt: str
    readout: str | None = None


class _Noise(_Part):
    floor: float | None = None


class _Auc(_Part):
    auc: float
    ci_low: float
    ci_high: float


class _Probe(_Part):
    probe_layer: int | None
    probe_layers: list[int]
    answer_text_auc: _Auc | None = None
    qa_text_auc: _Auc | None = None


class _Sweep(_Part):
    run_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]  # names a folder of probes
    config: _Config
    model: _Model
    data: _Data
    environment: _Environment
    noise: _Noise | None = None
    probe: _Probe | None = None
    plan: dict[str, Any] = {}
    checks: dict[str, Any] = {}
    counts: dict[str, Any]
    verdict: str
    findings: dict[str, Any]
    rows: dict[str, int]

    @model_validator(mode="after")
    def _check_probe(self) -> "_Sweep":
        if self.config.readout in TRUTH_READOUTS:
            if self.probe is None:
                raise ValueError("probe is missing")
            if self.config.protocol != "swap" and self.probe.answer_text_auc is None:
                raise ValueError("probe.answer_text_auc is missing")
        return self


class _Run(_Part):
    """Record of a run directory, ``OUT/run.json``."""

    schema_version: int
    created: str
    pending: list[str]
    study: list[Any]
    sweeps: list[_Sweep]


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


RUN, PARTS = _Run, _Parts
NOTES: dict[str, type[BaseModel]] = {"plan.json": _Plan, "free_memory.json": _Memory, "empty.json": _Empty}
"""Form of the notes of a sweep, by file name; the others are only compared."""


def check_form(file: Path, value: Any, form: type[BaseModel], cure: str = _AGAIN) -> None:
    """Raise RunError, naming the first wrong entry, unless the value of a JSON file has this form."""
    try:
        form.model_validate(value)
    except ValidationError as why:
        first = why.errors()[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        raise RunError(f"{file} is damaged: {where or 'content'}: {first['msg']}. {cure}") from None


def read_table(folder: Path, name: str) -> pd.DataFrame:
    """Read a table of a run directory. Raise RunError if its bytes, columns or types differ from those that were written."""
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
    if "label" in wanted and not table["label"].dropna().isin((0, 1)).all():
        raise RunError(f"{file} is damaged: column label has other values than 0 and 1. {_AGAIN}")
    return without_nulls(table)


def _fits(column: str, kind: pa.DataType) -> bool:
    if column in _LISTS:
        return pa.types.is_list(kind) and kind.value_type == _LISTS[column]
    if column in _FLAGS:
        return pa.types.is_boolean(kind)
    if column in _INTEGERS:
        return pa.types.is_integer(kind)
    if column in _NUMBERS:
        return pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)  # also columns without a value
