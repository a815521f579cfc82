"""Columns and types of the tables of a run, their order for display, the version of the schema, and
the rows of ``examples.parquet`` with their named token positions.

A value that is missing is null in files and public frames, and "" or 0 inside the package
(:func:`without_nulls`): grouping and joining by a column drops null keys in pandas.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from anchorlens.constants import SETTINGS, P
from anchorlens.errors import RunError
from anchorlens.prompts.dataset import Dropped
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt

SCHEMA_VERSION = 12
"""Version of the tables and of ``run.json``; no other version is read."""

LOGITS = (
    "logp_before",
    "logp_after",
    "logit_diff_before",
    "logit_diff_after",
    "donor_logit_before",
    "donor_logit_after",
)
"""Columns of ``samples`` in logits, beside the metric ``p``."""
VALUE_COLUMNS = (
    "value_before",
    "value_after",
    "effect",
    *LOGITS,
    "donor_p_before",
    "donor_p_after",
    "donor_is_top_before",
    "donor_is_top_after",
)
"""Measured columns of ``samples``."""
SAMPLE_COLUMNS = (
    "run_id",
    "model",
    "dataset",
    "example_id",
    "question_id",
    "cluster",
    "protocol",
    "anchor",
    "pathway",
    "layer",
    "position",
    "head",
    "site",
    "probe_site",
    "window",
    "direction",
    "donor_rule",
    "knockout_mode",
    "readout",
    "delta_kind",
    *SETTINGS,
    "donor_id",
    "control",
    "draw",
    "seed",
    "metric",
    "unit",
    *VALUE_COLUMNS,
    "by_construction",
    "n_patched",
    "n_null_patched",
    "pre_answer_token_differs",
)
CURVE_KEYS = (
    "model",
    "dataset",
    "protocol",
    "metric",
    "unit",
    "anchor",
    "pathway",
    "layer",
    "position",
    "head",
    "site",
    "probe_site",
    "window",
    "direction",
    "donor_rule",
    "knockout_mode",
    "readout",
    "delta_kind",
    *SETTINGS,
    "control",
    "seed",
)
TEXT_AUCS = ("answer_text_auc", "qa_text_auc", "qa_text_auc_low")
CURVE_COLUMNS = (
    *CURVE_KEYS,
    "effect",
    "ci_low",
    "ci_high",
    "sim_low",
    "sim_high",
    "value_before",
    "n",
    "n_clusters",
    "n_effective",
    "by_construction",
    "auc",
    "auc_low",
    "auc_high",
    "probe_above_chance",
    "noise_floor",
    "frac_null_incomplete",
    *TEXT_AUCS,
)
CURVE_TYPES = {
    "position": "Int64",
    "head": "Int64",
    "auc": "float64",
    "auc_low": "float64",
    "auc_high": "float64",
    "probe_above_chance": "boolean",
    "noise_floor": "float64",
    "sim_low": "float64",
    "sim_high": "float64",
    "n_effective": "float64",
    "frac_null_incomplete": "float64",
    "answer_text_auc": "float64",
    "qa_text_auc": "float64",
    "qa_text_auc_low": "float64",
}
SLOT_TYPES = dict.fromkeys(("position", "head", "n_patched", "n_null_patched"), "Int64") | {
    "pre_answer_token_differs": "boolean"
}
EXAMPLE_COLUMNS = (
    "run_id",
    "example_id",
    "question_id",
    "cluster",
    "role",
    "dataset",
    "question",
    "answer",
    "label",
    "prompt",
    "text",
    "token_ids",
    "tokens",
    "positions",
    "donor_ids",
    "drop_reason",
    "drop_detail",
    "relation",
    "answer_type",
    "popularity",
    "span_source",
    "test_split",
    "qa_text_score",
    "wrong_answer",
)
CONTRAST_COLUMNS = (
    "run_id",
    "protocol",
    "model",
    "dataset",
    *SETTINGS,
    "anchor",
    "layer",
    "quantity",
    "control",
    "value",
    "ci_low",
    "ci_high",
    "sim_low",
    "sim_high",
    "n",
    "n_clusters",
    "n_effective",
    "p",
)

TABLE_COLUMNS = {
    "samples": SAMPLE_COLUMNS,
    "curves": CURVE_COLUMNS,
    "contrasts": CONTRAST_COLUMNS,
    "examples": EXAMPLE_COLUMNS,
}
"""Columns of each file, in file order. Frames for display are ordered by :func:`answer_first`."""

CELL = ["example_id", "donor_id", "anchor", "control", "draw", "layer", "metric"]
"""Columns that identify a measurement in ``samples``."""

# Text columns, in which "" stands for a missing value inside the package.
_TEXT_OF_EXAMPLES = (
    "drop_reason",
    "drop_detail",
    "text",
    "relation",
    "answer_type",
    "span_source",
    "wrong_answer",
)
_TEXT = (
    "anchor",
    "pathway",
    "site",
    "probe_site",
    "donor_rule",
    "knockout_mode",
    "readout",
    "delta_kind",
    *SETTINGS,
    "donor_id",
    "cluster",
    *_TEXT_OF_EXAMPLES,
)


def with_nulls(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with null for every value that is missing."""
    changed: dict[str, pd.Series] = {}
    for name in _TEXT:
        if name in frame:
            text = frame[name].astype(object)
            changed[name] = text.where(text.notna() & (text != ""), None)
    if "window" in frame:
        window = frame["window"].astype("Int64")
        changed["window"] = window.where(window != 0)
    return frame.assign(**changed)


def without_nulls(frame: pd.DataFrame) -> pd.DataFrame:
    """Invert :func:`with_nulls`: replace null by "" and 0."""
    changed: dict[str, pd.Series] = {}
    for name in _TEXT:
        if name in frame:
            text = frame[name].astype(object)
            changed[name] = text.where(text.notna(), "")
    if "window" in frame:
        changed["window"] = frame["window"].astype("Int64").fillna(0).astype("int64")
    return frame.assign(**changed)


# Order for display: a terminal shows the first and last few columns, a notebook ten of each.
_NAMED = ("metric", "quantity", "control", "anchor", "pathway")
_VALUE = ("layer", "max_layer", "effect", "effect_again", "max_abs_diff", "value", "difference")
_BESIDE = (
    "ci_low",
    "ci_high",
    "value_before",
    "value_after",
    "n",
    "question",
    "answer",
    "label",
    "drop_reason",
    "drop_detail",
    "donor_id",
)
ALWAYS_SHOWN = (
    *CELL,
    *_VALUE,
    "ci_low",
    "ci_high",
    "sim_low",
    "sim_high",
    "value_before",
    "value_after",
    "n",
)
"""Columns that a shown frame keeps even if they have no value."""
_SAME = tuple(dict.fromkeys(("run_id", *CURVE_KEYS)))


def answer_first(frame: pd.DataFrame) -> list[str]:
    """Return the columns of a table in display order: results first, constant columns last.

    Tables of examples begin with id and role, contrasts with the quantity, other tables with those
    of ``metric anchor pathway`` that differ between rows. If neither anchor nor pathway differs,
    the anchor is shown. Layer and value follow, then the other names, intervals, value before and
    n. Constant keys come last.
    """
    columns = list(frame.columns)
    differ = {name for name in _SAME if name in columns and frame[name].nunique(dropna=False) > 1}
    named = [name for name in _NAMED if name in differ]
    if "anchor" in columns and not {"anchor", "pathway"} & differ:
        named.append("anchor")
    rows = [name for name in ("example_id", "role") if name in columns]
    head = rows or (["quantity"] if "value" in columns else [])
    # Names beside the value; of tables with neither examples nor quantities, all but the control
    # come before it.
    beside = named if head else [name for name in named if name == "control"]
    before = [] if head else [name for name in named if name != "control"]
    order = [*head, *before, *_VALUE, *beside, *_BESIDE]
    first = [name for name in dict.fromkeys(order) if name in columns]
    first += [name for name in columns if name in differ and name not in first]
    same = [name for name in _SAME if name in columns and name not in first]
    rest = [name for name in columns if name not in first and name not in same]
    return [*first, *rest, *same]


def summary_order(frame: pd.DataFrame) -> list[str]:
    """Return the columns of a small table with model, data set and protocol in the middle, hidden
    by narrow terminals.
    """
    whose = [name for name in ("model", "dataset", "protocol") if name in frame.columns]
    rest = [name for name in answer_first(frame) if name not in whose]
    half = len(rest) // 2
    return [*rest[:half], *whose, *rest[half:]]


def order_columns(table: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its columns in the order of its file."""
    return frame[list(TABLE_COLUMNS[table])]


def for_display(frame: pd.DataFrame, all_columns: bool) -> pd.DataFrame:
    """Return a frame with nulls for missing values; without empty columns unless
    ``all_columns``.
    """
    frame = with_nulls(frame)
    return frame[columns_with_values(frame, all_columns)]


def columns_with_values(frame: pd.DataFrame, all_columns: bool) -> list[str]:
    """Return the columns to show: those with a value, keys and numbers; all if ``all_columns`` or
    the frame is empty.
    """
    names = list(map(str, frame))
    if all_columns or frame.empty:
        return names
    return [name for name in names if name in ALWAYS_SHOWN or frame[name].notna().any()]


def leading_metric(samples: pd.DataFrame) -> str:
    """Return the main metric of a sweep: the probability if measured, else the first one."""
    metrics = samples["metric"].unique().tolist()
    return P if P in metrics or not metrics else str(metrics[0])


def format_cell(cell: Mapping[Any, Any]) -> str:
    """Return example, donor, anchor and layer of a cell as text."""
    parts = {
        "example": cell["example_id"],
        "donor": cell["donor_id"],
        "anchor": cell["anchor"],
        "layer": cell["layer"],
    }
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value != "")


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of :data:`SETTINGS` for the ``config`` of a sweep in run.json."""
    return {name: str(config.get(name, "")) for name in SETTINGS}


DONOR_POSITIONS = "same_role_source:"
"""Start of the names of positions that lie in the donor row."""


@dataclass(frozen=True)
class InputTable:
    """The inputs of a sweep.

    Attributes:
        inputs: Role -> rows: ``base``, ``donor``, ``corrupt``, ``train``, ``validation``, ``test``.
        donor_ids: Id of a base row -> ids of its donors.
        positions: Id of any row but a donor -> named positions beside those of the row.
        columns: Column -> row id -> value, for ``test_split`` and ``qa_text_score``.
    """

    inputs: Mapping[str, Sequence[TokenizedPrompt]]
    donor_ids: Mapping[str, list[str]] = field(default_factory=dict)
    positions: Mapping[str, Mapping[str, list[int]]] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def examples_frame(
    run_id: str,
    dataset: str,
    prompt: str,
    table: InputTable,
    dropped: Sequence[Dropped],
    token_text: Callable[[int], str],
) -> pd.DataFrame:
    """Return the rows of ``examples.parquet``; every input and every changed position can be
    rebuilt from them.

    Args:
        run_id: Id of the sweep.
        dataset: Name of the data set.
        prompt: Name of the prompt template.
        table: The inputs.
        dropped: Rows that were left out.
        token_text: Token id -> its text.
    """
    records: list[dict[str, object]] = []
    for role, rows in table.inputs.items():
        for row in rows:
            own = {name: list(where) for name, where in row.positions.items()}
            if role != "donor":
                own |= table.positions.get(row.id, {})
            records.append(
                {
                    "example_id": row.id,
                    "question_id": row.group,
                    "cluster": row.cluster,
                    "role": role,
                    **row.columns(),
                    "token_ids": list(row.ids),
                    "tokens": [token_text(i) for i in row.ids],
                    "positions": json.dumps(own),
                    "donor_ids": table.donor_ids.get(row.id, []) if role == "base" else [],
                }
            )
    for row in dropped:
        records.append(  # noqa: PERF401 - a comprehension would hide the record's shape
            {
                "example_id": row.example_id,
                "question_id": "",
                "cluster": "",
                "role": "dropped",
                "question": row.question,
                "answer": row.answer,
                "token_ids": [],
                "tokens": [],
                "positions": "{}",
                "donor_ids": [],
                "drop_reason": row.reason,
                "drop_detail": row.detail,
            }
        )
    frame = pd.DataFrame(records).reindex(columns=list(EXAMPLE_COLUMNS))
    frame = frame.assign(run_id=run_id, dataset=dataset, prompt=prompt)
    for name in _TEXT_OF_EXAMPLES:
        frame[name] = frame[name].astype("object").where(frame[name].notna(), "")
    frame["label"] = frame["label"].astype("Int64")
    frame["popularity"] = frame["popularity"].astype("float64")
    for name, kind in (("qa_text_score", "float64"), ("test_split", "Int64")):
        frame[name] = frame["example_id"].map(dict(table.columns.get(name, {}))).astype(kind)
    return frame


def collect_drops(examples: pd.DataFrame) -> tuple[Dropped, ...]:
    """Return the dropped rows of a sweep with their reasons."""
    gone = examples[examples["role"] == "dropped"]
    if gone.empty:
        return ()
    names = ["example_id", "dataset", "question", "answer", "drop_reason", "drop_detail"]
    fields = [name.removeprefix("drop_") for name in names]
    rows = gone[names].itertuples(index=False, name=None)
    return tuple(Dropped(**dict(zip(fields, map(str, row), strict=True))) for row in rows)


def parse_positions(row_id: object, text: object, n_tokens: int) -> dict[str, list[int]]:
    """Return the named positions of a row.

    Args:
        row_id: Id of the row, for the message.
        text: Value of the column ``positions``.
        n_tokens: Number of tokens of the row. Positions of a donor that are stored with a row may
            lie behind its end.

    Raises:
        RunError: If the text is not a JSON object of names and lists of positions in the row.
    """
    try:
        found = json.loads(str(text))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _refusal(row_id, "no JSON object of names and lists")
    for name, where in found.items():
        if not isinstance(where, list):
            raise _refusal(row_id, f"{name!r} has no list")
        is_own = not name.startswith(DONOR_POSITIONS)
        for position in where:
            if type(position) is not int or position < 0 or (is_own and position >= n_tokens):
                raise _refusal(row_id, f"{name!r} has {position!r}, the row has {n_tokens} tokens")
    return found


def _refusal(row_id: object, problem: str) -> RunError:
    return RunError(
        f"examples.parquet is damaged: example_id={str(row_id)!r}: positions: {problem}. Make the"
        " run again."
    )
