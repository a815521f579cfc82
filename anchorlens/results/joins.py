"""Join samples with their inputs, and read the dropped rows.

The key of ``examples`` is ``run_id example_id role``: a question that is measured and also a donor
has two rows. Samples name rows and donors by ``example_id``, so they are joined role by role.
"""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from anchorlens.constants import STATISTIC_RULES
from anchorlens.runs.schema import parse_positions

# Columns of the measured row; the other columns of ``examples`` are in the samples too.
_OF_ROW = [
    "question",
    "answer",
    "label",
    "relation",
    "answer_type",
    "popularity",
    "span_source",
    "qa_text_score",
    "text",
    "tokens",
    "positions",
]
# Order in which a donor's row is looked up by role.
_DONOR_ROLES = ("donor", "base", "test", "validation", "train")


def join_inputs(
    samples: pd.DataFrame, examples: pd.DataFrame, config: Mapping[str, Any]
) -> pd.DataFrame:
    """Add the columns of the measured row to each sample.

    Args:
        samples: Samples of one sweep, or some of them.
        examples: Inputs of the sweep.
        config: Specification of the sweep.

    Returns:
        One row per sample: the columns of ``samples``; question, answer and tokens of the measured
        row; ``subject`` and ``property`` (text of their tokens); ``donor_question`` and
        ``donor_answer`` (empty without a donor row).
    """
    base = examples[examples["role"] == "base"]
    own = base[["example_id", *_OF_ROW]]
    columns = (own[name] for name in ("example_id", "tokens", "positions", "question"))
    said = [_segments(*row) for row in zip(*columns, strict=True)]
    subjects = [one["subject"] for one in said]
    properties = [one["property"] for one in said]
    own = own.assign(subject=subjects, property=properties)
    frame = samples.merge(own, on="example_id", how="left", validate="many_to_one")
    donors = {} if config.get("donors") in STATISTIC_RULES else _donors(base, examples)
    # answer_only replaces the question only; the other question is in the changed input.
    changed = examples[examples["role"] == "corrupt"].set_index("example_id")["question"].to_dict()
    for column, otherwise in (("question", changed), ("answer", {})):
        own_name = (
            frame["donor_id"]
            .map({name: donor[column] for name, donor in donors.items()})
            .astype(object)
        )
        frame[f"donor_{column}"] = own_name.fillna(
            (frame["example_id"] + "~" + frame["donor_id"]).map(otherwise)
        ).fillna("")
    # An empty donor_id also matches a changed input, but names no donor.
    frame.loc[frame["donor_id"] == "", ["donor_question", "donor_answer"]] = ""
    return frame


def _segments(row_id: str, tokens: Any, positions: str, question: str) -> dict[str, str]:
    """Return the text of the tokens of subject and property; empty if a row has none."""
    where = parse_positions(row_id, positions, len(tokens))
    texts: dict[str, str] = {}
    for name in ("subject", "property"):
        places = sorted(where.get(name, ()))
        text = "".join(tokens[p] for p in places).strip()
        texts[name] = _restore_letters(text, question)
    return texts


def _restore_letters(text: str, question: str) -> str:
    """Replace a letter of several tokens, whose parts are no text, by that of the question."""
    parts = [re.escape(part) for part in re.split("\ufffd+", text)]
    found = re.search("(.{1,3}?)".join(parts), question) if len(parts) > 1 else None
    return found[0] if found else text


def _donors(base: pd.DataFrame, examples: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Return question and answer of every donor row by its id."""
    # Other values of donor_id (the draw of a placebo) may look like the id of a row.
    names: set[str] = set()
    for ids in base["donor_ids"]:
        names.update(map(str, ids))
    found: dict[str, dict[str, str]] = {}
    for role in _DONOR_ROLES:
        rows = examples[(examples["role"] == role) & examples["example_id"].isin(list(names))]
        for name, question, answer in rows[["example_id", "question", "answer"]].itertuples(
            index=False, name=None
        ):
            found.setdefault(name, {"question": question, "answer": answer})
    return found


__all__ = ["join_inputs"]
