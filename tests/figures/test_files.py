"""write_figure: what the suffix says, in the place that was named; pictures where there is a browser, a cure where there is none."""

import re
import shutil
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from anchorlens.cli.figure_command import figure_command
from anchorlens.errors import InputError
from anchorlens.figures import files
from anchorlens.figures.arranging import arranged
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.files import write_figure
from anchorlens.figures.page import save_html

from .synthetic import knockout_frame, swap_frame
from .test_target import legend

FRAME = swap_frame({"m": 3}, ("popqa",))


def test_pages_are_those_of_save_html(tmp_path):
    figure = plot_curves(FRAME)
    assert write_figure(figure, tmp_path / "a.HTM").read_bytes() == save_html(figure, tmp_path / "b.html").read_bytes()


@pytest.mark.parametrize("name", ["f.jpg", "f.json", "f", "f.html.gz"])
def test_other_suffixes_are_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(InputError) as told:
        write_figure(plot_curves(FRAME), tmp_path / name)
    assert str(told.value) == f"A figure cannot be written as {name!r}. End the name with .html, .png, .svg or .pdf."
    with pytest.raises(InputError, match=r"does not end with \.html\. Name it so, or call write_figure"):
        save_html(plot_curves(FRAME), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_the_command_refuses_before_it_reads_a_run(tmp_path):
    result = CliRunner().invoke(figure_command, ["no/such/run", "--out", str(tmp_path / "f.jpg")])
    assert isinstance(result.exception, InputError)
    assert "End the name with .html, .png, .svg or .pdf" in str(result.exception)


def test_without_kaleido_or_a_browser_the_cure_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=re.escape("needs kaleido, which is not installed: pip install 'anchorlens[images]'.")
    ):
        write_figure(plot_curves(FRAME), tmp_path / "f.png")
    monkeypatch.setattr(files, "find_spec", lambda name: name)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        InputError, match=r"drawn by Chromium or Chrome, and neither was found\. Install one \(apt install chromium"
    ):
        write_figure(plot_curves(FRAME), tmp_path / "f.pdf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("width", "columns"), [(390, 1), (500, 2), (1000, 4), (1920, 4)])
def test_a_picture_is_arranged_for_its_width(width, columns):
    figure = plot_curves(knockout_frame())
    made = arranged(figure, width)
    box, layout = made.layout.legend, made.layout
    assert (box.entrywidth, layout.width) == (1 / columns, width)
    rows = [(8 + columns - 1) // columns, (5 + columns - 1) // columns]
    assert layout.margin.b == 58 + sum(19 * n + 6 for n in rows)
    ranked = sorted(legend(made)[:8], key=lambda trace: trace.legendrank)
    names = [trace.name.removeprefix("Q-").removeprefix("A-") for trace in ranked]
    if columns > 1:  # a row of questions, and below it that of their answers
        assert names[:columns] == names[columns : 2 * columns]
    else:
        assert names[::2] == names[1::2]
    # Panels keep their height; the heading and the legend take what they need.
    panels = layout.height - layout.margin.t - layout.margin.b
    assert panels == figure.layout.height - figure.layout.margin.t - figure.layout.margin.b


def test_arranging_is_the_same_as_drawing_at_that_width():
    frame = knockout_frame()
    one, other = arranged(plot_curves(frame), 1000), plot_curves(frame, width=1000)
    assert one.layout.to_plotly_json() == other.layout.to_plotly_json()
    assert [t.legendrank for t in one.data] == [t.legendrank for t in other.data]


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")])
def test_pictures(tmp_path, suffix, begins):
    if find_spec("kaleido") is None or not any(shutil.which(name) for name in ("chromium", "google-chrome")):
        pytest.skip("kaleido or Chromium is not installed")
    path = write_figure(plot_curves(FRAME), tmp_path / f"f.{suffix}", width=800, scale=2)
    content = path.read_bytes()
    assert content.startswith(begins)
    if suffix == "png":
        assert int.from_bytes(content[16:20], "big") == 1600
    if suffix == "svg":
        assert b"A-Anchored swap (PopQA)" in content
