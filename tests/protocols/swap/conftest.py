"""Sweeps that the tests of this folder share."""

import pytest

from tests.protocols.swap.simulated import simulated


@pytest.fixture(scope="module")
def effect():
    """The first anchor falls by 8 points at layers 10-19, its nulls do not."""
    return simulated("effect", 60, seed=3)
