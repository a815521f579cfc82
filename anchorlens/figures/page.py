"""A figure as one HTML file that needs no network."""

import os
from html import escape, unescape
from importlib.resources import files
from pathlib import Path
from re import sub

import plotly.graph_objects as go

from anchorlens.errors import InputError
from anchorlens.kinds import described

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
CONFIG = {
    "displaylogo": False,
    "responsive": True,
    # Newer plotly shows a button that uploads the figure; results may be private.
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "toImageButtonOptions": {"filename": "anchorlens", "scale": 3},
}
"""How plotly behaves on a page."""
# Two panels and their legend need so much; a narrower window scrolls, and a telephone zooms out.
_LEAST_WIDTH = 700


def save_html(fig: go.Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as a page that a browser shows without network: plotly's script (about 5 MB) is inside.

    The page is written under a temporary name beside ``path`` and then renamed, so a reader never sees half a page, and a page
    of that name is replaced. The same figure gives the same bytes.

    Args:
        fig: Any plotly figure.
        path: Where the page goes; its directory must exist.

    Returns:
        ``path`` as a Path.

    Raises:
        InputError: the directory does not exist, ``path`` is a directory, or it does not end with ``.html`` or ``.htm``.
    """
    target = check_target(fig, path, "save_html")
    if target.suffix.lower() not in PAGES:
        raise InputError(f"{target.name} does not end with .html. Name it so, or call write_figure for a PNG, SVG or PDF.")
    return written(target, _page(fig))


def check_target(fig: object, path: object, caller: str) -> Path:
    """The file that a figure may be written to.

    Raises:
        InputError: no figure, no path, a directory, or a directory that does not exist.
    """
    if not isinstance(fig, go.Figure):
        raise InputError(f"{caller} writes a plotly figure, such as plot_curves gives; got {described(fig)}.")
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{caller} needs the path of a file; got {described(path)}.")
    target = Path(os.fspath(path))
    if target.is_dir():
        raise InputError(f"{target} is a directory. Name a file in it, such as {target / 'figure.html'}.")
    if not target.parent.is_dir():
        raise InputError(f"There is no directory {target.parent} to write {target.name} into. Create it first.")
    return target


def written(target: Path, content: str | bytes) -> Path:
    """Write a file under a temporary name beside it, and rename that: nobody ever reads half of it."""
    # The process id keeps two writers of one path apart; the last to finish wins with a whole file.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if isinstance(content, str):
            temporary.write_text(content, encoding="utf8")
        else:
            temporary.write_bytes(content)
        temporary.replace(target)  # os.replace: atomic
    finally:
        temporary.unlink(missing_ok=True)
    return target


def inner_html(fig: go.Figure, name: str, *, plotlyjs: bool = True) -> str:
    """A figure as a part of a page, with the script that arranges it for the page's width.

    Args:
        fig: The figure.
        name: Id of its element. A fixed one instead of plotly's random one: equal figures give equal bytes.
        plotlyjs: Put plotly's own script in; a page needs it once.
    """
    return fig.to_html(
        full_html=False, include_plotlyjs=plotlyjs, div_id=name, post_script=arranging(f'"{name}"'), config=CONFIG
    )


def arranging(plot: str) -> str:
    """The script that arranges a drawn figure for the width of its page, and gives its legend to the keyboard.

    Args:
        plot: In JavaScript, the figure's element or its id.
    """
    return files("anchorlens.figures").joinpath("page.js").read_text(encoding="utf8").replace('"{plot_id}"', plot)


def _page(fig: go.Figure) -> str:
    inner = inner_html(fig, "anchorlens-figure")
    layout = fig.to_dict()["layout"]
    text = layout.get("title", {}).get("text") or "anchorlens figure"
    plain = " ".join(unescape(sub(r"<[^>]*>", " ", text.split("<br>")[0])).split())
    least = min(_LEAST_WIDTH, layout.get("width") or _LEAST_WIDTH)
    return _PAGE.format(
        title=escape(plain, quote=False), paper=layout.get("paper_bgcolor") or "white", least=least, figure=inner
    )
