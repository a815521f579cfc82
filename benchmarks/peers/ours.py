"""anchorlens on a job: the same function for the oracle and for the cone, with the engine as the only difference."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from protocol import Job, Sweep

from anchorlens import load_model
from anchorlens.engine.readouts import AnswerReader, ReadPlan, first_token
from anchorlens.engine.select import choose_engine
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.swap.batching import plan_swaps
from anchorlens.protocols.swap.pairing import Pair, Placement, build_batch
from anchorlens.questions.example import Example, Span
from anchorlens.questions.tokens import Answer, TokenRow

LIBRARIES = ("torch", "anchorlens", "transformer-lens", "transformers")


def load(directory: Path) -> Adapter:  # noqa: ARG001 - the packaged model knows where it lies
    """The packaged model."""
    return Adapter(load_model("smollm2-135m-instruct", device="cpu"))


def sweep_job(adapter: Adapter, job: Job, engine: str) -> Sweep:
    """All cells of a job, in the batches that a sweep of the package would take.

    Args:
        adapter: The model.
        job: See :mod:`protocol`.
        engine: ``cone`` or ``reference``.
    """
    pairs = [_pair(row, job["anchors"], str(i)) for i, row in enumerate(job["rows"])]
    reads = {pair.base.row_id: row for pair, row in zip(pairs, job["rows"], strict=True)}
    chosen = choose_engine(adapter, engine, pairs[0].target.ids)
    layers = tuple(job["layers"])
    plan = plan_swaps(chosen, pairs, _reader(pairs, reads), layers, window=1, batch_size=None, max_memory=None)
    place = {layer: at for at, layer in enumerate(layers)}
    out = Sweep([0.0] * len(pairs), {anchor: [[0.0] * len(pairs) for _ in layers] for anchor in job["anchors"]})
    for batch in plan.batches:
        made = build_batch(
            adapter,
            batch.pairs,
            site="resid_pre",
            rule="",
            statistics=None,
            make_reader=lambda some: _reader(some, reads),
        )
        before, after = chosen.run_swaps(made, site="resid_pre", layers=batch.layers, window=1)
        for at, pair in enumerate(batch.pairs):
            i = int(pair.base.row_id)
            out.p_before[i] = float(before.p[at])
            for anchor, metrics in zip(job["anchors"], after, strict=True):
                for layer, value in zip(batch.layers, metrics.p[:, at].tolist(), strict=True):
                    out.p[anchor][place[layer]][i] = value
    return out


def _pair(row: dict[str, Any], anchors: Sequence[str], name: str) -> Pair:
    """A job's row as the pairs that a sweep makes of questions."""
    base, donor = (_token_row(name, ids) for ids in (row["ids"], row["donor_ids"]))
    places = tuple(Placement(a, "none", tuple(row["target"][a]), tuple(row["source"][a])) for a in anchors)
    return Pair(base, base, donor, donor, name, places)


def _token_row(name: str, ids: Sequence[int]) -> TokenRow:
    example = Example(name, name, "job", "", ("",), Span(0, 0), Span(0, 0))
    return TokenRow(name, example, "", "", Answer.gold(""), tuple(ids), len(ids), {})


def _reader(pairs: Sequence[Pair], reads: dict[str, dict[str, Any]]) -> AnswerReader:
    rows = [reads[pair.base.row_id] for pair in pairs]
    plan = ReadPlan(
        row=torch.arange(len(rows)),
        position=torch.tensor([row["read"] for row in rows]),
        token=torch.tensor([row["token"] for row in rows]),
        rival=torch.full((len(rows),), -1),
        slot=torch.zeros(len(rows), dtype=torch.long),
        n_examples=len(rows),
    )
    return AnswerReader(plan, first_token)
