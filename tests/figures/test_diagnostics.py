"""The probe's AUC, sizes of pathways, the heatmap: the frame's numbers, and a reason where there
are none.
"""

import pandas as pd
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.choose_figure import plot_heatmap
from anchorlens.figures.curves import plot_curves
from anchorlens.figures.diagnostics import plot_pathway_sizes, plot_probe_auc
from anchorlens.figures.layout import NOT_MEASURED

from .seen import only_curve, said, titles
from .synthetic import knockout_frame, pick, swap_frame

MODELS = {"org/m": 8}


def test_auc_is_the_probes_with_its_interval_and_a_line_at_chance():
    frame = knockout_frame(MODELS, ("popqa",))
    figure = plot_probe_auc(frame)
    own = pick(frame, pathway="All", control="none")
    assert list(only_curve(figure).y) == own["auc"].tolist()
    (band,) = (trace for trace in figure.data if trace.fill)
    assert list(band.y[:8]) == own["auc_high"].tolist()
    assert [shape.y0 for shape in figure.layout.shapes] == [0.5]
    assert figure.layout.yaxis.range[0] <= 0.4
    assert figure.layout.yaxis.title.text == "AUC"
    assert "AUC of the probe by layer" in said(figure)
    with pytest.raises(InputError, match="no probe was read"):
        plot_probe_auc(swap_frame(MODELS, ("popqa",)))


def test_sizes_are_the_questions_of_each_pathway():
    frame = knockout_frame(MODELS, ("popqa", "nq"))
    figure = plot_pathway_sizes({"one": frame, "two": frame.assign(n=frame["n"] / 2)})
    lines = {
        (trace.name, trace.xaxis): set(trace.y) for trace in figure.data if trace.mode == "lines"
    }
    assert lines["Q-Anchored (PopQA)", "x"] == {312}
    assert lines["Q-Anchored (PopQA)", "x2"] == {156}
    assert lines["A-Anchored (NQ)", "x"] == {178}
    assert figure.layout.yaxis.title.text == "questions"
    with pytest.raises(InputError, match="have no pathways"):
        plot_pathway_sizes(swap_frame(MODELS, ("popqa",)))


def test_heatmap_has_a_row_for_each_role_and_the_question_on_top():
    frame = swap_frame(MODELS, ("popqa", "nq"), ("exact_question", "subject", "pre_answer"))
    figure = plot_heatmap(frame)
    assert titles(figure) == ["m: PopQA", "m: NQ"]
    first = figure.data[0]
    assert list(first.y) == ["subject", "pre_answer", "exact_question"]
    own = pick(frame, dataset="popqa", anchor="subject", control="none")
    assert list(first.z[0]) == own["effect"].tolist()
    scale = figure.layout.coloraxis
    assert (scale.cmin, scale.cmid) == (-scale.cmax, 0)
    assert scale.cmax == frame.loc[frame["control"] == "none", "effect"].abs().max()
    assert scale.colorbar.title.text == "ΔP (points)"


def test_layers_that_were_not_measured_are_no_zeros_in_a_heatmap():
    frame = swap_frame(MODELS, ("popqa",))
    figure = plot_heatmap(frame[frame["layer"].isin([0, 2, 3])])
    (cells,) = figure.data
    assert list(cells.x) == [0, 1, 2, 3]
    assert [value is None or value != value for value in cells.z[0]] == [False, True, False, False]
    assert figure.layout.plot_bgcolor == NOT_MEASURED
    assert "<b>ΔP by layer and anchor</b>" in figure.layout.title.text
    pathways = plot_heatmap(knockout_frame(MODELS, ("popqa",)))
    assert "<b>ΔP by layer and pathway</b>" in pathways.layout.title.text


def strings(value):
    """Every string of a figure that is shown."""
    if isinstance(value, dict):
        return [
            one
            for key, inner in value.items()
            if key not in ("legendgroup", "meta", "template")
            for one in strings(inner)
        ]
    if isinstance(value, list | tuple):
        return [one for inner in value for one in strings(inner)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("plot", [plot_curves, plot_heatmap])
@pytest.mark.parametrize(
    "name",
    ["model", "dataset", "anchor", "protocol", "prompt", "control", "readout", "metric", "unit"],
)
def test_names_from_a_run_are_no_markup_in_a_figure(plot, name):
    frame = swap_frame(MODELS, ("popqa",), ("subject",)).assign(position=float("nan"))
    other = frame.assign(**{name: "<i>NAME</i>", "run_id": "other", "layer": frame["layer"] + 100})
    if name in ("readout", "metric", "unit"):  # one figure has one of them
        frame, other = other, other.assign(layer=other["layer"] + 100, dataset="nq")
    shown = strings(plot(pd.concat([frame, other]), width=1000).to_dict())
    assert [one for one in shown if "<i>" in one] == []


def test_heatmap_sorts_positions_as_numbers():
    names = [f"pos:{p}" for p in range(12)]
    frame = swap_frame(MODELS, ("popqa",), names)
    frame = frame.assign(position=frame["anchor"].str.removeprefix("pos:").astype(int))
    assert list(plot_heatmap(frame).data[0].y) == names[::-1]
