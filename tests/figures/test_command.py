"""``anchorlens figure``: options, claims and captions of runs on disk."""

import json
import tempfile
from pathlib import Path

import plotly.graph_objects as go
import pytest
from click.testing import CliRunner, Result

from anchorlens.cli.figure_command import figure_command
from anchorlens.errors import InputError
from anchorlens.figures import export
from anchorlens.loading import load_run
from anchorlens.results.findings import STANDS, Finding
from anchorlens.runs.checksums import write_sums
from tests.raised import raises

from .seen import told
from .synthetic import Sweep, knockout_contrasts, knockout_frame

MODELS = {"m": 4}
CLAIM = Finding("delta_p_vs_placebo", STANDS, (2,), control="random_tokens")


def sweep(distractor: str) -> Sweep:
    contrasts = knockout_contrasts(MODELS, ("popqa",)).assign(
        prompt="qa", answers="gold", distractor=distractor, split="fixed", known_only=""
    )
    return Sweep(knockout_frame(MODELS, ("popqa",)).assign(distractor=distractor), contrasts, CLAIM)


@pytest.fixture(autouse=True)
def runs(monkeypatch):
    """A run for each distractor, as if it were on disk."""
    monkeypatch.setattr(load_run, "load_run", lambda path: [sweep(str(path))])


def called(*arguments: str) -> Result:
    return CliRunner().invoke(figure_command, arguments)


def refused(*arguments: str, said: str) -> None:
    problem = called(*arguments).exception
    assert isinstance(problem, InputError)
    assert said in str(problem)


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """The figure that a call draws."""
    figures: list[go.Figure] = []
    monkeypatch.setattr(
        export, "save_figure", lambda figure, path, scale=None: figures.append(figure)
    )

    def draw(*arguments: str) -> go.Figure:
        result = called(*arguments, "--out", str(tmp_path / "f.html"))
        assert result.exit_code == 0, result.output
        return figures[-1]

    return draw


def texts(figure: go.Figure) -> list[str]:
    return [note.text for note in figure.layout.annotations]


@pytest.mark.slow
def test_the_options_are_those_of_plot_curves(drawn):
    assert texts(drawn("matched")) == ["m"]
    assert "Bands: 95 %, pointwise" in told(drawn("matched"))
    figure = drawn("matched", "--contrasts", "all")
    assert texts(figure) == ["m", "Difference from control: ΔP minus random_tokens (points)"]
    assert texts(drawn("matched", "--contrasts", "auc_drop"))[1].endswith("AUC minus random_tokens")
    assert "Bands: 95 %, simultaneous" in told(drawn("matched", "--bands", "simultaneous"))
    assert "Dotted" in told(drawn("matched", "--controls"))
    assert "Bands" not in told(drawn("matched", "--bands", "none"))
    assert drawn("matched", "--style", "paper").layout.title.text == ""


def test_layers_that_the_findings_claim_are_filled(drawn):
    marks = [
        trace
        for trace in drawn("matched", "--contrasts", "all").data
        if trace.marker.symbol == "circle"
    ]
    assert {trace.name: list(trace.x) for trace in marks} == {
        "Q-Anchored (PopQA)": [2],
        "All rows (PopQA)": [2],
    }


@pytest.mark.slow
def test_two_runs_that_differ_in_a_setting_keep_their_contrasts(drawn):
    names = {trace.name for trace in drawn("matched", "random", "--contrasts", "all").data}
    assert {f"All rows (PopQA, {word} false answers)" for word in ("matched", "random")} <= names


def test_labels_give_each_run_panels_of_its_own(drawn):
    figure = drawn("matched", "random", "--label", "first", "--label", "second")
    assert texts(figure)[:2] == ["m: first", "m: second"]
    for labels in (["--label", "one"], ["--label", "one", "--label", "one"]):
        refused("matched", "random", *labels, said="1 different labels, 2 given runs")


@pytest.mark.slow
def test_the_caption_is_printed_on_request(tmp_path):
    out = str(tmp_path / "f.html")
    assert called("matched", "--out", out).output == f"figure  {out}\n"
    path, caption = called("matched", "--out", out, "--caption").output.splitlines()
    assert path == f"figure  {out}"
    assert caption.startswith("ΔP in percentage points by layer.")
    assert json.loads(called("matched", "--out", out, "--json").output) == {
        "figure": out,
        "runs": ["matched"],
        "caption": caption,
    }
    assert f"<summary>Caption</summary><p>{caption.replace('&', '&amp;')}</p>" in Path(
        out
    ).read_text(encoding="utf8")


def test_a_figure_without_a_name_replaces_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "figure.html"
    assert called("matched").output == "figure  figure.html\n"
    page.write_text("mine")
    refused("matched", said="Give --out figure.html to replace it, or another name.")
    assert called("matched").exception.exit_code == 2
    assert page.read_text() == "mine"
    assert called("matched", "--out", "figure.html").exit_code == 0
    assert "plotly" in page.read_text(encoding="utf8")


def test_no_file_of_a_run_is_replaced(tmp_path):
    """The figure of a run was replaced, and then its checksums no longer held."""
    stored = tmp_path / "figure.html"
    stored.write_text("of the run")
    write_sums(tmp_path)
    refused("a", "--out", str(stored), said="a file of the run in this folder")
    with raises(InputError, "path", word="SHA256SUMS"):
        export.save_html(go.Figure(), stored)
    assert stored.read_text() == "of the run"
    assert called("a", "--out", str(tmp_path / "other.html")).exit_code == 0


def test_help_says_what_the_words_mean():
    text = " ".join(called("--help").output.split())
    words = (
        "pointwise (for one layer chosen beforehand",
        "simultaneous (over all layers",
        "paper: panels and legend only",
    )
    assert all(said in text for said in words)


def test_a_place_that_cannot_be_written_is_said_before_anything_is_drawn(tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    closed.mkdir()

    def denied(**given):
        assert given == {"dir": closed}
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", denied)
    monkeypatch.setattr(load_run, "load_run", lambda path: pytest.fail("a run was read"))
    # The place comes first, and so does the suffix.
    refused(
        "no/such/run",
        "--out",
        str(closed / "f.html"),
        said=f"path='{closed}/f.html' cannot be written (Permission denied)",
    )
    refused(
        "no/such/run",
        "--out",
        str(tmp_path / "f.jpg"),
        said="End the name with .html, .png, .svg or .pdf",
    )
