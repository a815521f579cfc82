"""The noise floor in the figure: a grey band, and what lies within it says so."""

from .seen import only_curve, told
from .synthetic import NAN, drawn, point


def noisy(values, floor, **changes):
    values = [{"effect": v, "ci_low": v - 1, "ci_high": v + 1} for v in values]
    return drawn(
        [point(layer=k, noise_floor=floor, **own, **changes) for k, own in enumerate(values)]
    )


def test_a_grey_band_spans_the_floor_and_values_within_it_say_so():
    figure = noisy([-5.0, 0.5, -0.2, 0.6], 0.5)
    (band,) = figure.layout.shapes
    assert (band.y0, band.y1, band.layer, band.xref) == (-0.5, 0.5, "below", "x domain")
    assert "Shaded around 0: noise floor (±0.5)." in told(figure)
    assert ["within the noise floor (±0.5)" in text for text in only_curve(figure).text] == [
        False,
        True,
        True,
        False,
    ]
    assert {trace.mode for trace in figure.data} == {"lines"}


def test_without_a_floor_nothing_is_grey():
    for floor in (NAN, 0.0):
        figure = noisy([-5.0, -3.0], floor)
        assert len(figure.layout.shapes) == 0
        assert "rounding" not in told(figure)


def test_each_panel_has_its_own_floor():
    figure = drawn(
        [
            point(layer=k, model=m, effect=1.0, noise_floor=f)
            for m, f in (("a", 4.0), ("b", 0.1))
            for k in range(3)
        ]
    )
    assert [(s.y1, s.xref) for s in figure.layout.shapes] == [(4.0, "x domain"), (0.1, "x2 domain")]
