"""The page that save_html writes."""

import re
from pathlib import Path

import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.export import save_figure, save_html

from .synthetic import swap_frame


def small():
    return plot_curves(swap_frame({"m": 3}, ("popqa",)), title="A & <b>B</b>")


def test_page_is_whole_and_asks_for_nothing_from_a_network(tmp_path):
    path = save_html(small(), tmp_path / "figure.html")
    page = path.read_text(encoding="utf8")
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    assert re.findall(r"<(?:script|link|img|iframe)[^>]*\s(?:src|href)=", page) == []
    assert len(page) > 3_000_000  # plotly's script is inside
    assert "<title>A &amp; B</title>" in page
    # A button that uploads the figure has no place on a page of private results.
    assert re.search(r'"showSendToCloud":\s*false', page)


def test_same_figure_same_bytes_by_either_function_and_nothing_left_behind(tmp_path):
    first = save_figure(small(), tmp_path / "a.HTM").read_bytes()
    target = tmp_path / "b.html"
    target.write_text("an older page")
    assert save_html(small(), str(target)) == target
    assert target.read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.HTM", "b.html"]


def test_a_title_that_is_not_utf8_is_refused(tmp_path):
    with pytest.raises(InputError, match="surrogate"):
        save_html(
            plot_curves(swap_frame({"m": 3}, ("popqa",)), title="a\udcff"), tmp_path / "a.html"
        )
    assert list(tmp_path.iterdir()) == []


def test_failed_write_keeps_the_older_page(tmp_path, monkeypatch):
    target = tmp_path / "figure.html"
    target.write_text("an older page")

    def full(self, content):
        with self.open("wb") as file:
            file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="No space left"):
        save_html(small(), target)
    assert target.read_bytes() == b"an older page"
    assert [path.name for path in tmp_path.iterdir()] == ["figure.html"]


def test_places_where_no_page_can_be(tmp_path):
    with pytest.raises(InputError, match="is a directory"):
        save_html(small(), tmp_path)
    with pytest.raises(InputError, match="nowhere"):
        save_html(small(), tmp_path / "nowhere" / "f.html")
