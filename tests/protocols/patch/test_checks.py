"""Checks of a patch sweep find mistakes of the engine."""

import pytest
import torch

from anchorlens.errors import CheckError
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.running.sweeps import patch_sweep
from tests.engine.replace_swaps import replace_swaps, right_swaps
from tests.patching.faults import KINDS, share_found
from tests.protocols.patch.faults import run_faults
from tests.protocols.patch.test_cells import ROWS
from tests.tiers import ON_REQUEST


@pytest.mark.slow
def test_a_few_faults_of_each_kind_are_found():
    outcomes = run_faults(8, ("llama",))
    assert share_found(outcomes) == 1.0
    assert len({kind for (kind, outcome) in outcomes if outcome == "found"}) >= len(KINDS) - 1


@pytest.mark.parametrize(
    ("dtype", "n"),
    [
        pytest.param("bfloat16", 8, marks=pytest.mark.slow),
        pytest.param("float32", 10, marks=ON_REQUEST),
        pytest.param("float16", 6, marks=ON_REQUEST),
    ],
)
def test_many_faults(dtype, n):
    """With the tolerances of one dtype for all models, 8 of 40 were missed in bfloat16."""
    assert share_found(run_faults(n, dtype=dtype)) >= 0.95


@pytest.mark.parametrize(
    ("site", "layer"), [("resid_post", -1), ("attn_out", -1), ("resid_pre", 0)]
)
def test_values_that_follow_by_construction_are_compared(tiny_model, monkeypatch, site, layer):
    """Wrong are those cells alone, so no drawn cell need be among them; what was written is
    right.
    """
    model = tiny_model("gpt2")
    options = {
        "by": "position",
        "site": site,
        "metric": "logit_diff",
        "controls": "none",
        "progress": False,
        "n_spot_checks": 1,
    }
    good = patch_sweep(model, load_pairs(ROWS), **options)
    table = good.samples(all_columns=True)
    assert good.record["checks"]["known"] == int(table["by_construction"].sum()) > 0

    def broken(self, batch, **how):
        before, changed = right_swaps(self, batch, **how)
        for swap, after in zip(batch.swaps, changed, strict=True):
            own = table[
                (table["anchor"] == swap.anchor)
                & (table["layer"] == table["layer"].unique()[layer])
            ]
            if own["by_construction"].all() and len(own) == len(batch.tokens.ids):
                after.values["logit_diff"][layer] += torch.tensor(1.0)
        return before, changed

    replace_swaps(monkeypatch, broken)
    with pytest.raises(CheckError, match="by 1 logit"):
        patch_sweep(model, load_pairs(ROWS), **options)
