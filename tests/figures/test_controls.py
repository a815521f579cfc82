"""The dotted lines of controls, and the marks of layers without signal."""

import pandas as pd
import plotly.graph_objects as go
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves

from .seen import dotted, keys, legend, names, told
from .synthetic import (
    DATASETS,
    NAN,
    TARGET_MODELS,
    full_figure,
    knockout_frame,
    pick,
    point,
    swap_frame,
)
from .test_target import ENTRIES


def knockout(**changes: object) -> dict[str, object]:
    return point(protocol="knockout", readout="probe", site="", window=0, **changes)


def pair(
    control: str, question: list[float], answer: list[float], **changes: object
) -> list[dict[str, object]]:
    return [
        knockout(pathway=pathway, layer=k, effect=value, control=control, **changes)
        for pathway, column in (("Q-Anchored", question), ("A-Anchored", answer))
        for k, value in enumerate(column)
    ]


@pytest.mark.slow
def test_the_placebo_of_each_pathway_is_dotted_in_its_colour_and_one_entry_names_them_all():
    frame = knockout_frame()
    target = full_figure(frame)
    found = {(trace.name, trace.xaxis): trace for trace in dotted(target)}
    assert len(found) == 2 * len(ENTRIES)
    for k, (name, colour) in enumerate(ENTRIES):
        for model, axis in zip(TARGET_MODELS, ("x", "x2"), strict=True):
            trace = found[f"{name}, random_tokens", axis]
            rows = pick(
                frame,
                model=model,
                dataset=DATASETS[k // 2],
                pathway=name.split()[0],
                control="random_tokens",
            )
            assert list(trace.y) == rows["effect"].tolist()
            assert (trace.line.color, trace.line.dash, trace.visible, trace.fill) == (
                colour,
                "dot",
                None,
                None,
            )
    assert keys(target) == ["Placebo random_tokens"]
    assert {trace.legendgroup for trace in found.values()} == {
        trace.legendgroup for trace in legend(target)[8:]
    }
    assert (
        "Dotted: Placebo random_tokens, the same with as many other question tokens; with pathways, split in the"
        " same way." in told(target)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("present", "shown"),
    [
        ({"norm_matched": -9.0, "same_role": -1.0}, {"Null norm_matched", "Null same_role"}),
        ({"norm_matched": -1.0, "same_role": -9.0}, {"Null same_role"}),
        ({"norm_matched": -1.0, "mine": -9.0}, {"Null norm_matched"}),
        ({"mine": -1.0}, {"mine"}),
    ],
)
def test_the_leading_control_and_the_strongest_null_are_drawn_on_request(present, shown):
    frame = swap_frame({"m": 3}, ("popqa",), ("exact_question",), null=False)
    rows = [frame, *(frame.assign(control=name, effect=size) for name, size in present.items())]
    assert keys(plot_curves(rows)) == []
    assert set(keys(plot_curves(rows, controls=True))) == shown
    named = plot_curves(rows, controls=list(present))
    assert [trace.name for trace in dotted(named)] == [
        f"Q-Anchored swap (PopQA), {control}" for control in present
    ]
    assert len({trace.line.dash for trace in dotted(named)}) == len(present)
    with pytest.raises(InputError, match="controls='mines': not in these results"):
        plot_curves(rows, controls="mines")


@pytest.mark.parametrize(
    "control", ["size_matched", "shuffled_labels", "cross_fold", "random_before"]
)
def test_other_controls_of_a_knockout_are_drawn_only_where_they_are_named(control):
    frame = knockout_frame({"m": 4}, ("popqa",), placebos=("random_tokens", control))
    assert control not in plot_curves(frame).to_json()
    assert {trace.name for trace in dotted(plot_curves(frame, controls=[control]))} == {
        f"{p}-Anchored (PopQA), {control}" for p in "QA"
    }


def test_the_unsplit_curve_is_drawn_where_there_are_no_pathways():
    frame = knockout_frame({"m": 4}, ("popqa",))
    assert names(plot_curves(frame)) == ["Q-Anchored (PopQA)", "A-Anchored (PopQA)"]
    alone = full_figure(frame[frame["pathway"] == "All"])
    assert names(alone) == ["All (PopQA)"]
    assert [trace.name for trace in dotted(alone)] == ["All (PopQA), random_tokens"]


def test_group_without_a_question_keeps_its_entry():
    empty = [NAN] * 3
    rows = [
        *pair("none", empty, [-1.0, -2.0, -3.0]),
        *pair("random_tokens", empty, [1.0, 1.0, 1.0]),
    ]
    assert [trace.name for trace in legend(full_figure(pd.DataFrame(rows)))] == [
        "Q-Anchored (PopQA)",
        "A-Anchored (PopQA)",
        "Placebo random_tokens",
    ]


def crosses(figure: go.Figure) -> dict[str, go.Scatter]:
    return {trace.name: trace for trace in figure.data if trace.marker.symbol == "x-thin-open"}


def test_crosses_stand_where_the_probe_has_no_signal():
    rows = pair("none", [-4.0, -5.0, NAN, -7.0], [-1.0, -2.0, -3.0, -4.0])
    for row in rows:
        row["probe_above_chance"] = {0: False, 1: True, 2: False, 3: None}[int(str(row["layer"]))]
    rows += [row | {"control": "random_tokens"} for row in rows]
    figure = full_figure(pd.DataFrame(rows))
    found = crosses(figure)
    assert {name: (list(t.x), list(t.y)) for name, t in found.items()} == {
        "Q-Anchored (PopQA)": ([0], [-4.0]),
        "A-Anchored (PopQA)": ([0, 2], [-1.0, -3.0]),
    }
    assert [t.marker.color for t in found.values()] == ["#1f77b4", "#ff7f0e"]
    assert {t.legendgroup for t in found.values()} == {t.legendgroup for t in legend(figure)[:2]}
    assert "×: no signal of the probe" in told(figure)


@pytest.mark.parametrize(
    "signals", [[True, True], [None, None], pd.array([True, None], dtype="boolean"), ["", "True"]]
)
def test_no_crosses_where_nothing_says_no_signal(signals):
    figure = full_figure(
        pd.DataFrame([knockout(pathway="All", layer=k) for k in range(2)]).assign(
            probe_above_chance=signals
        )
    )
    assert crosses(figure) == {}
    assert "no signal" not in figure.to_json()


def test_hover_says_the_probes_auc_and_what_a_placebo_is():
    fixed = {
        "layer": 3,
        "n": 41,
        "auc": 0.512,
        "auc_low": 0.4,
        "auc_high": NAN,
        "probe_above_chance": False,
    }
    rows = [
        knockout(pathway=p, control=c, **fixed)
        for p in ("Q-Anchored", "A-Anchored")
        for c in ("none", "random_tokens")
    ]
    rows[0]["auc_high"] = 0.62
    figure = full_figure(pd.DataFrame(rows))
    tail = (
        "anchor exact_question, layer 3<br>ΔP −10.00 points (95 %: −12.00 to −8.00)<br>P before"
        " 0.600<br>n = 41 questions"
    )
    first, second = (trace.text[0] for trace in legend(figure)[:2])
    head = "<br>Qwen3-8B, PopQA<br>"
    assert (
        first
        == f"<b>Q-Anchored (PopQA)</b>{head}{tail}<br>AUC 0.51 (95 %: 0.40 to 0.62)<br>no signal"
    )
    assert second == f"<b>A-Anchored (PopQA)</b>{head}{tail}<br>AUC 0.51 (no interval)<br>no signal"
    kind = "<br>control: random_tokens (the same with as many other question tokens)"
    assert all(f"(PopQA)</b>{kind}{head}" in trace.text[0] for trace in dotted(figure))


def test_frame_read_from_csv_gives_the_same_figure(tmp_path):
    frame, swap = knockout_frame({"m": 9}, ("popqa",)), swap_frame({"m": 9}, ("popqa",))
    pd.concat([frame, swap]).to_csv(tmp_path / "curves.csv", index=False)
    read = pd.read_csv(tmp_path / "curves.csv", keep_default_na=False)
    assert set(read["probe_above_chance"]) == {"True", "False", ""}
    again, wanted = full_figure(read), full_figure([frame, swap])
    assert (
        [list(t.x) for t in crosses(again).values()]
        == [list(t.x) for t in crosses(wanted).values()]
        == [[0, 1]] * 2
    )
