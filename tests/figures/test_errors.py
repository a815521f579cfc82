"""Results that plot_curves refuses."""

import pandas as pd
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.table import REQUIRED, gather

from .synthetic import point, swap_frame

SMALL = swap_frame({"m": 2}, ("popqa",))


def refused(*rows: dict[str, object], controls: bool | list[str] = True) -> str:
    with pytest.raises(InputError) as caught:
        gather(pd.DataFrame(rows), controls)
    return str(caught.value)


@pytest.mark.parametrize("results", [SMALL.iloc[:0], [SMALL.iloc[:0]] * 2, []])
def test_empty_results(results):
    with pytest.raises(InputError, match="no point: every frame is empty"):
        plot_curves(results)


@pytest.mark.parametrize("columns", [[name] for name in REQUIRED] + [["readout", "n"]])
def test_every_required_column_is_required(columns):
    with pytest.raises(InputError, match=rf"lacks the columns? {', '.join(columns)}\."):
        plot_curves(SMALL.drop(columns=columns))


@pytest.mark.parametrize(("results", "kind"), [("runs/a", "str"), ([{"layer": 0}], "dict")])
def test_not_a_result(results, kind):
    with pytest.raises(InputError, match=rf"not {kind}\. Pass a sweep"):
        gather(results, True)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("readout", ("first_token", "answer_joint")),
        ("site", ("resid_pre", "attn_out")),
        ("probe_site", ("resid_post", "mlp_out")),
        ("direction", ("noising", "denoising")),
        ("mode", ("same_relation", "zero")),
        ("delta_kind", ("probability", "signed")),
        ("window", (1, 5)),
        ("seed", (0, 1)),
        ("run_id", ("a", "b")),
    ],
)
def test_curves_drawn_over_each_other_name_the_column_and_the_filter(column, values):
    text = refused(*(point(**{column: value}, delta_p=-float(k)) for k, value in enumerate(values)))
    assert text.startswith(f"The column '{column}' has 2 values among the ")
    assert f"{values[0]!r}, {values[1]!r}" in text
    assert f'plot_curves(frame[frame["{column}"] == {values[0]!r}])' in text
    assert "--label first --label second" in text


def test_window_may_differ_between_models_and_settings_between_protocols():
    rows = [point(window=3), point(model="b", window=5), point(protocol="knockout", pathway="All", site="", readout="probe")]
    assert len(gather(pd.DataFrame(rows), True)) == 3


def test_one_point_with_two_values():
    text = refused(point(), point(delta_p=-3.0))
    assert text.startswith("One point has 2 different values (question of popqa with Qwen/Qwen3-8B, layer 0, control none).")


def test_control_without_its_curve():
    rows = [point(), point(control="null", dataset="nq")]
    assert refused(*rows).startswith("The control 'null' of question, nq, Qwen/Qwen3-8B has no curve")
    assert len(gather(pd.DataFrame(rows), False)) == 1


def test_unknown_control():
    assert "Did you mean 'placebo'?" in refused(point(), point(control="placebo"), controls=["placbo"])
    assert "'null' in these results. These results hold no control" in refused(point(), controls=["null"])


def test_null_read_as_missing_from_csv(tmp_path):
    path = tmp_path / "curves.csv"
    SMALL.to_csv(path, index=False)
    with pytest.raises(InputError, match=r"column 'control' .* missing values\. .*keep_default_na=False"):
        plot_curves(pd.read_csv(path))
    whole = gather(pd.read_csv(path, keep_default_na=False), True)
    assert whole["control"].tolist() == SMALL["control"].tolist()
    assert whole["delta_p"].tolist() == pytest.approx(SMALL["delta_p"].tolist())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *(({"layer": layer}, "'layer' of the curves frame must hold whole numbers") for layer in (-1, 1.5, float("nan"))),
        ({"delta_p": "deep"}, "'delta_p' of the curves frame must hold numbers"),
        ({"ci_low": float("-inf")}, "'ci_low' of the curves frame holds an infinite value"),
    ],
)
def test_numbers_must_be_finite_and_layers_whole(changes, said):
    assert said in refused(point(**changes))


@pytest.mark.parametrize(("size", "least"), [({"width": 200}, "at least 320"), ({"height": 100}, "at least")])
def test_sizes_too_small(size, least):
    with pytest.raises(InputError, match=rf"pixels is too small for this figure\. Give {least}"):
        plot_curves(SMALL, **size)
