"""Measurements become the rows of ``samples.parquet``, inputs those of ``examples.parquet``."""

import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import Tensor

from anchorlens.engine.readouts import Metrics
from anchorlens.questions.example import Dropped
from anchorlens.questions.tokens import TokenRow
from anchorlens.runs.schema import EXAMPLE_COLUMNS, P
from anchorlens.statistics.delta import delta_p

Array = npt.NDArray[np.float64]


def samples_frame(
    kind: str,
    layers: Sequence[int],
    rows: pd.DataFrame,
    cells: Sequence[tuple[dict[str, object], Metrics]],
    before: Metrics,
) -> pd.DataFrame:
    """The rows of ``samples.parquet`` of one batch, without the columns that are the same for the whole sweep.

    Args:
        kind: What ΔP is taken on: ``probability``, or a kind of :func:`~anchorlens.statistics.delta.support`.
        layers: Layers of the cells.
        rows: ``example_id``, ``question_id``, ``donor_id``, ``site_differs`` and ``event`` of each row of the batch; ``event`` is 1
            where what P speaks of is the case.
        cells: For each anchor and control its own columns (``reached`` [layer]: cells that are not reached get no row; ``trivial``
            [layer example]; ``slots`` and ``null_slots`` [example]) and the metrics after, [layer example].
        before: Metrics of the clean pass, [example].
    """
    n_layers, n_rows = len(layers), len(rows)
    frames: list[pd.DataFrame] = []
    clean = {name: np.tile(_double(getattr(before, name)), n_layers) for name in ("p", "log_p", "logit_diff")}
    names = {
        name: np.tile(rows[name].to_numpy(), n_layers) for name in ("example_id", "question_id", "donor_id", "site_differs")
    }
    event = np.tile(rows["event"].to_numpy(dtype=np.float64), n_layers)
    for own, after in cells:
        pair = clean["p"], _double(after.p).ravel()
        columns: dict[str, object] = {
            **names, "anchor": own["anchor"], "layer": np.repeat(np.asarray(layers), n_rows), "control": own["control"],
            "quantity": P, "value_before": pair[0], "value_after": pair[1],
            "delta_p": delta_of(kind, *pair, event),
            "logp_before": clean["log_p"], "logp_after": _double(after.log_p).ravel(),
            "logit_diff_before": clean["logit_diff"], "logit_diff_after": _double(after.logit_diff).ravel(),
            "trivial": np.asarray(own["trivial"]).ravel(),
            **{name: np.tile(np.asarray(own[name]), n_layers) for name in ("slots", "null_slots")},
        }  # fmt: skip
        frames.append(pd.DataFrame(columns)[np.repeat(np.asarray(own["reached"]), n_rows)])
    return pd.concat(frames, ignore_index=True)


def delta_of(kind: str, before: Array, after: Array, event: Array) -> Array:
    """ΔP of a kind, see :func:`samples_frame`, in percentage points."""
    return 100.0 * (after - before) if kind == "probability" else delta_p(before, after, event, kind)


def _double(values: Tensor) -> Array:
    return values.double().numpy()


def examples_frame(
    run_id: str,
    dataset: str,
    prompt: str,
    *,
    inputs: Mapping[str, Sequence[TokenRow]],
    dropped: Sequence[Dropped],
    donor_ids: Mapping[str, list[str]],
    positions: Mapping[str, dict[str, list[int]]],
    token_text: Callable[[int], str],
) -> pd.DataFrame:
    """The rows of ``examples.parquet``: from them alone every input and every changed position can be built again.

    Args:
        run_id: Of the sweep.
        dataset: Its name.
        prompt: Its name.
        inputs: Role -> rows: ``base``, ``donor``, ``corrupt``, ``train``, ``validation``.
        dropped: Rows that were left out.
        donor_ids: Row id of a base row -> ids of its donors.
        positions: Row id of any row but a donor -> positions beside those of the anchors.
        token_text: Token id -> its text.
    """
    records: list[dict[str, object]] = []
    for role, rows in inputs.items():
        for row in rows:
            own = {name: list(where) for name, where in row.positions.items()}
            if role != "donor":
                own |= positions.get(row.row_id, {})
            records.append(
                {
                    "example_id": row.row_id, "question_id": row.example.question_id, "role": role, "question": row.question,
                    "answer": row.answer.exact.of(row.answer.text), "label": row.answer.label, "text": row.text,
                    "token_ids": list(row.ids), "tokens": [token_text(i) for i in row.ids], "positions": json.dumps(own),
                    "donor_ids": donor_ids.get(row.row_id, []) if role == "base" else [],
                    "relation": row.example.relation, "answer_type": row.example.answer_type,
                    "popularity": row.example.popularity, "span_source": row.example.span_source,
                }
            )  # fmt: skip
    for row in dropped:
        records.append(  # noqa: PERF401 - a comprehension would hide the record's shape
            {
                "example_id": row.example_id, "question_id": "", "role": "dropped", "question": row.question,
                "answer": row.answer, "token_ids": [], "tokens": [], "positions": "{}", "donor_ids": [], "drop_reason": row.reason,
                "drop_detail": row.detail,
            }
        )  # fmt: skip
    frame = pd.DataFrame(records).reindex(columns=list(EXAMPLE_COLUMNS))
    frame = frame.assign(run_id=run_id, dataset=dataset, prompt=prompt)
    for name in ("drop_reason", "drop_detail", "text", "relation", "answer_type", "span_source"):
        frame[name] = frame[name].astype("object").where(frame[name].notna(), "")
    frame["label"] = frame["label"].astype("Int64")
    frame["popularity"] = frame["popularity"].astype("float64")
    return frame


__all__ = ["delta_of", "examples_frame", "samples_frame"]
