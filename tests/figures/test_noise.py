"""The noise floor in the figure: a grey band, and rings at what lies within it."""

import pandas as pd

from anchorlens.figures.curves import plot_curves
from tests.figures.synthetic import point


def drawn(values, floor, **changes):
    rows = [point(layer=k, delta_p=v, ci_low=v - 1, ci_high=v + 1, noise_floor=floor, **changes) for k, v in enumerate(values)]
    return plot_curves(pd.DataFrame(rows))


def rings(figure):
    return [trace for trace in figure.data if trace.mode == "markers" and trace.marker.symbol == "circle-open"]


def test_a_grey_band_spans_the_noise_floor():
    figure = drawn([-5.0, -3.0, -0.2], 0.5)
    (band,) = figure.layout.shapes
    assert (band.y0, band.y1, band.layer) == (-0.5, 0.5, "below")
    assert band.xref == "x domain"
    assert "grey line at 0: noise floor (±0.5; rings: within it)" in figure.layout.title.text


def test_layers_within_the_floor_are_marked_and_say_so():
    figure = drawn([-5.0, 0.5, -0.2, 0.6], 0.5)
    (ring,) = rings(figure)
    assert list(ring.x) == [1, 2]
    (line,) = (trace for trace in figure.data if trace.showlegend)
    assert ["within the noise floor (±0.5)" in text for text in line.text] == [False, True, True, False]


def test_without_a_floor_nothing_is_grey():
    for floor in (float("nan"), 0.0):
        figure = drawn([-5.0, -3.0], floor)
        assert len(figure.layout.shapes) == 0
        assert rings(figure) == []
        assert "noise floor" not in figure.layout.title.text


def test_each_panel_has_its_own_floor_and_the_axis_holds_the_largest():
    rows = [point(layer=k, model=m, delta_p=1.0, noise_floor=f) for m, f in (("a", 4.0), ("b", 0.1)) for k in range(3)]
    figure = plot_curves(pd.DataFrame(rows))
    assert [(s.y1, s.xref) for s in figure.layout.shapes] == [(4.0, "x domain"), (0.1, "x2 domain")]
    low, high = figure.layout.yaxis.range
    assert low <= -4.0
    assert high >= 4.0


def test_trivial_points_stay_hollow():
    figure = drawn([0.0, -3.0], 0.5, trivial=True)
    assert rings(figure) == []
