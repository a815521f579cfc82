"""What plot_curves refuses, and the cure it names."""

import pandas as pd
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.table import REQUIRED, gather

from .synthetic import point, swap_frame

LABELLED = "plot_curves({'first': a, 'second': b}), in a shell --label first --label second"


def refusal(*rows: dict[str, object], **options: object) -> str:
    with pytest.raises(InputError) as caught:
        gather(pd.DataFrame(rows), options.get("controls", True))
    return str(caught.value)


def test_empty_frames():
    empty = pd.DataFrame(columns=list(REQUIRED))
    for results in (empty, [empty, empty], []):
        with pytest.raises(InputError, match=r"^plot_curves was given no point: every frame is empty\. Pass a sweep"):
            plot_curves(results)


def test_missing_columns_are_named():
    frame = swap_frame({"m": 2}, ("popqa",)).drop(columns=["readout", "n"])
    with pytest.raises(
        InputError, match=r"^The curves frame lacks the columns readout, n\. Pass the frame that curves\(\) gives"
    ):
        plot_curves(frame)


@pytest.mark.parametrize("column", REQUIRED)
def test_every_required_column_is_required(column):
    with pytest.raises(InputError, match=rf"^The curves frame lacks the column {column}\."):
        plot_curves(swap_frame({"m": 2}, ("popqa",)).drop(columns=[column]))


def test_not_a_result():
    with pytest.raises(InputError, match=r"not str\. Pass a sweep"):
        gather("runs/a", True)
    with pytest.raises(InputError, match=r"not dict\. Pass a sweep"):
        gather([{"layer": 0}], True)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("readout", ("first_token", "answer_joint")),
        ("site", ("resid_pre", "attn_out")),
        ("direction", ("noising", "denoising")),
        ("mode", ("same_relation", "zero")),
        ("delta_kind", ("probability", "signed")),
        ("window", (1, 5)),
    ],
)
def test_mixtures_name_the_column_and_the_filter(column, values):
    among = "the swap curves of Qwen/Qwen3-8B" if column == "window" else "the swap curves"
    assert refusal(*(point(**{column: value}) for value in values)) == (
        f"The column '{column}' has 2 values among {among}: {values[0]!r}, {values[1]!r}. They would be drawn over each other. "
        f'Draw one at a time: plot_curves(frame[frame["{column}"] == {values[0]!r}]); or each with a label of its own, {LABELLED}.'
    )


def test_window_may_differ_between_models_and_settings_between_protocols():
    rows = [point(window=3), point(model="b", window=5), point(protocol="knockout", pathway="All", site="", readout="probe")]
    assert len(gather(pd.DataFrame(rows), True)) == 3


@pytest.mark.parametrize(("column", "values"), [("seed", (0, 1)), ("run_id", ("a", "b"))])
def test_one_point_of_two_runs(column, values):
    assert refusal(point(**{column: values[0]}), point(**{column: values[1]}, delta_p=-3.0)) == (
        f"The column '{column}' has 2 values among the rows of one point (question of popqa with Qwen/Qwen3-8B, layer 0, "
        f"control none): {values[0]!r}, {values[1]!r}. They would be drawn over each other. "
        f'Draw one at a time: plot_curves(frame[frame["{column}"] == {values[0]!r}]); or each with a label of its own, {LABELLED}.'
    )


def test_one_point_with_two_values():
    assert refusal(point(), point(delta_p=-3.0)) == (
        "One point has 2 different values (question of popqa with Qwen/Qwen3-8B, layer 0, control none). "
        f"Keep one row per point, or give each run a label, {LABELLED}."
    )


def test_control_without_its_curve():
    assert refusal(point(), point(control="null", dataset="nq")) == (
        "The control 'null' of question, nq, Qwen/Qwen3-8B has no curve beside it (no row with control 'none'). "
        "Add that curve's rows, or pass controls=False."
    )
    assert len(gather(pd.DataFrame([point(), point(control="null", dataset="nq")]), False)) == 1


def test_unknown_control():
    rows = [point(), point(control="placebo")]
    assert (
        refusal(*rows, controls=["placbo"]) == "There is no control called 'placbo' in these results. Did you mean 'placebo'?"
    )
    assert refusal(point(), controls=["null"]) == (
        "There is no control called 'null' in these results. These results hold no control."
    )


def test_null_read_as_missing_from_csv(tmp_path):
    path = tmp_path / "curves.csv"
    frame = swap_frame({"m": 3}, ("popqa",))
    frame.to_csv(path, index=False)
    with pytest.raises(
        InputError, match=r"^The column 'control' of the curves frame has missing values\. .*keep_default_na=False"
    ):
        plot_curves(pd.read_csv(path))
    whole = gather(pd.read_csv(path, keep_default_na=False), True)
    assert whole["control"].tolist() == frame["control"].tolist()
    assert whole["delta_p"].tolist() == pytest.approx(frame["delta_p"].tolist())


@pytest.mark.parametrize("layer", [-1, 1.5, float("nan")])
def test_layers_must_be_whole_numbers(layer):
    assert refusal(point(layer=layer)) == (
        "The column 'layer' of the curves frame must hold whole numbers from 0. Correct or drop the other rows."
    )


def test_numbers_must_be_numbers():
    assert refusal(point(delta_p="deep")).startswith("The column 'delta_p' of the curves frame must hold numbers: ")
    assert refusal(point(ci_low=float("-inf"))) == (
        "The column 'ci_low' of the curves frame holds an infinite value. Use NaN for a missing one."
    )


def test_sizes_too_small():
    frame = swap_frame({"m": 3}, ("popqa",))
    with pytest.raises(InputError, match=r"^width=200 pixels is too small for this figure\. Give at least 320, or None\.$"):
        plot_curves(frame, width=200)
    with pytest.raises(InputError, match=r"^height=100 pixels is too small"):
        plot_curves(frame, height=100)
