"""Rows of ``examples.parquet`` (every input of a sweep, and the dropped rows), and the columns of
frames that users see.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from anchorlens.prompts.dataset import Dropped
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from anchorlens.runs.schema import ALWAYS_SHOWN, EXAMPLE_COLUMNS, with_nulls


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
    for name in (
        "drop_reason",
        "drop_detail",
        "text",
        "relation",
        "answer_type",
        "span_source",
        "wrong_answer",
    ):
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
