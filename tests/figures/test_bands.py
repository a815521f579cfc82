"""One band for each curve: of all layers at once, or of each layer by itself."""

import pandas as pd
import plotly.graph_objects as go
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves

from .seen import only_curve, told
from .synthetic import NAN, NEW, drawn, effect, knockout_contrasts, knockout_frame, point


def frame(**changes: object) -> pd.DataFrame:
    wide = {"sim_low": -15.0, "sim_high": -5.0}
    return pd.DataFrame([point(layer=k, **wide | changes) for k in range(3)])


def bands(figure: go.Figure) -> list[tuple[float, float]]:
    """Lowest and highest value of each band."""
    return [(min(trace.y), max(trace.y)) for trace in figure.data if trace.fill == "toself"]


@pytest.mark.parametrize(
    ("asked", "wanted", "said"),
    [
        (True, [(-12.0, -8.0)], "Bands: 95 %, pointwise, for a layer chosen beforehand"),
        ("simultaneous", [(-15.0, -5.0)], "Bands: 95 %, simultaneous over all layers"),
        ("pointwise", [(-12.0, -8.0)], "Bands: 95 %, pointwise, for a layer chosen beforehand"),
        (False, [], ""),
    ],
)
def test_each_word_draws_its_band_and_the_caption_says_so(asked, wanted, said):
    figure = plot_curves(frame(), bands=asked)
    assert bands(figure) == wanted
    assert said in told(figure)
    assert ("Bands" in told(figure)) == bool(wanted)


def test_frames_without_simultaneous_intervals_have_the_pointwise_band():
    figure = plot_curves(frame().drop(columns=NEW))
    assert bands(figure) == [(-12.0, -8.0)]
    assert "pointwise" in told(figure)
    assert (
        plot_curves(frame(sim_low=NAN, sim_high=NAN, prompt="", known_only="")).to_json()
        == figure.to_json()
    )


def test_bands_that_are_not_there():
    with pytest.raises(InputError, match="bands='pointwise'"):
        plot_curves(frame().drop(columns=NEW), bands="simultaneous")
    with pytest.raises(InputError, match="'pointwise'"):
        plot_curves(frame(), bands="pointwize")


def test_hover_gives_both_intervals():
    both, alone = (
        only_curve(plot_curves(one)).text[0] for one in (frame(), frame(ci_low=NAN, ci_high=NAN))
    )
    assert (
        "ΔP −10.00 points (95 %: −12.00 to −8.00; simultaneous 95 %: −15.00 to −5.00)<br>" in both
    )
    assert "points (simultaneous 95 %: −15.00 to −5.00)" in alone


@pytest.mark.parametrize("n", [9, 10])
def test_there_is_no_interval_below_ten_questions(n):
    contrast_tables = pd.DataFrame([effect(model="m", layer=k, n=n) for k in range(3)])
    figure = plot_curves(
        knockout_frame({"m": 3}, ("popqa",)).assign(n=n), contrast_tables=contrast_tables
    )
    assert bool(bands(figure)) == (n == 10)
    texts = [trace.text[0] for trace in figure.data if trace.text]
    assert (
        {"no interval" in text for text in texts}
        == {"fewer than 10 questions: no interval" in text for text in texts}
        == {n == 9}
    )


@pytest.mark.slow
def test_the_range_is_that_of_the_curves_and_their_bands_and_not_of_controls():
    low = {
        kind: plot_curves(frame(), bands=kind).layout.yaxis.range[0]
        for kind in ("simultaneous", True, False)
    }
    assert list(low.values()) == pytest.approx([-15.75, -12.6, -10.5])
    deep = pd.concat([frame(), frame(control="null", effect=-90.0)])
    assert plot_curves(deep, controls=True).layout.yaxis.range[0] == low[True]


def test_intervals_beyond_the_scale_do_not_press_the_curves_flat():
    assert plot_curves(frame(ci_low=-4000.0, ci_high=3000.0)).layout.yaxis.range == (
        -110.0,
        110.0,
    )
    own = effect(
        quantity="auc_drop", value=-0.1, ci_low=-0.3, ci_high=0.1, sim_low=-40.0, sim_high=40.0
    )
    lower = plot_curves(
        knockout_frame({"Qwen/Qwen3-8B": 2}, ("popqa",)), contrast_tables=pd.DataFrame([own])
    ).layout.yaxis2
    assert lower.range == pytest.approx((-1.1, 1.1))


def test_a_lone_point_has_a_bar_and_a_cross():
    values = [-4.0, NAN, -5.0, -5.0]
    figure = drawn(
        [point(layer=k, effect=v, ci_low=-9.0, ci_high=-1.0) for k, v in enumerate(values)]
    )
    (band,) = (trace for trace in figure.data if trace.fill == "toself")
    assert list(band.x) == [-0.15, 0.15, 0.15, -0.15, -0.15, None, 2, 3, 3, 2, 2]
    assert list(band.y[:5]) == [-1.0, -1.0, -9.0, -9.0, -1.0]
    (mark,) = (trace for trace in figure.data if trace.mode == "markers")
    assert (list(mark.x), list(mark.y), mark.marker.symbol) == ([0], [-4.0], "cross-thin-open")


@pytest.mark.parametrize("kind", ["pointwise", "simultaneous", True])
def test_contrasts_have_the_named_band_and_by_default_that_of_the_claims(kind):
    contrast_tables = knockout_contrasts({"m": 4}, ("nq",))
    figure = plot_curves(
        knockout_frame({"m": 4}, ("nq",)), contrast_tables=contrast_tables, bands=kind
    )
    (band,) = (trace for trace in figure.data if trace.fill == "toself" and trace.xaxis == "x2")
    own = contrast_tables.query("quantity == 'delta_p_vs_placebo'")
    prefix = {"pointwise": "ci", "simultaneous": "sim", True: "sim"}[kind]
    high, low = own[f"{prefix}_high"].tolist(), own[f"{prefix}_low"].tolist()
    assert list(band.y) == [*high, *reversed(low), high[0]]


def test_a_comparison_has_the_band_over_all_layers():
    compared = frame(metric="difference")
    figure = plot_curves(compared, metric="difference")
    assert bands(figure) == [(-15.0, -5.0)]
    assert "Bands: 95 %, simultaneous over all layers" in told(figure)
    alone = plot_curves(compared.assign(sim_low=NAN, sim_high=NAN), metric="difference")
    assert bands(alone) == [(-12.0, -8.0)]
