"""What stands beside the pathways of a knockout: unsplit curve, placebo splits, their gap, and the marks of no signal."""

import pandas as pd
import plotly.graph_objects as go
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves

from .seen import legend, said
from .synthetic import DATASETS, NAN, TARGET_MODELS, drawn, knockout_frame, pick, point, swap_frame
from .test_target import ENTRIES, EXTRAS

SHOWN = dict(zip(DATASETS, ("PopQA", "TriviaQA", "HotpotQA", "NQ"), strict=True))


def mates(figure: go.Figure, label: str) -> list[go.Scatter]:
    """The curves that the legend entry ``label`` switches."""
    (entry,) = (trace for trace in legend(figure) if trace.name == label)
    return [trace for trace in figure.data if trace.legendgroup == entry.legendgroup and trace is not entry]


def knockout(**changes: object) -> dict[str, object]:
    return point(protocol="knockout", readout="probe", site="", window=0, **changes)


def pair(control: str, question: list[float], answer: list[float], **changes: object) -> list[dict[str, object]]:
    return [
        knockout(pathway=pathway, layer=k, effect=value, control=control, **changes)
        for pathway, column in (("Q-Anchored", question), ("A-Anchored", answer))
        for k, value in enumerate(column)
    ]


@pytest.mark.parametrize(
    ("label", "dash", "curves"),
    [("All (unsplit)", "dashdot", 8), ("Placebo split", "dot", 16), ("Other placebos", "2px,6px", 32), ("Placebo gap", "dot", 8)],
)
def test_each_kind_has_one_grey_entry_that_switches_all_its_curves(target, label, dash, curves):
    (entry,) = (trace for trace in legend(target) if trace.name == label)
    red, green, blue = (entry.line.color[i : i + 2] for i in (1, 3, 5))
    assert red == green == blue
    assert (entry.line.dash, entry.visible, list(entry.y)) == (dash, "legendonly", [None])
    lines = mates(target, label)
    assert len(lines) == curves
    assert {(t.line.dash, t.visible, t.showlegend, t.fill) for t in lines} == {(dash, "legendonly", False, None)}
    assert max(trace.line.width for trace in lines) < 2  # thinner than a curve
    assert {trace.xaxis for trace in lines} == {"x", "x2"}


@pytest.mark.parametrize(
    ("label", "control"),
    [("Placebo split", "random_tokens"), ("Other placebos", "shuffled_labels"), ("Other placebos", "cross_fold")],
)
def test_placebos_are_the_frames_points_in_the_colour_of_their_pathway(target, label, control):
    frame, found = knockout_frame(), {(trace.name, trace.xaxis): trace for trace in mates(target, label)}
    for k, (name, colour) in enumerate(ENTRIES):
        for model, axis in zip(TARGET_MODELS, ("x", "x2"), strict=True):
            trace = found[f"{name}, {control}", axis]
            rows = pick(frame, model=model, dataset=DATASETS[k // 2], pathway=name.split()[0], control=control)
            assert list(trace.y) == rows["effect"].tolist()
            assert trace.line.color == colour


def test_gap_is_the_question_minus_the_answer_of_other_question_tokens(target):
    frame = knockout_frame()
    for model, axis in zip(TARGET_MODELS, ("x", "x2"), strict=True):
        for dataset, shown in SHOWN.items():
            fixed = {"model": model, "dataset": dataset, "control": "random_tokens"}
            question = pick(frame, pathway="Q-Anchored", **fixed)["effect"].tolist()
            answer = pick(frame, pathway="A-Anchored", **fixed)["effect"].tolist()
            (gap,) = (t for t in mates(target, "Placebo gap") if (t.name, t.xaxis) == (f"Placebo gap ({shown})", axis))
            assert list(gap.x) == list(range(TARGET_MODELS[model]))
            assert list(gap.y) == [q - a for q, a in zip(question, answer, strict=True)]
            assert gap.line.color not in dict(ENTRIES).values()


def test_gap_has_only_layers_that_both_pathways_have():
    rows = [*pair("none", [-9.0] * 4, [-1.0] * 4), *pair("random_tokens", [-5.0, NAN, -7.0, -8.0], [1.0, 2.0, 3.0])]
    (gap,) = mates(drawn(rows), "Placebo gap")
    assert (list(gap.x), list(gap.y)) == ([0, 1, 2], [-6.0, None, -10.0])


def test_group_without_a_question_keeps_its_entry_and_leaves_no_gap():
    empty = [NAN] * 3
    rows = [*pair("none", empty, [-1.0, -2.0, -3.0]), *pair("random_tokens", empty, [1.0, 1.0, 1.0])]
    for row in rows:
        row["n"] = 0 if row["pathway"] == "Q-Anchored" else 100
    figure = drawn(rows)
    wanted = ["Q-Anchored (PopQA)", "A-Anchored (PopQA)", "Range of controls", "Placebo split"]
    assert [trace.name for trace in legend(figure)] == wanted


def test_unsplit_curve_alone_is_a_curve_like_any_other():
    rows = [knockout(pathway="All", layer=k, control=control) for k in range(3) for control in ("none", "random_tokens")]
    figure = drawn(rows)
    assert [(trace.name, trace.line.dash, trace.visible) for trace in legend(figure)] == [
        ("All (PopQA)", "solid", None), ("Range of controls", "solid", None), ("random_tokens", "dot", "legendonly"),
    ]  # fmt: skip
    (dotted,) = mates(figure, "random_tokens")
    assert (dotted.name, dotted.visible) == ("All (PopQA), random_tokens", "legendonly")


def test_controls_choose_the_placebos_but_not_the_unsplit_curve():
    frame = knockout_frame({"m": 4}, ("popqa",))

    def extras(controls: bool | list[str]) -> list[str]:
        return [trace.name for trace in legend(plot_curves(frame, controls=controls))][2:]

    assert extras(True) == EXTRAS
    assert extras(False) == ["All (unsplit)"]
    assert extras(["random_tokens"]) == ["Placebo gap", "Placebo split", "All (unsplit)"]
    assert extras(["cross_fold"]) == ["Other placebos", "All (unsplit)"]
    with pytest.raises(InputError, match="Did you mean 'random_tokens'"):
        extras(["random_token"])
    told = said(plot_curves(frame, controls=False, bands=False))
    assert "placebo" not in told
    assert "pale legend entries" in told


def test_other_controls_of_a_knockout_are_dotted_beside_their_curve():
    rows = [*pair("none", [-9.0] * 2, [-1.0] * 2), *pair("mine", [-5.0] * 2, [1.0] * 2)]
    figure, named = drawn(rows), drawn(rows, controls="mine")
    assert [trace.name for trace in mates(figure, "mine")] == ["Q-Anchored (PopQA), mine", "A-Anchored (PopQA), mine"]
    assert "grey area: range of the controls: mine" in said(figure)
    assert {trace.visible for trace in mates(named, "mine")} == {None}
    assert "dotted: mine" in said(named)


def crosses(figure: go.Figure) -> dict[str, go.Scatter]:
    return {trace.name: trace for trace in figure.data if trace.marker.symbol == "x-thin-open"}


def test_crosses_stand_where_the_probe_has_no_signal():
    rows = pair("none", [-4.0, -5.0, NAN, -7.0], [-1.0, -2.0, -3.0, -4.0])
    for row in rows:
        row["probe_above_chance"] = {0: False, 1: True, 2: False, 3: None}[int(str(row["layer"]))]
    rows += [row | {"control": "random_tokens"} for row in rows]
    figure = drawn(rows)
    found = crosses(figure)
    assert {name: (list(t.x), list(t.y)) for name, t in found.items()} == {
        "Q-Anchored (PopQA)": ([0], [-4.0]),
        "A-Anchored (PopQA)": ([0, 2], [-1.0, -3.0]),
    }
    assert [t.marker.color for t in found.values()] == ["#1f77b4", "#ff7f0e"]
    assert {t.legendgroup for t in found.values()} == {t.legendgroup for t in legend(figure)[:2]}
    assert "×: no signal (AUC interval reaches 0.5)" in said(figure)


@pytest.mark.parametrize("signals", [[True, True], [None, None], pd.array([True, None], dtype="boolean"), ["", "True"]])
def test_no_crosses_where_nothing_says_no_signal(signals):
    figure = plot_curves(pd.DataFrame([knockout(pathway="All", layer=k) for k in range(2)]).assign(probe_above_chance=signals))
    assert crosses(figure) == {}
    assert "no signal" not in figure.to_json()


def test_hover_says_the_probes_auc_and_what_a_placebo_is():
    fixed = {"layer": 3, "n": 41, "auc": 0.512, "auc_low": 0.4, "auc_high": NAN, "probe_above_chance": False}
    rows = [knockout(pathway=p, control=c, **fixed) for p in ("Q-Anchored", "A-Anchored") for c in ("none", "random_tokens")]
    rows[0]["auc_high"] = 0.62
    rows[1]["effect"] = -14.5
    figure = drawn(rows)
    tail = "anchor exact_question, layer 3<br>ΔP −10.00 points (95 %: −12.00 to −8.00)<br>P before 0.600<br>n = 41 questions"
    first, second = (trace.text[0] for trace in legend(figure)[:2])
    head = "<br>Qwen3-8B, PopQA<br>"
    assert first == f"<b>Q-Anchored (PopQA)</b>{head}{tail}<br>AUC 0.51 (95 %: 0.40 to 0.62)<br>no signal"
    assert second == f"<b>A-Anchored (PopQA)</b>{head}{tail}<br>AUC 0.51 (no interval)<br>no signal"
    kind = "<br>control: random_tokens (other question tokens cut, and split by that)"
    assert all(f"(PopQA)</b>{kind}{head}" in trace.text[0] for trace in mates(figure, "Placebo split"))
    (gap,) = mates(figure, "Placebo gap")
    assert gap.text[0] == (
        f"<b>Placebo gap (PopQA)</b>{head}anchor exact_question, layer 3<br>"
        "Q − A = −4.50 points with other question tokens cut, and split by that<br>"
        "the gap that splitting alone produces<br>n = 82 questions"
    )


def test_frame_read_from_csv_gives_the_same_figure(tmp_path):
    frame, swap = knockout_frame({"m": 9}, ("popqa",)), swap_frame({"m": 9}, ("popqa",))
    pd.concat([frame, swap]).to_csv(tmp_path / "curves.csv", index=False)
    read = pd.read_csv(tmp_path / "curves.csv", keep_default_na=False)
    assert set(read["probe_above_chance"]) == {"True", "False", ""}
    again, wanted = plot_curves(read), plot_curves([frame, swap])
    assert [list(t.x) for t in crosses(again).values()] == [list(t.x) for t in crosses(wanted).values()] == [[0, 1]] * 2
