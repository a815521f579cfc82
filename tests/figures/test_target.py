"""The target figure, built from invented numbers: layout, legend, colours and dashes are asserted, never a curve's value."""

import math

import pytest

from anchorlens.figures.curves import plot_curves

from .conftest import TITLE
from .seen import legend, lines_of, looks, names, said, ticks_of, titles
from .synthetic import DATASETS, TARGET_MODELS, knockout_contrasts, knockout_frame, pick, swap_frame

# Independent of the package: copied from METHOD 8.
ENTRIES = [
    ("Q-Anchored (PopQA)", "#1f77b4"), ("A-Anchored (PopQA)", "#ff7f0e"),
    ("Q-Anchored (TriviaQA)", "#2ca02c"), ("A-Anchored (TriviaQA)", "#d62728"),
    ("Q-Anchored (HotpotQA)", "#9467bd"), ("A-Anchored (HotpotQA)", "#8c564b"),
    ("Q-Anchored (NQ)", "#e377c2"), ("A-Anchored (NQ)", "#7f7f7f"),
]  # fmt: skip
EXTRAS = ["Range of controls", "Placebo gap", "Placebo split", "Other placebos", "All (unsplit)"]


def test_two_panels_named_after_their_models_with_own_layers_and_one_delta_scale(target):
    layout = target.layout
    assert titles(target) == ["Qwen3-8B", "Qwen3-32B"]
    assert layout.xaxis.domain[1] < layout.xaxis2.domain[0]
    assert layout.yaxis.domain == layout.yaxis2.domain
    assert "xaxis3" not in target.to_dict()["layout"]
    assert (layout.xaxis.title.text, layout.xaxis2.title.text) == ("Layer", "Layer")
    assert (layout.xaxis.range, layout.xaxis2.range) == ((-0.5, 35.5), (-0.5, 63.5))
    assert (layout.xaxis.matches, layout.xaxis2.matches, layout.yaxis2.matches) == (None, None, "y")
    assert (layout.yaxis.title.text, layout.yaxis2.title.text) == ("ΔP", None)
    assert layout.yaxis2.range == layout.yaxis.range
    assert (layout.yaxis.showticklabels, layout.yaxis2.showticklabels) == (True, False)
    assert layout.yaxis.range[0] < 0 < layout.yaxis.range[1]
    assert layout.yaxis.zeroline
    assert layout.yaxis2.zeroline


def test_eight_entries_in_order_and_then_those_of_all_data_sets(target):
    assert [trace.name for trace in legend(target)] == [*dict(ENTRIES), *EXTRAS]
    assert target.layout.showlegend is True


def test_both_legends_stand_below_all_panels_and_each_other(target):
    layout = target.layout
    for box in (layout.legend, layout.legend2):
        assert (box.orientation, box.yref, box.yanchor, box.x, box.xanchor) == ("h", "container", "bottom", 0, "left")
        # Grouped order would put every curve into a column of its own.
        assert (box.traceorder, box.entrywidthmode, box.entrywidth) == ("normal", "fraction", 0.5)
    assert layout.legend2.y == 0
    assert layout.legend.y * layout.height == pytest.approx(3 * 19 + 6)
    assert layout.margin.b == 58 + (3 * 19 + 6) + (4 * 19 + 6)


def test_isolating_a_curve_leaves_what_stands_beside_the_curves(target):
    assert (target.layout.legend.itemdoubleclick, target.layout.legend2.itemdoubleclick) == ("toggleothers", False)
    beside = [trace for trace in target.data if trace.legendgroup in EXTRAS]
    assert {trace.legend for trace in beside} == {"legend2"}
    assert {trace.legend for trace in target.data if trace.legendgroup not in EXTRAS} == {None}


def test_each_curve_is_the_frames_points_in_its_colour_question_solid_and_answer_dashed(target):
    frame = knockout_frame()
    for k, (name, colour) in enumerate(ENTRIES):
        lines, wanted = lines_of(target, name), {"dataset": DATASETS[k // 2], "pathway": name.split()[0], "control": "none"}
        assert [trace.xaxis for trace in lines] == ["x", "x2"]
        assert {(trace.line.color, trace.line.dash) for trace in lines} == {(colour, "dash" if k % 2 else "solid")}
        for line, (model, layers) in zip(lines, TARGET_MODELS.items(), strict=True):
            assert list(line.x) == list(range(layers))
            assert list(line.y) == pick(frame, model=model, **wanted)["effect"].tolist()


def test_every_entry_has_a_band_and_crosses_that_hide_with_it(target):
    for name, colour in ENTRIES:
        (group,) = {trace.legendgroup for trace in lines_of(target, name)}
        mates = [trace for trace in target.data if trace.legendgroup == group]
        assert {(trace.mode, trace.fill) for trace in mates} == {("lines", None), ("lines", "toself"), ("markers", None)}
        bands = [trace for trace in mates if trace.fill == "toself"]
        assert [trace.xaxis for trace in bands] == ["x", "x2"] * 2
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        # The band of all layers at once, and on it that of each layer by itself.
        opacities = [trace.fillcolor.removeprefix(f"rgba({red},{green},{blue},") for trace in bands]
        assert opacities == ["0.029)", "0.029)", "0.063)", "0.063)"]
        assert {trace.hoverinfo for trace in bands} == {"skip"}
        assert not any(trace.showlegend for trace in bands)
        assert {trace.visible for trace in mates} == {None}
    assert target.layout.legend.groupclick == "togglegroup"


def test_a_swap_has_eight_entries_one_grey_area_a_panel_and_each_null_as_a_dotted_line_after_a_click():
    frame = swap_frame()
    figure = plot_curves(frame)
    entries = {name.replace("Anchored", "Anchored swap"): colour for name, colour in ENTRIES}
    assert {name: colour for name, (colour, _) in looks(figure).items()} == entries
    assert names(figure) == list(entries)
    beside = [(trace.name, trace.visible) for trace in legend(figure)[8:]]
    assert beside == [("Range of controls", None), ("null", "legendonly")]
    assert said(figure).startswith("ΔP by layer: activation swap · ")
    assert "grey area: range of the controls: null (donor streams at random positions)" in said(figure)
    assert "donors same_relation" in said(figure)
    for name, colour in entries.items():
        dotted = [trace for trace in figure.data if trace.name == f"{name}, null"]
        assert [trace.xaxis for trace in dotted] == ["x", "x2"]
        assert {(t.line.color, t.line.dash, t.line.width, t.visible) for t in dotted} == {(colour, "dot", 1, "legendonly")}
        assert not any(trace.showlegend for trace in dotted)
    areas = [trace for trace in figure.data if trace.name == "Range of controls" and not trace.showlegend]
    for area, model in zip(areas, TARGET_MODELS, strict=True):
        nulls = pick(frame, model=model, control="null").groupby("layer")["effect"]
        layers = TARGET_MODELS[model]
        assert list(area.x[: 2 * layers]) == [*range(layers), *reversed(range(layers))]
        assert list(area.y[:layers]) == nulls.max().tolist()
        assert list(area.y[layers : 2 * layers]) == nulls.min().tolist()[::-1]


def test_ticks_say_how_far_each_curve_can_fall():
    frame = swap_frame({"m": 8}, ("popqa",))
    frame.loc[frame["anchor"] == "pre_answer", "p_before"] = 0.4
    figure = plot_curves(frame)
    assert {name: (list(t.x), list(t.y)) for name, t in ticks_of(figure).items()} == {
        "Q-Anchored swap (PopQA), P before": ([7.5], [pytest.approx(-60)]),
        "A-Anchored swap (PopQA), P before": ([7.5], [pytest.approx(-40)]),
    }
    assert "n 100 questions · P before 0.40–0.60" in said(figure)
    assert "ticks at the right: −100·P before" in said(figure)
    # When something is put back, ΔP cannot fall by P.
    assert ticks_of(plot_curves(frame.assign(direction="denoising"))) == {}


def test_no_point_lies_below_its_tick_where_p_before_differs_by_layer():
    frame = knockout_frame({"m": 8}, ("popqa",), placebos=())
    frame["p_before"] = 0.5 + 0.05 * frame["layer"]
    frame["effect"] = -100 * frame["p_before"]  # all of P is lost at every layer
    ticks = ticks_of(plot_curves(frame))
    assert [tick.y[0] for tick in ticks.values()] == pytest.approx([-85] * len(ticks))
    assert "P before 0.68, 0.50 to 0.85 by layer" in ticks["Q-Anchored (PopQA), P before"].text[0]


def test_a_tick_far_below_the_curves_does_not_press_them_flat():
    frame = swap_frame({"m": 8}, ("popqa",)).assign(p_before=0.99)
    frame["effect"] = frame["effect"] / 10
    figure = plot_curves(frame, bands=False)
    assert ticks_of(figure) == {}
    assert figure.layout.yaxis.range[0] > -20
    assert "P before 0.99" in said(figure)


def test_curves_lie_above_bands_and_below_marks(target):
    drawn = [trace for trace in target.data if trace.name not in EXTRAS]
    kinds = ["band" if t.fill else "mark" if t.mode == "markers" else "thin" if t.line.width < 2 else "line" for t in drawn]
    assert kinds == sorted(kinds, key=["band", "thin", "line", "mark"].index)
    assert set(kinds) == {"band", "thin", "line", "mark"}


def test_title_says_synthetic_and_the_line_below_says_what_is_drawn(target):
    assert said(target) == (
        f"{TITLE} · "
        "protocol knockout · readout probe · anchor exact_question · knockout mode mask · prompt qa · answers gold · "
        "distractor matched · split fixed · n 158–312 questions · P before 0.60 · ΔP in percentage points · "
        "bands: 95 % bootstrap over questions; inner: pointwise, outer: simultaneous over layers · "
        "grey area: range of the controls: placebo split (other question tokens cut, and split by that) · "
        "ticks at the right: −100·P before, the lowest possible ΔP · "
        "×: no signal (AUC interval reaches 0.5) · pale legend entries: hidden controls"
    )


def test_range_holds_everything_that_is_drawn(target):
    low, high = target.layout.yaxis.range
    # Curves that wait for a click too: they must not come up cut off.
    drawn = [value for trace in target.data for value in trace.y if value is not None and not math.isnan(value)]
    assert low < min(drawn)
    assert max(drawn) < high
    # ... and no more than a twentieth of it is spare at either end.
    assert (min(drawn) - low) == pytest.approx(0.05 * (max(drawn) - min(drawn)))


def test_contrasts_stand_below_each_model_and_leave_the_upper_panels_and_the_legend_as_they_are(target):
    claimed = plot_curves(knockout_frame(), contrast_tables=knockout_contrasts(), title=TITLE)
    layout, plain = claimed.to_dict()["layout"], target.to_dict()["layout"]
    for axis in ("xaxis", "xaxis2", "yaxis", "yaxis2"):
        assert layout[axis] | {"domain": None} == plain[axis] | {"domain": None}
    assert titles(claimed) == titles(target)
    assert [t.to_plotly_json() for t in legend(claimed)] == [t.to_plotly_json() for t in legend(target)]
    same = [trace for trace in claimed.data if trace.xaxis in (None, "x", "x2")]
    assert [trace.to_plotly_json() for trace in same] == [trace.to_plotly_json() for trace in target.data]
    for upper, lower in (("", "3"), ("2", "4")):
        above, below = claimed.layout[f"xaxis{upper}"], claimed.layout[f"xaxis{lower}"]
        assert (below.domain, below.range, below.matches) == (above.domain, above.range, f"x{upper}")
        assert claimed.layout[f"yaxis{lower}"].domain[1] < claimed.layout[f"yaxis{upper}"].domain[0]
