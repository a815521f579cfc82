"""The examples run, on the packaged model and few questions."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import anchorlens as al
from anchorlens.figures.palette import display_dataset
from anchorlens.runs.store import load_curves
from tests.tiers import choose_cases

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def said_by(script, *args):
    """What an example prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *map(str, args)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_shell_line_of_the_readme_gives_the_numbers_of_its_python_and_of_its_text(
    monkeypatch, tmp_path
):
    """The shell line measured all layers and four donors: ten times the cells, other numbers."""
    text = (EXAMPLES.parent / "README.md").read_text(encoding="utf8")
    block, _, below = text.partition("```python\n")[2].partition("```\n")
    code = [line for line in block.splitlines() if not line.endswith(".show()")]
    names: dict[str, object] = {}
    monkeypatch.chdir(tmp_path)
    exec("\n".join(code), names)
    sweep = names["sweep"]
    assert isinstance(sweep, al.SweepResult)
    quoted = re.findall(r"^    (.+)$", below.partition("\n\n`exact_question`")[0], re.MULTILINE)
    assert len(quoted) > 3
    for line in quoted:
        assert line == "..." or line in sweep.verdict.splitlines()
    command = re.search(r"^    anchorlens (swap .*?)\n    anchorlens ", text, re.DOTALL | re.M)
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", " "))
    done = subprocess.run(
        [sys.executable, "-m", "anchorlens", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    run = al.load_run(words[-1])[0]
    assert run.run_id == sweep.run_id
    assert run.verdict == sweep.verdict


@pytest.mark.slow
@pytest.mark.exhaustive
def test_swap_in_ten_lines(monkeypatch, tmp_path):
    code = [
        line
        for line in (EXAMPLES / "swap_ten_lines.py").read_text().split('"""')[2].splitlines()
        if line.strip()
    ]
    assert len(code) <= 10
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "swap_ten_lines.py"))
    curves = load_curves(tmp_path / "runs" / "ten_lines")
    assert set(curves["anchor"]) == {"exact_question", "pre_answer"}


@pytest.mark.parametrize(
    ("script", "sets"),
    choose_cases(
        (),
        [
            ("figure_llama32.py", ("popqa-sample", "nq-sample")),
            ("figure_qwen3.py", ("hotpotqa-sample", "triviaqa-sample")),
        ],
        slow=(),
    ),
)
def test_target_figures_on_the_small_model(tmp_path, script, sets):
    few = ("--limit", 8, "--layers", 2, "--datasets", *sets)
    given = (script, "--small", *few, "--out", tmp_path / "out")
    said_by(*given)
    figure = tmp_path / "out" / "figure.html"
    assert f"Q-Anchored swap ({display_dataset(sets[0])}" in figure.read_text(encoding="utf8")
    if script == "figure_qwen3.py":
        return
    (samples,) = (tmp_path / "out").glob("*/samples.parquet")
    before = samples.stat().st_mtime_ns
    said_by(*given)
    assert samples.stat().st_mtime_ns == before


@pytest.mark.slow
def test_demo_with_few_questions(tmp_path):
    few = ("--limit", 6, "--knockout-limit", 30, "--layers", "0,24", "--sets", "popqa-sample")
    said = said_by("demo.py", *few, "--out", tmp_path / "demo")
    assert "Largest |ΔP| of each curve" in said
    assert "Knockout at k*" in said
    assert (tmp_path / "demo" / "figure.html").is_file()
    assert (tmp_path / "demo-report.html").is_file()
    curves = load_curves(tmp_path / "demo")
    assert set(curves["protocol"]) == {"swap", "knockout"}
    assert said_by("knockout_tables.py", tmp_path / "demo", "--every", 10).count("## ") == 1


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_probe_at_chance_draws_a_gap(tmp_path):
    """The worked example of docs/knockout.md: the selection effect on real weights."""
    chance = said_by("selection_effect.py", "--limit", 120, "--out", tmp_path / "s.html").split(
        "probe of shuffled labels"
    )[1]
    points = {
        line.split()[0]: float(line.split()[1])
        for line in chance.splitlines()
        if line.strip().startswith(("Q-", "A-"))
    }
    assert points["Q-Anchored"] < -10
    assert points["Q-Anchored"] < points["A-Anchored"] - 10
    assert (tmp_path / "s.html").is_file()
