"""Two bands: of each layer by itself, and of all layers at once."""

import pandas as pd
import plotly.graph_objects as go
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves

from .seen import only_curve, said
from .synthetic import NAN, NEW, drawn, effect, knockout_contrasts, knockout_frame, point


def frame(**changes: object) -> pd.DataFrame:
    wide = {"sim_low": -15.0, "sim_high": -5.0}
    return pd.DataFrame([point(layer=k, **wide | changes) for k in range(3)])


def bands(figure: go.Figure) -> list[tuple[float, float]]:
    """Lowest and highest value of each band, from back to front."""
    return [(min(trace.y), max(trace.y)) for trace in figure.data if trace.fill == "toself"]


@pytest.mark.parametrize(
    ("asked", "wanted", "told"),
    [
        (True, [(-15.0, -5.0), (-12.0, -8.0)], "inner: pointwise, outer: simultaneous over layers"),
        ("both", [(-15.0, -5.0), (-12.0, -8.0)], "inner: pointwise, outer: simultaneous over layers"),
        ("pointwise", [(-12.0, -8.0)], "band: 95 % bootstrap over questions · "),
        ("simultaneous", [(-15.0, -5.0)], "band: 95 % bootstrap over questions (simultaneous over layers)"),
        (False, [], ""),
    ],
)
def test_each_word_draws_its_bands_and_says_so(asked, wanted, told):
    figure = plot_curves(frame(), bands=asked)
    assert bands(figure) == wanted
    assert told in said(figure) + " · "
    assert ("bootstrap" in said(figure)) == bool(wanted)


def test_the_outer_band_is_paler():
    outer, inner = (trace for trace in plot_curves(frame()).data if trace.fill == "toself")
    assert (outer.fillcolor, inner.fillcolor) == ("rgba(31,119,180,0.07)", "rgba(31,119,180,0.15)")


def test_frames_without_simultaneous_intervals_have_the_inner_band_alone():
    figure = plot_curves(frame().drop(columns=NEW))
    assert bands(figure) == [(-12.0, -8.0)]
    assert "band: 95 % bootstrap over questions" in said(figure)
    assert "at once" not in figure.to_json()
    assert plot_curves(frame(sim_low=NAN, sim_high=NAN, prompt="", known_only="")).to_json() == figure.to_json()


def test_bands_that_are_not_there():
    with pytest.raises(InputError, match="have no simultaneous band. Use bands='pointwise'"):
        plot_curves(frame().drop(columns=NEW), bands="simultaneous")
    with pytest.raises(InputError, match=r"^bands='pointwize': neither .* Did you mean 'pointwise'"):
        plot_curves(frame(), bands="pointwize")


def test_hover_gives_both_intervals():
    both, alone = (only_curve(plot_curves(one)).text[0] for one in (frame(), frame(ci_low=NAN, ci_high=NAN)))
    assert "ΔP −10.00 points (95 %: −12.00 to −8.00; simultaneous 95 %: −15.00 to −5.00)<br>" in both
    assert "points (simultaneous 95 %: −15.00 to −5.00)" in alone


def test_the_range_holds_the_bands_that_are_drawn():
    low = {kind: plot_curves(frame(), bands=kind).layout.yaxis.range[0] for kind in ("both", "pointwise", "simultaneous")}
    assert low["both"] == low["simultaneous"] == pytest.approx(-15.75)
    assert low["pointwise"] == pytest.approx(-12.6)


def test_intervals_of_two_questions_do_not_press_the_curves_flat():
    """No ΔP lies beyond 100 points, whatever a t quantile of one degree of freedom says."""
    figure = plot_curves(frame(sim_low=-4000.0, sim_high=3000.0, n=2))
    assert figure.layout.yaxis.range == (-110.0, 110.0)
    own = effect(quantity="auc_drop", value=-0.1, ci_low=-0.3, ci_high=0.1, sim_low=-40.0, sim_high=40.0)
    lower = plot_curves(knockout_frame({"Qwen/Qwen3-8B": 2}, ("popqa",)), contrast_tables=pd.DataFrame([own])).layout.yaxis2
    assert lower.range == pytest.approx((-1.1, 1.1))


def test_a_lone_point_has_a_whisker_of_each_band():
    values = [-4.0, NAN, -5.0, -5.0]
    rows = [point(layer=k, effect=v, ci_low=-9.0, ci_high=-1.0, sim_low=-12.0, sim_high=2.0) for k, v in enumerate(values)]
    outer, inner = (trace for trace in drawn(rows).data if trace.error_y.array is not None)
    assert (list(outer.error_y.array), list(outer.error_y.arrayminus)) == ([6.0], [8.0])
    assert (list(inner.error_y.array), list(inner.error_y.arrayminus)) == ([3.0], [5.0])
    assert outer.error_y.color == "rgba(31,119,180,0.25)"


@pytest.mark.parametrize("kind", ["pointwise", "simultaneous"])
def test_contrasts_have_the_same_bands(kind):
    contrast_tables = knockout_contrasts({"m": 4}, ("nq",))
    figure = plot_curves(knockout_frame({"m": 4}, ("nq",)), contrast_tables=contrast_tables, bands=kind)
    (band,) = (trace for trace in figure.data if trace.fill == "toself" and trace.xaxis == "x2")
    own = contrast_tables.query("quantity == 'delta_p_vs_placebo'")
    prefix = {"pointwise": "ci", "simultaneous": "sim"}[kind]
    high, low = own[f"{prefix}_high"].tolist(), own[f"{prefix}_low"].tolist()
    assert list(band.y) == [*high, *reversed(low), high[0]]
