"""The docs say what the code says."""

import ast
import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

import anchorlens as al
from anchorlens import errors
from tests.figures.browser import chromium
from tests.tiers import choose_cases

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def code_of(page: Path) -> list[str]:
    return CODE.findall(page.read_text(encoding="utf8"))


@pytest.mark.parametrize("script", ["make_arguments.py", "make_cli.py"])
def test_pages_that_a_script_writes_are_what_it_writes(script):
    made = runpy.run_path(str(DOCS / script))
    assert made["PAGE"].read_text(encoding="utf8") == made["page"](), f"run `python docs/{script}`"


def test_extras_are_named_where_one_installs():
    """Those for users in the README and in the quickstart, all that there are in the quickstart's
    table.
    """
    section = (
        (ROOT / "pyproject.toml")
        .read_text(encoding="utf8")
        .partition("[project.optional-dependencies]\n")[2]
    )
    extras = set(re.findall(r"^(\w+) = \[", section.partition("\n[")[0], re.MULTILINE))
    assert {"notebook", "dev"} <= extras
    readme = (ROOT / "README.md").read_text(encoding="utf8")
    assert {name for name in extras if re.search(rf"[\[,]{name}[\],]", readme)} == extras - {
        "dev",
        "docs",
    }
    rows = (
        (DOCS / "quickstart.md")
        .read_text(encoding="utf8")
        .partition("| extra | for |\n")[2]
        .partition("\n\n")[0]
    )
    assert {
        name for line in rows.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])
    } == extras


def test_the_readme_is_short():
    n_lines = len((ROOT / "README.md").read_text(encoding="utf8").splitlines())
    assert n_lines <= 122, "Shorten the README, or link to a page instead."


def test_the_same_shell_line_stands_in_the_readme_and_in_the_quickstart():
    """tests/test_examples.py runs the README's and compares it with its Python."""
    lines: list[str] = []
    for page in (ROOT / "README.md", DOCS / "quickstart.md"):
        text = page.read_text(encoding="utf8")
        found = re.search(r"^    anchorlens swap .*?--out ", text, re.DOTALL | re.MULTILINE)
        assert found is not None
        lines.append(found[0])
    assert lines[0] == lines[1]


def test_code_of_the_site_is_not_cut_and_the_page_of_patching_begins_with_its_functions():
    """The front page's code ended at the border, and the functions came after the benchmarks."""
    style = (DOCS / "stylesheets" / "site.css").read_text(encoding="utf8")
    assert re.search(r"\.md-typeset pre > code \{[^}]*white-space: pre-wrap", style)
    page = (DOCS / "reference" / "patching.md").read_text(encoding="utf8")
    begin, _, rest = page.partition("\n| function |")
    assert len(begin) < 700
    assert begin.count("```") == 2
    table = rest.partition("\n\n")[0]
    assert all(f"{what}_{where}" in table for what in ("q", "k", "v") for where in ("by", "all"))
    assert not re.search(r"\d ×|seconds", table)


def test_every_public_name_stands_in_the_reference_once():
    shown = [
        name
        for page in DOCS.glob("reference/*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    ]
    stub = ast.parse((ROOT / "anchorlens" / "__init__.pyi").read_text(encoding="utf8"))
    found = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {
        one.name: f"anchorlens.{node.module}" if node.module else "anchorlens"
        for node in found
        for one in node.names
    }
    wanted = {f"{home}.{name}" for name, home in homes.items()} | {"anchorlens.__version__"}
    assert set(dir(al)) == set(homes)
    assert set(al.__all__) == set(homes)
    assert wanted <= set(shown)
    assert [name for name, n in Counter(shown).items() if n > 1] == []


def test_every_sentence_of_a_verdict_has_the_test_that_its_page_names():
    page = (DOCS / "sentences.md").read_text(encoding="utf8")
    written = "\n".join(
        path.read_text(encoding="utf8") for path in (ROOT / "tests").rglob("test_*.py")
    )
    named = re.findall(r"\b(test_[a-z0-9_]+)`", page)
    assert len(named) > 30
    assert [name for name in named if f"def {name}(" not in written] == []


def test_every_error_is_explained():
    page = (DOCS / "errors.md").read_text(encoding="utf8")
    table, reference = (
        page.split("## InputError")[0],
        (DOCS / "reference" / "errors.md").read_text(encoding="utf8"),
    )
    for name, kind in vars(errors).items():
        if (
            isinstance(kind, type)
            and issubclass(kind, errors.AnchorlensError)
            and kind is not errors.AnchorlensError
        ):
            assert f"\n## {name}\n" in page, name
            assert re.search(rf"^\|.*`{name}`.*\| {kind.exit_code} \|", table, re.MULTILINE), name
            assert f"anchorlens.errors.{name}\n" in reference, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_in_the_docs_is_python_and_its_names_are_there(page):
    known = set(dir(al))
    for block in code_of(page):
        for node in ast.walk(ast.parse(block)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "al"
            ):
                assert node.attr in known, f"al.{node.attr} is not there"


# The functions of the pages behind the first two are called by notebooks, tests and the README too.
WITH_CODE = (
    "from_transformerlens.md",
    "patch.md",
    "circuits.md",
    "edges.md",
    "index.md",
    "extending.md",
    "from_eap_ig.md",
    "patch_your_pair.md",
    "quickstart.md",
)


@pytest.mark.parametrize("page", choose_cases((), WITH_CODE, slow=WITH_CODE[:2]))
def test_code_in_the_docs_runs(page, tmp_path, monkeypatch):
    """All blocks of a page, one after the other, as a reader would paste them."""
    if page == "extending.md":
        pytest.importorskip("ray", reason="an example has Ray's workers measure")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(code_of(DOCS / page)):
        exec(compile(block, f"{page}, block {number}", "exec"), names)  # our own pages
    assert names["al"] is al


def build_site(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does it."""
    (called,) = re.findall(
        r"\$\(PY\) (-m mkdocs .*) --site-dir", (ROOT / "Makefile").read_text(encoding="utf8")
    )
    command = [sys.executable, *called.split(), "--site-dir", str(site)]
    own = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=own)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("[a](nowhere.md)", "nowhere.md"),
        ("[a](other.md#nowhere)", "does not contain an anchor"),
        ("[a](#nowhere)", "no such anchor"),
        ("[a](/absolute.md)", "absolute"),
        ("", 'not included in the "nav"'),
    ],
    ids=["file", "anchor", "own anchor", "absolute", "nav"],
)
def test_a_broken_link_fails_the_site(tmp_path, broken, said):
    """A site of two pages with this one's validation."""
    pytest.importorskip("mkdocs", reason="pip install 'anchorlens[docs]'")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf8")
    validation = "validation:" + text.split("\nvalidation:")[1].split("\nnav:")[0]
    pages = ["index.md", "other.md"] if broken else ["index.md"]
    (tmp_path / "mkdocs.yml").write_text(
        "\n".join(["site_name: small", validation, f"nav: {pages}"]), encoding="utf8"
    )
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Index\n\n{broken}\n", encoding="utf8")
    (tmp_path / "docs" / "other.md").write_text("# Other\n", encoding="utf8")
    built = build_site(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert said in built.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site.

    Broken links and anchors, pages without navigation, and names that the reference cannot find are
    warnings.
    """
    pytest.importorskip("mkdocs", reason="pip install 'anchorlens[docs]'")
    folder = tmp_path_factory.mktemp("site")
    built = build_site(ROOT, folder)
    assert built.returncode == 0, built.stderr
    assert [
        line for line in (built.stdout + built.stderr).splitlines() if not line.startswith("INFO ")
    ] == []
    return folder


@pytest.mark.slow
def test_the_site_has_every_name_and_needs_no_network(site):
    html = {
        str(page.relative_to(site)): page.read_text(encoding="utf8")
        for page in site.rglob("*.html")
    }
    # Nothing is fetched from elsewhere, formulas are drawn by the browser, and the sweep's own
    # arguments are there.
    for name, text in html.items():
        assert not re.search(
            r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]*rel="stylesheet"[^>]*'
            r' href="https?:',
            text,
        ), name
    assert html["method/index.html"].count("<math") > 20
    assert "arithmatex" not in html["method/index.html"]
    assert "n_donors" in html["reference/protocols/index.html"]
    for name in dir(al):
        assert any(
            f">{name}</" in text for file, text in html.items() if file.startswith("reference/")
        ), name


@pytest.mark.slow
def test_the_site_in_a_browser(site):
    """No error, no request to elsewhere, nothing wider than the window; formulas are drawn, and the
    search finds a word.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    home, told = f"http://127.0.0.1:{server.server_port}/", []
    try:
        with playwright.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            for width in (1280, 390):
                page = browser.new_page(viewport={"width": width, "height": 900})
                page.on(
                    "console",
                    lambda said: (
                        told.append(said.text) if said.type in ("error", "warning") else None
                    ),
                )
                page.on("pageerror", lambda why: told.append(str(why)))
                page.on(
                    "request",
                    lambda asked: (
                        None
                        if asked.url.startswith((home, "data:", "blob:"))
                        else told.append(asked.url)
                    ),
                )
                for one in (
                    "",
                    "method/",
                    "glossary/",
                    "reference/protocols/",
                    "cli/",
                    "knockout-smollm2/",
                ):
                    page.goto(home + one)
                    assert page.evaluate("document.documentElement.scrollWidth") == width, one
                page.goto(f"{home}method/")
                sizes = page.evaluate(
                    "[...document.querySelectorAll('.formula math')].map(one =>"
                    " one.getBoundingClientRect().height)"
                )
                assert len(sizes) > 10
                assert min(sizes) > 10
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(home)
            page.click(".md-search__input")
            page.keyboard.type("row_specific_effect", delay=40)
            page.wait_for_selector(".md-search-result__item a[href*='glossary/']", timeout=20_000)
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
    assert told == []


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *said: object) -> None:
        pass


def test_workflows_and_hooks_call_what_make_calls():
    make = (ROOT / "Makefile").read_text(encoding="utf8")
    targets = set(re.findall(r"^([a-z-]+):", make, re.MULTILINE))
    called: set[str] = set()
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(file.read_text(encoding="utf8"))["jobs"]
        runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
        called |= {line.split()[1] if line.startswith("make ") else line for line in runs}
    assert called == {"test", "docs", "test-newest", "test-exhaustive", ".ci/run"}
    assert called - {".ci/run"} <= targets
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf8"))["repos"][
        0
    ]["hooks"]
    lint = make.split("\nlint:")[1].split("\n\n")[0].replace("$(VENV)", ".venv")
    for hook in hooks:
        assert hook["entry"] in lint
    assert len(hooks) == lint.count("@")


def test_the_hooks_are_valid():
    hooks = pytest.importorskip(
        "pre_commit.commands.validate_config", reason="pip install 'anchorlens[dev]'"
    )
    assert hooks.validate_config([str(ROOT / ".pre-commit-config.yaml")]) == 0
