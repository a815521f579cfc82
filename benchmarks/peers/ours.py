"""anchorlens on a job: the same function for the oracle and for the cone, with the engine as the only difference."""

from functools import partial
from pathlib import Path

import torch
from protocol import Job, Sweep

from anchorlens import load_model
from anchorlens.analysis.pairs import slots_of
from anchorlens.engine.cone import Cone
from anchorlens.engine.interventions import AnchorSwap, SwapBatch
from anchorlens.engine.plan import rows_per_batch
from anchorlens.engine.readouts import AnswerReader, ReadPlan, first_token
from anchorlens.engine.reference import run_swaps
from anchorlens.models.adapter import Adapter
from anchorlens.questions.tokens import pad_rows

LIBRARIES = ("torch", "anchorlens", "transformer-lens", "transformers")


def load(directory: Path) -> Adapter:  # noqa: ARG001 - the packaged model knows where it lies
    """The packaged model."""
    return Adapter(load_model("smollm2-135m-instruct", device="cpu"))


def sweep_job(adapter: Adapter, job: Job, engine: str) -> Sweep:
    """All cells of a job, rows of similar length together.

    Args:
        adapter: The model.
        job: See :mod:`protocol`.
        engine: ``cone`` or ``reference``.
    """
    rows = job["rows"]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["ids"]))
    measure = Cone(adapter).run_swaps if engine == "cone" else partial(run_swaps, adapter)
    size = rows_per_batch(adapter, max(len(row["ids"]) for row in rows), None)
    cells = range(len(job["layers"]))
    out = Sweep([0.0] * len(rows), {anchor: [[0.0] * len(rows) for _ in cells] for anchor in job["anchors"]})
    for start in range(0, len(rows), size):
        chosen = order[start : start + size]
        before, after = measure(_batch(job, chosen), site="resid_pre", layers=job["layers"], window=1)
        for at, i in enumerate(chosen):
            out.p_before[i] = float(before.p[at])
            for anchor, metrics in zip(job["anchors"], after, strict=True):
                for layer in cells:
                    out.p[anchor][layer][i] = float(metrics.p[layer, at])
    return out


def _batch(job: Job, chosen: list[int]) -> SwapBatch:
    rows = [job["rows"][i] for i in chosen]
    nothing = torch.full((len(rows),), -1)
    plan = ReadPlan(
        row=torch.arange(len(rows)),
        position=torch.tensor([row["read"] for row in rows]),
        token=torch.tensor([row["token"] for row in rows]),
        rival=nothing,
        slot=torch.zeros_like(nothing),
        n_examples=len(rows),
    )
    swaps = tuple(
        AnchorSwap(
            anchor,
            "none",
            slots_of([row["target"][anchor] for row in rows]),
            source=slots_of([row["source"][anchor] for row in rows]),
        )
        for anchor in job["anchors"]
    )
    return SwapBatch(
        tokens=pad_rows([row["ids"] for row in rows]),
        reader=AnswerReader(plan, first_token),
        swaps=swaps,
        donors=pad_rows([row["donor_ids"] for row in rows]),
    )
