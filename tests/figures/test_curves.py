"""Names, panels, gaps, marks and hover of the figure."""

import plotly.graph_objects as go
import plotly.io as pio
import pytest

from anchorlens.figures.curves import plot_curves

from .seen import dotted, looks, names, only_curve, said, titles, told
from .synthetic import NAN, TRUTH, drawn, knockout_frame, point, swap_frame


def swap(*anchors: str, datasets: tuple[str, ...] = ("popqa",)) -> go.Figure:
    return plot_curves(swap_frame({"m": 4}, datasets, anchors))


@pytest.mark.parametrize("anchor", ["answer", "pre_answer", "pre_answer_all"])
def test_any_one_answer_anchor_is_the_a_anchored_swap(anchor):
    figure = swap("exact_question", anchor)
    assert names(figure) == ["Q-Anchored swap (PopQA)", "A-Anchored swap (PopQA)"]
    assert looks(figure)["A-Anchored swap (PopQA)"] == ("#ff7f0e", "dash")
    assert f"anchors exact_question, {anchor};" in told(figure)


def test_several_answer_anchors_are_named_and_differ_in_look():
    figure = swap("pre_answer_all", "pre_answer")
    assert names(figure) == [
        "A-Anchored swap, pre_answer (PopQA)",
        "A-Anchored swap, pre_answer_all (PopQA)",
    ]
    first, second = looks(figure).values()
    assert first[0] != second[0]
    assert first[1] != second[1]


OTHERS = ("subject", "property", "subject_last", "question_rest", "prompt_last")


@pytest.mark.parametrize(
    ("anchors", "datasets", "wanted"),
    [
        (
            (*reversed(OTHERS), "exact_question", "answer", "pre_answer", "pre_answer_all"),
            ("popqa", "nq"),
            OTHERS,
        ),
        (("exact_question", "pre_answer"), tuple(f"set {k}" for k in range(12)), ()),
    ],
)
def test_every_curve_of_many_has_a_name_and_a_look_of_its_own(anchors, datasets, wanted):
    figure = swap(*anchors, datasets=datasets)
    assert names(figure)[4 : 4 + len(wanted)] == [f"{name} swap (PopQA)" for name in wanted]
    many = len(anchors) * len(datasets)
    assert (
        len(names(figure))
        == len(set(names(figure)))
        == len({colour for colour, _ in looks(figure).values()})
        == many
    )
    assert "dot" not in {dash for _, dash in looks(figure).values()}  # dots are the controls'


def test_samples_say_that_they_are_samples_and_take_the_benchmarks_colours():
    figure = swap("exact_question", "pre_answer", datasets=("nq-sample", "popqa-sample"))
    assert looks(figure) == {
        "Q-Anchored swap (PopQA-style sample)": ("#1f77b4", "solid"),
        "A-Anchored swap (PopQA-style sample)": ("#ff7f0e", "dash"),
        "Q-Anchored swap (NQ-style sample)": ("#e377c2", "solid"),
        "A-Anchored swap (NQ-style sample)": ("#7f7f7f", "dash"),
    }
    assert names(figure)[0] == "Q-Anchored swap (PopQA-style sample)"


def test_own_data_sets_follow_the_benchmarks_in_order_of_appearance():
    figure = swap("exact_question", datasets=("zoo", "arts & <crafts>", "nq"))
    assert names(figure) == [
        "Q-Anchored swap (NQ)",
        "Q-Anchored swap (zoo)",
        "Q-Anchored swap (arts &amp; &lt;crafts&gt;)",
    ]
    assert len({colour for colour, _ in looks(figure).values()}) == 3


def test_knockout_and_swap_stand_in_panels_of_their_own_with_one_legend():
    figure = plot_curves(
        [
            swap_frame({"a/m": 4, "a/n": 6}, ("popqa",)),
            knockout_frame({"a/n": 6, "a/m": 5}, ("popqa",)),
        ]
    )
    assert titles(figure) == ["m: swap", "m: knockout", "n: swap", "n: knockout"]
    layout = figure.to_dict()["layout"]
    assert [layout[axis]["range"][1] for axis in ("xaxis", "xaxis2", "xaxis3", "xaxis4")] == [
        3.5,
        4.5,
        5.5,
        5.5,
    ]
    tops = [layout[axis]["domain"][1] for axis in ("yaxis", "yaxis2", "yaxis3", "yaxis4")]
    assert tops[0] == tops[1] > tops[2] == tops[3]  # a row per model, a column per protocol
    assert names(figure) == ["Q-Anchored (PopQA)", "A-Anchored (PopQA)"]
    assert looks(figure)["A-Anchored (PopQA)"] == ("#ff7f0e", "dash")
    mates = [
        trace
        for trace in figure.data
        if trace.name == "Q-Anchored (PopQA)" and trace.mode == "lines"
    ]
    assert sorted(trace.xaxis for trace in mates) == ["x", "x2", "x3", "x4"]
    assert len({trace.legendgroup for trace in mates}) == 1
    assert sum(bool(trace.showlegend) for trace in mates) == 1
    assert "m: swap, PopQA" in next(trace for trace in mates if trace.xaxis == "x").text[0]


def test_one_legend_lists_the_question_first_whichever_protocol_lacks_it():
    knockout = knockout_frame({"m": 4}, ("popqa",), placebos=())
    answer = knockout[knockout["pathway"] == "A-Anchored"]
    figure = plot_curves([swap_frame({"m": 4}, ("popqa",), ("exact_question",)), answer])
    assert names(figure) == ["A-Anchored (PopQA)", "Q-Anchored (PopQA)"]


@pytest.mark.parametrize(
    ("panels", "rows"),
    [(1, [1]), (3, [3]), (4, [4]), (5, [3, 2]), (6, [3, 3]), (7, [4, 3]), (9, [3, 3, 3])],
)
def test_panels_wrap_in_order_of_appearance(panels, rows):
    models = {f"org/m{k}": 2 + k for k in range(panels)}
    figure = plot_curves(swap_frame(models, ("popqa",)))
    layout = figure.to_dict()["layout"]
    axes = [layout["xaxis" + (str(k + 1) if k else "")] for k in range(sum(rows))]
    tops = [layout["yaxis" + (str(k + 1) if k else "")]["domain"][1] for k in range(panels)]
    assert [tops.count(top) for top in sorted(set(tops), reverse=True)] == rows
    assert tops == sorted(tops, reverse=True)
    assert titles(figure) == [f"m{k}" for k in range(panels)]
    assert [axis["range"][1] for axis in axes] == [k + 1.5 for k in range(panels)]
    assert len(names(figure)) == 2  # once, not once a panel
    ys = [
        key
        for key in layout
        if key.startswith("yaxis") and layout[key].get("title", {}).get("text") == "ΔP (points)"
    ]
    assert len(ys) == len(rows)


def test_two_models_with_one_last_name_are_named_in_full():
    figure = plot_curves(swap_frame({"a/Qwen3-8B": 3, "b/Qwen3-8B": 3, "c/dir/": 3}, ("popqa",)))
    assert titles(figure) == ["a/Qwen3-8B", "b/Qwen3-8B", "dir"]


def test_missing_value_is_a_gap_in_line_and_band():
    values = [-1.0, -2.0, NAN, -4.0, -5.0]
    figure = drawn(
        [point(layer=k, effect=v, ci_low=v - 1, ci_high=v + 1) for k, v in enumerate(values)]
    )
    line = only_curve(figure)
    assert (list(line.x), list(line.y)) == ([0, 1, 2, 3, 4], [-1.0, -2.0, None, -4.0, -5.0])
    assert line.connectgaps is False
    (band,) = (trace for trace in figure.data if trace.fill == "toself")
    assert list(band.x) == [0, 1, 1, 0, 0, None, 3, 4, 4, 3, 3]
    assert list(band.y) == [0.0, -1.0, -3.0, -2.0, 0.0, None, -3.0, -4.0, -6.0, -5.0, -3.0]


def test_layers_that_were_not_measured_are_bridged_and_the_measured_ones_marked():
    figure = drawn([point(layer=k) for k in (8, 0, 4)])
    (mark,) = (trace for trace in figure.data if trace.mode == "markers")
    assert list(only_curve(figure).x) == list(mark.x) == [0, 4, 8]
    assert "+: measured layer" in told(figure)
    whole = drawn([point(layer=k) for k in (0, 1, 2)])
    assert {trace.mode for trace in whole.data} == {"lines"}
    assert "measured layer" not in told(whole)


def test_points_by_construction_are_asterisks_and_say_so():
    figure = drawn(
        [point(layer=k, anchor="pre_answer_all", by_construction=k == 0) for k in range(3)]
    )
    (mark,) = (trace for trace in figure.data if trace.mode == "markers")
    assert (list(mark.x), mark.marker.symbol, mark.marker.color) == (
        [0],
        "asterisk-open",
        "#ff7f0e",
    )
    assert [text.endswith("<br>fixed by construction") for text in only_curve(figure).text] == [
        True,
        False,
        False,
    ]
    assert "Asterisk: value fixed by construction" in told(figure)


def test_hover_says_all_there_is_to_say():
    row = point(layer=7, effect=-12.345, ci_low=-20.0, ci_high=-0.001, value_before=0.68, n=64)
    line = only_curve(drawn([row, point(layer=8, ci_low=NAN, ci_high=NAN, value_before=NAN, n=1)]))
    assert line.hoverinfo == "text"
    assert list(line.text) == [
        (
            "<b>Q-Anchored swap (PopQA)</b><br>Qwen3-8B, PopQA<br>anchor exact_question, layer"
            " 7<br>ΔP −12.35 points (95 %: −20.00 to 0.00)<br>P before 0.680<br>n = 64 questions"
        ),
        (
            "<b>Q-Anchored swap (PopQA)</b><br>Qwen3-8B, PopQA<br>anchor exact_question, layer"
            " 8<br>ΔP −10.00 points (no interval)<br>P before unknown<br>n = 1 question<br>fewer"
            " than 10 questions: no interval, no claim"
        ),
    ]


def test_controls_and_bands_can_be_left_out():
    figure = plot_curves(swap_frame({"m": 4}, ("popqa",)), controls=False, bands=False)
    assert [trace.name for trace in figure.data] == names(figure)
    assert "Dotted" not in told(figure)
    assert "Bands" not in told(figure)


def test_hover_of_a_control():
    (line,) = dotted(
        plot_curves(swap_frame({"m": 4}, ("popqa",), ("exact_question",)), controls=True)
    )
    kind = "control: null (the donor's activations at random other positions)"
    assert line.text[0].startswith(
        f"<b>Q-Anchored swap (PopQA)</b><br>{kind}<br>m, PopQA<br>anchor exact_question, layer"
        " 0<br>"
    )


KNOCKOUT = {
    "protocol": "knockout",
    "pathway": "All",
    "readout": "probe",
    "site": "",
    "window": 0,
    "donor_rule": "",
    "knockout_mode": "mask",
}


@pytest.mark.parametrize(
    ("changes", "wanted", "unsaid"),
    [
        (
            {},
            "donors: same_relation; prompt qa; known and unknown questions.",
            ("noising", "site", "window"),
        ),
        (
            {"direction": "denoising", "site": "attn_out", "window": 5},
            "denoising; site attn_out; windows of 5 layers",
            (),
        ),
        (
            {"readout": "probe", "probe_site": "attn_out", "site": "mlp_out"},
            "site mlp_out; probe at attn_out",
            (),
        ),
        ({"known_only": "True"}, "known questions only", ()),
        (
            KNOCKOUT | {"probe_site": "resid_post"},
            "attention masked before the softmax",
            ("resid_post",),
        ),
        (KNOCKOUT | {"probe_site": "mlp_out"}, "probe at mlp_out", ("site",)),
        (
            KNOCKOUT | TRUTH | {"distractor": "random"},
            "prompt qa; given answers; random false answers; pathways of one layer",
            (),
        ),
    ],
)
def test_the_caption_says_settings_that_all_share_and_sites_that_are_not_the_default(
    changes, wanted, unsaid
):
    figure = drawn([point(**changes)])
    assert wanted in told(figure)
    assert not any(word in told(figure) for word in unsaid)
    assert names(figure) == ["All (PopQA)" if "pathway" in changes else "Q-Anchored swap (PopQA)"]


def test_the_heading_says_what_p_is_and_how_many_questions():
    rows = [
        point(anchor="exact_question", value_before=0.6, n=90),
        point(anchor="pre_answer", value_before=0.4),
    ]
    figure = drawn(rows)
    assert (
        said(figure)
        == "ΔP by layer: activation swap · 90–100 questions · P before 0.40–0.60 · P of the"
        " answer's first token"
    )
    assert said(drawn(rows, title="")) == said(figure).partition(" · ")[2]


def test_order_of_rows_does_not_matter():
    frame = swap_frame({"m": 9}, ("nq", "popqa"))
    assert (
        plot_curves(frame.sample(frac=1, random_state=3)).to_json() == plot_curves(frame).to_json()
    )


def test_templates_of_the_session_neither_change_nor_matter(monkeypatch):
    frame = swap_frame({"m": 3}, ("popqa",))
    before = pio.templates.default
    wanted = plot_curves(frame).to_json()
    assert pio.templates.default == before
    monkeypatch.setattr(pio.templates, "default", "plotly_dark")
    assert plot_curves(frame).to_json() == wanted


@pytest.mark.slow
def test_ticks_are_whole_layers():
    for layers, step in ((2, 1), (16, 2), (36, 4), (64, 8), (126, 20)):
        assert drawn([point(layer=0), point(layer=layers - 1)]).layout.xaxis.dtick == step


def test_sizes():
    frame = swap_frame({"m1": 3, "m2": 3})
    usual = plot_curves(frame).layout
    panels = (usual.yaxis.domain[1] - usual.yaxis.domain[0]) * (
        usual.height - usual.margin.t - usual.margin.b
    )
    assert (round(panels), usual.width) == (380, None)
    six = plot_curves(swap_frame({f"m{k}": 3 for k in range(6)}, ("popqa",)))
    assert six.layout.height > 800


def test_panels_stand_below_each_other_below_900_pixels():
    frame = swap_frame({"m1": 3, "m2": 5})
    wide, narrow = (plot_curves(frame, width=width).layout for width in (900, 899))
    assert (wide.yaxis.domain, wide.yaxis2.domain) == ((0, 1), (0, 1))
    assert wide.xaxis.domain[1] < wide.xaxis2.domain[0]
    assert narrow.xaxis.domain == narrow.xaxis2.domain == (0, 1)
    assert narrow.yaxis.domain[0] > narrow.yaxis2.domain[1]
    assert [(wide[axis].title.text, wide[axis].showticklabels) for axis in ("yaxis", "yaxis2")] == [
        ("ΔP (points)", True),
        ("", False),
    ]
    assert [
        (narrow[axis].title.text, narrow[axis].showticklabels) for axis in ("yaxis", "yaxis2")
    ] == [("ΔP (points)", True)] * 2
    assert narrow.xaxis2.range == wide.xaxis2.range == (-0.5, 4.5)


def test_a_line_too_long_for_the_width_loses_its_last_parts():
    assert said(plot_curves(swap_frame({"m": 3}), width=330)).endswith(
        "100 questions · P before 0.60"
    )
