"""Cells of SmolLM2 that both versions of TransformerLens must agree on.

    python -m tests.contract.smollm2 numbers.json [--backend bridge] [--datasets popqa-sample
    nq-sample]

writes those of a HookedTransformer on transformer-lens 3.9 (or of a bridge). The contract suite on
4.x compares its own with them.
"""

import argparse
import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from einops import einsum

import anchorlens as al
from anchorlens.engine.choose_engine import choose_engine
from anchorlens.engine.knockout import cut_edges
from anchorlens.engine.patches import KnockoutBatch, pad_rows
from anchorlens.models.adapter import HAS_HOOKED, LensModel
from anchorlens.models.load import adapt

# File with the numbers of a HookedTransformer, for an environment that has none.
NUMBERS = "ANCHORLENS_HOOKED_NUMBERS"
LAYERS = (0, 16, 29)
KEYS = ["example_id", "layer", "control", "anchor", "pathway", "donor_id"]
# Edges of the circuits that are scored.
CIRCUITS = (20, 100)

Cells = dict[str, list[float]]
"""Protocol, data set and cell -> P before and after, and ΔP, in points; of edges, the metric before
and after, and its change, in logits; of circuits, faithfulness, that of the rest, and their sum.
"""


@cache
def measure_cells(backend: str, datasets: Sequence[str] = ("popqa-sample",)) -> Cells:
    """Measure a swap, a knockout, edges and circuits of SmolLM2 with a backend."""
    model, cells = al.load_model("smollm2-135m-instruct", device="cpu", backend=backend), Cells()
    for name in datasets:
        swap = al.swap_sweep(
            model,
            al.load_qa(name, limit=4),
            layers=LAYERS,
            n_donors=1,
            null=("same_role", "norm_matched"),
            n_spot_checks=2,
            prompt="fewshot(1)",
            n_resamples=100,
            progress=False,
        )
        table = swap.samples()
        keys = (
            "|".join(map(str, row))
            for row in table[[key for key in KEYS if key in table]].itertuples(index=False)
        )
        numbers = zip(
            100 * table["value_before"], 100 * table["value_after"], table["effect"], strict=True
        )
        cells |= {
            f"swap|{name}|{key}": list(map(float, each))
            for key, each in zip(keys, numbers, strict=True)
        }
        cells |= cut_questions(model, name)
    return cells | edges_and_circuits(model)


def edges_and_circuits(model: LensModel) -> Cells:
    """Measure edges from heads to one layer and to the logits, and circuits of them."""
    pairs = al.load_pairs("ioi-pairs", limit=2)
    options = {"senders": "embed,a1*,a20.h0", "receivers": "a20.h0.*,logits", "controls": "none"}
    options |= {"n_spot_checks": 2, "n_resamples": 100, "progress": False}
    sweep = al.edge_sweep(model, pairs, **options)
    cells = Cells()
    columns = ["example_id", "anchor", "value_before", "value_after", "effect"]
    for pair, edge, *numbers in sweep.samples()[columns].itertuples(index=False):
        cells[f"edges|{pair}|{edge}"] = list(map(float, numbers))
    circuit = sweep.circuit(top=CIRCUITS[-1])
    for row in circuit.faithfulness(model, pairs, sizes=CIRCUITS).table().itertuples():
        both = [float(row.faithfulness), float(row.rest)]
        cells[f"circuit|{row.n_edges}"] = [*both, sum(both)]
    return cells


def cut_questions(model: LensModel, name: str) -> Cells:
    """Measure the P of a probe with fixed random weights at the last token, with all edges from the
    first half of the question cut.

    A trained probe is no test of the backend: its fit enlarges rounding differences of the states.
    """
    adapter = adapt(model)
    assert model.tokenizer is not None
    rows = [
        model.tokenizer(example.question)["input_ids"]
        for example in al.load_qa(name, limit=12).examples
    ]
    batch, ends = pad_rows(rows), [len(row) - 1 for row in rows]
    edges = cut_edges([range(1 + end // 2) for end in ends], [None] * len(rows), batch.ids.shape[1])
    cut = KnockoutBatch(
        tokens=batch, row=torch.arange(len(rows)), position=torch.tensor(ends), edges=(edges,)
    )
    engine = choose_engine(adapter, "cone", rows[0])
    states = engine.knockout_states_all_layers(
        cut, site="resid_post", layers=range(adapter.n_layers)
    ).double()
    weights = torch.randn(
        adapter.n_layers,
        adapter.d_model,
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    weights = 3 * weights / states[0].std((1, 2), keepdim=False)[:, None] / adapter.d_model**0.5
    points = (
        100
        * einsum(states, weights, "run layer row d_model, layer d_model -> run layer row").sigmoid()
    )
    return {
        f"knockout|{name}|{row}|{layer}": [
            *(pair := points[:, layer, row].tolist()),
            pair[1] - pair[0],
        ]
        for row in range(len(rows))
        for layer in LAYERS
    }


def hooked_cells() -> Cells | None:
    """Return the cells of a HookedTransformer; None if it can neither be measured here nor was
    before.
    """
    if HAS_HOOKED:
        return measure_cells("hooked")
    file = os.environ.get(NUMBERS)
    return json.loads(Path(file).read_text(encoding="utf8")) if file else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.contract.smollm2", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--backend", default="hooked")
    parser.add_argument("--datasets", nargs="+", default=["popqa-sample"])
    options = parser.parse_args()
    options.file.write_text(
        json.dumps(measure_cells(options.backend, tuple(options.datasets))), encoding="utf8"
    )
