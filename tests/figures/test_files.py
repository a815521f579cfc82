"""save_figure: what the suffix says, in the place that was named; pictures where there is a
browser, a cure where there is none.
"""

import math
import shutil
from importlib.util import find_spec

import plotly.graph_objects as go
import pytest

from anchorlens.errors import InputError
from anchorlens.figures import export
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.export import save_figure, save_html
from anchorlens.figures.layout import fit_figure

from .synthetic import knockout_contrasts, knockout_frame, swap_frame

FRAME = swap_frame({"m": 3}, ("popqa",))
MODELS = {"Qwen/Qwen3-8B": 4, "Qwen/Qwen3-32B": 6}


@pytest.mark.parametrize("name", ["f.jpg", "f.json", "f", "f.html.gz"])
def test_other_suffixes_are_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(InputError) as told:
        save_figure(plot_curves(FRAME), tmp_path / name)
    assert (
        str(told.value)
        == f"path={name!r}: unknown format. End the name with .html, .png, .svg or .pdf."
    )
    with pytest.raises(InputError, match=r"must end with \.html\. Use save_figure"):
        save_html(plot_curves(FRAME), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_without_kaleido_or_a_browser_the_cure_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="kaleido"):
        save_figure(plot_curves(FRAME), tmp_path / "f.png")
    monkeypatch.setattr(export, "find_spec", lambda name: name)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        InputError,
        match="Chromium",
    ):
        save_figure(plot_curves(FRAME), tmp_path / "f.pdf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("width", "columns"), [(390, 1), (500, 2), (1000, 4), (1920, 4)])
def test_a_picture_is_fitted_to_its_width_as_if_drawn_for_it_without_buttons(width, columns):
    frame, contrasts = knockout_frame(MODELS), knockout_contrasts(MODELS)
    page = plot_curves(frame, contrast_tables=contrasts, controls=True)
    made, wanted = (
        fit_figure(page, width),
        plot_curves(frame, contrast_tables=contrasts, width=width, controls=True),
    )
    assert len(page.layout.updatemenus) == len(wanted.layout.updatemenus) == 1
    drawn = wanted.to_plotly_json()
    assert made == go.Figure(
        {"data": drawn["data"], "layout": drawn["layout"] | {"updatemenus": []}}
    )
    assert (made.layout.legend.entrywidth, made.layout.legend2.entrywidth) == (
        1 / columns,
        1 / columns,
    )
    assert made.layout.margin.b == 58 + sum(19 * math.ceil(n / columns) + 6 for n in (8, 5))
    assert math.isclose(made.layout.legend.y * made.layout.height, 19 * math.ceil(5 / columns) + 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")]
)
def test_pictures(tmp_path, suffix, begins):
    if find_spec("kaleido") is None or not any(
        shutil.which(name) for name in ("chromium", "google-chrome")
    ):
        pytest.skip("kaleido or Chromium is not installed")
    path = save_figure(plot_curves(FRAME), tmp_path / f"f.{suffix}", width=800, scale=2)
    content = path.read_bytes()
    assert content.startswith(begins)
    if suffix == "png":
        assert int.from_bytes(content[16:20], "big") == 1600
    if suffix == "svg":
        assert b"A-Anchored swap (PopQA)" in content
