"""``anchorlens figure``: bands, contrasts and settings of runs on disk."""

import json
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest
from click.testing import CliRunner, Result

from anchorlens.cli.figure_command import figure_command
from anchorlens.errors import InputError
from anchorlens.figures import export
from anchorlens.runs.schema import settings_of
from anchorlens.runs.store import write_run

from .synthetic import TRUTH, knockout_contrasts, knockout_frame

MODELS = {"m": 4}


def run_of(path: Path, *, distractor: str = "matched", contrast_tables: bool = True) -> str:
    """A run directory of a knockout with invented numbers."""
    run_id = f"run-{distractor}"
    config = {"prompt": "qa", **TRUTH, "distractor": distractor}
    del config["known_only"]  # a choice of swaps alone
    curves = knockout_frame(MODELS, ("popqa",)).assign(distractor=distractor)
    tables = {"examples": pd.DataFrame({"run_id": [run_id]}), "samples": pd.DataFrame({"run_id": [run_id]}), "curves": curves}
    if contrast_tables:
        tables["contrasts"] = knockout_contrasts(MODELS, ("popqa",)).assign(run_id=run_id, **settings_of(config))
    return str(write_run(path, tables, [{"run_id": run_id, "config": config}], more=lambda _: None))


def called(*arguments: str) -> Result:
    return CliRunner().invoke(figure_command, arguments)


def refused(*arguments: str, said: str) -> None:
    problem = called(*arguments).exception
    assert isinstance(problem, InputError)
    assert said in str(problem)


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """What a call draws: every text of the figure that it writes."""
    figures: list[go.Figure] = []
    monkeypatch.setattr(export, "save_figure", lambda figure, path, scale=None: figures.append(figure))

    def draw(*arguments: str) -> str:
        result = called(*arguments, "--out", str(tmp_path / "f.html"))
        assert result.exit_code == 0, result.output
        return json.dumps(figures[-1].to_plotly_json(), ensure_ascii=False, default=str)

    return draw


def test_contrasts_and_both_bands_are_drawn_unless_asked_otherwise(tmp_path, drawn):
    run = run_of(tmp_path / "a")
    told = drawn(run)
    assert "Contrasts</b>" in told
    assert "row_specific_effect" in told
    assert "outer: simultaneous over layers" in told
    assert "Contrasts</b>" not in drawn(run, "--contrasts", "none")
    assert "bootstrap over questions (simultaneous over layers)" in drawn(run, "--bands", "simultaneous")
    assert "bootstrap" not in drawn(run, "--bands", "none")
    assert '"text": "AUC minus placebo' in drawn(run, "--contrasts", "auc_drop")


def test_runs_without_effects_are_drawn_without_contrasts(tmp_path, drawn):
    told = drawn(run_of(tmp_path / "a", contrast_tables=False))
    assert "Q-Anchored (PopQA)" in told
    assert "Contrasts</b>" not in told


def test_two_runs_that_differ_in_a_setting_keep_their_contrasts(tmp_path, drawn):
    told = drawn(run_of(tmp_path / "a"), run_of(tmp_path / "b", distractor="random"))
    for distractor in ("matched", "random"):
        assert f"Q-Anchored (PopQA, distractor {distractor}), contrast" in told


def test_labels_give_each_run_panels_of_its_own(tmp_path, drawn):
    runs = run_of(tmp_path / "a"), run_of(tmp_path / "b", distractor="random")
    told = drawn(*runs, "--label", "first", "--label", "second")
    assert all(part in told for part in ("m: first", "m: second", "Contrasts</b>"))
    for labels in (["--label", "one"], ["--label", "one", "--label", "one"]):
        refused(*runs, *labels, said="1 different labels, 2 given runs")


def test_json_names_the_file_and_the_runs(tmp_path):
    run, out = run_of(tmp_path / "a"), str(tmp_path / "f.html")
    assert json.loads(called(run, "--out", out, "--json").output) == {"figure": out, "runs": [run]}


def test_help_says_what_the_words_mean():
    text = " ".join(called("--help").output.split())
    words = (
        "pointwise (for one layer chosen beforehand",
        "simultaneous (over all layers",
        "Panels of contrasts",
        "delta_p_vs_placebo, flip_rate",
    )
    assert all(said in text for said in words)


def test_a_place_that_cannot_be_written_is_said_before_anything_is_drawn(tmp_path, monkeypatch):
    closed, mkdir = tmp_path / "closed", Path.mkdir
    closed.mkdir()

    def denied(self, *args, **options):
        if self.parent == closed:
            raise PermissionError("denied")
        mkdir(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", denied)
    # The place comes first, and so does the suffix.
    refused("no/such/run", "--out", str(closed / "f.html"), said=f"{closed} cannot be written")
    refused("no/such/run", "--out", str(tmp_path / "f.jpg"), said="End the name with .html, .png, .svg or .pdf")
    assert called(run_of(tmp_path / "b"), "--out", str(tmp_path / "f.html")).exit_code == 0
