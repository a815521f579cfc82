"""What is drawn is one quantity: ΔP unless another one is asked for. A frame may name none."""

import pandas as pd
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.table import gather

from .seen import only_curve, said, told
from .synthetic import point, swap_frame

ANSWERS = {
    "protocol": "answer_only",
    "readout": "probe",
    "site": "",
    "probe_site": "resid_post",
    "window": 0,
    "donor_rule": "",
    "knockout_mode": "mask",
}


def both(**changes):
    """A few points of two quantities that share everything else."""
    own = ANSWERS | {"delta_kind": "confidence", "pathway": "All", "noise_floor": 0.5} | changes
    rows = [
        point(**own, metric="p", layer=k, effect=-5.0 - k, ci_low=-9.0, ci_high=-1.0)
        for k in range(3)
    ]
    rows += [
        point(
            **own,
            metric="flip",
            layer=k,
            effect=20.0 + k,
            ci_low=9.0,
            ci_high=31.0,
            value_before=0.0,
        )
        for k in range(3)
    ]
    return pd.DataFrame(rows)


def test_delta_p_is_drawn_unless_another_is_asked_for():
    frame = both()
    figure = plot_curves(frame)
    assert list(only_curve(figure).y) == [-5.0, -6.0, -7.0]
    assert figure.layout.yaxis.title.text == "ΔP (points)"
    assert "ΔP by layer: answer only" in said(figure)
    assert told(figure).startswith("ΔP in percentage points by layer.")
    assert figure.to_json() == plot_curves(frame[frame["metric"] == "p"]).to_json()


def test_flips_are_a_rate_in_points():
    figure = plot_curves(both(), metric="flip")
    line = only_curve(figure)
    assert list(line.y) == [20.0, 21.0, 22.0]
    assert figure.layout.yaxis.title.text == "flip rate (points)"
    assert said(figure).startswith("Flip rate by layer: answer only · ")
    assert told(figure).startswith(
        "flip rate: share of predictions that changed, in percentage points by layer."
    )
    assert "ΔP" not in said(figure)
    assert line.text[0].endswith(
        "layer 0<br>flip rate 20.00 points (95 %: 9.00 to 31.00)<br>n = 100 questions"
    )
    # The noise floor is one of ΔP.
    assert "noise floor" not in figure.to_json()
    assert len(figure.layout.shapes) == 0


def test_any_other_quantity_has_its_own_name():
    frame = both().assign(metric="log <odds>")
    figure = plot_curves(frame.iloc[:3], metric="log <odds>")
    assert figure.layout.yaxis.title.text == "Δ log &lt;odds&gt;"
    assert said(figure).startswith("Δ log &lt;odds&gt; by layer: answer only · ")
    assert "points" not in said(figure)
    hover = "<br>Δ log &lt;odds&gt; −5.00 (95 %: −9.00 to −1.00)<br>log &lt;odds&gt; before 0.600<br>n = 100 questions"
    assert only_curve(figure).text[0].endswith(hover)


def test_an_unknown_quantity_names_the_nearest():
    with pytest.raises(InputError, match="'flip'"):
        plot_curves(both(), metric="flips")


def test_without_p_the_first_metric_is_drawn_with_its_unit():
    frame = both().assign(metric="logit_diff", unit="logit").iloc[:3]
    figure = plot_curves(frame)
    assert figure.layout.yaxis.title.text == "Δ logit_diff (logits)"
    assert "Δ logit_diff −5.00 logits (95 %" in only_curve(figure).text[0]
    other = pd.concat([frame, both()])
    assert plot_curves(other).to_json() == plot_curves(both()).to_json()


@pytest.mark.slow
def test_frames_without_the_column_hold_delta_p():
    new = swap_frame({"m": 3}, ("popqa",))
    old = new.drop(columns=["metric", "probe_site"])
    assert set(gather(old, True)["metric"]) == {"p"}
    assert plot_curves(new).to_json() == plot_curves(old).to_json()
    mixed = new.astype({"metric": object})
    mixed.loc[0, "metric"] = None  # read from a file that lacks some
    assert plot_curves(mixed).to_json() == plot_curves(old).to_json()
