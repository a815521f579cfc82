"""The circuit in the report of an edge sweep."""

import json
import re

import pytest

import anchorlens as al
from anchorlens.display import minus, three_digits
from anchorlens.figures.choose_figure import report_figures
from anchorlens.report.page import render
from tests.protocols.edges.test_circuit import pairs_of


@pytest.fixture(scope="module")
def sweep_edges(tiny_model):
    def run(**settings):
        usual = {"method": "attribution", "controls": "none", "progress": False}
        return al.edge_sweep(tiny_model("llama"), pairs_of(12), **usual | settings)

    return run


@pytest.fixture(scope="module")
def edges(sweep_edges):
    return sweep_edges()


def drawn(page):
    """Layout and traces of the edges of each figure of a page."""
    found = []
    for text in re.findall(
        r'id="figure-\d+"></div>\s*<script type="application/json">(.*?)</script>', page, re.DOTALL
    ):
        figure = json.loads(text)
        own = {one["name"]: one for one in figure["data"] if "->" in one.get("name", "")}
        found.append((figure["layout"], own))
    return found


@pytest.mark.slow
def test_a_report_draws_the_edges_of_the_top_circuit(edges):
    page = render([edges], "Edges")
    (_, nothing), (layout, own) = drawn(page)
    circuit = edges.circuit(60)
    assert not nothing  # the heatmap
    assert set(own) == set(circuit.table()["edge"])
    for edge in circuit.edges:
        assert own[edge.name]["opacity"] == max(0.25, circuit.stability[edge])
    labels = {note["text"] for note in layout["annotations"] if note.get("hovertext")}
    senders = {edge.sender.name for edge in circuit.edges}
    assert senders <= labels
    assert layout["width"] <= 668  # whole in a window of 700 pixels
    assert page.count("<h3>Circuit</h3>") == 1
    assert "The 60 measured edges with the largest mean effects" in page
    assert 'aria-label="Circuit: Edges' in page


@pytest.mark.slow
def test_the_hover_has_the_band_of_the_table(edges):
    ((_, _), (_, own)) = drawn(render([edges], "Edges"))
    table = edges.table(60).set_index("edge")
    assert table["sim_low"].notna().all()
    for name, row in table.iterrows():
        band = minus(
            f"joint 95 % band: {three_digits(row.sim_low)} to {three_digits(row.sim_high)}"
        )
        assert band in own[name]["hovertemplate"]


@pytest.mark.slow
def test_few_edges_are_all_drawn(sweep_edges):
    few = sweep_edges(edges="embed -> m0, m0 -> logits")
    figures = report_figures([few])
    assert [figure.kind for figure in figures] == ["effect", "circuit"]
    assert figures[1].text.startswith("The 2 measured edges")
    one = report_figures([sweep_edges(edges="m0 -> logits")])[1]
    assert one.text.startswith("The 1 measured edge with the largest mean effect,")


@pytest.mark.slow
def test_edges_at_positions_have_no_circuit(sweep_edges):
    parts = sweep_edges(by="position", senders="m0", receivers="logits")
    page = render([parts], "Parts")
    assert len(drawn(page)) == 1
    assert "<h3>Circuit</h3>" not in page


@pytest.mark.slow
def test_each_of_two_sweeps_has_its_circuit(edges, sweep_edges):
    other = sweep_edges(receivers="logits")
    found = report_figures([edges, other])
    assert [(figure.kind, figure.results) for figure in found] == [
        ("effect", [edges]),
        ("circuit", [edges]),
        ("effect", [other]),
        ("circuit", [other]),
    ]
