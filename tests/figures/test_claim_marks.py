"""Filled marks of curves: the layers that the findings claim beyond every control."""

import plotly.graph_objects as go
import pytest

from anchorlens.figures.curves import find_claimed_layers, plot_curves
from anchorlens.results.findings import CLAIMS, DESCRIPTION, NOT_DETECTED, Finding, Findings

from .seen import told
from .synthetic import Sweep, knockout_contrasts, knockout_frame, pick, swap_effects, swap_frame

CLAIM = CLAIMS[0]
SWAP = swap_frame({"m": 12}, ("popqa",))
LESS = swap_effects({"m": 12}, ("popqa",))


def finding(control: str, layers: tuple[int, ...], status: str = CLAIM, anchor: str = "pre_answer"):
    return Finding("delta_p_minus_null", status, layers, anchor=anchor, control=control)


def marks(figure: go.Figure) -> dict[str, tuple[list[int], list[float]]]:
    return {
        trace.name: (list(trace.x), list(trace.y))
        for trace in figure.data
        if trace.mode == "markers" and trace.marker.symbol == "circle"
    }


def test_marks_lie_on_the_curve_at_the_find_claimed_layers_and_hide_with_it():
    sweep = Sweep(SWAP, LESS, finding("same_role", (8, 9, 10)), finding("norm_matched", (9, 10)))
    figure = plot_curves(sweep)
    curve = pick(SWAP, anchor="pre_answer", control="none").set_index("layer")["effect"]
    assert marks(figure) == {"A-Anchored swap (PopQA)": ([9, 10], curve[[9, 10]].tolist())}
    (mark,) = (trace for trace in figure.data if trace.marker.symbol == "circle")
    (line,) = (trace for trace in figure.data if trace.name == mark.name and trace.text)
    assert mark.legendgroup == line.legendgroup
    assert ["claimed by the findings" in text for text in line.text] == [
        layer in (9, 10) for layer in line.x
    ]
    assert "Filled marks: layers at which the findings claim an effect beyond every" in told(figure)


@pytest.mark.parametrize(
    ("statements", "layers"),
    [
        ([finding("same_role", (1, 2))], {1, 2}),
        ([finding("same_role", (1, 2)), finding("norm_matched", (2,))], {2}),
        ([finding("same_role", (1, 2)), finding("norm_matched", (3,), NOT_DETECTED)], set()),
        ([finding("same_role", (1, 2)), finding("norm_matched", (1,), DESCRIPTION)], set()),
        ([finding("same_role", (1,), anchor="subject")], set()),
        ([finding("same_role", (1,), anchor="")], {1}),
        ([], set()),
    ],
)
def test_a_layer_is_marked_only_beyond_every_control(statements, layers):
    assert find_claimed_layers(Findings(tuple(statements)), "pre_answer") == layers


def test_claims_over_all_rows_of_a_knockout_are_marked_on_the_rows_that_flip():
    frame = knockout_frame({"m": 12}, ("popqa",))
    claim = Finding("all_contrasts", CLAIM, (5, 6), control="random_tokens")
    figure = plot_curves(Sweep(frame, knockout_contrasts({"m": 12}, ("popqa",)), claim))
    assert {name: x for name, (x, _) in marks(figure).items()} == {"Q-Anchored (PopQA)": [5, 6]}
    assert "of a knockout over all rows, marked on Q-Anchored" in told(figure)


def test_each_run_has_its_own_marks():
    first = Sweep(SWAP, LESS, finding("same_role", (3,)))
    second = Sweep(SWAP, LESS)
    figure = plot_curves({"first": first, "second": second})
    (mark,) = (trace for trace in figure.data if trace.marker.symbol == "circle")
    assert (mark.xaxis, list(mark.x)) == ("x", [3])


@pytest.mark.slow
def test_other_metrics_and_frames_have_no_marks():
    flips = Sweep(SWAP.assign(metric="flip"), LESS, finding("same_role", (3,)))
    assert marks(plot_curves(flips, metric="flip")) == {}
    assert "tables without findings, so nothing is marked" in told(plot_curves(SWAP))
    assert "claim no layer beyond every control" in told(plot_curves(Sweep(SWAP, LESS)))
