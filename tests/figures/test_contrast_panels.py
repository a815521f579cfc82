"""The panels below the curves: differences from the control, the layers that findings claim, and
the switch.
"""

import pandas as pd
import plotly.graph_objects as go
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.contrast_table import gather_contrasts
from anchorlens.figures.table import gather
from anchorlens.figures.traces import CONTRASTS
from anchorlens.results.findings import (
    BEYOND_CHANGE,
    BEYOND_POSITIONS,
    CLAIMS,
    DESCRIPTION,
    NOT_DETECTED,
    NULL_MOVES,
    REVERSED,
    STANDS,
    TOO_FEW,
    Finding,
)

from .seen import curves_of, keys, titles, told
from .synthetic import (
    Sweep,
    effect,
    full_figure,
    knockout_contrasts,
    knockout_frame,
    pick,
    swap_effects,
    swap_frame,
)

MODELS = {"m": 12}
SETS = ("popqa", "nq")
CURVES, EFFECTS = knockout_frame(MODELS, SETS), knockout_contrasts(MODELS, SETS)
# Of PopQA alone.
ONE, ITS_CONTRASTS = knockout_frame(MODELS, ("popqa",)), knockout_contrasts(MODELS, ("popqa",))
VIEWS = {
    "delta_p_vs_placebo": "ΔP minus random_tokens",
    "flip_rate": "flips minus random_tokens",
    "auc_drop": "AUC minus random_tokens",
    "row_specific_effect": "row-specific ΔP",
}
STAND = Finding("delta_p_vs_placebo", STANDS, (7,), control="random_tokens")
ALL_STAND = Finding("all_contrasts", STANDS, (5, 6, 8), control="random_tokens")


def knockout(**options: object) -> go.Figure:
    return full_figure(CURVES, contrast_tables=EFFECTS, **options)  # pyright: ignore[reportArgumentType]


def lower(figure: go.Figure, axis: str = "x2") -> list[go.Scatter]:
    return [trace for trace in figure.data if trace.xaxis == axis]


def lines(figure: go.Figure, axis: str = "x2") -> list[go.Scatter]:
    return [trace for trace in lower(figure, axis) if trace.mode == "lines" and trace.fill is None]


def filled(figure: go.Figure) -> dict[tuple[str, str], list[int]]:
    """Layers of the filled marks of contrasts, by name and axis; every other mark is a thin line,
    or a smaller mark of a curve.
    """
    marks = [trace for trace in figure.data if trace.mode == "markers" and not trace.showlegend]
    thin = {"cross-thin-open", "x-thin-open", "asterisk-open"}
    return {
        (trace.name, trace.xaxis): list(trace.x)
        for trace in marks
        if trace.marker.symbol not in thin and trace.x and trace.marker.size == 8
    }


def shaded(figure: go.Figure) -> list[tuple[str, str, float, float]]:
    return [
        (shape.xref, shape.yref, shape.x0, shape.x1)
        for shape in figure.layout.shapes
        if "domain" in shape.yref
    ]


def headings(figure: go.Figure) -> list[str]:
    return [note.text for note in figure.layout.annotations if "Difference" in note.text]


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


def wanted(contrast_tables: pd.DataFrame, **named: object) -> list[float]:
    return pick(contrast_tables, **named)["value"].tolist()


def test_contrasts_over_all_rows_are_neutral_and_have_entries_of_their_own():
    figure = knockout()
    assert [(line.name, line.line.color, line.line.dash) for line in lines(figure)] == [
        ("All rows (PopQA)", "#222222", "solid"),
        ("All rows (NQ)", "#222222", "14px,3px"),
    ]
    assert [list(line.y) for line in lines(figure)] == [
        wanted(EFFECTS, dataset=d, quantity="delta_p_vs_placebo") for d in SETS
    ]
    assert keys(figure) == ["Placebo random_tokens", "All rows (PopQA)", "All rows (NQ)"]
    groups = {trace.name: trace.legendgroup for trace in figure.data if trace.showlegend}
    assert all(line.legendgroup == groups[line.name] for line in lines(figure))
    assert headings(figure) == ["Difference from control: ΔP minus random_tokens (points)"]
    assert figure.layout.yaxis2.zeroline


@pytest.mark.slow
@pytest.mark.parametrize(("quantity", "view"), VIEWS.items())
def test_each_button_shows_its_contrast_and_so_does_its_name(quantity, view):
    first, named = knockout(), knockout(contrasts=quantity)
    assert buttons(first) == [*VIEWS.values()]
    assert buttons(named)[named.layout.updatemenus[0].active] == view
    control = "size_matched" if quantity == "row_specific_effect" else "random_tokens"
    rows = pick(EFFECTS, quantity=quantity, control=control)
    for figure in (pressed(first, view), named):
        assert [list(line.y) for line in lines(figure)] == [wanted(rows, dataset=d) for d in SETS]
        unit = "" if quantity == "auc_drop" else " (points)"
        assert headings(figure) == [f"Difference from control: {view}{unit}"]
        low, high = figure.layout.yaxis2.range
        assert low < rows["sim_low"].min()
        assert rows["sim_high"].max() < high
        assert (
            f"<b>{quantity}</b>: {CONTRASTS[quantity].explanation}<br>control: {control} ("
            in lines(figure)[0].text[0]
        )
        # The upper panel is not touched.
        assert [t.y for t in figure.data if t.xaxis in (None, "x")] == [
            t.y for t in first.data if t.xaxis in (None, "x")
        ]


def test_marks_and_shades_are_exactly_the_layers_of_the_findings_claims():
    sweep = Sweep(
        ONE,
        ITS_CONTRASTS,
        STAND,
        Finding("auc_drop", STANDS, (3, 4), control="random_tokens"),
        ALL_STAND,
    )
    figure = full_figure(sweep)
    assert filled(figure) == {("All rows (PopQA)", "x2"): [7]}
    assert filled(pressed(figure, "AUC minus random_tokens")) == {
        ("All rows (PopQA)", "x2"): [3, 4]
    }
    assert filled(pressed(figure, "flips minus random_tokens")) == {}
    spans = [(4.5, 6.5), (7.5, 8.5)]
    assert shaded(figure) == [(f"x{a}", f"y{a} domain", *span) for span in spans for a in ("", "2")]
    assert keys(figure)[-1] == "All contrasts stand"
    assert "Filled marks below: layers of the findings' claims" in told(figure)
    assert ": layers at which all contrasts stand." in told(figure)
    assert "claimed by the findings" in lines(figure)[0].text[7]
    assert sum("claimed" in text for text in lines(figure)[0].text) == 1


@pytest.mark.parametrize(
    "status", [*CLAIMS, NOT_DETECTED, REVERSED, NULL_MOVES, TOO_FEW, DESCRIPTION]
)
def test_only_statuses_that_are_claims_are_marked(status):
    statements = [
        Finding(one.quantity, status, one.layers, control=one.control) for one in (STAND, ALL_STAND)
    ]
    figure = full_figure(Sweep(ONE, ITS_CONTRASTS, *statements))
    assert bool(filled(figure)) == bool(shaded(figure)) == (status in CLAIMS)
    assert ("The findings claim no layer" in told(figure)) == (status not in CLAIMS)


def test_frames_have_no_findings_so_nothing_is_marked():
    figure = full_figure(ONE, contrast_tables=ITS_CONTRASTS)
    assert (filled(figure), shaded(figure)) == ({}, [])
    assert "tables without findings, so nothing is marked as a claim" in told(figure)


@pytest.mark.slow
def test_each_model_and_data_set_has_its_own_shades_and_marks():
    models = {"a": 12, "b": 12}
    curves, contrasts = knockout_frame(models, SETS), knockout_contrasts(models, SETS)
    keyed = [(m, d) for m in models for d in SETS]
    claims = {
        ("a", "nq"): [STAND, Finding("all_contrasts", STANDS, (9,))],
        ("b", "popqa"): [Finding("all_contrasts", STANDS, (2,))],
    }
    sweeps = [
        Sweep(
            pick(curves, model=m, dataset=d),
            pick(contrasts, model=m, dataset=d),
            *claims.get((m, d), []),
        )
        for m, d in keyed
    ]
    figure = full_figure(sweeps)
    assert filled(figure) == {("All rows (NQ)", "x3"): [7]}
    assert shaded(figure) == [
        ("x", "y domain", 8.5, 9.5),
        ("x3", "y3 domain", 8.5, 9.5),
        ("x2", "y2 domain", 1.5, 2.5),
        ("x4", "y4 domain", 1.5, 2.5),
    ]
    # Strips in the colours of the data sets, one above the other.
    strips = {shape.xref: (shape.fillcolor, shape.y0, shape.y1) for shape in figure.layout.shapes}
    assert strips["x"] == ("rgba(227,119,194,0.6)", 0.025, 0.05)
    assert strips["x2"] == ("rgba(31,119,180,0.6)", 0, 0.025)


@pytest.mark.slow
def test_a_swap_is_compared_with_each_null_in_the_colours_of_its_anchors():
    anchors = ("exact_question", "pre_answer", "subject")
    nulls = ("same_role", "norm_matched")
    tables = {null: swap_effects(MODELS, ("popqa",), anchors, control=null) for null in nulls}
    tables["norm_matched"]["value"] -= 3
    claims = [
        Finding(
            "delta_p_minus_null", BEYOND_POSITIONS, (1, 2), anchor="pre_answer", control="same_role"
        ),
        Finding(
            "delta_p_minus_null", BEYOND_CHANGE, (2,), anchor="pre_answer", control="norm_matched"
        ),
    ]
    figure = full_figure(
        Sweep(swap_frame(MODELS, ("popqa",), anchors), pd.concat(tables.values()), *claims)
    )
    views = ["ΔP minus same_role", "ΔP minus norm_matched"]
    assert buttons(figure) == views
    own, entries = (
        [(t.name, t.line.color, t.line.dash, t.legendgroup) for t in some]
        for some in (lines(figure), curves_of(figure))
    )
    assert own == entries
    for null, view, layers in zip(nulls, views, ([1, 2], [2]), strict=True):
        for shown in (
            pressed(figure, view),
            full_figure(
                swap_frame(MODELS, ("popqa",), anchors),
                contrast_tables=[*tables.values()],
                contrasts=null,
            ),
        ):
            assert [list(t.y) for t in lines(shown)] == [
                wanted(tables[null], anchor=a) for a in anchors
            ]
            assert headings(shown) == [f"Difference from control: {view} (points)"]
        assert filled(pressed(figure, view)) == {("A-Anchored swap (PopQA)", "x2"): layers}
    # A contrast without its curve is left out.
    alone = full_figure(
        swap_frame(MODELS, ("popqa",), ("exact_question",)), contrast_tables=tables["same_role"]
    )
    assert [list(t.y) for t in lines(alone)] == [
        wanted(tables["same_role"], anchor="exact_question")
    ]
    assert len(alone.layout.updatemenus) == 0


def test_hover_of_a_contrast():
    own = effect(
        model="m",
        quantity="auc_drop",
        value=-0.1234,
        ci_low=-0.2,
        ci_high=-0.05,
        sim_low=-0.3,
        sim_high=-0.01,
        n=64,
    )
    (line,) = lines(
        full_figure(
            knockout_frame(MODELS, ("popqa",), silent=0), contrast_tables=pd.DataFrame([own])
        )
    )
    assert list(line.text) == [
        "<b>auc_drop</b>: AUC of the probe less that of the control<br>control: random_tokens (the"
        " same with as many other question tokens)<br>All rows (PopQA)<br>m<br>anchor"
        " exact_question, layer 0<br>−0.123 (95 %: −0.200 to −0.050; simultaneous 95 %: −0.300 to"
        " −0.010)<br>n = 64 questions"
    ]


def test_layers_that_were_not_measured_are_bridged_and_the_measured_ones_are_crosses():
    figure = full_figure(ONE, contrast_tables=ITS_CONTRASTS[ITS_CONTRASTS["layer"] % 4 == 0])
    (line,), (crosses,) = (
        lines(figure),
        (trace for trace in lower(figure) if trace.marker.symbol == "cross-thin-open"),
    )
    assert list(line.x) == list(crosses.x) == [0, 4, 8]
    assert filled(figure) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("results", "contrast_tables"),
    [
        ([Sweep(pick(CURVES, dataset="nq")), pick(CURVES, dataset="popqa")], [EFFECTS]),
        ([CURVES, CURVES], [EFFECTS, EFFECTS]),
    ],
    ids=["mixture", "twice"],
)
def test_parts_and_repeats_draw_the_same(results, contrast_tables):
    figure = full_figure(results, contrast_tables=contrast_tables)
    assert [trace.to_plotly_json() for trace in figure.data] == [
        trace.to_plotly_json() for trace in knockout().data
    ]


@pytest.mark.slow
def test_results_bring_their_own_contrasts():
    figure, wanted_ = full_figure([Sweep(CURVES, EFFECTS)]), knockout()
    assert [trace.to_plotly_json() for trace in figure.data] == [
        trace.to_plotly_json() for trace in wanted_.data
    ]


@pytest.mark.slow
def test_without_contrasts_the_figure_is_that_of_the_curves():
    plain = full_figure(ONE).to_json()
    for contrast_tables in (
        pick(ITS_CONTRASTS, quantity="gap"),
        ITS_CONTRASTS.iloc[:0],
        ITS_CONTRASTS.assign(model="another"),
    ):
        assert full_figure(ONE, contrast_tables=contrast_tables).to_json() == plain
    silent = full_figure(Sweep(ONE, ITS_CONTRASTS), contrasts=False)
    assert [trace.to_plotly_json() for trace in silent.data] == [
        trace.to_plotly_json() for trace in full_figure(ONE).data
    ]


def test_beside_a_swap_each_protocol_keeps_its_own_contrasts_and_scale():
    curves, contrast_tables = (
        [ONE, swap_frame(MODELS, ("popqa",))],
        [
            ITS_CONTRASTS,
            swap_effects(MODELS, ("popqa",)),
        ],
    )
    figure = full_figure(curves, contrast_tables=contrast_tables)
    swap = [t.y for t in lower(figure, "x4")]
    assert buttons(figure) == [*VIEWS.values()]
    again = pressed(figure, "AUC minus random_tokens")
    assert [text.partition(": ")[2] for text in headings(again)] == [
        "AUC minus random_tokens",
        "ΔP minus displaced (points)",
    ]
    assert [t.y for t in lower(again, "x4")] == swap
    assert list(lines(again, "x3")[0].y) == wanted(contrast_tables[0], quantity="auc_drop")
    assert again.layout.yaxis3.range != again.layout.yaxis4.range
    assert figure.layout.yaxis4.matches is None
    assert figure.layout.yaxis4.showticklabels
    # The switch stands above the knockout's panel.
    assert figure.layout.updatemenus[0].x == figure.layout.xaxis3.domain[1]


def test_other_protocols_are_read_against_their_own_control():
    curves = knockout_frame(MODELS, ("popqa",), placebos=()).assign(protocol="answer_only")
    fixed = {"model": "m", "protocol": "answer_only", "control": "other_question"}
    rows = [
        effect(quantity=name, layer=k, value=float(k), **fixed)
        for name in ("delta_p_vs_placebo", "p_after")
        for k in range(3)
    ]
    assert buttons(full_figure(curves, contrast_tables=pd.DataFrame(rows))) == [
        "ΔP minus other_question",
        "P after minus other_question",
    ]


def test_a_figure_of_flips_shows_the_contrast_of_flips_first():
    figure = full_figure(ONE.assign(metric="flip"), metric="flip", contrast_tables=ITS_CONTRASTS)
    assert headings(figure) == ["Difference from control: flips minus random_tokens (points)"]


def test_a_control_on_one_side_is_a_view_of_its_own_where_it_is_named():
    frame = knockout_frame(MODELS, ("popqa",), placebos=("random_tokens", "random_before"))
    values = {"random_tokens": -5.0, "random_before": -2.0}
    rows = [
        effect(model="m", layer=k, control=c, value=v) for k in range(4) for c, v in values.items()
    ]
    plain, named = (
        full_figure(frame, contrast_tables=pd.DataFrame(rows), controls=c)
        for c in (True, ["random_before"])
    )
    assert len(plain.layout.updatemenus) == 0
    assert buttons(named) == ["ΔP minus random_tokens", "ΔP minus random_before"]
    assert list(lines(pressed(named, "ΔP minus random_before"))[0].y) == [-2.0] * 4


def test_a_model_without_contrasts_has_a_blank_place_below():
    figure = full_figure(
        knockout_frame({"a": 4, "b": 5}, ("popqa",)),
        contrast_tables=knockout_contrasts({"a": 4}, ("popqa",)),
    )
    assert "range" in figure.to_dict()["layout"]["xaxis3"]
    assert "xaxis4" not in figure.to_dict()["layout"]
    assert lower(figure, "x4") == []


def test_models_share_one_scale_of_contrasts():
    models = {"a": 4, "b": 6, "c": 5}
    layout = full_figure(
        knockout_frame(models, ("popqa",)), contrast_tables=knockout_contrasts(models, ("popqa",))
    ).layout
    assert [layout[f"yaxis{k}"].matches for k in (4, 5, 6)] == [None, "y4", "y4"]
    assert layout.yaxis4.range == layout.yaxis5.range == layout.yaxis6.range
    assert [layout[f"yaxis{k}"].title.text for k in (4, 5, 6)] == ["difference", "", ""]


@pytest.mark.parametrize(("width", "rows"), [(1200, [0, 0, 0, 1, 1]), (899, [0, 1, 2, 3, 4])])
def test_contrasts_stand_below_their_panel_in_either_arrangement(width, rows):
    models = {f"m{k}": 3 + k for k in range(5)}
    figure = full_figure(
        knockout_frame(models, ("popqa",)),
        contrast_tables=knockout_contrasts(models, ("popqa",)),
        width=width,
    )
    assert titles(figure) == list(models)
    layout = figure.layout
    assert [layout[f"xaxis{k}"].range[1] for k in range(6, 11)] == [2.5, 3.5, 4.5, 5.5, 6.5]
    tops = sorted(
        {layout["yaxis" if k == 0 else f"yaxis{k + 1}"].domain[1] for k in range(5)}, reverse=True
    )
    for k, row in enumerate(rows):
        upper, below = layout["yaxis" if k == 0 else f"yaxis{k + 1}"], layout[f"yaxis{k + 6}"]
        assert upper.domain[1] == tops[row]
        gap = (upper.domain[0] - below.domain[1]) * (
            layout.height - layout.margin.t - layout.margin.b
        )
        assert gap == pytest.approx(
            112
        )  # ticks and title of an x axis take 45 pixels, heading and switch 54
        assert below.domain[0] >= (tops[row + 1] if row < max(rows) else 0)
    shown = [note.visible for note in layout.annotations if "Difference" in note.text]
    assert shown == ([True, False, False, True, False] if width == 1200 else [True] * 5)
    assert (layout.updatemenus[0].x, layout.updatemenus[0].y) == (1, layout.yaxis6.domain[1])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("flip_rates", "Did you mean 'flip_rate'"),
        ("norm_matched", "^contrasts='norm_matched': not in these results."),
    ],
)
def test_a_contrast_that_is_not_there(asked, said):
    with pytest.raises(InputError, match=said):
        knockout(contrasts=asked)
    with pytest.raises(InputError, match="They are curves without contrasts"):
        full_figure(CURVES, contrasts="delta_p_vs_placebo")


@pytest.mark.parametrize(
    ("contrast_tables", "said"),
    [
        ("runs/a", "^contrast_tables='runs/a': give the frame"),
        (
            pd.DataFrame({"layer": [1]}),
            "lacks the columns model, dataset, protocol, anchor, quantity",
        ),
        (
            pd.DataFrame([effect(model="m", value="deep")]),
            "'value' of the contrasts frame must hold numbers",
        ),
        (
            pd.DataFrame([effect(model="m"), effect(model="m", value=2.0)]),
            r"two values of one point \(delta_p_vs_placebo against random",
        ),
    ],
)
def test_frames_that_are_no_effects(contrast_tables, said):
    with pytest.raises(InputError, match=said):
        gather_contrasts(ONE, contrast_tables, gather(ONE, True), True, True)
