"""Drawings of circuits."""

import itertools
import random

import numpy as np
import pandas as pd
import pytest

import anchorlens as al
from anchorlens.engine.edges.graph import Graph, Node
from anchorlens.errors import InputError
from anchorlens.figures.circuit_graph import NEGATIVE, POSITIVE, plot_circuit
from anchorlens.figures.circuit_layout import BOX_HEIGHT, TAB, place_circuit
from anchorlens.figures.export import caption_of
from anchorlens.figures.palette import lighten
from anchorlens.protocols.edges.circuit import Circuit

GRAPH = Graph(n_layers=6, n_heads=4, n_kv_heads=4)
DEEP = Graph(n_layers=30, n_heads=9, n_kv_heads=3)
EFFECTS = {
    "a4.h2 -> logits": 4.0,
    "a4.h3 -> logits": -2.0,
    "m0 -> a4.h2.v": 1.0,
    "a1.h0 -> a4.h2.q": 0.5,
    "a1.h0 -> m1": -0.25,
    "m1 -> a4.h2.k": 0.125,
    "embed -> m0": 3.0,
    "embed -> a1.h0.k": 0.001,
}


def make_circuit(effects=EFFECTS, graph=GRAPH, stability=None, **other):
    scores = {graph.edge(name): effect for name, effect in effects.items()}
    shares = {graph.edge(name): share for name, share in (stability or {}).items()}
    settings = {"model": "gpt2", "dataset": "cats", "metric": "logit_diff", "rule": "top"}
    return Circuit(
        graph=graph, edges=tuple(scores), scores=scores, stability=shares, **settings | other
    )


def lines(figure):
    """Trace of each edge by its name."""
    return {trace.name: trace for trace in figure.data if "->" in (trace.name or "")}


def notes(figure):
    """Box of each node by its name, and the list of letters."""
    every = figure.layout.annotations
    return (
        {note.text: note for note in every if note.hovertext},
        [note.text for note in every if not note.hovertext],
    )


def test_widths_follow_sizes_and_colours_follow_signs():
    found = lines(plot_circuit(make_circuit()))
    assert set(found) == set(EFFECTS)
    widths = {name: trace.line.width for name, trace in found.items()}
    largest = widths["a4.h2 -> logits"]
    assert widths["a4.h3 -> logits"] == pytest.approx(largest / 2)
    assert widths["m0 -> a4.h2.v"] == pytest.approx(largest / 4)
    assert 0 < widths["embed -> a1.h0.k"] == widths["m1 -> a4.h2.k"]  # the thinnest line
    for name, effect in EFFECTS.items():
        assert found[name].line.color == (POSITIVE if effect > 0 else NEGATIVE)


def test_opacity_is_the_stability_and_full_without_one():
    assert {trace.opacity for trace in lines(plot_circuit(make_circuit())).values()} == {1.0}
    shares = {"a4.h2 -> logits": 1.0, "a4.h3 -> logits": 0.5}
    figure = plot_circuit(make_circuit(stability=shares))
    found = lines(figure)
    assert found["a4.h2 -> logits"].opacity == 1.0
    assert found["a4.h3 -> logits"].opacity == 0.5
    assert 0.1 < found["embed -> m0"].opacity < 0.5  # never selected, but visible
    assert "opacity: share of resamples" in figure.layout.title.text
    assert "Opacity: share of resamples" in caption_of(figure)
    assert "No stability was computed" in caption_of(plot_circuit(make_circuit()))


def test_hover_names_edge_effect_and_stability():
    figure = plot_circuit(make_circuit(stability={"a4.h3 -> logits": 0.5}))
    assert lines(figure)["a4.h3 -> logits"].hovertemplate == (
        "a4.h3 → logits<br>−2.00 logits<br>selected in 50% of resamples<extra></extra>"
    )
    assert "resamples" not in lines(plot_circuit(make_circuit()))["embed -> m0"].hovertemplate
    boxes, _ = notes(figure)
    assert boxes["a4.h2"].hovertext == "a4.h2<br>3 edges in, 1 edge out"
    assert boxes["logits"].hovertext == "logits<br>2 edges in"


def test_hover_has_the_band_of_an_edge_that_has_one():
    limits = {"sim_low": [-3.0, None], "sim_high": [1.5, 4.0]}
    bands = pd.DataFrame({"edge": ["a4.h3 -> logits", "embed -> m0"], **limits})
    figure = plot_circuit(make_circuit(), bands=bands)
    hover = {name: trace.hovertemplate for name, trace in lines(figure).items()}
    text = "a4.h3 → logits<br>−2.00 logits<br>joint 95 % band: −3.00 to +1.50"
    assert {name for name, shown in hover.items() if "band" in shown} == {"a4.h3 -> logits"}
    assert hover["a4.h3 -> logits"] == f"{text}<extra></extra>"
    heads = [shown for trace in figure.data for shown in trace.text or ()]
    assert [shown for shown in heads if "band" in shown] == [text]
    assert "simultaneous over all measured edges" in caption_of(figure)
    assert "simultaneous" not in caption_of(plot_circuit(make_circuit()))


def test_bands_without_their_columns_are_refused():
    with pytest.raises(InputError, match="bands=.*sim_low"):
        plot_circuit(make_circuit(), bands=pd.DataFrame({"edge": ["embed -> m0"]}))


def test_edges_end_at_the_q_k_and_v_of_their_head():
    figure = plot_circuit(make_circuit())
    boxes, letters = notes(figure)
    assert sorted(letters) == ["k", "k", "q", "v"]
    found = lines(figure)
    ends = [found[name].x[-1] for name in ("a1.h0 -> a4.h2.q", "m1 -> a4.h2.k", "m0 -> a4.h2.v")]
    assert ends == sorted(ends)
    assert ends[1] == pytest.approx(boxes["a4.h2"].x)
    places = {note.text: note.x for note in figure.layout.annotations if note.y < boxes["a4.h2"].y}
    assert ends[0] == pytest.approx(places["q"])
    for trace in found.values():
        assert trace.y[-1] > trace.y[0]


def test_layers_ascend_and_layers_without_nodes_have_no_row():
    figure = plot_circuit(make_circuit())
    boxes, _ = notes(figure)
    order = ["embed", "m0", "a1.h0", "m1", "a4.h2", "logits"]
    heights = [boxes[name].y for name in order]
    assert heights == sorted(set(heights))
    assert boxes["a4.h2"].y == boxes["a4.h3"].y
    assert figure.layout.yaxis.ticktext == ("0", "1", "4")
    steps = np.diff(figure.layout.yaxis.tickvals)
    assert steps[1] < 2 * steps[0]  # layers 2 and 3


def test_an_edge_without_an_effect_is_drawn_in_grey():
    edge = GRAPH.edge("m0 -> m1")
    other = make_circuit()
    circuit = Circuit(
        graph=GRAPH, edges=(*other.edges, edge), scores=other.scores, rule="acdc", unit="nat"
    )
    trace = lines(plot_circuit(circuit))["m0 -> m1"]
    assert trace.line.color not in (POSITIVE, NEGATIVE)
    assert "not measured" in trace.hovertemplate


def test_of_a_larger_circuit_the_largest_effects_are_drawn():
    figure = plot_circuit(make_circuit(), top=2)
    assert set(lines(figure)) == {"a4.h2 -> logits", "embed -> m0"}
    assert "the 2 largest of 8 edges" in figure.layout.title.text
    assert "the 2 edges with the largest effects" in caption_of(figure)
    assert "largest of" not in plot_circuit(make_circuit(), top=8).layout.title.text


def test_heads_of_one_key_value_head_have_one_frame_with_one_value():
    graph = Graph(n_layers=3, n_heads=4, n_kv_heads=2)
    effects = {
        "m0 -> a2.h1.v": 1.0,
        "m0 -> a2.h0.k": 1.0,
        "m0 -> a1.h1.v": 0.5,
        "embed -> m0": 1.0,
        "a2.h2 -> logits": 1.0,
        "a2.h3 -> logits": 1.0,
    }
    figure = plot_circuit(make_circuit(effects, graph))
    (frame,) = figure.layout.shapes
    boxes, letters = notes(figure)
    assert frame.x0 < boxes["a2.h2"].x < boxes["a2.h3"].x < frame.x1
    assert sorted(letters) == ["k", "v", "v"]
    value = lines(figure)["m0 -> a2.h1.v"]
    assert frame.x0 < value.x[-1] < frame.x1
    assert "read by heads 2 to 3" in value.hovertemplate
    # Groups without a drawn head are nodes of their own.
    assert boxes["a2.h0-1"].hovertext == "a2.h0-1<br>1 edge in"
    assert boxes["a1.h2-3"].hovertext == "a1.h2-3<br>1 edge in"
    assert "in one frame" in figure.layout.title.text


def chains(graph, n, seed):
    """Edges of chains of short steps from the embedding to the logits."""
    draw = random.Random(seed)
    every = graph.edges(graph.senders, graph.receivers)
    out = {}
    while len(out) < n:
        node = Node("embed", 0)
        while node.kind != "logits":
            near = [e for e in every if e.sender == node and e.receiver.layer <= node.layer + 4]
            edge = draw.choice(near)
            out[edge.name] = draw.gauss(0, 1)
            to = edge.receiver
            rep = 1 if to.kind == "q" else graph.n_heads // graph.n_kv_heads
            node = to if to.kind in ("mlp", "logits") else Node("head", to.layer, to.head * rep)
    return dict(list(out.items())[:n])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "effects"),
    [
        (DEEP, chains(DEEP, 60, 0)),
        (
            Graph(n_layers=4, n_heads=32, n_kv_heads=32),
            {f"a{layer}.h{head} -> logits": 1.0 for layer in (2, 3) for head in range(30)},
        ),
        # An MLP in each layer too.
        (
            DEEP,
            {f"a{layer}.h0 -> m{layer}": 1.0 for layer in range(30)}
            | {f"m{layer} -> a{layer + 1}.h0.q": 1.0 for layer in range(29)}
            | {"m29 -> logits": 1.0},
        ),
    ],
)
def test_labels_do_not_overlap_within_900_pixels(graph, effects):
    assert len(effects) == 60
    figure = plot_circuit(make_circuit(effects, graph))
    assert figure.layout.height <= 900
    edges = [graph.edge(name) for name in effects]
    drawing = place_circuit(graph, edges, width=820, most=760)
    places = [(box.x, box.y, box.width, BOX_HEIGHT) for box in drawing.boxes]
    places += [(port.x, port.y, TAB, TAB) for port in drawing.ports]
    for (x, y, width, height), (x2, y2, width2, height2) in itertools.combinations(places, 2):
        apart = abs(x - x2) >= (width + width2) / 2 or abs(y - y2) >= (height + height2) / 2
        assert apart, (x, y, x2, y2)
    for x, _, width, _ in places:
        assert 0 <= x - width / 2 <= x + width / 2 <= 820


def test_a_crossing_that_can_be_avoided_is_avoided():
    effects = {f"a1.h{head} -> a2.h{head}.q": 1.0 for head in range(4)}
    found = lines(plot_circuit(make_circuit(effects)))
    first = [found[name].x[0] for name in effects]
    last = [found[name].x[-1] for name in effects]
    assert np.array_equal(np.argsort(first), np.argsort(last))


def test_the_same_circuit_gives_the_same_figure():
    assert plot_circuit(make_circuit()) == plot_circuit(make_circuit())


def test_themes_and_width():
    dark = plot_circuit(make_circuit(), theme="dark", width=700)
    assert lines(dark)["a4.h2 -> logits"].line.color == lighten(POSITIVE)
    assert dark.layout.width == 700
    assert plot_circuit(make_circuit()).layout.width == 900  # edges would miss their boxes
    assert dark.layout.xaxis.range[1] < 700
    boxes, _ = notes(dark)
    assert boxes["m0"].bgcolor == dark.layout.paper_bgcolor != "white"
    light = plot_circuit(make_circuit(model="a<b"), title="x < y")
    assert "<b>x &lt; y</b>" in light.layout.title.text


def test_the_name_is_public():
    assert al.plot_circuit is plot_circuit


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("circuit", "settings", "message", "argument"),
    [
        (EFFECTS, {}, "not a circuit", "circuit"),
        (make_circuit({}), {}, "no edges. Select more", "circuit"),
        (make_circuit(), {"top": 0}, "at least 1", "top"),
        (make_circuit(), {"top": 2.5}, "whole number", "top"),
        (make_circuit(), {"theme": "blue"}, "unknown value", "theme"),
        (make_circuit(), {"width": 10}, "too small", "width"),
    ],
)
def test_errors(circuit, settings, message, argument):
    with pytest.raises(InputError, match=message) as error:
        plot_circuit(circuit, **settings)
    assert error.value.arguments == (argument,)
