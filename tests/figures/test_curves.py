"""Names, panels, gaps, marks and hover of the figure."""

import math
import re

import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
import pytest

from anchorlens.figures.curves import plot_curves

from .synthetic import knockout_frame, point, swap_frame

NAN = float("nan")


def names(figure: go.Figure) -> list[str]:
    return [trace.name for trace in figure.data if trace.showlegend and trace.legend != "legend2"]


def looks(figure: go.Figure) -> dict[str, tuple[str, str]]:
    listed = (trace for trace in figure.data if trace.showlegend and trace.legend != "legend2")
    return {trace.name: (trace.line.color, trace.line.dash) for trace in listed}


def swap(*anchors: str, datasets: tuple[str, ...] = ("popqa",)) -> go.Figure:
    return plot_curves(swap_frame({"m": 4}, datasets, anchors))


@pytest.mark.parametrize("anchor", ["answer", "answer_site", "answer_site_all"])
def test_any_one_answer_anchor_is_the_a_anchored_swap(anchor):
    figure = swap("question", anchor)
    assert names(figure) == ["Q-Anchored swap (PopQA)", "A-Anchored swap (PopQA)"]
    assert looks(figure)["A-Anchored swap (PopQA)"] == ("#ff7f0e", "dash")
    assert (f"anchors question, {anchor}") in figure.layout.title.text


def test_several_answer_anchors_are_named_and_differ_in_look():
    figure = swap("answer_site_all", "answer_site")
    assert names(figure) == ["A-Anchored swap, answer_site (PopQA)", "A-Anchored swap, answer_site_all (PopQA)"]
    first, second = looks(figure).values()
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_nine_anchors_have_nine_names_and_no_two_look_alike():
    others = ("subject", "property", "subject_last", "question_rest", "prompt_last")
    nine = (*reversed(others), "question", "answer", "answer_site", "answer_site_all")
    figure = swap(*nine, datasets=("popqa", "nq"))
    assert names(figure)[4:9] == [f"{name} swap (PopQA)" for name in others]
    assert len(names(figure)) == 18
    assert len(set(looks(figure).values())) == 18
    assert "dot" not in {dash for _, dash in looks(figure).values()}  # dots are the controls'


def test_samples_say_that_they_are_samples_and_take_the_benchmarks_colours():
    figure = swap("question", "answer_site", datasets=("nq-sample", "popqa-sample"))
    assert looks(figure) == {
        "Q-Anchored swap (PopQA-style sample)": ("#1f77b4", "solid"),
        "A-Anchored swap (PopQA-style sample)": ("#ff7f0e", "dash"),
        "Q-Anchored swap (NQ-style sample)": ("#e377c2", "solid"),
        "A-Anchored swap (NQ-style sample)": ("#7f7f7f", "dash"),
    }
    assert names(figure)[0] == "Q-Anchored swap (PopQA-style sample)"


def test_own_data_sets_follow_the_benchmarks_in_order_of_appearance():
    figure = swap("question", datasets=("zoo", "arts & <crafts>", "nq"))
    assert names(figure) == ["Q-Anchored swap (NQ)", "Q-Anchored swap (zoo)", "Q-Anchored swap (arts &amp; &lt;crafts&gt;)"]
    assert len({colour for colour, _ in looks(figure).values()}) == 3
    many = swap("question", "answer_site", datasets=tuple(f"set {k}" for k in range(12)))
    assert len({colour for colour, _ in looks(many).values()}) == 24


def test_knockout_and_swap_stand_in_panels_of_their_own_with_one_legend():
    figure = plot_curves([swap_frame({"a/m": 4, "a/n": 6}, ("popqa",)), knockout_frame({"a/n": 6, "a/m": 5}, ("popqa",))])
    titles = [note.text for note in figure.layout.annotations]
    assert titles == ["m: swap", "m: knockout", "n: swap", "n: knockout"]
    layout = figure.to_dict()["layout"]
    assert [layout[axis]["range"][1] for axis in ("xaxis", "xaxis2", "xaxis3", "xaxis4")] == [3.5, 4.5, 5.5, 5.5]
    tops = [layout[axis]["domain"][1] for axis in ("yaxis", "yaxis2", "yaxis3", "yaxis4")]
    assert tops[0] == tops[1] > tops[2] == tops[3]  # a row per model, a column per protocol
    assert names(figure) == ["Q-Anchored (PopQA)", "A-Anchored (PopQA)"]
    assert looks(figure)["A-Anchored (PopQA)"] == ("#ff7f0e", "dash")
    mates = [trace for trace in figure.data if trace.name == "Q-Anchored (PopQA)" and trace.mode == "lines"]
    assert sorted(trace.xaxis for trace in mates) == ["x", "x2", "x3", "x4"]
    assert len({trace.legendgroup for trace in mates}) == 1
    assert sum(bool(trace.showlegend) for trace in mates) == 1
    assert "m: swap, PopQA" in next(trace for trace in mates if trace.xaxis == "x").text[0]


def test_one_legend_lists_the_question_first_whichever_protocol_lacks_it():
    knockout = knockout_frame({"m": 4}, ("popqa",), placebos=())
    answer = knockout[knockout["pathway"] == "A-Anchored"]
    figure = plot_curves([swap_frame({"m": 4}, ("popqa",), ("question",)), answer])
    assert names(figure) == ["A-Anchored (PopQA)", "Q-Anchored (PopQA)"]


@pytest.mark.parametrize(
    ("panels", "rows"), [(1, [1]), (3, [3]), (4, [4]), (5, [3, 2]), (6, [3, 3]), (7, [4, 3]), (9, [3, 3, 3])]
)
def test_panels_wrap_in_order_of_appearance(panels, rows):
    models = {f"org/m{k}": 2 + k for k in range(panels)}
    figure = plot_curves(swap_frame(models, ("popqa",)))
    layout = figure.to_dict()["layout"]
    axes = [layout["xaxis" + (str(k + 1) if k else "")] for k in range(sum(rows))]
    tops = [layout["yaxis" + (str(k + 1) if k else "")]["domain"][1] for k in range(panels)]
    assert [tops.count(top) for top in sorted(set(tops), reverse=True)] == rows
    assert tops == sorted(tops, reverse=True)
    assert [note["text"] for note in layout["annotations"]] == [f"m{k}" for k in range(panels)]
    assert [axis["range"][1] for axis in axes] == [k + 1.5 for k in range(panels)]
    assert len(names(figure)) == 2  # once, not once a panel
    ys = [key for key in layout if key.startswith("yaxis") and layout[key].get("title", {}).get("text") == "ΔP"]
    assert len(ys) == len(rows)


def test_two_models_with_one_last_name_are_named_in_full():
    figure = plot_curves(swap_frame({"a/Qwen3-8B": 3, "b/Qwen3-8B": 3, "c/dir/": 3}, ("popqa",)))
    assert [note.text for note in figure.layout.annotations] == ["a/Qwen3-8B", "b/Qwen3-8B", "dir"]


def curve_of(figure: go.Figure, name: str) -> go.Scatter:
    (trace,) = (trace for trace in figure.data if trace.name == name and trace.showlegend)
    return trace


def test_missing_value_is_a_gap_in_line_and_band():
    values = [-1.0, -2.0, NAN, -4.0, -5.0]
    rows = [point(layer=k, delta_p=v, ci_low=v - 1, ci_high=v + 1) for k, v in enumerate(values)]
    figure = plot_curves(pd.DataFrame(rows))
    line = curve_of(figure, "Q-Anchored swap (PopQA)")
    assert (list(line.x), list(line.y)) == ([0, 1, 2, 3, 4], [-1.0, -2.0, None, -4.0, -5.0])
    assert line.connectgaps is False
    (band,) = (trace for trace in figure.data if trace.fill == "toself")
    assert list(band.x) == [0, 1, 1, 0, 0, None, 3, 4, 4, 3, 3]
    assert list(band.y) == [0.0, -1.0, -3.0, -2.0, 0.0, None, -3.0, -4.0, -6.0, -5.0, -3.0]


def test_point_that_no_line_reaches_is_marked_with_its_interval():
    rows = [point(layer=k, delta_p=v, ci_low=-9.0, ci_high=-1.0) for k, v in enumerate([-4.0, NAN, -5.0, -5.0])]
    figure = plot_curves(pd.DataFrame(rows))
    (mark,) = (trace for trace in figure.data if trace.mode == "markers")
    assert (list(mark.x), list(mark.y)) == ([0], [-4.0])
    assert (list(mark.error_y.array), list(mark.error_y.arrayminus)) == ([3.0], [5.0])
    assert plot_curves(pd.DataFrame(rows), bands=False).data[-1].error_y.array is None


def test_layers_that_were_not_measured_are_bridged_and_the_measured_ones_marked():
    figure = plot_curves(pd.DataFrame([point(layer=k) for k in (8, 0, 4)]))
    line = curve_of(figure, "Q-Anchored swap (PopQA)")
    assert (list(line.x), line.mode) == ([0, 4, 8], "lines+markers")
    dense = plot_curves(pd.DataFrame([point(layer=k) for k in (0, 1, 2)]))
    assert curve_of(dense, "Q-Anchored swap (PopQA)").mode == "lines"


def test_trivial_points_are_hollow_and_say_so():
    frame = pd.DataFrame([point(layer=k, anchor="answer_site_all", trivial=k == 0) for k in range(3)])
    figure = plot_curves(frame)
    (mark,) = (trace for trace in figure.data if trace.mode == "markers")
    assert (list(mark.x), mark.marker.color, mark.marker.line.color) == ([0], "white", "#ff7f0e")
    line = curve_of(figure, "A-Anchored swap (PopQA)")
    assert [text.endswith("<br>trivial by construction") for text in line.text] == [True, False, False]
    assert "hollow: trivial by construction" in figure.layout.title.text


def test_hover_says_all_there_is_to_say():
    row = point(layer=7, delta_p=-12.345, ci_low=-20.0, ci_high=-0.001, p_before=0.68, n=64)
    figure = plot_curves(pd.DataFrame([row, point(layer=8, ci_low=NAN, ci_high=NAN, p_before=NAN, n=1)]))
    line = curve_of(figure, "Q-Anchored swap (PopQA)")
    assert line.hoverinfo == "text"
    assert list(line.text) == [
        "<b>Q-Anchored swap (PopQA)</b><br>Qwen3-8B, PopQA<br>anchor question, layer 7<br>"
        "ΔP −12.35 points (95 %: −20.00 to 0.00)<br>P before 0.680<br>n = 64 questions",
        "<b>Q-Anchored swap (PopQA)</b><br>Qwen3-8B, PopQA<br>anchor question, layer 8<br>"
        "ΔP −10.00 points (no interval)<br>P before unknown<br>n = 1 question<br>"
        "fewer than 20 questions: read with care",
    ]


def test_hover_of_a_control_names_it():
    figure = swap("question")
    (dotted,) = (trace for trace in figure.data if trace.line.dash == "dot" and trace.text)
    assert dotted.text[0].startswith(
        "<b>Q-Anchored swap (PopQA)</b><br>control: null<br>m, PopQA<br>anchor question, layer 0<br>"
    )


def test_controls_and_bands_can_be_left_out():
    frame = swap_frame({"m": 4}, ("popqa",))
    figure = plot_curves(frame, controls=False, bands=False)
    assert [trace.name for trace in figure.data if not trace.name.endswith("P before")] == names(figure)
    assert "controls" not in figure.layout.title.text
    assert "band" not in figure.layout.title.text


def test_controls_by_name_and_their_dots():
    frame = swap_frame({"m": 4}, ("popqa",), ("question",))
    second = frame[frame["control"] == "null"].assign(control="placebo")
    both = [second, frame]
    drawn = [t for t in plot_curves(both).data if t.line.width == 1 and t.text]
    assert {t.name: (t.line.dash, t.visible) for t in drawn} == {
        "Q-Anchored swap (PopQA), null": ("dot", "legendonly"),
        "Q-Anchored swap (PopQA), placebo": ("2px,6px", "legendonly"),
    }
    (only,) = (t for t in plot_curves(both, controls=["placebo"]).data if t.line.width == 1 and t.text)
    assert (only.name, only.visible) == ("Q-Anchored swap (PopQA), placebo", None)  # what was named needs no click


def test_settings_that_are_not_the_default_stand_in_the_title_line():
    told = plot_curves(pd.DataFrame([point(direction="denoising", site="attn_out", window=5)])).layout.title.text
    assert "denoising · site attn_out · window 5" in " · ".join(re.findall(r">([^<>]+)</span>", told))
    plain = plot_curves(pd.DataFrame([point()])).layout.title.text
    assert not any(word in plain for word in ("noising", "site", "window"))


def test_sweeps_frames_and_mixtures_of_them_draw_the_same():
    frame = swap_frame({"a/m1": 3, "a/m2": 4}, ("popqa",))

    class Sweep:
        """Stands for a SweepResult: only what plot_curves may ask of one."""

        def __init__(self, own: pd.DataFrame) -> None:
            self.own = own

        def curves(self, *, controls: bool = False) -> pd.DataFrame:
            return self.own if controls else self.own[self.own["control"] == "none"]

    one, two = frame[frame["model"] == "a/m1"], frame[frame["model"] == "a/m2"]
    wanted = plot_curves(frame).to_json()
    assert plot_curves([Sweep(one), two]).to_json() == wanted
    assert plot_curves(Sweep(frame)).to_json() == wanted
    assert plot_curves(Sweep(frame), controls=False).to_json() == plot_curves(frame, controls=False).to_json()
    assert plot_curves([frame, one]).to_json() == wanted  # the same run twice is the same figure


def test_order_of_rows_does_not_matter():
    frame = swap_frame({"m": 9}, ("nq", "popqa"))
    assert plot_curves(frame.sample(frac=1, random_state=3)).to_json() == plot_curves(frame).to_json()


def test_templates_of_the_session_neither_change_nor_matter():
    frame = swap_frame({"m": 3}, ("popqa",))
    wanted, before = plot_curves(frame).to_json(), pio.templates.default
    assert pio.templates.default == before
    try:
        pio.templates.default = "plotly_dark"
        assert plot_curves(frame).to_json() == wanted
    finally:
        pio.templates.default = before


def test_ticks_are_whole_layers():
    for layers, step in ((2, 1), (16, 2), (36, 4), (64, 8), (126, 20)):
        figure = plot_curves(pd.DataFrame([point(layer=0), point(layer=layers - 1)]))
        assert figure.layout.xaxis.dtick == step
        assert math.ceil((layers - 1) / step) <= 9


def test_sizes():
    frame = swap_frame({"m1": 3, "m2": 3})
    usual = plot_curves(frame).layout
    panels = (usual.yaxis.domain[1] - usual.yaxis.domain[0]) * (usual.height - usual.margin.t - usual.margin.b)
    assert (round(panels), usual.width) == (380, None)
    sized = plot_curves(frame, height=500, width=900).layout
    assert (sized.height, sized.width) == (500, 900)
    six = plot_curves(swap_frame({f"m{k}": 3 for k in range(6)}, ("popqa",)))
    assert six.layout.height > 800
