"""``anchorlens figure``: bands, contrasts and settings of runs on disk."""

import json
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest
from click.testing import CliRunner, Result

from anchorlens.cli.figure_command import figure_command
from anchorlens.errors import InputError
from anchorlens.figures import page
from anchorlens.runs.schema import settings_of
from anchorlens.runs.store import write_run

from .synthetic import TRUTH, knockout_effects, knockout_frame

MODELS = {"m": 4}


def run_of(path: Path, *, distractor: str = "matched", effects: bool = True) -> str:
    """A run directory of a knockout with invented numbers."""
    run_id = f"run-{distractor}"
    config = {"prompt": "qa", **TRUTH, "distractor": distractor}
    del config["known_only"]  # a choice of swaps alone
    curves = knockout_frame(MODELS, ("popqa",)).assign(distractor=distractor)
    tables = {"examples": pd.DataFrame({"run_id": [run_id]}), "samples": pd.DataFrame({"run_id": [run_id]}), "curves": curves}
    if effects:
        tables["effects"] = knockout_effects(MODELS, ("popqa",)).assign(run_id=run_id, **settings_of(config))
    return str(write_run(path, tables, [{"run_id": run_id, "config": config}], more=lambda _: None))


def called(*arguments: str) -> Result:
    return CliRunner().invoke(figure_command, arguments)


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """What a call draws: every text of the figure that it writes."""
    figures: list[go.Figure] = []
    monkeypatch.setattr(page, "write_figure", lambda figure, path, scale=None: figures.append(figure))

    def draw(*arguments: str) -> str:
        result = called(*arguments, "--out", str(tmp_path / "f.html"))
        assert result.exit_code == 0, result.output
        return json.dumps(figures[-1].to_plotly_json(), ensure_ascii=False, default=str)

    return draw


def test_contrasts_and_both_bands_are_drawn_unless_asked_otherwise(tmp_path, drawn):
    run = run_of(tmp_path / "a")
    told = drawn(run)
    assert "What can be claimed" in told
    assert "own_change" in told
    assert "outer: all layers at once" in told
    assert "What can be claimed" not in drawn(run, "--contrasts", "none")
    assert "bootstrap over questions (all layers at once)" in drawn(run, "--bands", "simultaneous")
    assert "bootstrap" not in drawn(run, "--bands", "none")


def test_the_contrast_to_show_first(tmp_path, drawn):
    assert '"text": "AUC less placebo' in drawn(run_of(tmp_path / "a"), "--contrasts", "auc_drop")


@pytest.mark.parametrize(
    ("option", "word", "said"),
    [("--contrasts", "auc", "Did you mean 'auc_drop'"), ("--bands", "pointwize", "Did you mean 'pointwise'")],
)
def test_unknown_words(tmp_path, option, word, said):
    result = called(run_of(tmp_path / "a"), option, word)
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)


def test_runs_without_effects_are_drawn_without_contrasts(tmp_path, drawn):
    told = drawn(run_of(tmp_path / "a", effects=False))
    assert "Q-Anchored (PopQA)" in told
    assert "What can be claimed" not in told


def test_two_runs_that_differ_in_a_setting_keep_their_contrasts(tmp_path, drawn):
    told = drawn(run_of(tmp_path / "a"), run_of(tmp_path / "b", distractor="random"))
    for distractor in ("matched", "random"):
        assert f"Q-Anchored (PopQA, distractor {distractor}), contrast" in told


def test_labels_give_each_run_panels_of_its_own(tmp_path, drawn):
    runs = run_of(tmp_path / "a"), run_of(tmp_path / "b", distractor="random")
    told = drawn(*runs, "--label", "first", "--label", "second")
    assert "m: first" in told
    assert "m: second" in told
    assert "What can be claimed" in told
    for labels in (["--label", "one"], ["--label", "one", "--label", "one"]):
        result = called(*runs, *labels)
        assert isinstance(result.exception, InputError)
        assert str(result.exception) == (
            "There are 2 runs and 1 different labels. Give --label once for each run, in their order."
        )


def test_json_names_the_file_and_the_runs(tmp_path):
    run, out = run_of(tmp_path / "a"), str(tmp_path / "f.html")
    assert json.loads(called(run, "--out", out, "--json").output) == {"figure": out, "runs": [run]}


def test_help_says_what_the_words_mean():
    text = " ".join(called("--help").output.split())
    for said in (
        "pointwise (each layer by itself",
        "simultaneous (all layers at once",
        "what can be claimed",
        "delta_all, flip_rate",
    ):
        assert said in text


def test_a_place_that_cannot_be_written_is_said_before_anything_is_drawn(tmp_path, monkeypatch):
    closed, mkdir = tmp_path / "closed", Path.mkdir
    closed.mkdir()

    def refused(self, *args, **options):
        if self.parent == closed:
            raise PermissionError("denied")
        mkdir(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", refused)
    result = called(str(tmp_path / "no-run"), "--out", str(closed / "f.html"))  # the place comes first
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == f"{closed} cannot be written. Choose another path."
    assert called(run_of(tmp_path / "b"), "--out", str(tmp_path / "f.html")).exit_code == 0
