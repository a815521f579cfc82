"""The notebooks are their scripts, hold outputs that name no machine, and run."""

import ast
import base64
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.figures.browser import has_chromium
from tests.tiers import choose_cases

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
NAMES = sorted(script.stem for script in FOLDER.glob("[0-9]_*.py"))
# A path of any machine, an object's address, a duration.
_OWN = re.compile(
    r"/(?:tmp|home|root|work|usr|opt|var|mnt|Users)/|site-packages|[A-Z]:\\|\bat"
    r" 0x[0-9a-f]{6,}|\b\d+(?:\.\d+)? ?it/s\b"
)
_CELL_TYPES = ("code", "markdown")


def stored(name):
    nbformat = pytest.importorskip("nbformat")
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def kinds(notebook):
    """What each cell puts out: names of streams, and the forms in which values are shown."""
    return [
        [output.get("name") or sorted(output.data) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_every_script_has_its_notebook():
    assert len(NAMES) == 7
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_script(name):
    jupytext = pytest.importorskip("jupytext")
    script = jupytext.read(FOLDER / f"{name}.py")
    notebook = stored(name)
    assert {cell.cell_type for cell in notebook.cells} <= set(_CELL_TYPES)
    told, wanted = (
        [(cell.cell_type, cell.source) for cell in one.cells] for one in (notebook, script)
    )
    assert told == wanted, f"run `python examples/notebooks/make.py {name}`"


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_there_with_pictures_name_no_machine_and_stay_small(name):
    code = [cell for cell in stored(name).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), (
        "run from top to bottom, once"
    )
    found = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in found} <= {"stream", "execute_result", "display_data"}
    assert {output.name for output in found if output.output_type == "stream"} <= {"stdout"}
    shown = [
        (kind, str(value)) for output in found for kind, value in output.get("data", {}).items()
    ]
    assert {kind for kind, _ in shown} <= {"image/png", "text/html", "text/plain"}
    texts = [output.text for output in found if output.output_type == "stream"]
    texts += [value for kind, value in shown if kind != "image/png"]
    assert [text for text in texts if _OWN.search(text)] == []
    pictures = [base64.b64decode(value) for kind, value in shown if kind == "image/png"]
    assert pictures
    assert all(picture.startswith(b"\x89PNG") and len(picture) <= 65_536 for picture in pictures)
    assert (FOLDER / f"{name}.ipynb").stat().st_size <= 400_000
    assert "plotly.js" not in (FOLDER / f"{name}.ipynb").read_text(encoding="utf8")


def _requirements(extras):
    """Names of the packages of the project and of some extras, as they are imported."""
    text = (FOLDER.parents[1] / "pyproject.toml").read_text(encoding="utf8")
    own = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    lists = [own[1] if own else ""]
    for extra in extras:
        found = re.search(rf"^{extra} = \[(.*)\]$", text, re.MULTILINE)
        assert found, extra
        lists.append(found[1])
    return {name.replace("-", "_") for name in re.findall(r'"([\w-]+)', " ".join(lists))}


# Call -> package that it imports.
_NEEDS = {"to_xarray": "xarray", "explore": "anywidget"}


@pytest.mark.parametrize("name", NAMES)
def test_the_install_line_has_what_a_notebook_imports(name):
    """Notebook 6 stopped at a missing xarray after the README's install line."""
    line = re.search(r"'\.\[([\w,]+)\]' jupyterlab", (FOLDER / "README.md").read_text())
    assert line is not None
    known = _requirements(line[1].split(",")) | set(sys.stdlib_module_names)
    known |= {"anchorlens", "IPython"}  # ipykernel needs IPython
    used: set[str] = set()
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            used |= {one.name.split(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            used.add(str(node.module).split(".")[0])
        elif isinstance(node, ast.Attribute) and node.attr in _NEEDS:
            used.add(_NEEDS[node.attr])
    assert used <= known


# Those of one's own questions and of patching; the workflow of every week runs all.
@pytest.mark.parametrize("name", choose_cases((), NAMES, slow=[n for n in NAMES if n[0] == "6"]))
def test_a_notebook_runs(name, tmp_path):
    """From top to bottom in an empty folder; a cell that fails stops it, and each puts out what is
    stored.
    """
    make = runpy.run_path(str(FOLDER / "make.py"))
    again = make["executed"](name, tmp_path, pictures=has_chromium())
    assert kinds(again) == kinds(stored(name))
