"""Figures as HTML files that need no network, or as pictures, which kaleido draws with a Chromium or Chrome."""

import os
import shutil
from html import escape, unescape
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from re import sub
from typing import Any

import plotly.graph_objects as go

from anchorlens.display import short_repr
from anchorlens.errors import InputError
from anchorlens.figures.layout import fit_figure

PICTURES = (".png", ".svg", ".pdf")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
WIDTH, SCALE = 1200, 3  # default width of a picture in pixels, and points of a PNG for each pixel
_CURE = "A page needs neither: give a name that ends with .html; its camera button saves a PNG."
PAGES = (".html", ".htm")
_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>html, body {{ margin: 0; background: {paper}; }} #anchorlens-figure {{ min-width: {least}px; }}
/* Plotly's own ring cannot be seen on black. */
.js-plotly-plot .plotly .modebar-btn:focus-visible {{ outline: 2px solid #4c8dff !important; }}</style></head>
<body>
{figure}
</body>
</html>
"""
# Newer plotly shows a button that uploads the figure; results may be private.
CONFIG = {
    "displaylogo": False, "responsive": True, "showSendToCloud": False, "plotlyServerURL": "",
    "toImageButtonOptions": {"filename": "anchorlens", "scale": 3},
}  # fmt: skip
# Two panels and their legend need so much; a narrower window scrolls, and a telephone zooms out.
_LEAST_WIDTH = 700


def save_html(fig: go.Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as a page that needs no network: plotly's script (about 5 MB) is inside.

    An existing page is replaced in one step. The same figure gives the same bytes.

    Args:
        fig: Any plotly figure.
        path: File to write; its directory must exist.

    Returns:
        ``path`` as a Path.

    Raises:
        InputError: If the directory does not exist, or ``path`` is a directory or does not end with ``.html`` or ``.htm``.
    """
    target = check_target(fig, path, "save_html")
    if target.suffix.lower() not in PAGES:
        raise InputError(f"{target.name} does not end with .html. Name it so, or call save_figure for a PNG, SVG or PDF.")
    return write_file(target, _page(fig))


def check_target(fig: object, path: object, caller: str) -> Path:
    """Return the path of a file to write."""
    if not isinstance(fig, go.Figure):
        raise InputError(f"{caller} writes a plotly figure, such as plot_curves gives; got {short_repr(fig)}.")
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{caller} needs the path of a file; got {short_repr(path)}.")
    target = Path(os.fspath(path))
    if target.is_dir():
        raise InputError(f"{target} is a directory. Name a file in it, such as {target / 'figure.html'}.")
    if not target.parent.is_dir():
        raise InputError(f"There is no directory {target.parent} to write {target.name} into. Create it first.")
    return target


def write_file(target: Path, content: str | bytes) -> Path:
    """Write a file in one step, by renaming a temporary file beside it."""
    # The process id keeps two writers of one path apart; the last to finish wins with a whole file.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content.encode("utf8") if isinstance(content, str) else content)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def layout_script(plot: str) -> str:
    """Return the script that fits a drawn figure to the width of its page, and makes its legend usable with the keyboard.

    ``plot`` is a JavaScript expression for the figure's element or its id.
    """
    return files("anchorlens.figures").joinpath("page.js").read_text(encoding="utf8").replace('"{plot_id}"', plot)


def _page(fig: go.Figure) -> str:
    name = "anchorlens-figure"
    script = layout_script(f'"{name}"')
    inner = fig.to_html(full_html=False, include_plotlyjs=True, div_id=name, post_script=script, config=CONFIG)
    layout = fig.to_dict()["layout"]
    text = layout.get("title", {}).get("text") or "anchorlens figure"
    plain = " ".join(unescape(sub(r"<[^>]*>", " ", text.split("<br>")[0])).split())
    least = min(_LEAST_WIDTH, layout.get("width") or _LEAST_WIDTH)
    paper = layout.get("paper_bgcolor") or "white"
    return _PAGE.format(title=escape(plain, quote=False), paper=paper, least=least, figure=inner)


def save_figure(
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
        path: File to write; the suffix chooses the format. Its directory must exist; a file of that name is replaced.
        width: Pixels of a picture; if None, those of the figure, or 1200.
        height: Pixels of a picture; if None, those of the figure.
        scale: Points of a PNG for each of these pixels; if None, 3.

    Returns:
        ``path`` as a Path.

    Raises:
        InputError: If the suffix is unknown, the directory does not exist, or kaleido or a browser is missing for a picture.
    """
    target = check_target(fig, path, "save_figure")
    kind = check_kind(target)
    return save_html(fig, target) if kind in PAGES else write_file(target, _picture(fig, kind, width, height, scale))


def check_kind(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a file that a figure can be written to; refuse one that needs what is not installed."""
    kind = Path(path).suffix.lower()
    if kind not in PAGES + PICTURES:
        raise InputError(f"A figure cannot be written as {Path(path).name!r}. End the name with .html, .png, .svg or .pdf.")
    if kind in PICTURES:
        _browser(kind)
    return kind


def _picture(fig: go.Figure, kind: str, width: int | None, height: int | None, scale: float | None) -> bytes:
    browser = _browser(kind)
    kaleido = import_module("kaleido")
    own: Any = fig.layout  # plotly's types allow for figures that have none
    wide = int(width or own.width or WIDTH)
    drawn: Any = fit_figure(fig, wide)
    options: dict[str, Any] = {"format": kind[1:], "width": wide, "height": height or drawn.layout.height or 700}
    if kind == ".png":
        options["scale"] = scale or SCALE
    try:
        return kaleido.calc_fig_sync(drawn, opts=options, kopts={"path": browser, "n": 1})
    except (OSError, RuntimeError, ValueError, kaleido.errors.KaleidoError) as why:
        raise InputError(f"The browser {browser} did not draw the picture: {why} {_CURE}") from why


def _browser(kind: str) -> str:
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
