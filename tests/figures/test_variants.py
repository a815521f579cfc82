"""Runs that differ in a setting stand in one panel and can be told apart; small runs and weak nulls are marked."""

import pandas as pd
import pytest

from anchorlens.constants import SETTINGS
from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.runs import schema

from .seen import curves_of, looks, names, only_curve, said
from .synthetic import drawn, effect, knockout_contrasts, knockout_frame, point, swap_frame

MODELS = {"m": 4}


def two(frame: pd.DataFrame, column: str, value: str) -> list[pd.DataFrame]:
    """A run, and one of another setting with other values."""
    return [frame.assign(**{column: value}, effect=frame["effect"] - 3), frame]


def test_the_settings_are_those_of_the_schema():
    assert SETTINGS == schema.SETTINGS


@pytest.mark.parametrize(
    ("column", "usual", "other"),
    [
        ("distractor", "matched", "random"),
        ("split", "fixed", "per_layer"),
        ("prompt", "qa", "chat"),
        ("answers", "gold", "generated"),
    ],
)
def test_two_knockouts_that_differ_in_a_setting(column, usual, other):
    frame = knockout_frame(MODELS, ("popqa",), unsplit=False, placebos=("random_tokens",))
    figure = plot_curves(two(frame, column, other))
    assert names(figure) == [f"{pathway}-Anchored (PopQA, {column} {value})" for value in (usual, other) for pathway in "QA"]
    seen = list(looks(figure).values())
    assert seen[:2] == [("#1f77b4", "solid"), ("#ff7f0e", "dash")]  # the usual run looks as ever
    assert len({colour for colour, _ in seen}) == len({dash for _, dash in seen}) == 4
    # Each line holds its own run, and so does each placebo gap.
    question = frame[(frame["pathway"] == "Q-Anchored") & (frame["control"] == "none")]["effect"]
    assert [list(trace.y) for trace in curves_of(figure)[::2]] == [question.tolist(), (question - 3).tolist()]
    gaps = [trace.name for trace in figure.data if trace.name.startswith("Placebo gap (")]
    assert sorted(gaps) == sorted(f"Placebo gap (PopQA, {column} {value})" for value in (usual, other))


@pytest.mark.parametrize(("column", "other"), [("known_only", "True"), ("prompt", "fewshot(4)")])
def test_two_swaps_that_differ_in_a_setting_keep_their_nulls_apart(column, other):
    frame = swap_frame(MODELS, ("popqa",), ("exact_question",))
    figure = plot_curves(two(frame, column, other))
    usual = frame[column].iloc[0]
    assert names(figure) == [f"Q-Anchored swap (PopQA, {column} {value})" for value in (usual, other)]
    dotted = [trace.name for trace in figure.data if trace.line.dash == "dot" and trace.text]
    assert sorted(dotted) == sorted(f"{trace.name}, null" for trace in curves_of(figure))


def test_several_settings_are_named_together_and_four_runs_look_different():
    frame = knockout_frame(MODELS, ("popqa",), unsplit=False, placebos=())
    runs = [frame.assign(distractor=d, split=s) for d in ("random", "matched") for s in ("per_layer", "fixed")]
    figure = plot_curves(runs)
    assert names(figure)[0] == "Q-Anchored (PopQA, distractor matched, split fixed)"
    assert names(figure)[-1] == "A-Anchored (PopQA, distractor random, split per_layer)"
    assert len(set(looks(figure).values())) == len(names(figure)) == 8


def test_contrasts_follow_their_run():
    frame = knockout_frame(MODELS, ("popqa",), unsplit=False, placebos=())
    contrast_tables = knockout_contrasts(MODELS, ("popqa",)).assign(prompt="qa", answers="gold", split="fixed", known_only="")
    one, other = contrast_tables.assign(distractor="matched"), contrast_tables.assign(distractor="random", value=-40.0)
    figure = plot_curves(two(frame, "distractor", "random"), contrast_tables=[other, one])
    lines = {trace.line.color: trace for trace in figure.data if trace.xaxis == "x2" and trace.line.width == 2.2}
    usual, random = (lines[looks(figure)[f"Q-Anchored (PopQA, distractor {name})"][0]] for name in ("matched", "random"))
    assert list(usual.y) == one.query("quantity == 'delta_p_vs_placebo'")["value"].tolist()
    assert list(random.y) == [-40.0] * 4


def test_contrasts_that_do_not_say_of_which_run_they_are():
    frame = knockout_frame(MODELS, ("popqa",))
    with pytest.raises(InputError, match=r"exact_question of popqa with m are of several runs.* add the columns prompt, answers"):
        plot_curves(two(frame, "split", "per_layer"), contrast_tables=knockout_contrasts(MODELS, ("popqa",)))


@pytest.mark.parametrize(
    ("counts", "width", "warned"),
    [
        ([19] * 3, 1.1, [True] * 3),
        ([20] * 3, 2.2, [False] * 3),
        ([3, 200, 200], 2.2, [True, False, False]),  # single layers do not make a curve thin
    ],
)
def test_curves_of_few_questions_are_thin_and_say_so(counts, width, warned):
    figure = drawn([point(layer=k, n=n) for k, n in enumerate(counts)])
    line = only_curve(figure)
    assert (line.name, line.line.width) == ("Q-Anchored swap (PopQA)", width)
    assert ("thin line: fewer than 20 questions" in said(figure)) == (width < 2)
    assert ["fewer than 20 questions: interpret with care" in text for text in line.text] == warned


def test_a_curve_of_few_questions_is_thin_in_its_own_panel_alone():
    figure = drawn([point(layer=k, n=n, model=model) for n, model in ((12, "a"), (300, "b")) for k in range(3)])
    assert names(figure) == ["Q-Anchored swap (PopQA)"]
    assert [trace.line.width for trace in figure.data if trace.mode == "lines" and trace.fill is None] == [1.1, 2.2]


def test_contrasts_of_few_questions_are_thin_too():
    frame = knockout_frame(MODELS, ("popqa",))
    figure = plot_curves(frame, contrast_tables=knockout_contrasts(MODELS, ("popqa",)).assign(n=15))
    (line,) = (trace for trace in figure.data if trace.xaxis == "x2" and trace.mode == "lines" and not trace.fill and trace.x)
    assert line.line.width == 1.1
    assert "fewer than 20 questions" in line.text[0]


@pytest.mark.parametrize("where", ["none", "null"])
def test_a_null_with_too_few_slots_is_marked(where):
    frame = swap_frame(MODELS, ("popqa",), ("exact_question", "pre_answer"))
    shares = frame["anchor"].map({"exact_question": 0.87, "pre_answer": 0.5})
    frame["frac_null_incomplete"] = shares.where(frame["control"] == where)
    figure = plot_curves(frame)
    nulls = [trace for trace in figure.data if trace.line.dash == "dot" and trace.text]
    assert [trace.mode for trace in nulls] == ["lines+markers", "lines"]
    assert nulls[0].marker.symbol == "triangle-down-open"
    assert "<br>null weaker: 87 % of rows have fewer slots" in nulls[0].text[0]
    assert "▽: null weaker" in said(figure)
    assert sum("null weaker" in trace.text[0] for trace in figure.data if trace.text) == 1


@pytest.mark.parametrize("control", ["random_before", "random_after"])
def test_placebo_tokens_on_one_side_are_drawn_only_where_they_are_named(control):
    frame = knockout_frame(MODELS, ("popqa",), placebos=("random_tokens", control))
    assert control not in plot_curves(frame).to_json()
    named = plot_curves(frame, controls=[control])
    dotted = [trace for trace in named.data if trace.name.endswith(f", {control}")]
    assert [trace.name for trace in dotted] == [f"{p}-Anchored (PopQA), {control}" for p in "QA"]
    side = control.removeprefix("random_")
    assert f"control: {control} (question tokens {side} subject and property cut)" in dotted[0].text[0]
    assert f"dotted: {control} (question tokens {side} subject and property cut)" in said(named)


def test_contrasts_with_one_side_are_thin_and_drawn_only_where_they_are_named():
    frame = knockout_frame(MODELS, ("popqa",), placebos=("random_tokens", "random_before"))
    values = {"random_tokens": -5.0, "random_before": -2.0}
    rows = [effect(model="m", layer=k, control=c, value=v) for k in range(4) for c, v in values.items()]

    def thin(controls: bool | list[str]) -> list[list[float]]:
        figure = plot_curves(frame, contrast_tables=pd.DataFrame(rows), controls=controls)
        return [list(trace.y) for trace in figure.data if trace.xaxis == "x2" and trace.line.dash == "dot"]

    assert thin(True) == thin(False) == []
    assert thin(["random_before"]) == [[-2.0] * 4]
