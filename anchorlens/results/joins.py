"""Samples beside the inputs that they were measured on, and rows that were left out.

An input's key in ``examples`` is ``run_id example_id role``: a question that is measured and also another one's donor stands twice.
So samples, which name rows and donors by ``example_id`` alone, are joined role by role.
"""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from anchorlens.constants import STATISTIC_RULES
from anchorlens.prompts.dataset import Dropped

# Of the row that was measured; what else ``examples`` has of it stands in the samples too.
_OF_ROW = [
    "question", "answer", "label", "relation", "answer_type", "popularity", "span_source", "qa_text_score", "text", "tokens",
    "positions",
]  # fmt: skip
# Where one donor stands in several roles: as it was when it gave something.
_DONOR_ROLES = ("donor", "base", "test", "validation", "train")


def join_inputs(samples: pd.DataFrame, examples: pd.DataFrame, config: Mapping[str, Any]) -> pd.DataFrame:
    """Samples with the rows that were measured, one for one.

    Args:
        samples: Of one sweep, or a part of them.
        examples: Its inputs.
        config: What was asked for.

    Returns:
        The samples' columns; question, answer and tokens of the row that was measured, ``subject`` and ``property`` as their tokens
        say them (empty in runs that do not know their tokens' text); ``donor_question`` and ``donor_answer``, empty where the donor
        is no row.
    """
    base = examples[examples["role"] == "base"]
    # Runs of before schema version 6 have no column of tokens.
    own = base.reindex(columns=["example_id", *_OF_ROW])
    said = [_segments(*pair) for pair in zip(own["tokens"], own["positions"], strict=True)]
    own = own.assign(**{name: [one[name] for one in said] for name in ("subject", "property")})
    frame = samples.merge(own, on="example_id", how="left", validate="many_to_one")
    donors = {} if config.get("donors") in STATISTIC_RULES else _donors(base, examples)
    # answer_only takes a question alone, with no answer of its own: it stands in the changed input.
    changed = examples[examples["role"] == "corrupt"].set_index("example_id")["question"].to_dict()
    for column, otherwise in (("question", changed), ("answer", {})):
        own_name = frame["donor_id"].map({name: donor[column] for name, donor in donors.items()}).astype(object)
        frame[f"donor_{column}"] = own_name.fillna((frame["example_id"] + "~" + frame["donor_id"]).map(otherwise)).fillna("")
    # A row without a donor has none, also where its changed input is named so.
    frame.loc[frame["donor_id"] == "", ["donor_question", "donor_answer"]] = ""
    return frame


def read_dropped(examples: pd.DataFrame) -> tuple[Dropped, ...]:
    """Rows that were left out of a sweep, with their reasons."""
    gone = examples[examples["role"] == "dropped"]
    names = ["example_id", "dataset", "question", "answer", "drop_reason", "drop_detail"]
    return tuple(Dropped(*map(str, row)) for row in gone[names].itertuples(index=False, name=None))


def _segments(tokens: Any, positions: str) -> dict[str, str]:
    """What the tokens of subject and property say; empty where their text is not known."""
    where = json.loads(positions)
    known = hasattr(tokens, "__len__")
    return {
        name: "".join(tokens[p] for p in sorted(where.get(name, ()))).strip() if known else ""
        for name in ("subject", "property")
    }


def _donors(base: pd.DataFrame, examples: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Donor -> question and answer, of every donor that is a row."""
    # What else stands in the samples' donor_id (the draw of a placebo) may look like a row's name, and is none.
    names = {str(name) for ids in base["donor_ids"] for name in ids}
    found: dict[str, dict[str, str]] = {}
    for role in _DONOR_ROLES:
        rows = examples[(examples["role"] == role) & examples["example_id"].isin(list(names))]
        for name, question, answer in rows[["example_id", "question", "answer"]].itertuples(index=False, name=None):
            found.setdefault(name, {"question": question, "answer": answer})
    return found


__all__ = ["join_inputs", "read_dropped"]
