"""The target figure, built from invented numbers: layout, legend, colours and dashes are asserted,
never a curve's value.
"""

import math

import pytest

from anchorlens.figures.curves import plot_curves

from .conftest import TITLE
from .seen import dotted, legend, lines_of, looks, names, said, titles, told
from .synthetic import (
    DATASETS,
    TARGET_MODELS,
    full_figure,
    knockout_contrasts,
    knockout_frame,
    pick,
    swap_frame,
)

# Independent of the package: copied from METHOD 8.
ENTRIES = [
    ("Q-Anchored (PopQA)", "#1f77b4"),
    ("A-Anchored (PopQA)", "#ff7f0e"),
    ("Q-Anchored (TriviaQA)", "#2ca02c"),
    ("A-Anchored (TriviaQA)", "#d62728"),
    ("Q-Anchored (HotpotQA)", "#9467bd"),
    ("A-Anchored (HotpotQA)", "#8c564b"),
    ("Q-Anchored (NQ)", "#e377c2"),
    ("A-Anchored (NQ)", "#7f7f7f"),
]


@pytest.mark.slow
def test_two_panels_named_after_their_models_with_own_layers_and_one_delta_scale(target):
    layout = target.layout
    assert titles(target) == ["Qwen3-8B", "Qwen3-32B"]
    assert layout.xaxis.domain[1] < layout.xaxis2.domain[0]
    assert layout.yaxis.domain == layout.yaxis2.domain
    assert "xaxis3" not in target.to_dict()["layout"]
    assert (layout.xaxis.title.text, layout.xaxis2.title.text) == ("Layer", "Layer")
    assert (layout.xaxis.range, layout.xaxis2.range) == ((-0.5, 35.5), (-0.5, 63.5))
    assert (layout.xaxis.matches, layout.xaxis2.matches, layout.yaxis2.matches) == (None, None, "y")
    assert (layout.yaxis.title.text, layout.yaxis2.title.text) == ("ΔP (points)", "")
    paper = plot_curves(knockout_frame(), style="paper").layout
    assert (paper.yaxis.title.text, paper.yaxis2.title.text) == ("ΔP", "")
    assert layout.yaxis2.range == layout.yaxis.range
    assert (layout.yaxis.showticklabels, layout.yaxis2.showticklabels) == (True, False)
    assert layout.yaxis.range[0] < 0 < layout.yaxis.range[1]
    assert layout.yaxis.zeroline
    assert layout.yaxis2.zeroline


@pytest.mark.slow
def test_eight_entries_in_order_and_nothing_else(target):
    assert [trace.name for trace in legend(target)] == [*dict(ENTRIES)]
    lines = [trace for trace in target.data if trace.mode == "lines" and trace.fill is None]
    bands = [trace for trace in target.data if trace.fill == "toself"]
    assert len(lines) == len(bands) == 16
    assert len(target.data) == 32
    assert not target.layout.updatemenus
    assert not target.layout.shapes
    full = full_figure(knockout_frame())
    assert [trace.name for trace in legend(full)] == [*dict(ENTRIES), "Placebo random_tokens"]
    assert target.layout.showlegend is True


def test_both_legends_stand_below_all_panels_and_each_other():
    layout = full_figure(knockout_frame()).layout
    for box in (layout.legend, layout.legend2):
        assert (box.orientation, box.yref, box.yanchor, box.x, box.xanchor) == (
            "h",
            "container",
            "bottom",
            0,
            "left",
        )
        # Grouped order would put every curve into a column of its own.
        assert (box.traceorder, box.entrywidthmode, box.entrywidth) == ("normal", "fraction", 0.25)
    assert layout.legend2.y == 0
    assert layout.legend.y * layout.height == pytest.approx(19 + 6)
    assert layout.margin.b == 58 + (2 * 19 + 6) + (19 + 6)


def test_isolating_a_curve_leaves_the_second_legend():
    target = full_figure(knockout_frame())
    assert (target.layout.legend.itemdoubleclick, target.layout.legend2.itemdoubleclick) == (
        "toggleothers",
        False,
    )
    assert {trace.legend for trace in [*dotted(target), legend(target)[-1]]} == {"legend2"}


def test_each_curve_is_the_frames_points_in_its_colour_question_solid_and_answer_dashed(target):
    frame = knockout_frame()
    for k, (name, colour) in enumerate(ENTRIES):
        lines, wanted = (
            lines_of(target, name),
            {
                "dataset": DATASETS[k // 2],
                "pathway": name.split()[0],
                "control": "none",
            },
        )
        assert [trace.xaxis for trace in lines] == ["x", "x2"]
        assert {(trace.line.color, trace.line.dash) for trace in lines} == {
            (colour, "dash" if k % 2 else "solid")
        }
        for line, (model, layers) in zip(lines, TARGET_MODELS.items(), strict=True):
            assert list(line.x) == list(range(layers))
            assert list(line.y) == pick(frame, model=model, **wanted)["effect"].tolist()


def test_every_entry_has_one_band_and_crosses_that_hide_with_it():
    target = full_figure(knockout_frame())
    for name, colour in ENTRIES:
        (group,) = {trace.legendgroup for trace in lines_of(target, name)}
        mates = [trace for trace in target.data if trace.legendgroup == group]
        assert {(trace.mode, trace.fill) for trace in mates} == {
            ("lines", None),
            ("lines", "toself"),
            ("markers", None),
        }
        bands = [trace for trace in mates if trace.fill == "toself"]
        assert [trace.xaxis for trace in bands] == ["x", "x2"]
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        assert {trace.fillcolor for trace in bands} == {f"rgba({red},{green},{blue},0.07)"}
        assert {trace.hoverinfo for trace in bands} == {"skip"}
        assert not any(trace.showlegend for trace in bands)
        assert {trace.visible for trace in mates} == {None}
    assert target.layout.legend.groupclick == "togglegroup"


def test_a_swap_has_eight_entries_and_each_null_as_a_dotted_line():
    frame = swap_frame()
    figure = plot_curves(frame, controls=True)
    entries = {name.replace("Anchored", "Anchored swap"): colour for name, colour in ENTRIES}
    assert {name: colour for name, (colour, _) in looks(figure).items()} == entries
    assert [trace.name for trace in legend(figure)] == [*entries, "Null displaced"]
    for name, colour in entries.items():
        nulls = lines_of(figure, f"{name}, null")
        assert [trace.xaxis for trace in nulls] == ["x", "x2"]
        assert {(t.line.color, t.line.dash, t.visible, t.showlegend) for t in nulls} == {
            (colour, "dot", None, False)
        }


def test_curves_lie_above_bands_and_controls_and_below_marks():
    target = full_figure(knockout_frame())
    drawn = [trace for trace in target.data if trace.x != (None,)]
    kinds = [
        (
            "band"
            if t.fill
            else "mark"
            if t.mode == "markers"
            else "dotted"
            if t in dotted(target)
            else "line"
        )
        for t in drawn
    ]
    assert kinds == sorted(kinds, key=["band", "dotted", "line", "mark"].index)
    assert set(kinds) == {"band", "dotted", "line", "mark"}
    assert {
        trace.line.width
        for trace in target.data
        if trace.line.width and trace not in dotted(target)
    } <= {2.2, 1.5}


def test_the_heading_has_two_lines_and_the_caption_the_rest(target):
    assert said(target) == f"{TITLE} · 158–312 questions · P before 0.60 · P by a truth probe"
    assert (
        told(target)
        == "ΔP in percentage points by layer. 158–312 questions; P before 0.60; P by a truth probe."
        " Attention knockout: anchor exact_question; attention masked before the softmax; prompt"
        " qa; given answers; matched false answers; pathways of one layer. Q-Anchored: rows"
        " whose prediction flips; A-Anchored: the others. This split alone draws Q below A."
        " Bands: 95 %, pointwise, for a layer chosen beforehand (bootstrap over questions; none"
        " below 10 questions). The results are tables without findings, so nothing is marked as a"
        " claim."
    )


def test_the_range_holds_curves_and_bands_and_little_more(target):
    low, high = target.layout.yaxis.range
    drawn = [
        v
        for trace in target.data
        if trace not in dotted(target)
        for v in trace.y
        if v is not None and not math.isnan(v)
    ]
    assert low < min(drawn)
    assert max(drawn) < high
    # No more than a twentieth of it is spare at either end.
    assert (min(drawn) - low) == pytest.approx(0.05 * (max(drawn) - min(drawn)))


@pytest.mark.slow
def test_contrasts_stand_below_each_model_and_leave_the_upper_panels_as_they_are(target):
    claimed = plot_curves(knockout_frame(), contrast_tables=knockout_contrasts(), title=TITLE)
    layout, plain = claimed.to_dict()["layout"], target.to_dict()["layout"]
    for axis in ("xaxis", "xaxis2", "yaxis", "yaxis2"):
        assert layout[axis] | {"domain": None} == plain[axis] | {"domain": None}
    assert titles(claimed) == titles(target)
    assert names(claimed) == names(target)
    shown = [trace.to_plotly_json() for trace in claimed.data if trace.xaxis in ("x", "x2")]
    assert shown == [trace.to_plotly_json() for trace in target.data if trace.xaxis in ("x", "x2")]
    for upper, lower in (("", "3"), ("2", "4")):
        above, below = claimed.layout[f"xaxis{upper}"], claimed.layout[f"xaxis{lower}"]
        assert (below.domain, below.range, below.matches) == (
            above.domain,
            above.range,
            f"x{upper}",
        )
        assert claimed.layout[f"yaxis{lower}"].domain[1] < claimed.layout[f"yaxis{upper}"].domain[0]
