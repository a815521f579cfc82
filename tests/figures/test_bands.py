"""Two bands: of each layer by itself, and of all layers at once."""

import pandas as pd
import plotly.graph_objects as go
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves

from .synthetic import NEW, effect, knockout_effects, knockout_frame, point

NAN = float("nan")


def frame(**changes: object) -> pd.DataFrame:
    wide = {"sim_low": -15.0, "sim_high": -5.0}
    return pd.DataFrame([point(layer=k, **wide | changes) for k in range(3)])


def bands(figure: go.Figure) -> list[tuple[float, float]]:
    """Lowest and highest value of each band, from back to front."""
    return [(min(trace.y), max(trace.y)) for trace in figure.data if trace.fill == "toself"]


@pytest.mark.parametrize(
    ("asked", "drawn", "said"),
    [
        (True, [(-15.0, -5.0), (-12.0, -8.0)], "inner: each layer by itself, outer: all layers at once"),
        ("both", [(-15.0, -5.0), (-12.0, -8.0)], "inner: each layer by itself, outer: all layers at once"),
        ("pointwise", [(-12.0, -8.0)], "band: 95 % bootstrap over questions</span>"),
        ("simultaneous", [(-15.0, -5.0)], "band: 95 % bootstrap over questions (all layers at once)"),
        (False, [], ""),
    ],
)
def test_each_word_draws_its_bands_and_says_so(asked, drawn, said):
    figure = plot_curves(frame(), bands=asked)
    assert bands(figure) == drawn
    assert said in figure.layout.title.text
    assert ("bootstrap" in figure.layout.title.text) == bool(drawn)


def test_the_outer_band_is_paler_and_hides_with_its_curve():
    figure = plot_curves(frame())
    outer, inner = (trace for trace in figure.data if trace.fill == "toself")
    assert (outer.fillcolor, inner.fillcolor) == ("rgba(31,119,180,0.07)", "rgba(31,119,180,0.15)")
    assert {outer.legendgroup, inner.legendgroup} == {trace.legendgroup for trace in figure.data if trace.showlegend}


def test_frames_without_simultaneous_intervals_have_the_inner_band_alone():
    old = frame().drop(columns=NEW)
    figure = plot_curves(old)
    assert bands(figure) == [(-12.0, -8.0)]
    assert "band: 95 % bootstrap over questions" in figure.layout.title.text
    assert "at once" not in figure.to_json()
    assert plot_curves(frame(sim_low=NAN, sim_high=NAN, prompt="", known_only="")).to_json() == figure.to_json()


def test_bands_that_are_not_there():
    with pytest.raises(InputError, match="hold no simultaneous band. Give bands='pointwise'"):
        plot_curves(frame().drop(columns=NEW), bands="simultaneous")
    with pytest.raises(InputError, match=r"^bands='pointwize' is neither .* Did you mean 'pointwise'"):
        plot_curves(frame(), bands="pointwize")


def test_hover_gives_both_intervals():
    (line,) = (trace for trace in plot_curves(frame()).data if trace.showlegend)
    assert "ΔP −10.00 points (95 %: −12.00 to −8.00; all layers at once 95 %: −15.00 to −5.00)<br>" in line.text[0]
    alone = plot_curves(frame(ci_low=NAN, ci_high=NAN))
    (line,) = (trace for trace in alone.data if trace.showlegend)
    assert "points (all layers at once 95 %: −15.00 to −5.00)" in line.text[0]


def test_the_range_holds_the_bands_that_are_drawn():
    low = {kind: plot_curves(frame(), bands=kind).layout.yaxis.range[0] for kind in ("both", "pointwise", "simultaneous")}
    assert low["both"] == low["simultaneous"] == pytest.approx(-15.75)
    assert low["pointwise"] == pytest.approx(-12.6)


def test_intervals_of_two_questions_do_not_press_the_curves_flat():
    """No ΔP lies beyond 100 points, whatever a t quantile of one degree of freedom says."""
    figure = plot_curves(frame(sim_low=-4000.0, sim_high=3000.0, n=2))
    assert figure.layout.yaxis.range == (-110.0, 110.0)
    own = effect(quantity="auc_drop", value=-0.1, ci_low=-0.3, ci_high=0.1, sim_low=-40.0, sim_high=40.0)
    lower = plot_curves(knockout_frame({"Qwen/Qwen3-8B": 2}, ("popqa",)), effects=pd.DataFrame([own])).layout.yaxis2
    assert lower.range == pytest.approx((-1.1, 1.1))


def test_a_lone_point_has_a_whisker_of_each_band():
    values = [-4.0, NAN, -5.0, -5.0]
    rows = [point(layer=k, delta_p=v, ci_low=-9.0, ci_high=-1.0, sim_low=-12.0, sim_high=2.0) for k, v in enumerate(values)]
    marks = (trace for trace in plot_curves(pd.DataFrame(rows)).data if trace.mode == "markers")
    outer, inner = (trace for trace in marks if not trace.name.endswith("P before"))
    assert (list(outer.error_y.array), list(outer.error_y.arrayminus)) == ([6.0], [8.0])
    assert (list(inner.error_y.array), list(inner.error_y.arrayminus)) == ([3.0], [5.0])
    assert outer.error_y.color == "rgba(31,119,180,0.25)"


@pytest.mark.parametrize("kind", ["pointwise", "simultaneous"])
def test_contrasts_have_the_same_bands(kind):
    models = {"m": 4}
    figure = plot_curves(knockout_frame(models, ("nq",)), effects=knockout_effects(models, ("nq",)), bands=kind)
    (band,) = (trace for trace in figure.data if trace.fill == "toself" and trace.xaxis == "x2")
    own = knockout_effects(models, ("nq",)).query("quantity == 'delta_all'")
    prefix = {"pointwise": "ci", "simultaneous": "sim"}[kind]
    high, low = own[f"{prefix}_high"].tolist(), own[f"{prefix}_low"].tolist()
    assert list(band.y) == [*high, *reversed(low), high[0]]
