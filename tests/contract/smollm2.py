"""Cells of SmolLM2 that both versions of TransformerLens must agree on.

    python -m tests.contract.smollm2 numbers.json [--backend bridge] [--datasets popqa-sample nq-sample]

writes those of a HookedTransformer on transformer-lens 3.9 (or of a bridge). The contract suite on 4.x compares its own with them.
"""

import argparse
import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import anchorlens as al
from anchorlens.models.backend import HAS_HOOKED

# File with the numbers of a HookedTransformer, for an environment that has none.
NUMBERS = "ANCHORLENS_HOOKED_NUMBERS"
LAYERS = (0, 8, 16, 24, 29)
KEYS = ["example_id", "layer", "control", "anchor", "pathway", "donor_id"]

Cells = dict[str, list[float]]
"""Protocol, data set and cell -> P before and after, and ΔP, in points."""


@cache
def measure_cells(backend: str, datasets: Sequence[str] = ("popqa-sample",)) -> Cells:
    """Measure a swap and a knockout of SmolLM2 with a backend."""
    model, cells = al.load_model("smollm2-135m-instruct", device="cpu", backend=backend), Cells()
    for name in datasets:
        swap = al.swap_sweep(
            model, al.load_qa(name, limit=12), layers=LAYERS, n_donors=1, prompt="fewshot(2)", n_resamples=100, progress=False
        )
        knockout = al.knockout_sweep(model, al.load_qa(name, limit=60), layers=LAYERS[:3], n_resamples=100, progress=False)
        for protocol, sweep in (("swap", swap), ("knockout", knockout)):
            table = sweep.samples()
            keys = ("|".join(map(str, row)) for row in table[[key for key in KEYS if key in table]].itertuples(index=False))
            numbers = zip(100 * table["value_before"], 100 * table["value_after"], table["effect"], strict=True)
            cells |= {f"{protocol}|{name}|{key}": list(map(float, each)) for key, each in zip(keys, numbers, strict=True)}
    return cells


def hooked_cells() -> Cells | None:
    """Return the cells of a HookedTransformer; None if it can neither be measured here nor was before."""
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
    options.file.write_text(json.dumps(measure_cells(options.backend, tuple(options.datasets))), encoding="utf8")
