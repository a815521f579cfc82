"""Figures in a kernel: every output has an HTML form, so that exported pages show them."""

import re

import plotly.io as pio
import pytest

from anchorlens.figures.curves import plot_curves
from anchorlens.figures.diagnostics import plot_role_heatmap
from anchorlens.figures.grid_heatmap import plot_grids

from .browser import run
from .synthetic import swap_frame
from .test_grid_heatmap import Result

CELL = """
from tests.figures.synthetic import swap_frame
from anchorlens.figures.curves import plot_curves
plot_curves(swap_frame({"m": 3}, ("popqa",)))
"""
PLOTLY = "application/vnd.plotly.v1+json"


@pytest.mark.slow
def test_a_cell_of_a_kernel_has_plotlys_format_and_html(monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.delenv("PLOTLY_RENDERER", raising=False)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (output,) = (one for one in notebook.cells[0].outputs if PLOTLY in one.get("data", {}))
    page = output["data"]["text/html"]
    assert "plotly" in page
    assert "Q-Anchored swap (PopQA)" in page


@pytest.mark.slow
def test_a_page_that_cannot_fetch_plotlys_script_shows_title_and_cure(tmp_path, monkeypatch):
    """A page of an executed notebook, opened without network, was blank."""
    monkeypatch.setattr(pio.renderers, "_default_name", "plotly_mimetype")
    page = plot_curves(swap_frame({"m": 3}))._repr_mimebundle_()["text/html"]
    script = re.search(r"https://[^\"]*plotly[^\"]*\.js", page)
    assert script
    seen: dict[str, bool] = {}
    for name, source in (("missing", "missing.js"), ("there", "there.js")):
        (tmp_path / "there.js").write_text("window.Plotly = {newPlot: () => Promise.resolve()}")
        text = re.sub(r' integrity="[^"]*"| crossorigin="[^"]*"', "", page)
        file = tmp_path / f"{name}.html"
        file.write_text(text.replace(script[0], source))
        shown = run(tmp_path, 1280, "--dump-dom", file.as_uri())
        note = re.search(r"<p( hidden=\"\")?>ΔP by layer[^<]*al.save_html", shown)
        assert note
        seen[name] = note[1] is None
    assert seen == {"missing": True, "there": False}


@pytest.mark.parametrize(
    "draw",
    [
        lambda theme: plot_curves(swap_frame({"m": 3}), theme=theme),
        lambda theme: plot_role_heatmap(swap_frame({"m": 3}), theme=theme),
        lambda theme: plot_grids([Result()], theme=theme),
    ],
    ids=["curves", "roles", "grid"],
)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_kind_of_figure_has_html_and_another_renderer_is_kept(draw, theme, monkeypatch):
    figure = draw(theme)
    monkeypatch.setattr(pio.renderers, "_default_name", "plotly_mimetype")
    bundle = figure._repr_mimebundle_()
    assert set(bundle) == {PLOTLY, "text/html", "text/plain"}
    text = bundle["text/plain"]
    assert "al.save_html(figure, 'figure.html')" in text
    assert "<" not in text and len(text.splitlines()[0]) > 3  # a title without markup
    assert "<noscript>" in bundle["text/html"]
    monkeypatch.setattr(pio.renderers, "_default_name", "json")
    assert set(figure._repr_mimebundle_()) == {"application/json"}
