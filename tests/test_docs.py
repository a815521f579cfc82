"""The docs say what the code says."""

import ast
import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

import anchorlens as al
from anchorlens import errors

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


def test_every_public_name_stands_in_the_reference_once():
    shown = [
        name for page in DOCS.glob("reference/*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    ]
    homes = {name: getattr(getattr(al, name), "__module__", "anchorlens") for name in dir(al) if not name.startswith("__")}
    wanted = {f"{home}.{name}" for name, home in homes.items()} | {"anchorlens.__version__"}
    assert set(al.__all__) <= {*homes, "__version__"}
    assert wanted <= set(shown)
    assert [name for name, n in Counter(shown).items() if n > 1] == []


def test_every_error_is_explained():
    page = (DOCS / "errors.md").read_text(encoding="utf8")
    table, reference = page.split("## InputError")[0], (DOCS / "reference" / "errors.md").read_text(encoding="utf8")
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.AnchorlensError) and kind is not errors.AnchorlensError:
            assert f"\n## {name}\n" in page, name
            assert re.search(rf"^\|.*`{name}`.*\| {kind.exit_code} \|", table, re.MULTILINE), name
            assert f"anchorlens.errors.{name}\n" in reference, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_in_the_docs_is_python_and_its_names_are_there(page):
    known = set(dir(al))
    for block in code_of(page):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "al":
                assert node.attr in known, f"al.{node.attr} is not there"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["extending.md", "tutorial.md"])
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
    (called,) = re.findall(r"\$\(PY\) (-m mkdocs .*) --site-dir", (ROOT / "Makefile").read_text(encoding="utf8"))
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
    (tmp_path / "mkdocs.yml").write_text("\n".join(["site_name: small", validation, f"nav: {pages}"]), encoding="utf8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Index\n\n{broken}\n", encoding="utf8")
    (tmp_path / "docs" / "other.md").write_text("# Other\n", encoding="utf8")
    built = build_site(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert said in built.stderr


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    """Broken links and anchors, pages that no navigation names, and names that the reference cannot find are warnings."""
    pytest.importorskip("mkdocs", reason="pip install 'anchorlens[docs]'")
    built = build_site(ROOT, tmp_path / "site")
    assert built.returncode == 0, built.stderr
    assert [line for line in (built.stdout + built.stderr).splitlines() if not line.startswith("INFO ")] == []
    html = {str(page.relative_to(tmp_path / "site")): page.read_text(encoding="utf8") for page in tmp_path.rglob("*.html")}
    # Nothing is fetched from elsewhere, formulas are drawn by the browser, and the sweep's own arguments are there.
    for name, text in html.items():
        assert not re.search(
            r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]*rel="stylesheet"[^>]* href="https?:', text
        ), name
    assert html["method/index.html"].count("<math") > 20
    assert "arithmatex" not in html["method/index.html"]
    assert "n_donors" in html["reference/protocols/index.html"]
    for name in dir(al):
        assert any(f">{name}</" in text for file, text in html.items() if file.startswith("reference/")), name


def test_workflows_and_hooks_call_what_make_calls():
    make = (ROOT / "Makefile").read_text(encoding="utf8")
    targets = set(re.findall(r"^([a-z-]+):", make, re.MULTILINE))
    called: set[str] = set()
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(file.read_text(encoding="utf8"))["jobs"]
        runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
        called |= {line.split()[1] if line.startswith("make ") else line for line in runs}
    assert called == {"test", "docs", ".ci/run"}
    assert called - {".ci/run"} <= targets
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf8"))["repos"][0]["hooks"]
    lint = make.split("\nlint:")[1].split("\n\n")[0].replace("$(VENV)", ".venv")
    for hook in hooks:
        assert hook["entry"] in lint
    assert len(hooks) == lint.count("@")


def test_the_hooks_are_valid():
    pytest.importorskip("pre_commit", reason="pip install 'anchorlens[dev]'")
    command = [sys.executable, "-m", "pre_commit", "validate-config", str(ROOT / ".pre-commit-config.yaml")]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
