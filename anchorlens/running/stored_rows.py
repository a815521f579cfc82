"""Check the inputs of a stored sweep with its model: tokens, planned cells, and rows that are built
again from the data set.
"""

import warnings
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from anchorlens.constants import ANCHORS
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.models.adapter import Adapter
from anchorlens.models.card import with_bos
from anchorlens.protocols.base import Measurement, Recheckable
from anchorlens.protocols.specification import Specification
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.results.sweep import SweepResult
from anchorlens.running.recompute import compare_frames, compare_values
from anchorlens.runs.schema import CELL, examples_frame, parse_positions, without_nulls

# Allowed difference of scores and AUCs of text classifiers, whose fit ends in other last digits on
# another processor.
_TEXT_ROUNDING = 1e-3
# Columns of the samples that follow from the inputs, null where a protocol has none.
_OF_INPUTS = ("position", "head", "n_patched", "n_null_patched", "pre_answer_token_differs")
# Anchors that a row may lack.
_MAY_BE_EMPTY = ("question_rest",)


def compare_tokens(
    adapter: Adapter, protocol: Measurement[Any, Any, Any], result: SweepResult
) -> str:
    """Return the first input whose tokens, text or positions do not belong to its token ids; empty
    if there is none.
    """
    examples = result.examples(all_columns=True)
    config = result.record["config"]
    tokenizer = adapter.tokenizer
    d_vocab = adapter.shape.d_vocab
    if tokenizer is None:
        return ""
    token_text = protocol.source.token_text(tokenizer)
    pairs = result.record.get("pairs", {})
    answers = {name: tuple(one["answer_ids"]) for name, one in pairs.items()}

    def is_text_of(text: str, ids: Sequence[int], answer: Sequence[int]) -> bool:
        encoded = with_bos(
            tokenizer,
            tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"],
            config["add_bos"],
        )
        # The first tokens of an answer are appended to a prompt of a pair.
        heads = [list(ids)]
        for k in range(1, len(answer) + 1):
            end = tuple(ids[-k:])
            if end == tuple(answer[:k]):
                heads.append(list(ids[: len(ids) - k]))
        if encoded in heads:
            return True
        parts = list(heads)
        for head in heads:
            has_bos = config["add_bos"] and head[:1] == [tokenizer.bos_token_id]
            if has_bos:
                parts.append(head[1:])
        decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
        return any(decode(part) == text for part in parts)

    for i, row in enumerate(examples[examples["role"] != "dropped"].to_dict("records")):
        name = f"examples.parquet: input {i}, example_id={row['example_id']!r}"
        ids = [int(one) for one in row["token_ids"]]
        if max(ids) >= d_vocab:
            return f"{name}: token_ids: {max(ids)} is outside the vocabulary of {d_vocab} tokens"
        if list(row["tokens"]) != [token_text(one) for one in ids]:
            return f"{name}: tokens are not those of token_ids"
        pair_id = (
            str(row["example_id"])
            if row["role"] == "base"
            else str(row["example_id"]).rpartition("|")[0]
        )
        if not is_text_of(str(row["text"]), ids, answers.get(pair_id, ())):
            return f"{name}: text is not that of token_ids"
        positions = parse_positions(row["example_id"], row["positions"], len(ids))
        if row["role"] == "corrupt":
            continue
        required = ANCHORS if protocol.spec.DATA == "questions" else ("last",)
        for one in required:
            may_be_empty = one in _MAY_BE_EMPTY and one in positions
            if not positions.get(one) and not may_be_empty:
                return f"{name}: positions lack {one}"
    return ""


def compare_cells(
    adapter: Adapter,
    protocol: Measurement[Any, Any, Any],
    spec: Specification,
    inputs: Any,
    result: SweepResult,
) -> str:
    """Return the first difference between the samples and the cells that follow from the inputs;
    empty if there is none.
    """
    assert isinstance(protocol, Recheckable)  # checked by the caller
    planned = protocol.list_cells(ReferenceEngine(adapter), inputs, spec)
    samples = without_nulls(result.samples(all_columns=True))
    both = samples[CELL].merge(planned, on=CELL, how="outer", indicator=True)
    for side, problem in (
        ("right_only", "lacks the planned cell"),
        ("left_only", "has a cell that was not planned"),
    ):
        if len(cells := both[both["_merge"] == side]):
            cell = ", ".join(f"{name}={cells.iloc[0][name]!r}" for name in CELL)
            return f"samples.parquet: {problem} {cell} ({len(cells)} in all)"
    planned = planned.assign(**{name: None for name in _OF_INPUTS if name not in planned})
    columns = [name for name in planned.columns if name not in CELL]
    return compare_frames(
        "samples.parquet",
        samples[columns],
        samples[CELL].merge(planned, on=CELL, how="left")[columns],
    )


def compare_rows(
    adapter: Adapter,
    protocol: Measurement[Any, Any, Any],
    spec: Specification,
    data: Any,
    result: SweepResult,
) -> str:
    """Build the inputs of a sweep again from its data set, and return the first difference from the
    stored ones; empty if none.
    """
    stored = StoredInputs(result)
    record = result.record
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few rows: the measuring run has warned
        context = protocol.source.set_up(adapter, data, spec)
        inputs = protocol.prepare_again(context, spec, stored)
    again = examples_frame(
        result.run_id, data.name, context.prompt, inputs.table(), inputs.dropped, context.token_text
    )
    parts = inputs.record(spec)
    counts = parts["counts"] | {
        "dropped": dict(Counter(row.reason for row in inputs.dropped).most_common())
    }
    found = compare_values("counts", record["counts"], counts)
    examples = without_nulls(result.examples(all_columns=True))
    found = found or compare_frames(
        "examples.parquet", examples, without_nulls(again), allowed=_TEXT_ROUNDING
    )
    config = {name: value for name, value in parts.get("config", {}).items() if name != "probes"}
    found = found or compare_values("config", record["config"], _plain(config), subset=1)
    pairs: dict[str, Any] = {}
    for name, one in parts.get("pairs", {}).items():
        pairs[name] = dict(one)
        pairs[name].pop("source_value", None)
    found = found or compare_values("pairs", record.get("pairs", {}), _plain(pairs), subset=2)
    return found or compare_values(
        "probe",
        record.get("probe") or {},
        _plain(parts.get("probe", {})),
        allowed=_TEXT_ROUNDING,
        subset=1,
    )


def _plain(value: Any) -> Any:
    """Return a value with tuples as lists, as JSON has them."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
