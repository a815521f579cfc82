"""What several files of this room compare with."""

import pytest

from tests.protocols.small_sweeps import sweep


@pytest.fixture(scope="session")
def plain(tiny_model):
    """The small sweep with enough memory."""
    return sweep(tiny_model("llama"))
