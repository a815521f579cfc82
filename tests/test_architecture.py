"""Imports run in one direction: between rooms in the order below, and between files without a
circle.

Read from the source, so that imports inside functions, under TYPE_CHECKING and by `import_module`
count like any other.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "anchorlens"

ORDER = (
    "statistics",
    "models",
    "prompts",
    "engine",
    "measure",
    "patching",
    "diagnosis",
    "questions",
    "probing",
    "runs",
    "results",
    "protocols",
    "loading",
    "figures",
    "running",
    "report",
    "cli",
)
"""Each room imports only rooms that stand before it."""

LAZY_CALLS = {
    ("results.sweep", "figures.example_figure"),  # SweepResult.plot_example
    ("results.sweep", "running.saving"),  # SweepResult.save
}
"""Methods of results that draw or save: imports against the order, inside the method."""

WITHOUT_QUESTIONS = ("prompts", "engine", "measure", "patching", "protocols.patch")
"""Rooms, and one protocol, that know prompts and tokens, but no questions and answers."""

LEAVES = "leaves"
"""Files beside the rooms; they import only one another.

`anchorlens/__init__.py` imports any room and is imported by cli alone.
"""


def read_sources() -> dict[str, str]:
    """Module name -> source; a package goes by its own name."""
    found = {}
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        found[".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = (
            file.read_text(encoding="utf8")
        )
    found[PACKAGE] = (
        (ROOT / PACKAGE / "__init__.pyi")
        .read_text(encoding="utf8")
        .replace("from .", f"from {PACKAGE}.")
        .replace(f"from {PACKAGE}. import", f"from {PACKAGE} import")
    )
    return found


def lazy_calls(name: str, tree: ast.Module) -> set[ast.ImportFrom]:
    """Imports of `LAZY_CALLS` that stand inside a function."""
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {
        node
        for function in inside
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom)
        and (name.removeprefix(f"{PACKAGE}."), (node.module or "").removeprefix(f"{PACKAGE}."))
        in LAZY_CALLS
    }


def imports_of(name: str, text: str, known: Mapping[str, str]) -> Iterator[str]:
    """Modules of the package that a file imports; an f-string in `import_module` counts as every
    module that it matches. Listed lazy calls are left out.
    """
    tree = ast.parse(text)
    lazy = lazy_calls(name, tree)
    for node in ast.walk(tree):
        if node in lazy:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            assert node.module in known, f"{name} imports {node.module}, which does not exist"
            yield from (
                one
                for alias in node.names
                for one in (f"{node.module}.{alias.name}", node.module)
                if one in known
            )
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("import_module")
            and name != PACKAGE
        ):
            pattern = re.sub(
                r"\\?\{[^}]*\\?\}", r"[\\w.]+", ast.unparse(node.args[0]).lstrip("f").strip("'\"")
            )
            yield from (one for one in known if re.fullmatch(pattern, one))


def is_bare(text: str) -> bool:
    """True for a module without statements: empty, or only a docstring."""
    body = ast.parse(text).body
    return not body or (len(body) == 1 and ast.get_docstring(ast.parse(text)) is not None)


def import_graph(texts: Mapping[str, str], names: Iterable[str] = ()) -> dict[str, set[str]]:
    """Module -> modules that it imports, of these modules or of all.

    `__init__` files without statements are left out.
    """
    bare = {name for name, text in texts.items() if is_bare(text)}
    return {
        name: {
            one for one in imports_of(name, texts[name], texts) if one != name and one not in bare
        }
        for name in names or texts
    }


def room_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and (ROOT / PACKAGE / parts[1]).is_dir() else LEAVES


def wrong_imports(graph: Mapping[str, set[str]]) -> list[str]:
    """Imports against the order, and imports of the package's front by a room other than cli."""
    order, found = (LEAVES, *ORDER), []
    for name, others in graph.items():
        for other in others:
            here, there = room_of(name), room_of(other)
            climbs = (
                here != there
                and order.index(there) > order.index(here)
                and name not in (PACKAGE, f"{PACKAGE}.__main__")
            )
            if climbs or (other == PACKAGE and here != "cli"):
                found.append(f"{name} imports {other}")
    return found


def imports_of_questions(graph: Mapping[str, set[str]]) -> list[str]:
    """Imports of questions by modules that measure prompts of any kind."""
    homes = tuple(f"{PACKAGE}.{room}." for room in WITHOUT_QUESTIONS)
    return [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if f"{name}.".startswith(homes) and other.startswith(f"{PACKAGE}.questions")
    ]


def with_import(
    texts: Mapping[str, str], graph: Mapping[str, set[str]], name: str, line: str
) -> dict[str, set[str]]:
    return {**graph, **import_graph({**texts, name: f"{texts[name]}\n{line}\n"}, [name])}


@pytest.fixture(scope="module")
def texts():
    return read_sources()


@pytest.fixture(scope="module")
def graph(texts):
    return import_graph(texts)


def test_every_folder_is_a_room_of_the_order(texts):
    assert {room_of(name) for name in texts} == {LEAVES, *ORDER}


@pytest.mark.slow
def test_imports_follow_the_order_and_there_is_no_circle_between_files(graph):
    assert wrong_imports(graph) == []
    TopologicalSorter(graph).prepare()


def test_the_picture_shows_every_room_above_those_that_it_imports(texts, graph):
    picture = (ROOT / "docs" / "rooms.svg").read_text(encoding="utf8")
    titles = re.findall(r'class="title" x="\d+" y="(\d+)">(\w+)/<', picture)
    row_of = {room: int(row) for row, room in titles}
    assert sorted(row_of) == sorted(ORDER)
    for name, others in graph.items():
        here = room_of(name)
        for there in {room_of(other) for other in others} - {here, LEAVES}:
            assert here == LEAVES or row_of[here] < row_of[there], f"{name} imports {there}"


def test_picture_and_page_name_the_modules_beside_the_rooms(texts):
    files = {path.stem for path in (ROOT / PACKAGE).glob("*.py")} - {"__init__", "__main__"}
    picture = (ROOT / "docs" / "rooms.svg").read_text(encoding="utf8")
    last = re.findall(r"<text [^>]*>([^<]+)</text>", picture)[-1]
    assert sorted(last.split(", ")) == sorted(files)
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf8")
    row = re.search(r"^\| top-level modules \((.+)\) \|", page, re.MULTILINE)
    assert row is not None
    assert sorted(re.findall(r"`(\w+)`", row[1])) == sorted(files)


def test_every_lazy_call_is_there(texts):
    assert all(
        lazy_calls(f"{PACKAGE}.{name}", ast.parse(texts[f"{PACKAGE}.{name}"]))
        for name, _ in LAZY_CALLS
    )


def test_results_and_protocols_import_no_plotly(texts):
    plotly = re.compile(r"^(?:from|import) plotly", re.MULTILINE)
    assert {room_of(name) for name, text in texts.items() if plotly.search(text)} == {
        "figures",
        "report",
    }


@pytest.mark.slow
def test_prompts_and_what_measures_them_import_nothing_of_questions(graph):
    assert imports_of_questions(graph) == []


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("prompts.pairs", "def late():\n    from anchorlens.questions.example import Example"),
        ("engine.cone", "from anchorlens.questions.tokens import TokenRow"),
        ("patching", "if TYPE_CHECKING:\n    from anchorlens.questions.tokens import TokenRow"),
        ("measure.checks", "from anchorlens.questions.tokens import TokenRow"),
        ("protocols.patch.patch_inputs", "import anchorlens.questions.tokens"),
        ("protocols.patch.spec", "import_module('anchorlens.questions.spans.rules')"),
    ],
)
def test_an_import_of_questions_is_found(texts, graph, name, line):
    assert imports_of_questions(with_import(texts, graph, f"{PACKAGE}.{name}", line))


def test_every_file_is_used(texts, graph):
    used = set().union(*graph.values(), {f"{PACKAGE}.{name}" for _, name in LAZY_CALLS})
    assert {name for name, text in texts.items() if name not in used and not is_bare(text)} == {
        f"{PACKAGE}.__main__"
    }


def test_transformer_lens_is_imported_in_models_and_hooked_transformer_in_one_part_of_it(texts):
    imports = re.compile(r"^\s*(?:from|import) transformer_lens", re.MULTILINE)
    users = {name for name, text in texts.items() if imports.search(text)}
    assert {room_of(name) for name in users} == {"models"}
    hooked = {
        name
        for name in users
        if re.search(r"^\s*from transformer_lens.*import.*Hooked", texts[name], re.MULTILINE)
    }
    assert {name for name in hooked if not name.startswith("anchorlens.models.hooked.")} == {
        "anchorlens.models.adapter"
    }


def test_tests_mirror_the_package():
    folders = {
        file.parent.relative_to(ROOT / "tests") for file in (ROOT / "tests").rglob("test_*.py")
    }
    folders.remove(Path("contract"))  # tests of both versions of TransformerLens
    assert [
        folder
        for folder in folders
        if not any((home / folder).is_dir() for home in (ROOT / PACKAGE, ROOT))
    ] == []


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("engine.cost", "from anchorlens.measure.budget import OomSplitter"),
        ("engine.cone", "from anchorlens.questions.tokens import TokenRow"),
        ("errors", "def late():\n    import anchorlens.models.card"),
        ("runs.store", "if TYPE_CHECKING:\n    from anchorlens.figures import table"),
        ("results.sweep", "from anchorlens.figures.example_figure import plot_example"),
        ("results.sweep", "def late():\n    from anchorlens.figures import curves"),
        ("probing.probes", "import anchorlens as al"),
        ("statistics.delta", "import_module('anchorlens.engine.cone')"),
        ("prompts.pairs", "importlib.import_module(f'anchorlens.engine.{x}')"),
        ("protocols.base", "from anchorlens.running.runner import LocalRunner"),
    ],
)
def test_an_import_against_the_order_is_found(texts, graph, name, line):
    assert wrong_imports(with_import(texts, graph, f"{PACKAGE}.{name}", line))


@pytest.mark.slow
def test_a_circle_is_found(texts, graph):
    line = "def late():\n    from anchorlens.questions.datasets import QAData"
    with pytest.raises(CycleError):
        TopologicalSorter(with_import(texts, graph, f"{PACKAGE}.questions.example", line)).prepare()
