"""SmolLM2 on a bridge has the cells of a HookedTransformer on transformer-lens 3.9."""

import numpy as np
import pytest

from anchorlens.models.adapter import HAS_HOOKED
from tests.contract.smollm2 import NUMBERS, hooked_cells, measure_cells


@pytest.mark.slow
@pytest.mark.skipif(HAS_HOOKED, reason="make test-tl4 compares transformer-lens 4 with 3.9")
@pytest.mark.filterwarnings("ignore:Few rows")
def test_swap_knockout_edges_and_circuits_have_the_numbers_of_hooked_transformer():
    wanted = hooked_cells()
    if wanted is None:
        pytest.skip(f"{NUMBERS} names no numbers of transformer-lens 3.9: run make test-tl4")
    found = measure_cells("bridge")
    assert found.keys() == wanted.keys()
    assert {key.split("|")[0] for key in found} == {"swap", "knockout", "edges", "circuit"}
    ours, theirs = (np.array([cells[key] for key in wanted]) for cells in (found, wanted))
    assert np.nanmax(abs(theirs[:, 2])) > 1, "no intervention has an effect"
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
