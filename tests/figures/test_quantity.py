"""What is drawn is one quantity: ΔP unless another one is asked for. Frames of older versions name none."""

import pandas as pd
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.table import gather

from .synthetic import knockout_frame, point, swap_frame

ANSWERS = {"protocol": "answer_only", "readout": "probe", "site": "", "probe_site": "resid_post", "window": 0, "mode": "mask"}


def both(**changes):
    """A few points of two quantities that share everything else."""
    own = ANSWERS | {"delta_kind": "confidence", "pathway": "All", "noise_floor": 0.5} | changes
    rows = [point(**own, quantity="p", layer=k, delta_p=-5.0 - k, ci_low=-9.0, ci_high=-1.0) for k in range(3)]
    rows += [
        point(**own, quantity="flip", layer=k, delta_p=20.0 + k, ci_low=9.0, ci_high=31.0, p_before=0.0) for k in range(3)
    ]
    return pd.DataFrame(rows)


def curve(figure):
    (line,) = (trace for trace in figure.data if trace.showlegend)
    return line


def test_delta_p_is_drawn_unless_another_is_asked_for():
    frame = both()
    figure = plot_curves(frame)
    assert list(curve(figure).y) == [-5.0, -6.0, -7.0]
    assert figure.layout.yaxis.title.text == "ΔP"
    assert "ΔP by layer: answer only" in figure.layout.title.text
    assert "ΔP in percentage points" in figure.layout.title.text
    assert (
        figure.to_json()
        == plot_curves(frame[frame["quantity"] == "p"]).to_json()
        == plot_curves(frame, quantity="p").to_json()
    )


def test_flips_are_a_rate_in_points():
    figure = plot_curves(both(), quantity="flip")
    line = curve(figure)
    assert list(line.y) == [20.0, 21.0, 22.0]
    assert figure.layout.yaxis.title.text == "flip rate (points)"
    said = figure.layout.title.text
    assert "<b>Flip rate by layer: answer only</b>" in said
    assert "flip rate: share of predictions that changed, in percentage points" in said
    assert "ΔP" not in said
    assert line.text[0].endswith("layer 0<br>flip rate 20.00 points (95 %: 9.00 to 31.00)<br>n = 100 questions")
    # The noise floor is one of ΔP.
    assert "noise floor" not in figure.to_json()
    assert len(figure.layout.shapes) == 0


def test_any_other_quantity_has_its_own_name():
    frame = both().assign(quantity="log <odds>")
    figure = plot_curves(frame.iloc[:3], quantity="log <odds>")
    assert figure.layout.yaxis.title.text == "Δ log &lt;odds&gt;"
    assert "<b>Δ log &lt;odds&gt; by layer: answer only</b>" in figure.layout.title.text
    assert "points" not in figure.layout.title.text
    text = curve(figure).text[0]
    assert text.endswith("<br>Δ log &lt;odds&gt; −5.00 (95 %: −9.00 to −1.00)<br>before 0.600<br>n = 100 questions")


@pytest.mark.parametrize(
    ("quantity", "said"),
    [
        ("flips", "There is no quantity called 'flips' in these results. Did you mean 'flip'?"),
        ("odds", "There is no quantity called 'odds' in these results. Known: flip, p."),
    ],
)
def test_an_unknown_quantity_names_those_that_are_there(quantity, said):
    with pytest.raises(InputError) as told:
        plot_curves(both(), quantity=quantity)
    assert str(told.value) == said
    with pytest.raises(InputError, match=r"no quantity called 'flip' in these results\. Known: p\.$"):
        plot_curves(swap_frame({"m": 2}, ("popqa",)), quantity="flip")


def test_placebo_gaps_of_flips():
    frame = knockout_frame({"m": 3}, ("popqa",))
    figure = plot_curves(pd.concat([frame, frame.assign(quantity="flip", delta_p=7.0)]), quantity="flip")
    (gap,) = (trace for trace in figure.data if trace.name == "Placebo gap (PopQA)" and len(trace.x) > 1)
    assert set(gap.y) == {0.0}
    assert "Q − A = 0.00 points with" in gap.text[0]


def test_frames_without_the_column_hold_delta_p():
    new = swap_frame({"m": 3}, ("popqa",))
    old = new.drop(columns=["quantity", "probe_site"])
    assert set(gather(old, True)["quantity"]) == {"p"}
    assert plot_curves(new).to_json() == plot_curves(old).to_json()
    mixed = new.astype({"quantity": object})
    mixed.loc[0, "quantity"] = None  # read from a file that lacks some
    assert plot_curves(mixed).to_json() == plot_curves(old).to_json()


# --- where the probe reads -----------------------------------------------------------------------------------------------------


def told(**changes):
    return plot_curves(
        pd.DataFrame([point(**ANSWERS | {"protocol": "knockout", "pathway": "All"} | changes)])
    ).layout.title.text


def unbroken(title: str) -> str:
    """The small lines of a heading as one."""
    return title.replace('</span><br><span style="font-size:12px;color:#555555">', " · ")


def test_the_title_says_where_a_probe_reads_only_where_it_is_not_the_default():
    assert "resid_post" not in told()
    assert "probe at mlp_out" in told(probe_site="mlp_out").replace("</span><br>", " · ")
    assert "site" not in told(probe_site="mlp_out")
    swap = plot_curves(pd.DataFrame([point(readout="probe", probe_site="attn_out", site="mlp_out")])).layout.title.text
    assert "site mlp_out · probe at attn_out" in unbroken(swap)


def test_the_site_of_an_older_knockout_is_where_its_probe_reads():
    row = point(**ANSWERS | {"protocol": "knockout", "pathway": "All", "site": "mlp_out"})
    del row["probe_site"]
    said = plot_curves(pd.DataFrame([row])).layout.title.text
    assert "probe at mlp_out" in said
    assert "site" not in said
    # In one frame with a swap of today, and beside a knockout of today: one curve's points, not those of two sites.
    table = gather(pd.DataFrame([row, point(site="attn_out")]), True)
    assert table[["site", "probe_site"]].values.tolist() == [["", "mlp_out"], ["attn_out", ""]]
    today = point(**ANSWERS | {"protocol": "knockout", "pathway": "All", "probe_site": "mlp_out", "layer": 1})
    assert len(gather([pd.DataFrame([row]), pd.DataFrame([today])], True)) == 2


def test_two_places_of_a_probe_are_not_drawn_over_each_other():
    rows = [point(**ANSWERS | {"pathway": "All", "probe_site": site}) for site in ("resid_post", "mlp_out")]
    with pytest.raises(
        InputError, match=r"^The column 'probe_site' has 2 values among the answer_only curves: 'resid_post', 'mlp_out'"
    ):
        plot_curves(pd.DataFrame(rows))
