"""The panels below the published picture: what can be claimed, and the switch among contrasts."""

import pandas as pd
import plotly.graph_objects as go
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.hover import CONTRASTS
from anchorlens.figures.table import gather, gather_contrasts

from .seen import curves_of, said, titles
from .synthetic import NAN, Sweep, effect, knockout_contrasts, knockout_frame, pick, swap_effects, swap_frame

MODELS = {"m": 12}
SETS = ("popqa", "nq")
BUTTONS = ["delta_p_vs_placebo", "flip_rate", "auc_drop", "row_specific_effect"]
CURVES, EFFECTS = knockout_frame(MODELS, SETS), knockout_contrasts(MODELS, SETS)
# Of PopQA alone.
ONE, ITS_CONTRASTS = knockout_frame(MODELS, ("popqa",)), knockout_contrasts(MODELS, ("popqa",))


def knockout(**options: object) -> go.Figure:
    return plot_curves(CURVES, contrast_tables=EFFECTS, **options)  # pyright: ignore[reportArgumentType]


def lower(figure: go.Figure, axis: str = "x2") -> list[go.Scatter]:
    return [trace for trace in figure.data if trace.xaxis == axis]


def lines(figure: go.Figure, axis: str = "x2") -> list[go.Scatter]:
    found = [trace for trace in lower(figure, axis) if trace.mode.startswith("lines") and trace.fill is None]
    return [trace for trace in found if trace.line.dash != "dot"]


def dotted(figure: go.Figure) -> list[go.Scatter]:
    return [trace for trace in lower(figure) if trace.line.dash == "dot"]


def buttons(figure: go.Figure) -> list[str]:
    return [one.label for one in figure.layout.updatemenus[0].buttons]


def pressed(figure: go.Figure, label: str) -> go.Figure:
    """The figure after a click on a button, as plotly's ``update`` does it."""
    (button,) = (one for one in figure.layout.updatemenus[0].buttons if one.label == label)
    assert button.method == "update"
    changes, layout, which = button.args
    again = go.Figure(figure)
    for name, values in changes.items():
        assert len(values) == len(which)
        for place, value in zip(which, values, strict=True):
            again.data[place][name] = value
    for path, value in layout.items():
        again.layout[path] = value
    return again


def wanted(contrast_tables: pd.DataFrame, **keys: object) -> list[float]:
    return pick(contrast_tables, **keys)["value"].tolist()


def test_delta_p_vs_placebo_stands_below_in_the_questions_colours_and_hides_with_its_curve():
    figure = knockout()
    questions = {one.legendgroup for one in figure.data if one.showlegend and one.name.startswith("Q-")}
    assert {(trace.legendgroup in questions, trace.showlegend) for trace in lower(figure)} == {(True, False)}
    assert [(line.line.color, line.line.dash) for line in lines(figure)] == [("#1f77b4", "solid"), ("#e377c2", "solid")]
    assert [list(line.y) for line in lines(figure)] == [wanted(EFFECTS, dataset=d, quantity="delta_p_vs_placebo") for d in SETS]
    assert figure.layout.yaxis2.title.text == "ΔP minus placebo"
    assert figure.layout.yaxis2.zeroline
    assert [note.text for note in figure.layout.annotations] == ["m", "<b>Contrasts</b>"]
    assert "lower panels: contrasts; ●: the simultaneous interval excludes 0" in said(figure)


AXES = ("ΔP minus placebo", "flips minus placebo", "AUC minus placebo", "row-specific ΔP")


@pytest.mark.parametrize(("quantity", "axis"), [*zip(BUTTONS, AXES, strict=True)])
def test_each_button_shows_its_contrast_and_so_does_its_name(quantity, axis):
    first, named = knockout(), knockout(contrasts=quantity)
    assert buttons(first) == BUTTONS
    assert BUTTONS[named.layout.updatemenus[0].active] == quantity
    control = "size_matched" if quantity == "row_specific_effect" else "random_tokens"
    rows = pick(EFFECTS, quantity=quantity, control=control)
    for figure in (pressed(first, quantity), named):
        assert [list(line.y) for line in lines(figure)] == [wanted(rows, dataset=d) for d in SETS]
        assert figure.layout.yaxis2.title.text == axis
        low, high = figure.layout.yaxis2.range
        assert low < rows["sim_low"].min()
        assert rows["sim_high"].max() < high
        assert f"<b>{quantity}</b>: {CONTRASTS[quantity].explanation}<br>control: {control}<br>" in lines(figure)[0].text[0]
        # The upper panel is not touched.
        assert [t.y for t in figure.data if t.xaxis in (None, "x")] == [t.y for t in first.data if t.xaxis in (None, "x")]


def test_the_row_specific_effect_of_other_tokens_is_a_thin_dotted_line():
    figure = knockout(contrasts="row_specific_effect")
    own = [wanted(EFFECTS, dataset=d, quantity="row_specific_effect", control="random_tokens") for d in SETS]
    assert [list(trace.y) for trace in dotted(figure)] == own
    assert {trace.line.width for trace in dotted(figure)} == {1}
    assert [trace.y for trace in dotted(pressed(figure, "delta_p_vs_placebo"))] == [(), ()]
    assert dotted(knockout(contrasts="row_specific_effect", controls=False)) == []


def test_points_are_full_where_the_interval_of_all_layers_excludes_0():
    ends = [(-9.0, -1.0), (-9.0, 0.0), (-9.0, 0.5), (0.5, 2.0), (NAN, NAN)]
    rows = [effect(model="m", layer=k, value=-4.0, sim_low=low, sim_high=high) for k, (low, high) in enumerate(ends)]
    figure = plot_curves(knockout_frame(MODELS, ("popqa",), silent=0), contrast_tables=pd.DataFrame(rows))
    (points,) = (trace for trace in lower(figure) if trace.mode == "markers")
    assert (list(points.x), points.marker.symbol, points.marker.color) == ([0, 3], "circle", "#1f77b4")
    (line,) = lines(figure)
    assert ["excludes 0" in text for text in line.text] == [True, False, False, True, False]


def test_points_without_signal_or_ten_questions_or_beyond_rounding_are_never_full():
    ends = {"sim_low": -9.0, "sim_high": -1.0}
    rows = [effect(model="m", layer=0, value=-4.0, **ends), effect(model="m", layer=3, value=-4.0, n=9, **ends)]
    rows += [effect(model="m", layer=4, value=-4.0, **ends), effect(model="m", layer=5, value=-1e-9, **ends)]
    figure = plot_curves(ONE.assign(noise_floor=1e-6), contrast_tables=pd.DataFrame(rows))
    (points,) = (trace for trace in lower(figure) if trace.mode == "markers" and trace.marker.color == "#1f77b4")
    assert list(points.x) == [4]


def test_hover_of_a_contrast():
    own = effect(model="m", quantity="auc_drop", value=-0.1234, ci_low=-0.2, ci_high=-0.05, sim_low=-0.3, sim_high=-0.01, n=64)
    (line,) = lines(plot_curves(knockout_frame(MODELS, ("popqa",), silent=0), contrast_tables=pd.DataFrame([own])))
    assert list(line.text) == [
        "<b>auc_drop</b>: AUC of the probe less that of the control<br>control: random_tokens<br>Q-Anchored (PopQA)<br>m<br>"
        "anchor exact_question, layer 0<br>−0.123 (95 %: −0.200 to −0.050; simultaneous 95 %: −0.300 to −0.010)<br>"
        "the simultaneous interval excludes 0<br>n = 64 questions"
    ]


def test_layers_that_were_not_measured_are_bridged_with_hollow_points():
    (line,) = lines(plot_curves(ONE, contrast_tables=ITS_CONTRASTS[ITS_CONTRASTS["layer"] % 4 == 0]))
    assert (list(line.x), line.mode, line.marker.color) == ([0, 4, 8], "lines+markers", "white")


@pytest.mark.parametrize(
    ("results", "contrast_tables"),
    [
        (Sweep(CURVES, EFFECTS), None),
        ([Sweep(CURVES, EFFECTS)], None),
        ([Sweep(pick(CURVES, dataset="nq")), pick(CURVES, dataset="popqa")], [EFFECTS]),
        ([CURVES, CURVES], [EFFECTS, EFFECTS]),
    ],
    ids=["sweep", "list", "mixture", "twice"],
)
def test_sweeps_and_frames_draw_the_same_and_results_bring_their_own_contrasts(results, contrast_tables):
    assert plot_curves(results, contrast_tables=contrast_tables).to_json() == knockout().to_json()


def test_without_contrasts_the_figure_is_that_of_the_curves():
    plain = plot_curves(ONE).to_json()
    for contrast_tables in (pick(ITS_CONTRASTS, quantity="gap"), ITS_CONTRASTS.iloc[:0], ITS_CONTRASTS.assign(model="another")):
        assert plot_curves(ONE, contrast_tables=contrast_tables).to_json() == plain
    assert plot_curves(Sweep(ONE, ITS_CONTRASTS), contrasts=False).to_json() == plain
    uncontrolled = plot_curves(ONE, controls=False).to_json()
    assert plot_curves(Sweep(ONE), controls=False).to_json() == uncontrolled != plain


def test_a_swap_has_each_anchors_curve_less_its_null_and_no_switch():
    anchors = ("exact_question", "pre_answer", "subject")
    contrast_tables = swap_effects(MODELS, ("popqa",), anchors)
    figure = plot_curves(swap_frame(MODELS, ("popqa",), anchors), contrast_tables=contrast_tables)
    own, entries = ([(t.line.color, t.line.dash, t.legendgroup) for t in some] for some in (lines(figure), curves_of(figure)))
    assert own == entries
    assert [list(t.y) for t in lines(figure)] == [wanted(contrast_tables, anchor=a) for a in anchors]
    assert figure.layout.yaxis2.title.text == "ΔP minus null"
    assert len(figure.layout.updatemenus) == 0
    # A contrast without its curve is left out.
    alone = plot_curves(swap_frame(MODELS, ("popqa",), ("exact_question",)), contrast_tables=contrast_tables)
    assert [list(t.y) for t in lines(alone)] == [wanted(contrast_tables, anchor="exact_question")]


def test_beside_a_swap_the_switch_is_the_knockouts():
    curves, contrast_tables = [ONE, swap_frame(MODELS, ("popqa",))], [ITS_CONTRASTS, swap_effects(MODELS, ("popqa",))]
    figure = plot_curves(curves, contrast_tables=contrast_tables)
    swap = [t.y for t in lower(figure, "x4")]
    assert buttons(figure) == BUTTONS
    again = pressed(figure, "auc_drop")
    assert (again.layout.yaxis3.title.text, again.layout.yaxis4.title.text) == ("AUC minus placebo", "ΔP minus null")
    assert [t.y for t in lower(again, "x4")] == swap
    assert list(lines(again, "x3")[0].y) == wanted(contrast_tables[0], quantity="auc_drop")
    # Two scales, so neither follows the other.
    assert again.layout.yaxis3.range != again.layout.yaxis4.range
    assert figure.layout.yaxis4.matches is None
    assert figure.layout.yaxis4.showticklabels
    # It stands above the knockout's panel.
    assert figure.layout.updatemenus[0].x == figure.layout.xaxis3.domain[1]
    assert [t.y for t in lower(plot_curves(curves, contrast_tables=contrast_tables, contrasts="delta_p_minus_null"), "x4")] == swap


def test_other_protocols_are_read_against_their_own_control():
    curves = knockout_frame(MODELS, ("popqa",), placebos=()).assign(protocol="answer_only")
    fixed = {"model": "m", "protocol": "answer_only", "control": "other_question"}
    rows = [effect(quantity=name, layer=k, value=float(k), **fixed) for name in ("delta_p_vs_placebo", "p_after") for k in range(3)]
    figure = plot_curves(curves, contrast_tables=pd.DataFrame(rows))
    assert figure.layout.yaxis2.title.text == "ΔP minus control"
    assert buttons(figure) == ["delta_p_vs_placebo", "p_after"]
    assert pressed(figure, "p_after").layout.yaxis2.title.text == "P after minus control"


def test_a_figure_of_flips_shows_the_contrast_of_flips_first():
    figure = plot_curves(ONE.assign(metric="flip"), metric="flip", contrast_tables=ITS_CONTRASTS)
    assert figure.layout.yaxis2.title.text == "flips minus placebo"


def test_a_model_without_contrasts_has_a_blank_place_below():
    figure = plot_curves(knockout_frame({"a": 4, "b": 5}, ("popqa",)), contrast_tables=knockout_contrasts({"a": 4}, ("popqa",)))
    assert (figure.layout.xaxis3.visible, figure.layout.xaxis4.visible) == (None, False)
    assert figure.layout.yaxis4.visible is False
    assert lower(figure, "x4") == []


def test_models_share_one_scale_of_contrasts():
    models = {"a": 4, "b": 6, "c": 5}
    figure = plot_curves(knockout_frame(models, ("popqa",)), contrast_tables=knockout_contrasts(models, ("popqa",)))
    layout = figure.layout
    assert [layout[f"yaxis{k}"].matches for k in (4, 5, 6)] == [None, "y4", "y4"]
    assert layout.yaxis4.range == layout.yaxis5.range == layout.yaxis6.range
    assert [layout[f"yaxis{k}"].title.text for k in (4, 5, 6)] == ["ΔP minus placebo", None, None]


def test_five_models_stand_in_two_rows_each_with_its_contrasts_below():
    models = {f"m{k}": 3 + k for k in range(5)}
    figure = plot_curves(knockout_frame(models, ("popqa",)), contrast_tables=knockout_contrasts(models, ("popqa",)))
    assert titles(figure) == list(models)
    # Axes 1-3 and 7-9 are curves, 4-6 and 10-12 their contrasts.
    assert [figure.layout[f"xaxis{k}"].range[1] for k in (4, 5, 6, 10, 11)] == [2.5, 3.5, 4.5, 5.5, 6.5]
    heads = [note for note in figure.layout.annotations if note.text == "<b>Contrasts</b>"]
    assert [note.yref for note in heads] == ["y4 domain", "y10 domain"]


@pytest.mark.parametrize(("width", "kind"), [(None, "buttons"), (700, "buttons"), (480, "dropdown")])
def test_the_switch_unfolds_where_there_is_little_room_and_nothing_between_the_panels_overlaps(width, kind):
    """Ticks and title of an x axis take 45 pixels, heading and switch 34."""
    layout = knockout(width=width).layout
    assert layout.updatemenus[0].type == kind
    gap = layout.yaxis.domain[0] - layout.yaxis2.domain[1]
    assert gap * (layout.height - layout.margin.t - layout.margin.b) == pytest.approx(92)
    with pytest.raises(InputError, match="height=400: too small for this figure"):
        knockout(height=400, width=width)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("flip_rates", "Did you mean 'flip_rate'"),
        ("delta_p_minus_null", "not in these results. Known: delta_p_vs_placebo, flip_rate, auc_drop, row_specific_effect"),
    ],
)
def test_a_contrast_that_is_not_there(asked, told):
    with pytest.raises(InputError, match=told):
        knockout(contrasts=asked)
    with pytest.raises(InputError, match="They are curves without contrasts"):
        plot_curves(CURVES, contrasts="delta_p_vs_placebo")


@pytest.mark.parametrize(
    ("contrast_tables", "told"),
    [
        ("runs/a", "^contrast_tables='runs/a': give the frame"),
        (pd.DataFrame({"layer": [1]}), "lacks the columns model, dataset, protocol, anchor, quantity"),
        (pd.DataFrame([effect(model="m", value="deep")]), "'value' of the contrasts frame must hold numbers"),
        (
            pd.DataFrame([effect(model="m"), effect(model="m", value=2.0)]),
            r"two values of one point \(delta_p_vs_placebo against random",
        ),
    ],
)
def test_frames_that_are_no_effects(contrast_tables, told):
    with pytest.raises(InputError, match=told):
        gather_contrasts(ONE, contrast_tables, gather(ONE, True), True, True)
