"""Save figures as HTML files that need no network, or as pictures, which kaleido draws with
Chromium or Chrome.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape, unescape
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from re import sub
from typing import Any

import plotly.graph_objects as go

from anchorlens.display import is_utf8, short_repr
from anchorlens.errors import InputError
from anchorlens.figures.layout import fit_figure
from anchorlens.paths import resolve_path
from anchorlens.runs.checksums import SUMS, list_files

PICTURES = (".png", ".svg", ".pdf")
_BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
)
WIDTH = 1200  # default width of a picture in pixels
SCALE = 3  # points of a PNG for each pixel
_CURE = "An .html file needs neither; its camera button saves a PNG."
PAGES = (".html", ".htm")
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
html, body {{ margin: 0; background: {paper}; }}
#anchorlens-figure {{ min-width: {least}px; }}
details {{
  max-width: 75ch;
  margin: 0 20px 24px;
  font: 14px/1.5 Helvetica, Arial, sans-serif;
  color: {ink};
}}
summary {{ cursor: pointer; }}
/* Plotly's focus ring is invisible on black. */
.js-plotly-plot .plotly .modebar-btn:focus-visible {{ outline: 2px solid #4c8dff !important; }}
</style>
</head>
<body>
{figure}
{caption}
</body>
</html>
"""
# Newer versions of plotly have an upload button; results may be private.
CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "toImageButtonOptions": {"filename": "anchorlens", "scale": 3},
}
# Width in pixels below which a page scrolls.
_LEAST_WIDTH = 360


def save_html(fig: go.Figure, path: str | os.PathLike[str]) -> Path:
    """Save a figure as an HTML page that needs no network; it contains plotly's script (about 5
    MB).

    An existing page is replaced atomically. The same figure gives the same bytes.

    Examples:
        >>> import anchorlens as al
        >>> figure = al.plot_curves("runs/swap")  # doctest: +SKIP
        >>> al.save_html(figure, "swap.html")  # doctest: +SKIP

    Args:
        fig: Any plotly figure.
        path: File to write, in an existing directory.

    Returns:
        The file, as an absolute path.

    Raises:
        InputError: If the directory does not exist, or ``path`` is a directory or does not end with
            ``.html`` or ``.htm``.
    """
    target = check_target(fig, path, "save_html")
    if target.suffix.lower() not in PAGES:
        raise InputError(
            f"path={target.name!r} must end with .html. Use save_figure for PNG, SVG or PDF.",
            argument="path",
        )
    return save_file(target, html_page(fig))


def check_target(fig: object, path: object, caller: str) -> Path:
    """Check the arguments of ``caller``, and return the resolved path."""
    if not isinstance(fig, go.Figure):
        raise InputError(
            f"fig={short_repr(fig)}: {caller} takes a plotly figure, such as plot_curves returns.",
            argument="fig",
        )
    if not isinstance(path, str | os.PathLike):
        raise InputError(
            f"path={short_repr(path)}: {caller} takes the path of a file.", argument="path"
        )
    target = resolve_path(path, "path", "a file")
    if target.is_dir():
        raise InputError(
            f"path={str(target)!r} is a directory. Give a file, such as {target / 'figure.html'}.",
            argument="path",
        )
    if not target.parent.is_dir():
        raise InputError(
            f"path={str(target)!r}: the directory {target.parent} does not exist. Create it first.",
            argument="path",
        )
    return target


def save_file(target: Path, content: str | bytes) -> Path:
    """Write a file atomically.

    Raises:
        InputError: If it is a file of a run, or the system refuses it; names the path.
    """
    with _name_errors(target):
        _check_no_run_file(target)
        return write_file(target, content)


def check_place(path: object) -> None:
    """Raise InputError if a file cannot be written; tested by a file without a name, since
    permission bits are not reliable.
    """
    target = resolve_path(path, "path", "a file")
    if target.parent.is_dir():
        with _name_errors(target):
            _check_no_run_file(target)
            tempfile.TemporaryFile(dir=target.parent).close()


def _check_no_run_file(target: Path) -> None:
    """Raise InputError if a path is that of a file of a run, whose checksum would no longer
    hold.
    """
    if (target.parent / SUMS).is_file() and target.name in list_files(target.parent):
        raise InputError(
            f"path={str(target)!r}: a file of the run in this folder, listed in its {SUMS}. Choose"
            " another path.",
            argument="path",
        )


@contextmanager
def _name_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as why:
        problem = (
            f"path={str(target)!r} cannot be written ({why.strerror or why}). Choose another path."
        )
        raise InputError(problem, argument="path") from why


def write_file(target: Path, content: str | bytes) -> Path:
    """Write a file atomically, by renaming a temporary file in the same directory.

    Raise OSError if the system refuses it.
    """
    if isinstance(content, str) and not is_utf8(content):
        raise InputError(
            f"{target.name}: its text, such as the title, is not UTF-8: it has an unpaired"
            " surrogate. Remove it."
        )
    # The process id separates two writers of one path; the last one wins.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content.encode("utf8") if isinstance(content, str) else content)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def layout_script(plot: str) -> str:
    """Return the script that fits a figure to the page width and makes its legend usable with the
    keyboard.

    ``plot`` is a JavaScript expression for the element of the figure or its id.
    """
    return (
        files("anchorlens.figures")
        .joinpath("page.js")
        .read_text(encoding="utf8")
        .replace('"{plot_id}"', plot)
    )


def html_page(fig: go.Figure) -> str:
    name = "anchorlens-figure"
    script = layout_script(f'"{name}"')
    inner = fig.to_html(
        full_html=False, include_plotlyjs=True, div_id=name, post_script=script, config=dict(CONFIG)
    )
    layout = fig.to_dict()["layout"]
    text = layout.get("title", {}).get("text") or "anchorlens figure"
    plain = " ".join(unescape(sub(r"<[^>]*>", " ", text.split("<br>")[0])).split())
    least = min(_LEAST_WIDTH, layout.get("width") or _LEAST_WIDTH)
    paper = layout.get("paper_bgcolor") or "white"
    told = caption_of(fig)
    caption = (
        f"<details><summary>Caption</summary><p>{escape(told, quote=False)}</p></details>"
        if told
        else ""
    )
    ink = layout.get("font", {}).get("color") or "#222222"
    return _PAGE.format(
        title=escape(plain, quote=False),
        paper=paper,
        ink=ink,
        least=least,
        figure=inner,
        caption=caption,
    )


def caption_of(fig: go.Figure) -> str:
    """Return the caption of a figure of ``plot_curves`` or of a heatmap of patch sweeps; "" for
    other figures.
    """
    meta = fig.to_dict()["layout"].get("meta", {})
    return str(meta.get("caption") or meta.get("anchorlens", {}).get("caption", ""))


def save_figure(
    fig: go.Figure,
    path: str | os.PathLike[str],
    *,
    width: int | None = None,
    height: int | None = None,
    scale: float | None = None,
) -> Path:
    """Save a figure as ``.html`` (a page that needs no network), ``.png``, ``.svg`` or ``.pdf``.

    Examples:
        >>> import anchorlens as al
        >>> figure = al.plot_curves("runs/swap", style="paper")  # doctest: +SKIP
        >>> al.save_figure(figure, "swap.pdf", width=900)  # doctest: +SKIP

    Args:
        fig: Any plotly figure. A picture has no buttons; below 900 pixels the panels of
            ``plot_curves`` stand below each other.
        path: File to write, in an existing directory; the suffix selects the format. An existing
            file is replaced.
        width: Width of a picture in pixels. If None, that of the figure, else 1200.
        height: Height of a picture in pixels. If None, that of the figure.
        scale: PNG pixels per figure pixel. If None, 3.

    Returns:
        The file, as an absolute path.

    Raises:
        InputError: If the suffix is unknown, the directory does not exist, or kaleido or a browser
            is missing for a picture.
    """
    target = check_target(fig, path, "save_figure")
    kind = check_kind(target)
    return (
        save_html(fig, target)
        if kind in PAGES
        else save_file(target, _picture(fig, kind, width, height, scale))
    )


def check_kind(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a figure file; raise if the format is unknown or its dependencies are
    missing.
    """
    kind = Path(path).suffix.lower()
    if kind not in PAGES + PICTURES:
        raise InputError(
            f"path={Path(path).name!r}: unknown format. End the name with .html, .png, .svg or"
            " .pdf.",
            argument="path",
        )
    if kind in PICTURES:
        _browser(kind)
    return kind


def _picture(
    fig: go.Figure, kind: str, width: int | None, height: int | None, scale: float | None
) -> bytes:
    browser = _browser(kind)
    kaleido = import_module("kaleido")
    layout: Any = fig.layout  # None in plotly's types
    wide = int(width or layout.width or WIDTH)
    drawn: Any = fit_figure(fig, wide)
    options: dict[str, Any] = {
        "format": kind[1:],
        "width": wide,
        "height": height or drawn.layout.height or 700,
    }
    if kind == ".png":
        options["scale"] = scale or SCALE
    try:
        return kaleido.calc_fig_sync(drawn, opts=options, kopts={"path": browser, "n": 1})
    except (OSError, RuntimeError, ValueError, kaleido.errors.KaleidoError) as why:
        raise InputError(f"The browser {browser} cannot draw the picture: {why} {_CURE}") from why


def _browser(kind: str) -> str:
    if find_spec("kaleido") is None:
        raise InputError(f"A {kind} file needs kaleido: pip install 'anchorlens[images]'. {_CURE}")
    named = os.environ.get("BROWSER_PATH", "")
    found = next(
        (path for name in (named, *_BROWSERS) if name and (path := shutil.which(name))), None
    )
    if found is None:
        raise InputError(
            f"A {kind} file needs Chromium or Chrome, and none was found. Install one (apt install"
            f" chromium, or plotly_get_chrome), or set the variable BROWSER_PATH. {_CURE}"
        )
    return found
