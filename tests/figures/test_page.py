"""The page that save_html writes, and what a browser makes of it."""

import re
import shutil
import struct
import subprocess
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.page import save_html

from .synthetic import knockout_frame, swap_frame
from .test_target import ENTRIES, TITLE


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


def test_same_figure_same_bytes_and_nothing_left_behind(tmp_path):
    first = save_html(small(), tmp_path / "a.html").read_bytes()
    target = tmp_path / "b.html"
    target.write_text("an older page")
    assert save_html(small(), str(target)) == target
    assert target.read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_failed_write_keeps_the_older_page(tmp_path, monkeypatch):
    target = tmp_path / "figure.html"
    target.write_text("an older page")

    def full(self, text, encoding=None):
        self.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        save_html(small(), target)
    assert target.read_bytes() == b"an older page"
    assert [path.name for path in tmp_path.iterdir()] == ["figure.html"]


def test_places_where_no_page_can_be(tmp_path):
    with pytest.raises(InputError, match=r"is a directory\. Name a file in it, such as .*figure\.html\.$"):
        save_html(small(), tmp_path)
    with pytest.raises(InputError, match=r"^There is no directory .*nowhere to write f\.html into\. Create it first\.$"):
        save_html(small(), tmp_path / "nowhere" / "f.html")


def screenshot(page: Path, folder: Path) -> list[bytes]:
    """Rows of RGB bytes of the page in a window of 1200 x 600."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    picture = folder / "page.png"
    quiet = (
        "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
    )
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        *quiet.split(),
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
    ]
    command += ["--window-size=1200,600", "--virtual-time-budget=8000", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return png_rows(picture.read_bytes())


def png_rows(data: bytes) -> list[bytes]:
    """RGB rows of an 8-bit PNG without interlacing (the PNG specification, section 9: filter types 0 to 4)."""
    width, height, depth, kind, _, _, interlace = struct.unpack(">IIBBBBB", data[16:29])
    assert (depth, interlace, kind in (2, 6)) == (8, 0, True)
    step, at, packed = (3 if kind == 2 else 4), 8, b""
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        packed += data[at + 8 : at + 8 + size] if data[at + 4 : at + 8] == b"IDAT" else b""
        at += size + 12
    raw, rows, above = zlib.decompress(packed), [], bytearray(width * step)
    for y in range(height):
        start = y * (width * step + 1)
        line = bytearray(raw[start + 1 : start + 1 + width * step])
        unfilter(raw[start], line, above, step)
        rows.append(np.frombuffer(bytes(line), np.uint8).reshape(-1, step)[:, :3].tobytes())
        above = line
    return rows


def unfilter(kind: int, line: bytearray, above: bytearray, step: int) -> None:
    if kind == 0:
        return
    if kind in (1, 2):  # sums modulo 256, of the pixels to the left or of the one above
        sent = np.frombuffer(bytes(line), np.uint8).reshape(-1, step)
        over = np.frombuffer(bytes(above), np.uint8).reshape(-1, step)
        line[:] = (np.cumsum(sent, axis=0, dtype=np.uint8) if kind == 1 else sent + over).tobytes()
        return
    for k in range(len(line)):
        left = line[k - step] if k >= step else 0
        corner = above[k - step] if k >= step else 0
        guess = left + above[k] - corner
        paeth = min((left, above[k], corner), key=lambda value: abs(guess - value))
        line[k] = (line[k] + (paeth if kind == 4 else (left + above[k]) // 2)) & 255


@pytest.mark.slow
def test_browser_shows_the_target_figure_whole(tmp_path):
    page = save_html(plot_curves(knockout_frame(), title=TITLE), tmp_path / "target.html")
    rows = screenshot(page, tmp_path)
    assert (len(rows), len(rows[0]) // 3) == (600, 1200)
    pixels = [Counter(row[k : k + 3] for k in range(0, len(row), 3)) for row in rows]
    everywhere = sum(pixels, Counter())
    assert everywhere[b"\xff\xff\xff"] < 0.95 * 600 * 1200
    below = sum(pixels[530:], Counter())
    for name, colour in ENTRIES:
        rgb = bytes.fromhex(colour[1:])
        # 30 wide and 2 high in the legend, half of it where dashed; more in the panels.
        assert below[rgb] >= 12, f"{name} does not stand in the legend at the foot of the page"
        assert everywhere[rgb] - below[rgb] >= 40, f"{name} is not drawn in its colour"
    # Nothing is cut off: the outermost rows and columns are blank.
    white = b"\xff\xff\xff"
    assert set(pixels[0]) == set(pixels[-1]) == {white}
    assert {row[:3] for row in rows} == {row[-3:] for row in rows} == {white}
