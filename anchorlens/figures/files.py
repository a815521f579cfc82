"""A figure as a file: a page, or a picture whose kind the suffix names.

Pictures are drawn by kaleido, which needs a Chromium or Chrome. Both are looked for only when a picture is asked for.
"""

import os
import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from anchorlens.errors import InputError
from anchorlens.figures.arranging import arranged
from anchorlens.figures.page import PAGES, check_target, save_html, written

PICTURES = (".png", ".svg", ".pdf")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
# Pixels of a picture whose figure leaves the width to its page, and how many points a PNG has for each.
WIDTH, SCALE = 1200, 3


def write_figure(
    fig: go.Figure,
    path: str | os.PathLike[str],
    *,
    width: int | None = None,
    height: int | None = None,
    scale: float | None = None,
) -> Path:
    """Write a figure as ``.html`` (a page that needs no network), ``.png``, ``.svg`` or ``.pdf``.

    Args:
        fig: Any plotly figure.
        path: Where it goes; the suffix says what it becomes. Its directory must exist; a file of that name is replaced.
        width: Pixels of a picture; None takes the figure's own, or 1200.
        height: Pixels of a picture; None takes the figure's own.
        scale: Points of a PNG for each of these pixels; None takes 3.

    Returns:
        ``path`` as a Path.

    Raises:
        InputError: another suffix, no such directory, or a picture where kaleido or a browser is missing.
    """
    target = check_target(fig, path, "write_figure")
    kind = check_kind(target)
    return save_html(fig, target) if kind in PAGES else written(target, _picture(fig, kind, width, height, scale))


def check_kind(path: str | os.PathLike[str]) -> str:
    """The suffix of a file that a figure can be written to. Called before long work, it saves that work.

    Raises:
        InputError: another suffix, or a picture where kaleido or a browser is missing.
    """
    name = Path(path).name
    kind = Path(path).suffix.lower()
    if kind not in PAGES + PICTURES:
        raise InputError(f"A figure cannot be written as {name!r}. End the name with .html, .png, .svg or .pdf.")
    if kind in PICTURES:
        _browser(kind)
    return kind


def _picture(fig: go.Figure, kind: str, width: int | None, height: int | None, scale: float | None) -> bytes:
    browser = _browser(kind)
    kaleido = import_module("kaleido")
    own: Any = fig.layout  # plotly's types allow for figures that have none
    wide = int(width or own.width or WIDTH)
    drawn = arranged(fig, wide)
    high: Any = drawn.layout
    options: dict[str, Any] = {"format": kind[1:], "width": wide, "height": height or high.height or 700}
    if kind == ".png":
        options["scale"] = scale or SCALE
    try:
        return kaleido.calc_fig_sync(drawn, opts=options, kopts={"path": browser, "n": 1})
    except (OSError, RuntimeError, ValueError, kaleido.errors.KaleidoError) as why:
        raise InputError(f"The browser {browser} did not draw the picture: {why} {_CURE}") from why


_CURE = "A page needs neither: give a name that ends with .html; its camera button saves a PNG."


def _browser(kind: str) -> str:
    """Path of the browser that draws pictures."""
    if find_spec("kaleido") is None:
        raise InputError(f"A {kind} file needs kaleido, which is not installed: pip install 'anchorlens[images]'. {_CURE}")
    named = os.environ.get("BROWSER_PATH", "")
    found = next((path for name in (named, *_BROWSERS) if name and (path := shutil.which(name))), None)
    if found is None:
        raise InputError(
            f"A {kind} file is drawn by Chromium or Chrome, and neither was found. Install one (apt install chromium, or "
            f"plotly_get_chrome), or name it in the variable BROWSER_PATH. {_CURE}"
        )
    return found
