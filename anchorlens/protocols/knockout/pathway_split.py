"""Which rows are Q-Anchored: the split by the knockout at k*, for protocols that ask something else of the two pathways."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from anchorlens.engine.engine import Engine
from anchorlens.engine.interventions import CutBatch
from anchorlens.engine.knockout import cut_edges
from anchorlens.protocols.truth_probing import PreparedTruth
from anchorlens.questions.tokens import pad_rows
from anchorlens.statistics.delta import flipped

Array = npt.NDArray[np.float64]


def clean_and_split(
    engine: Engine, ready: PreparedTruth, tests: Sequence[int], *, probe_site: str, mode: str = "mask",
    on_work: Callable[[float], object] = lambda work: None,  # noqa: ARG005
) -> tuple[Array, npt.NDArray[np.bool_]]:  # fmt: skip
    """P of the clean rows at every layer, and where the prediction at k* flips when attention from E_Q is cut (METHOD 5).

    One pass gives both: the clean and the cut rows share what stands before the first cut.

    Args:
        engine: What measures.
        ready: Rows, with fitted probes.
        tests: Indices into :attr:`PreparedTruth.test`.
        probe_site: Where the probes read.
        mode: How edges are cut, ``mask`` or ``zero``.
        on_work: Told of two rows for each of ``tests``.

    Returns:
        P(hallucination) [layer test] at the layers of ``ready``, and True where a row is Q-Anchored, [test].
    """
    rows = [ready.row(j) for j in tests]
    width = max(len(row.ids) for row in rows)
    edges = cut_edges([row.positions["question"] for row in rows], [None] * len(rows), width)
    last = torch.tensor([row.positions["answer"][-1] for row in rows])
    batch = CutBatch(pad_rows([row.ids for row in rows]), torch.arange(len(rows)), last, (edges,), mode)
    clean, cut = engine.cut_states_everywhere(
        batch, site=probe_site, layers=range(engine.adapter.n_layers), on_share=lambda share: on_work(2 * share * len(rows))
    )[:, list(ready.layers)]
    probes, ids = ready.probes["none"], [row.example.question_id for row in rows]
    before, after = probes.predict(clean, ids), probes.predict(cut, ids)
    at = ready.layers.index(probes.best_layer)
    return before, flipped(before[at], after[at])


__all__ = ["clean_and_split"]
