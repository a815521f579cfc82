"""Make the notebooks from their scripts, with outputs: `python examples/notebooks/make.py [2_swap
...]`.

A notebook is its script (jupytext's percent format), run from top to bottom in an empty directory.
Outputs that depend on machine or time are removed: progress bars, paths, times. Warnings keep their
sentence. Figures and pages become small pictures, which keep the file small and need no JavaScript.
The same code on the same machine gives the same file.

Needs `pip install 'anchorlens[notebook,images]'` and a Chromium or Chrome.
"""

import argparse
import base64
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import plotly.graph_objects as go
from nbclient import NotebookClient
from PIL import Image

import anchorlens as al

HERE = Path(__file__).resolve().parent
NAMES = tuple(sorted(script.stem for script in HERE.glob("[0-9]_*.py")))
SECONDS = 900
"""Time limit of a cell."""
PICTURE_WIDTH, PAGE_SIZE = 820, (1000, 700)

_PLOTLY, _WIDGET = "application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"
_WARNING = re.compile(r"^.*?:\d+: (?:\w+\.)*(?:User|Runtime|Future)Warning: (.*)$")
_FRAME = re.compile(r'<iframe.*?src="([^"?]+)', re.DOTALL)
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def read(name: str) -> Any:
    """Return a script as a notebook without outputs; the same script gives the same notebook."""
    notebook = jupytext.read(HERE / f"{name}.py")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        cell.metadata = {}
    notebook.metadata = {
        "jupytext": {"formats": "ipynb,py:percent"},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def executed(name: str, folder: Path, *, pictures: bool = True) -> Any:
    """Run the notebook of a script in ``folder`` and return it with its outputs.

    Args:
        name: Name of the script, without the suffix.
        folder: Working directory of the run.
        pictures: If False, pictures are empty and no browser is needed.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell fails.
    """
    notebook = read(name)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [
                kept for output in cell.outputs for kept in _kept(output, folder, pictures)
            ]
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def _kept(output: Any, folder: Path, pictures: bool) -> list[Any]:
    """Return the stored form of an output: the output, a picture of it, or nothing."""
    if output.output_type == "stream":
        text = output.text if output.name == "stdout" else _notes(output.text)
        return (
            [nbformat.v4.new_output("stream", name="stdout", text=_neutral(text, folder))]
            if text
            else []
        )
    if _WIDGET in output.get("data", {}):
        return []  # a progress bar
    if _PLOTLY in output.get("data", {}):
        figure = go.Figure(output.data[_PLOTLY]["data"], output.data[_PLOTLY]["layout"])
        output.data = {
            "image/png": _picture(figure, folder) if pictures else "",
            "text/plain": f"<figure: {_title(figure)}>",
        }
    elif frame := _FRAME.search(output.get("data", {}).get("text/html", "")):
        output.data = {
            "image/png": _photograph(folder / frame[1], folder) if pictures else "",
            "text/plain": f"<page: {frame[1]}>",
        }
    else:
        output.data = {kind: _neutral(text, folder) for kind, text in output.data.items()}
    output.metadata = {}
    return [output]


def _notes(text: str) -> str:
    """Return the sentences of warnings without progress bars and other text."""
    found = [match[1] for line in text.splitlines() if (match := _WARNING.match(line))]
    return "".join(f"Note: {sentence}\n" for sentence in found)


def _neutral(text: str, folder: Path) -> str:
    return text.replace(f"{folder}/", "").replace(str(folder), ".")


def _title(figure: go.Figure) -> str:
    text = str(figure.to_dict()["layout"].get("title", {}).get("text", ""))
    return re.sub(r"<[^>]*>", "", text.partition("<br>")[0]).strip() or "without a title"


def _picture(figure: go.Figure, folder: Path) -> str:
    return _small(al.save_figure(figure, folder / ".figure.png", width=PICTURE_WIDTH, scale=1))


def _small(picture: Path) -> str:
    """Return a picture in 64 colours, base64-encoded."""
    made = io.BytesIO()
    Image.open(picture).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(
        made, "PNG", optimize=True
    )
    return base64.b64encode(made.getvalue()).decode("ascii")


def _photograph(page: Path, folder: Path) -> str:
    """Return a screenshot of the top of a page."""
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise SystemExit(
            "A picture of a page needs Chromium or Chrome. Install one (apt install chromium)."
        )
    path, (width, height) = folder / ".page.png", PAGE_SIZE
    flags = (
        "--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run"
        " --disable-background-networking"
    )
    command = [
        browser,
        *flags.split(),
        f"--user-data-dir={folder / '.browser'}",
        f"--window-size={width},{height}",
    ]
    command += ["--virtual-time-budget=10000", f"--screenshot={path}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
    return _small(path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)} (default: all)"
    )
    names = parser.parse_args(arguments).names or NAMES
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"There is no script {', '.join(unknown)}. There are {', '.join(NAMES)}.")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(name, Path(folder).resolve())
        target = HERE / f"{name}.ipynb"
        nbformat.write(notebook, target)
        print(f"{target.name}: {len(notebook.cells)} cells, {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    sys.exit(main())
