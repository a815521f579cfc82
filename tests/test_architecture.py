"""Who may import whom: no circle between files or rooms, and no climb against the order.

Read from the source, so that an import inside a function, one for the type checker alone and one by name count like any other.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "anchorlens"

GROUND = ("errors", "typing", "vocabulary", "kinds", "edges", "callables", "progress", "notices")
"""Files that belong to no room: they import one another at most."""

ORDER = (
    "ground", "statistics", "models", "questions", "engine", "truth", "figures", "runs", "results", "protocols", "report",
    "face", "cli",
    "__main__",
)  # fmt: skip
"""Each imports what stands before it. The face is ``anchorlens/__init__.py``: what users import, and the command line alone."""

SHARED = (
    "arguments", "costing", "memory", "specification", "truth_arguments", "written", "plug", "trust", "truth_probing", "driver",
    "hands", "spread", "keeping", "sweeps", "<protocol>", "registry", "loading", "comparing", "verifying", "study",
)  # fmt: skip
"""The same inside the room of protocols; ``<protocol>`` are the folders, of which some use another's parts."""

# Words that once named files and say nothing of what is in them.
NAMELESS = {"cuts", "pairs", "rows", "readings", "checks", "stream_statistics", "utils", "helpers", "misc", "common"}


def sources() -> dict[str, str]:
    """Module -> its text; a package by its own name."""
    return {name_of(file): file.read_text(encoding="utf8") for file in sorted((ROOT / PACKAGE).rglob("*.py"))}


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(name: str, text: str, known: Mapping[str, str], is_package: bool = False) -> Iterator[str]:
    """The files of this package that a file imports, wherever in it the import stands."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            if base.split(".")[0] == PACKAGE:
                assert base in known, f"{name} imports {base}, which is not there"
            for alias in node.names:
                yield from (one for one in (f"{base}.{alias.name}", base) if one in known)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            pattern = written(node.args[0], tables(tree))
            assert pattern is not None, f"{name}: what import_module imports is not written there"
            yield from (one for one in known if re.fullmatch(pattern, one))


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def tables(tree: ast.Module) -> dict[str, list[str]]:
    """Name -> the texts of a table that a file holds."""
    found: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name):
            values = [value.value for value in node.value.values if isinstance(value, ast.Constant)]
            found[node.targets[0].id] = [str(value) for value in values]
    return found


def written(node: ast.expr, known: Mapping[str, list[str]]) -> str | None:
    """A text as a pattern of names; what stands in a hole is anything, or what the table holds that is looked into."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if not isinstance(node, ast.JoinedStr):
        return None
    parts: list[str] = []
    for part in node.values:
        inner = part.value if isinstance(part, ast.FormattedValue) else None
        if isinstance(part, ast.Constant):
            parts.append(re.escape(str(part.value)))
        elif isinstance(inner, ast.Subscript) and isinstance(inner.value, ast.Name) and inner.value.id in known:
            parts.append(f"({'|'.join(map(re.escape, known[inner.value.id]))})")
        else:
            parts.append(r"[\w.]+")
    return "".join(parts)


def graph(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """File -> files that it imports. That a package's ``__init__`` runs first is no import: nearly all are empty."""
    packages = {name for name in texts if is_folder(name, texts)}
    bare = {name for name in packages if not texts[name].strip()}
    return {name: {one for one in imported(name, text, texts, name in packages) if one != name and one not in bare}
            for name, text in texts.items()}  # fmt: skip


def is_folder(name: str, known: Mapping[str, object]) -> bool:
    """Whether a name is a package's."""
    return any(other.startswith(f"{name}.") for other in known)


def room(name: str) -> str:
    """The room of a file."""
    parts = name.split(".")
    if len(parts) == 1:
        return "face"
    return "ground" if len(parts) == 2 and parts[1] in GROUND else parts[1]


def part(name: str) -> str:
    """The place of a file inside the room of protocols."""
    parts = name.split(".")
    return "<protocol>" if len(parts) > 3 else parts[-1]


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """A way that comes back to where it began; [] where there is none."""
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for other in sorted(edges.get(name, ())):
            if found := walk(other, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(edges) if (found := walk(name, []))), [])


def rooms(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The same for rooms."""
    made: dict[str, set[str]] = {}
    for name, others in edges.items():
        made.setdefault(room(name), set()).update(room(other) for other in others if room(other) != room(name))
    return made


def climbs(edges: Mapping[str, set[str]]) -> list[str]:
    """Imports against the order."""
    found: list[str] = []
    for name, others in sorted(edges.items()):
        for other in sorted(others):
            here, there = room(name), room(other)
            if here == there == "protocols":
                bad = SHARED.index(part(other)) > SHARED.index(part(name))
            else:
                bad = here != there and ORDER.index(there) >= ORDER.index(here)
            # Who works inside the package takes a thing from where it is made.
            if bad or (there == "face" and here not in ("cli", "__main__")):
                found.append(f"{name} imports {other}")
    return found


@pytest.fixture(scope="module")
def texts():
    return sources()


@pytest.fixture(scope="module")
def edges(texts):
    return graph(texts)


def test_every_file_has_its_place(edges):
    assert {room(name) for name in edges} == set(ORDER)
    places = {part(name) for name in edges if room(name) == "protocols" and not is_folder(name, edges)}
    assert places == set(SHARED)


def test_no_circle_between_files(edges):
    assert circle(edges) == []


def test_no_circle_between_rooms(edges):
    assert circle(rooms(edges)) == []


def test_no_climb_against_the_order(edges):
    assert climbs(edges) == []


def test_nobody_is_left_alone(edges):
    """Every file is used by another one, but for what a user starts."""
    used = set().union(*edges.values())
    left = {name for name in edges if name not in used and not is_folder(name, edges)}
    assert left == {f"{PACKAGE}.__main__"}


def test_packages_are_empty_but_for_the_face_and_the_command(texts):
    """What stands in an ``__init__`` runs before every file of the room."""
    full = {name for name in texts if is_folder(name, texts) and texts[name].strip()}
    assert full == {PACKAGE, f"{PACKAGE}.cli"}


def test_files_are_named_after_what_is_in_them(texts):
    assert sorted(name for name in texts if name.split(".")[-1] in NAMELESS) == []


def test_tests_lie_where_the_code_lies():
    """A folder of tests for each room that has tests, and none for a room that is gone."""
    here = {file.parent.relative_to(ROOT / "tests") for file in (ROOT / "tests").rglob("test_*.py")}
    # The benchmarks lie beside the package.
    homes = (ROOT / PACKAGE, ROOT)
    assert [str(folder) for folder in sorted(here) if not any((home / folder).is_dir() for home in homes)] == []
    assert {str(folder).split("/")[0] for folder in here} >= set(ORDER) - {"ground", "face", "cli", "__main__"}


# --- planted -------------------------------------------------------------------------------------------------------------------


def planted(texts: Mapping[str, str], name: str, line: str) -> dict[str, set[str]]:
    """The graph with one more import in a file."""
    return graph({**texts, f"{PACKAGE}.{name}": f"{texts[f'{PACKAGE}.{name}']}\n{line}\n"})


@pytest.mark.parametrize(
    ("name", "line", "told"),
    [
        ("engine.cost", "from anchorlens.protocols.memory import Memory", "engine.cost imports anchorlens.protocols.memory"),
        ("errors", "def late():\n    import anchorlens.models.card", "errors imports anchorlens.models.card"),
        ("figures.table", "if TYPE_CHECKING:\n    from anchorlens.runs import store", "figures.table imports anchorlens.runs.store"),
        ("runs.store", "from ..results.sweep import SweepResult", "runs.store imports anchorlens.results.sweep"),
        ("truth.probes", "import anchorlens as al", "truth.probes imports anchorlens"),
        ("statistics.delta", "import_module('anchorlens.engine.cone')", "statistics.delta imports anchorlens.engine.cone"),
        ("questions.spans", "importlib.import_module(f'anchorlens.engine.{x}')", "questions.spans imports anchorlens.engine.cone"),
        ("protocols.plug", "from anchorlens.protocols.driver import run", "protocols.plug imports anchorlens.protocols.driver"),
        ("protocols.driver", "import anchorlens.protocols.swap.spec", "protocols.driver imports anchorlens.protocols.swap.spec"),
        ("protocols.swap.spec", "import anchorlens.protocols.study", "protocols.swap.spec imports anchorlens.protocols.study"),
        ("protocols.loading", "from anchorlens.cli import entry", "protocols.loading imports anchorlens.cli.entry"),
    ],
)  # fmt: skip
def test_a_planted_climb_is_found(texts, name, line, told):
    assert f"{PACKAGE}.{told}" in climbs(planted(texts, name, line))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("engine.cone", "def late():\n    from anchorlens.engine.select import choose_engine"),
        ("questions.example", "from anchorlens.questions.datasets import QAData"),
        ("protocols.knockout.spec", "from anchorlens.protocols.knockout.protocol import PROTOCOL"),
        ("protocols.knockout.cut_tokens", "import anchorlens.protocols.patch_tokens.protocol"),
        ("vocabulary", "from anchorlens.edges import parse_edges"),
    ],
)
def test_a_planted_circle_between_files_is_found(texts, name, line):
    found = circle(planted(texts, name, line))
    assert len(found) > 2
    assert found[0] == found[-1]
    assert f"{PACKAGE}.{name}" in found


def test_a_planted_circle_between_rooms_is_found(texts):
    """No file is in a circle, and two rooms are."""
    edges = planted(texts, "statistics.delta", "from anchorlens.truth.labelled import TruthRows")
    assert circle(edges) == []
    assert {"statistics", "truth"} <= set(circle(rooms(edges)))


def test_an_import_that_nobody_can_read_is_refused(texts):
    with pytest.raises(AssertionError, match="what import_module imports is not written there"):
        planted(texts, "errors", "import_module(name)")
    with pytest.raises(AssertionError, match=r"errors imports anchorlens\.analysis, which is not there"):
        planted(texts, "errors", "from anchorlens.analysis import truth")


def test_specifications_load_nothing_heavy():
    """A shell that asks for help does not wait for torch."""
    code = (
        "import sys\nfrom anchorlens.protocols.registry import PROTOCOLS, specification_of\n"
        "for name in PROTOCOLS: specification_of(name)().to_toml()\n"
        "print(sorted({'torch', 'transformers', 'transformer_lens', 'pandas', 'numpy', 'sklearn', 'plotly'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
