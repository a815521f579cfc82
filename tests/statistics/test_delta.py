"""ΔP by hand, and where flipped and unflipped rows lie."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlens.errors import InputError
from anchorlens.statistics.delta import delta_p, is_flipped, support


def test_delta_by_hand():
    before, after = np.array([0.9, 0.2, 0.6, 0.5]), np.array([0.7, 0.6, 0.3, 0.5])
    event = np.array([1.0, 1.0, 0.0, 0.0])
    np.testing.assert_allclose(delta_p(before, after, event, "confidence"), [-20, -40, -30, 0])
    np.testing.assert_allclose(delta_p(before, after, event, "signed"), [-20, 40, -30, 0])
    np.testing.assert_allclose(delta_p(before, after, event, "true_label"), [-20, 40, 30, 0])
    assert is_flipped(before, after).tolist() == [False, True, True, False]
    with pytest.raises(InputError, match="Did you mean 'signed'"):
        support(before, before, event, "sined")


@settings(max_examples=200, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_flipped_rows_lie_below_zero_and_unflipped_ones_within_fifty(before, after):
    b, a = np.array([before]), np.array([after])
    (value,) = delta_p(b, a, np.array([1.0]), "confidence")
    if is_flipped(b, a)[0]:
        assert -100 <= value <= 0
        # Exactly zero only where both lie on the boundary.
        assert value < 0 or before == pytest.approx(0.5)
    else:
        assert -50 - 1e-9 <= value <= 50 + 1e-9
