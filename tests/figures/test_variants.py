"""Runs that differ in a setting stand in one panel and can be told apart; small runs and weak nulls are marked."""

import pandas as pd
import plotly.graph_objects as go
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.table import gather
from anchorlens.runs import schema
from anchorlens.vocabulary import SETTINGS

from .synthetic import effect, knockout_effects, knockout_frame, point, swap_frame

MODELS = {"m": 4}


def legend(figure: go.Figure) -> list[go.Scatter]:
    return [trace for trace in figure.data if trace.showlegend and trace.legend != "legend2"]


def names(figure: go.Figure) -> list[str]:
    return [trace.name for trace in legend(figure)]


def two(frame: pd.DataFrame, column: str, value: str) -> list[pd.DataFrame]:
    """A run, and one of another setting with other values."""
    return [frame.assign(**{column: value}, delta_p=frame["delta_p"] - 3), frame]


def test_the_settings_are_those_of_the_schema():
    assert SETTINGS == schema.SETTINGS


@pytest.mark.parametrize(
    ("column", "usual", "other"),
    [
        ("distractor", "matched", "random"),
        ("split", "fixed", "per_layer"),
        ("prompt", "qa", "chat"),
        ("answers", "given", "generated"),
    ],
)
def test_two_knockouts_that_differ_in_a_setting(column, usual, other):
    frame = knockout_frame(MODELS, ("popqa",), unsplit=False, placebos=("random_tokens",))
    figure = plot_curves(two(frame, column, other))
    assert names(figure)[:4] == [
        f"Q-Anchored (PopQA, {column} {usual})",
        f"A-Anchored (PopQA, {column} {usual})",
        f"Q-Anchored (PopQA, {column} {other})",
        f"A-Anchored (PopQA, {column} {other})",
    ]
    looks = [(trace.line.color, trace.line.dash) for trace in legend(figure)[:4]]
    assert looks[:2] == [("#1f77b4", "solid"), ("#ff7f0e", "dash")]  # the usual run looks as ever
    assert len({colour for colour, _ in looks}) == len({dash for _, dash in looks}) == 4
    # Each line holds its own run, and so does each placebo gap.
    question = frame[(frame["pathway"] == "Q-Anchored") & (frame["control"] == "none")]["delta_p"]
    assert [list(legend(figure)[k].y) for k in (0, 2)] == [question.tolist(), (question - 3).tolist()]
    gaps = [trace.name for trace in figure.data if trace.name.startswith("Placebo gap (")]
    assert sorted(gaps) == sorted(f"Placebo gap (PopQA, {column} {value})" for value in (usual, other))


@pytest.mark.parametrize(("column", "other"), [("known_only", "True"), ("prompt", "fewshot(4)")])
def test_two_swaps_that_differ_in_a_setting_keep_their_nulls_apart(column, other):
    frame = swap_frame(MODELS, ("popqa",), ("question",))
    figure = plot_curves(two(frame, column, other))
    usual = frame[column].iloc[0]
    assert names(figure) == [f"Q-Anchored swap (PopQA, {column} {value})" for value in (usual, other)]
    dotted = [trace.name for trace in figure.data if trace.line.dash == "dot" and trace.text]
    assert sorted(dotted) == sorted(f"{trace.name}, null" for trace in legend(figure))


def test_a_setting_that_all_share_stands_in_the_title_line():
    frame = knockout_frame(MODELS, ("popqa", "nq"))
    told = plot_curves(frame).layout.title.text
    assert all(said in told for said in ("prompt qa", "answers given", "distractor matched", "split fixed"))
    assert "known only" in plot_curves(swap_frame(MODELS).assign(known_only="True")).layout.title.text
    figure = plot_curves(frame.assign(distractor="random"))
    assert names(figure)[:2] == ["Q-Anchored (PopQA)", "A-Anchored (PopQA)"]
    assert "distractor random" in figure.layout.title.text


def test_several_settings_are_named_together_and_four_runs_look_different():
    frame = knockout_frame(MODELS, ("popqa",), unsplit=False, placebos=())
    runs = [frame.assign(distractor=d, split=s) for d in ("random", "matched") for s in ("per_layer", "fixed")]
    figure = plot_curves(runs)
    assert names(figure)[0] == "Q-Anchored (PopQA, distractor matched, split fixed)"
    assert names(figure)[-1] == "A-Anchored (PopQA, distractor random, split per_layer)"
    assert len({(trace.line.color, trace.line.dash) for trace in legend(figure)}) == 8


def test_a_control_needs_the_curve_of_its_own_settings():
    rows = [point(), point(control="null", prompt="chat")]
    with pytest.raises(InputError, match=r"^The control 'null' of question, popqa, Qwen/Qwen3-8B has no curve beside it"):
        gather(pd.DataFrame(rows), True)


def test_contrasts_follow_their_run():
    frame = knockout_frame(MODELS, ("popqa",), unsplit=False, placebos=())
    effects = knockout_effects(MODELS, ("popqa",)).assign(prompt="qa", answers="given", split="fixed", known_only="")
    one, other = effects.assign(distractor="matched"), effects.assign(distractor="random", value=-40.0)
    figure = plot_curves(two(frame, "distractor", "random"), effects=[other, one])
    lines = {trace.line.color: trace for trace in figure.data if trace.xaxis == "x2" and trace.line.width == 2.2}
    by_name = {trace.name: trace for trace in legend(figure)}
    usual = lines[by_name["Q-Anchored (PopQA, distractor matched)"].line.color]
    assert list(usual.y) == one.query("quantity == 'delta_all'")["value"].tolist()
    assert list(lines[by_name["Q-Anchored (PopQA, distractor random)"].line.color].y) == [-40.0] * 4


def test_contrasts_that_do_not_say_of_which_run_they_are():
    frame = knockout_frame(MODELS, ("popqa",))
    with pytest.raises(InputError, match=r"question of popqa with m are of several runs.* add the columns prompt, answers"):
        plot_curves(two(frame, "split", "per_layer"), effects=knockout_effects(MODELS, ("popqa",)))


def small(n: int, **changes: object) -> list[dict[str, object]]:
    return [point(layer=k, n=n, **changes) for k in range(3)]


@pytest.mark.parametrize(("n", "marked"), [(19, True), (20, False)])
def test_curves_of_few_questions_are_thin_and_say_so(n, marked):
    figure = plot_curves(pd.DataFrame(small(n)))
    (line,) = legend(figure)
    assert line.name == "Q-Anchored swap (PopQA)"
    assert line.line.width == (1.1 if marked else 2.2)
    assert ("thin line: fewer than 20 questions" in figure.layout.title.text) is marked
    assert ("fewer than 20 questions: read with care" in line.text[0]) is marked


def test_a_curve_of_few_questions_is_thin_in_its_own_panel_alone():
    figure = plot_curves(pd.DataFrame([*small(12), *small(300, model="b")]))
    assert names(figure) == ["Q-Anchored swap (PopQA)"]
    assert [trace.line.width for trace in figure.data if trace.mode == "lines" and trace.fill is None] == [1.1, 2.2]


def test_single_layers_of_few_questions_do_not_make_a_curve_thin():
    rows = small(200)
    rows[0]["n"] = 3
    (line,) = legend(plot_curves(pd.DataFrame(rows)))
    assert line.line.width == 2.2
    assert ["read with care" in text for text in line.text] == [True, False, False]


def test_contrasts_of_few_questions_are_thin_too():
    frame = knockout_frame(MODELS, ("popqa",))
    figure = plot_curves(frame, effects=knockout_effects(MODELS, ("popqa",)).assign(n=15))
    (line,) = (trace for trace in figure.data if trace.xaxis == "x2" and trace.mode == "lines" and not trace.fill and trace.x)
    assert line.line.width == 1.1
    assert "fewer than 20 questions" in line.text[0]


@pytest.mark.parametrize("where", ["none", "null"])
def test_a_null_with_too_few_slots_is_marked(where):
    frame = swap_frame(MODELS, ("popqa",), ("question", "answer_site"))
    frame.loc[(frame["control"] == where) & (frame["anchor"] == "question"), "null_short"] = 0.87
    frame.loc[(frame["control"] == where) & (frame["anchor"] == "answer_site"), "null_short"] = 0.5
    figure = plot_curves(frame)
    nulls = [trace for trace in figure.data if trace.line.dash == "dot" and trace.text]
    assert [trace.mode for trace in nulls] == ["lines+markers", "lines"]
    assert nulls[0].marker.symbol == "triangle-down-open"
    assert "<br>null weaker: 87 % of rows have fewer slots" in nulls[0].text[0]
    assert "▽: null weaker" in figure.layout.title.text
    assert sum("null weaker" in trace.text[0] for trace in figure.data if trace.text) == 1


@pytest.mark.parametrize("control", ["random_before", "random_after"])
def test_placebo_tokens_on_one_side_are_drawn_only_where_they_are_named(control):
    frame = knockout_frame(MODELS, ("popqa",), placebos=("random_tokens", control))
    assert control not in plot_curves(frame).to_json()
    named = plot_curves(frame, controls=[control])
    drawn = [trace for trace in named.data if trace.name.endswith(f", {control}")]
    assert [trace.name for trace in drawn] == [f"{p}-Anchored (PopQA), {control}" for p in "QA"]
    side = control.removeprefix("random_")
    assert f"control: {control} (other question tokens {side} E_Q cut)" in drawn[0].text[0]
    assert f"dotted: {control} (other question tokens {side} E_Q cut)" in named.layout.title.text


def test_contrasts_with_one_side_are_thin_and_drawn_only_where_they_are_named():
    frame = knockout_frame(MODELS, ("popqa",), placebos=("random_tokens", "random_before"))
    rows = [
        effect(model="m", layer=k, control=c, value=v)
        for k in range(4)
        for c, v in (("random_tokens", -5.0), ("random_before", -2.0))
    ]

    def thin(controls: bool | list[str]) -> list[list[float]]:
        figure = plot_curves(frame, effects=pd.DataFrame(rows), controls=controls)
        return [list(trace.y) for trace in figure.data if trace.xaxis == "x2" and trace.line.dash == "dot"]

    assert thin(True) == thin(False) == []
    assert thin(["random_before"]) == [[-2.0] * 4]
