"""Pictures of every kind of figure, read from the screen and compared with the frame: a cell has the
colour of the value that its own labels name, a line passes through the values of its layers.
"""

import io
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from plotly.colors import hex_to_rgb, unlabel_rgb

import anchorlens as al
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.diagnostics import plot_pathway_sizes, plot_probe_auc
from anchorlens.figures.export import save_html
from anchorlens.figures.layout import NOT_MEASURED
from tests.protocols.edges.test_edges import pairs_of
from tests.protocols.patch.test_patch import MANY

from .browser import visited
from .synthetic import knockout_frame, pick, swap_frame
from .test_circuit_graph import EFFECTS, make_circuit

pytestmark = pytest.mark.slow

WIDTHS = (700, 1280, 1920)
LAYERS = (0, 2, 5, 7)
# Panels with their tick labels and what is drawn in them, in pixels of the page.
PANELS = """() => {
  const gd = document.getElementById("anchorlens-figure"), page = gd.getBoundingClientRect();
  const middle = (node) => {
    const b = node.getBoundingClientRect();
    return { text: node.textContent.trim(), x: (b.left + b.right) / 2, y: (b.top + b.bottom) / 2 };
  };
  const ticks = (root, which) => [...root.querySelectorAll(`.${which}tick text`)].map(middle);
  return Object.entries(gd._fullLayout._plots).map(([id, plot]) => {
    const { xaxis, yaxis } = plot, root = gd.querySelector(`.subplot.${id}`);
    const at = (x, y) => [page.left + xaxis._offset + x, page.top + yaxis._offset + y];
    const cells = [], lines = [], marks = [];
    for (const drawn of gd.calcdata) {
      const trace = drawn[0].trace;
      if (trace.xaxis + trace.yaxis !== id || trace.visible !== true) continue;
      if (trace.type !== "heatmap") continue;
      const { x, y, z } = drawn[0];
      z.forEach((row, i) => row.forEach((value, j) => {
        // A quarter into the cell, beside its mark.
        const inX = x[j] + 0.25 * (x[j + 1] - x[j]), inY = y[i] + 0.25 * (y[i + 1] - y[i]);
        const midX = (x[j] + x[j + 1]) / 2, midY = (y[i] + y[i + 1]) / 2;
        cells.push({ pixel: at(xaxis.c2p(inX), yaxis.c2p(inY)), middle: at(xaxis.c2p(midX), yaxis.c2p(midY)) });
      }));
    }
    for (const path of root.querySelectorAll(".scatterlayer path.js-line")) {
      const numbers = path.getAttribute("d").match(/-?[\\d.]+(?:e-?\\d+)?/g).map(Number), points = [];
      for (let k = 0; k + 1 < numbers.length; k += 2) points.push(at(numbers[k], numbers[k + 1]));
      const style = getComputedStyle(path);
      if (parseFloat(style.strokeWidth) > 0 && parseFloat(style.strokeOpacity) > 0) lines.push(points);
    }
    for (const mark of root.querySelectorAll(".scatterlayer .points path")) {
      const [x, y] = mark.getAttribute("transform").match(/-?[\\d.]+/g).map(Number);
      marks.push(at(x, y));
    }
    return { id, xs: ticks(root, "x"), ys: ticks(root, "y"), cells, lines, marks };
  });
}"""


@dataclass
class Picture:
    """Panels of a page, and its pixels."""

    panels: list
    pixels: np.ndarray

    def colour(self, at):
        x, y = (round(value) for value in at)
        return self.pixels[y, x, :3].astype(int)


def pictures(figure, folder):
    """The page of a figure at each width."""
    image = pytest.importorskip("PIL.Image")
    with visited(save_html(figure, folder / "page.html"), width=WIDTHS[0], height=1400) as page:
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 1400})
            page.wait_for_timeout(1000)
            shot = image.open(io.BytesIO(page.screenshot()))
            yield Picture(page.evaluate(PANELS), np.asarray(shot.convert("RGB")))


def colour_at(scale, share):
    """The colour of a scale at a share of its length, [red green blue]."""
    places, colours = zip(*scale, strict=True)
    parts = [hex_to_rgb(one) if one.startswith("#") else unlabel_rgb(one) for one in colours]
    return np.array([np.interp(share, places, channel) for channel in zip(*parts, strict=True)])


def nearest(ticks, coordinate, value, within=6):
    """The label whose middle is at a coordinate; None if there is none."""
    near = [tick for tick in ticks if abs(tick[coordinate] - value) <= within]
    assert len(near) <= 1, near
    return near[0]["text"] if near else None


def check_cells(figure, folder, expected, n_labelled):
    """Every cell that has both labels has the colour of ``expected[panel, row label, column
    label]``, and that of no measurement where there is no value.
    """
    axis = figure.layout.coloraxis
    largest = axis.cmax
    for picture in pictures(figure, folder):
        seen = 0
        for number, panel in enumerate(picture.panels):
            for cell in panel["cells"]:
                x, y = cell["middle"]
                labels = nearest(panel["ys"], "y", y), nearest(panel["xs"], "x", x)
                if None in labels:
                    continue
                value = expected.get((number, *labels), np.nan)
                wanted = np.array(hex_to_rgb(NOT_MEASURED))
                if np.isfinite(value):
                    wanted = colour_at(axis.colorscale, (value + largest) / (2 * largest))
                off = np.abs(picture.colour(cell["pixel"]) - wanted)
                assert off.max() <= 12, (labels, value, off)
                seen += 1
        assert seen >= n_labelled


def values_at(ticks, coordinate):
    """Function from a pixel to the value that numeric labels give it."""
    known = [(tick[coordinate], float(tick["text"].replace("−", "-"))) for tick in ticks]
    known.sort()
    assert len(known) >= 2
    pixels, values = map(np.array, zip(*known, strict=True))
    slope, start = np.polyfit(pixels, values, 1)
    assert np.allclose(slope * pixels + start, values, atol=0.02 * np.ptp(values))
    return lambda pixel: slope * pixel + start


def check_lines(figure, folder, curves):
    """Every curve of a panel is drawn: the corners of one line are its values."""
    for picture in pictures(figure, folder):
        for panel, wanted in zip(picture.panels, curves, strict=True):
            ys = panel["ys"] or picture.panels[0]["ys"]  # panels side by side share them
            xs = panel["xs"] or picture.panels[-1]["xs"]
            at_x, at_y = values_at(xs, "x"), values_at(ys, "y")
            lines = [[(at_x(x), at_y(y)) for x, y in line] for line in panel["lines"]]
            for curve in wanted:
                layers = np.array(list(curve))
                values = np.array(list(curve.values()))
                scale = max(np.ptp(values), 0.05 * np.abs(values).max())
                offs = []
                for line in lines:
                    x, y = np.array(line).T
                    if len(x) < 2 or abs(x[0] - layers[0]) > 0.1 or abs(x[-1] - layers[-1]) > 0.1:
                        continue
                    assert all(a < b + 1e-6 for a, b in pairwise(x)) or len(x) > len(layers)
                    offs.append(np.abs(np.interp(layers, x, y) - values).max() / scale)
                assert offs and min(offs) < 0.03, (layers, values, offs)


@pytest.fixture(scope="module")
def grids(tiny_model):
    return [
        al.patch_sweep(tiny_model("gpt2"), al.load_pairs(MANY), site="z", progress=False, **way)
        for way in ({"by": "head", "layers": [0, 2]}, {"by": "head", "layers": [1, 2]})
    ]


def test_cells_of_runs_with_other_layers_are_at_their_own(grids, tmp_path):
    figure = al.plot_heatmap(grids)
    expected = {}
    for number, one in enumerate(grids):
        grid = one.grid()
        for row, layer in enumerate(grid.layers):
            for column, place in enumerate(grid.places):
                head = place.removeprefix("head:")
                expected[number, str(layer), head] = grid.values[row, column]
    check_cells(figure, tmp_path, expected, n_labelled=4)


def test_cells_of_anchors_and_layers(tmp_path):
    frame = swap_frame({"org/m": 8}, ("popqa", "nq"), ("exact_question", "subject", "pre_answer"))
    own = frame[frame["control"] == "none"]
    datasets = list(dict.fromkeys(own["dataset"]))
    expected = {
        (datasets.index(row.dataset), row.anchor, str(row.layer)): row.effect
        for row in own.itertuples()
    }
    check_cells(al.plot_heatmap(frame), tmp_path, expected, n_labelled=12)


def test_cells_of_edges(tiny_model, tmp_path):
    sweep = al.edge_sweep(
        tiny_model("gpt2"),
        pairs_of(4),
        senders="heads",
        receivers=("a2.*.q", "logits"),
        method="attribution",
        controls="none",
        progress=False,
    )
    matrix = sweep.matrix()
    expected = {
        (0, sender, receiver): matrix.values[i, j]
        for i, sender in enumerate(matrix.senders)
        for j, receiver in enumerate(matrix.receivers)
    }
    figure = al.plot_heatmap(sweep)
    drawn = next(trace for trace in figure.data if trace.type == "heatmap")
    largest = np.nanmax(np.abs(matrix.values))
    figure.update_layout(
        coloraxis={"colorscale": drawn.colorscale, "cmin": -largest, "cmax": largest}
    )
    check_cells(figure, tmp_path, expected, n_labelled=4)


def curves_of(frame, column="effect", **keys):
    """Layer -> value of each curve."""
    own = pick(frame, **keys)
    return [
        dict(zip(rows["layer"], rows[column], strict=True))
        for _, rows in own.groupby(["anchor", "pathway"], sort=False)
    ]


def test_curves_pass_through_their_values(tmp_path):
    frame = swap_frame({"org/m": 8}, ("popqa",))
    check_lines(plot_curves(frame), tmp_path, [curves_of(frame, control="none")])


def test_auc_and_sizes_of_pathways(tmp_path):
    frame = knockout_frame({"org/m": 8}, ("popqa",))
    auc = curves_of(frame, "auc", pathway="All", control="none")
    check_lines(plot_probe_auc(frame), tmp_path, [auc])
    sizes = [
        curve
        for pathway in ("Q-Anchored", "A-Anchored")
        for curve in curves_of(frame, "n", pathway=pathway, control="none")
    ]
    check_lines(plot_pathway_sizes(frame), tmp_path, [sizes])


def test_an_example_has_its_curves(tiny_model, tmp_path):
    sweep = al.patch_sweep(
        tiny_model("gpt2"), al.load_pairs(MANY), by="layer", controls="none", progress=False
    )
    name = sweep.example_ids[0]
    own = sweep.samples().query("example_id == @name and control == 'none'")
    curve = dict(zip(own["layer"], own["effect"], strict=True))
    check_lines(sweep.plot_example(name), tmp_path, [[curve]])


def test_a_circuit_has_a_line_for_each_edge_and_a_box_for_each_node(tmp_path):
    figure = al.plot_circuit(make_circuit())
    nodes = {end for edge in EFFECTS for end in edge.split(" -> ")}
    heads = {".".join(node.split(".")[:2]) if node.startswith("a") else node for node in nodes}
    drawn = {note.text for note in figure.layout.annotations if note.hovertext}
    assert drawn == heads
    for picture in pictures(figure, tmp_path):
        (panel,) = picture.panels
        assert len(panel["lines"]) >= len(EFFECTS)
