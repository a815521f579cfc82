"""The target figure, drawn once."""

import plotly.graph_objects as go
import pytest

from anchorlens.figures.curves import plot_curves

from .synthetic import knockout_frame

TITLE = "SYNTHETIC numbers, not measured: layout of the target figure"


@pytest.fixture(scope="session")
def target() -> go.Figure:
    return plot_curves(knockout_frame(), title=TITLE)
