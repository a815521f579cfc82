"""Results that plot_curves refuses."""

import pandas as pd
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.table import REQUIRED, gather

from .synthetic import NAN, point, swap_frame

SMALL = swap_frame({"m": 2}, ("popqa",))


@pytest.mark.parametrize("results", [SMALL.iloc[:0], [SMALL.iloc[:0]] * 2, []])
def test_empty_results(results):
    with pytest.raises(InputError, match="empty"):
        plot_curves(results)


@pytest.mark.parametrize("columns", [[name] for name in REQUIRED] + [["effect", "n"]])
def test_every_required_column_is_required(columns):
    with pytest.raises(InputError, match=rf"lacks the columns? {', '.join(columns)}\."):
        plot_curves(SMALL.drop(columns=columns))


@pytest.mark.parametrize(("results", "kind"), [("runs/a", "str"), ([{"layer": 0}], "dict")])
def test_not_a_result(results, kind):
    with pytest.raises(InputError, match=rf"not {kind}\. Pass a sweep"):
        gather(results, True)


TWO_VALUES = {
    "readout": ("first_token", "answer_joint"),
    "site": ("resid_pre", "attn_out"),
    "probe_site": ("resid_post", "mlp_out"),
    "direction": ("noising", "denoising"),
    "donor_rule": ("same_relation", "zero"),
    "delta_kind": ("probability", "signed"),
    "window": (1, 5),
    "seed": (0, 1),
    "run_id": ("a", "b"),
}


@pytest.mark.parametrize(("column", "values"), TWO_VALUES.items())
def test_curves_drawn_over_each_other_name_the_column_and_the_filter(column, values):
    with pytest.raises(
        InputError,
        match=f"^The column '{column}' has 2 values among .*: {values[0]!r}, {values[1]!r}",
    ) as told:
        gather(
            pd.DataFrame(
                [point(**{column: value}, effect=-float(k)) for k, value in enumerate(values)]
            ),
            True,
        )
    assert f'plot_curves(frame[frame["{column}"] == {values[0]!r}])' in str(told.value)
    assert "--label first --label second" in str(told.value)


def test_window_may_differ_between_models_and_settings_between_protocols():
    rows = [
        point(window=3),
        point(model="b", window=5),
        point(protocol="knockout", pathway="All", site="", readout="probe"),
    ]
    assert len(gather(pd.DataFrame(rows), True)) == 3


@pytest.mark.parametrize(
    ("rows", "controls", "told"),
    [
        (
            [{}, {"effect": -3.0}],
            True,
            (
                r"^One point has 2 different values \(exact_question of popqa .*, layer 0, control"
                r" none\)\."
            ),
        ),
        (
            [{}, {"control": "null", "dataset": "nq"}],
            True,
            "^The control 'null' of exact_question, nq, Qwen/Qwen3-8B has no curve",
        ),
        (
            [{}, {"control": "null", "prompt": "chat"}],
            True,
            "^The control 'null' of exact_question, popqa, .* has no curve",
        ),
        ([{}, {"control": "placebo"}], ["placbo"], "Did you mean 'placebo'?"),
        ([{}], ["null"], "controls='null': not in these results. These results have none"),
        *(
            ([{"layer": layer}], True, "'layer' of the curves frame must hold whole numbers")
            for layer in (-1, 1.5, NAN)
        ),
        ([{"effect": "deep"}], True, "'effect' of the curves frame must hold numbers"),
        ([{"ci_low": -float("inf")}], True, "'ci_low' of the curves frame holds an infinite value"),
    ],
)
def test_rows_that_cannot_be_drawn(rows, controls, told):
    with pytest.raises(InputError, match=told):
        gather(pd.DataFrame([point(**row) for row in rows]), controls)


def test_a_control_without_its_curve_may_be_left_out():
    assert len(gather(pd.DataFrame([point(), point(control="null", dataset="nq")]), False)) == 1


def test_null_read_as_missing_from_csv(tmp_path):
    path = tmp_path / "curves.csv"
    SMALL.to_csv(path, index=False)
    with pytest.raises(InputError, match="keep_default_na"):
        plot_curves(pd.read_csv(path))
    whole = gather(pd.read_csv(path, keep_default_na=False), True)
    assert whole["control"].tolist() == SMALL["control"].tolist()
    assert whole["effect"].tolist() == pytest.approx(SMALL["effect"].tolist())


def test_a_width_too_small():
    with pytest.raises(InputError, match="width=200"):
        plot_curves(SMALL, width=200)
