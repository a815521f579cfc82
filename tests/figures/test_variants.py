"""Runs that differ in a setting stand in one panel and can be told apart; small runs and weak nulls
are marked.
"""

import pandas as pd
import pytest

from anchorlens.constants import SETTINGS
from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.runs import schema

from .seen import curves_of, dotted, looks, names, only_curve, told
from .synthetic import (
    drawn,
    effect,
    full_figure,
    knockout_contrasts,
    knockout_frame,
    point,
    swap_frame,
)

MODELS = {"m": 4}


def two(frame: pd.DataFrame, column: str, value: str) -> list[pd.DataFrame]:
    """A run, and one of another setting with other values."""
    return [frame.assign(**{column: value}, effect=frame["effect"] - 3), frame]


def test_the_settings_are_those_of_the_schema():
    assert SETTINGS == schema.SETTINGS


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("distractor", ("matched", "random"), ("matched false answers", "random false answers")),
        ("split", ("fixed", "per_layer"), ("pathways of one layer", "pathways of each layer")),
        ("prompt", ("qa", "chat"), ("prompt qa", "prompt chat")),
        ("answers", ("gold", "generated"), ("given answers", "the model's answers")),
    ],
)
def test_two_knockouts_that_differ_in_a_setting_say_so_in_plain_words(column, values, words):
    frame = knockout_frame(MODELS, ("popqa",), unsplit=False, placebos=("random_tokens",))
    figure = full_figure(two(frame, column, values[1]))
    assert names(figure) == [
        f"{pathway}-Anchored (PopQA, {text})" for text in words for pathway in "QA"
    ]
    seen = list(looks(figure).values())
    assert seen[:2] == [("#1f77b4", "solid"), ("#ff7f0e", "dash")]  # the usual run looks as ever
    assert len({colour for colour, _ in seen}) == len({dash for _, dash in seen}) == 4
    # Each line holds its own run, and so does each placebo.
    question = frame[(frame["pathway"] == "Q-Anchored") & (frame["control"] == "none")]["effect"]
    assert [list(trace.y) for trace in curves_of(figure)[::2]] == [
        question.tolist(),
        (question - 3).tolist(),
    ]
    assert sorted(trace.name for trace in dotted(figure)) == sorted(
        f"{name}, random_tokens" for name in names(figure)
    )


@pytest.mark.parametrize(
    ("column", "other", "words"),
    [
        ("known_only", "True", ("known and unknown questions", "known questions only")),
        ("prompt", "fewshot(4)", ("prompt qa", "prompt fewshot(4)")),
    ],
)
def test_two_swaps_that_differ_in_a_setting_keep_their_nulls_apart(column, other, words):
    figure = full_figure(two(swap_frame(MODELS, ("popqa",), ("exact_question",)), column, other))
    assert names(figure) == [f"Q-Anchored swap (PopQA, {text})" for text in words]
    assert sorted(trace.name for trace in dotted(figure)) == sorted(
        f"{name}, null" for name in names(figure)
    )


def test_several_settings_are_named_together_and_four_runs_look_different():
    frame = knockout_frame(MODELS, ("popqa",), unsplit=False, placebos=())
    runs = [
        frame.assign(distractor=d, split=s)
        for d in ("random", "matched")
        for s in ("per_layer", "fixed")
    ]
    figure = plot_curves(runs)
    assert names(figure)[0] == "Q-Anchored (PopQA, matched false answers, pathways of one layer)"
    assert names(figure)[-1] == "A-Anchored (PopQA, random false answers, pathways of each layer)"
    assert len(set(looks(figure).values())) == len(names(figure)) == 8


def test_contrasts_follow_their_run():
    frame = knockout_frame(MODELS, ("popqa",), unsplit=False, placebos=())
    contrast_tables = knockout_contrasts(MODELS, ("popqa",)).assign(
        prompt="qa", answers="gold", split="fixed", known_only=""
    )
    one, other = (
        contrast_tables.assign(distractor="matched"),
        contrast_tables.assign(distractor="random", value=-40.0),
    )
    figure = plot_curves(two(frame, "distractor", "random"), contrast_tables=[other, one])
    usual, random = (
        trace
        for trace in figure.data
        if trace.xaxis == "x2" and trace.mode == "lines" and not trace.fill
    )
    assert [line.name for line in (usual, random)] == [
        f"All rows (PopQA, {name} false answers)" for name in ("matched", "random")
    ]
    assert usual.line.color != random.line.color
    assert list(usual.y) == one.query("quantity == 'delta_p_vs_placebo'")["value"].tolist()
    assert list(random.y) == [-40.0] * 4


def test_contrasts_that_do_not_say_of_which_run_they_are():
    frame = knockout_frame(MODELS, ("popqa",))
    with pytest.raises(
        InputError,
        match=(
            r"exact_question of popqa with m are of several runs.* add the columns prompt, answers"
        ),
    ):
        plot_curves(
            two(frame, "split", "per_layer"), contrast_tables=knockout_contrasts(MODELS, ("popqa",))
        )


@pytest.mark.parametrize(
    ("n", "said"), [(19, "fewer than 20 questions: interpret with care"), (20, "")]
)
def test_few_questions_are_said_and_not_drawn(n, said):
    figure, usual = (drawn([point(layer=k, n=count) for k in range(3)]) for count in (n, 200))
    assert all(text.endswith(said or f"n = {n} questions") for text in only_curve(figure).text)
    assert ("fewer than 20 questions" in told(figure)) == bool(said)
    assert only_curve(figure).line == only_curve(usual).line


@pytest.mark.parametrize(("effective", "said"), [(4.8, True), (20.0, False), (float("nan"), False)])
def test_a_curve_that_few_questions_carry_says_so(effective, said):
    figure = drawn(
        [
            point(layer=k, n=60, n_effective=effective, sim_low=-20.0, sim_high=0.0)
            for k in range(3)
        ],
        bands="simultaneous",
    )
    assert {
        "few questions carry the effect: effective number 4.8" in text
        for text in only_curve(figure).text
    } == {said}
    assert (
        "Where few questions carry the effect (hover), simultaneous bands allow for an unseen question"
        in told(figure)
    ) == said
    own = pd.DataFrame([effect(model="m", layer=k, n=60, n_effective=effective) for k in range(4)])
    below = plot_curves(knockout_frame(MODELS, ("popqa",)), contrast_tables=own)
    texts = [
        text for trace in below.data for text in trace.text or () if "n = 60 questions" in text
    ]
    assert {"few questions carry" in text for text in texts} == {said}


@pytest.mark.parametrize("where", ["none", "null"])
def test_a_null_with_too_few_positions_is_said(where):
    frame = swap_frame(MODELS, ("popqa",), ("exact_question", "pre_answer"))
    shares = frame["anchor"].map({"exact_question": 0.87, "pre_answer": 0.5})
    frame["frac_null_incomplete"] = shares.where(frame["control"] == where)
    figure = full_figure(frame)
    assert [
        "null weaker: 87 % of rows have fewer positions" in trace.text[0]
        for trace in dotted(figure)
    ] == [True, False]
    assert "In most rows a null has fewer positions than its anchor." in told(figure)
    assert sum("null weaker" in trace.text[0] for trace in figure.data if trace.text) == 1
