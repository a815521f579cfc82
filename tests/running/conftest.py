"""What is measured and kept, not how it looks."""

import pytest


@pytest.fixture(autouse=True)
def _without_figures(plain_figure: None) -> None:
    """No run of this folder is looked at."""
