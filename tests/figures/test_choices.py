"""Labels, a panel for each data set, colours by data set, and the dark theme."""

import pandas as pd
import plotly.graph_objects as go
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves

from .synthetic import knockout_effects, knockout_frame, swap_effects, swap_frame
from .test_target import ENTRIES, legend, lines_of

MODELS = {"org/m": 6}


def titles(figure: go.Figure) -> list[str]:
    return [note.text for note in figure.layout.annotations if "claimed" not in note.text]


def test_labelled_runs_stand_side_by_side_whatever_differs():
    one = swap_frame(MODELS, ("popqa",))
    other = one.assign(prompt="fewshot(4)", readout="answer_joint", mode="random", delta_p=one["delta_p"] - 5)
    effects = swap_effects(MODELS, ("popqa",))
    figure = plot_curves({"qa": one, "four shots": [other]}, effects={"qa": effects, "four shots": effects.assign(value=-9.0)})
    assert titles(figure) == ["m: qa", "m: four shots"]
    # One entry for the curves of both panels: the titles tell them apart.
    assert [trace.name for trace in legend(figure)[:2]] == ["Q-Anchored swap (PopQA)", "A-Anchored swap (PopQA)"]
    first, second = lines_of(figure, "Q-Anchored swap (PopQA)")
    assert list(second.y) == [value - 5 for value in first.y]
    assert "prompt qa, fewshot(4)" in figure.layout.title.text
    assert figure.layout.yaxis.range == figure.layout.yaxis2.range
    lower = [t for t in figure.data if t.name == "Q-Anchored swap (PopQA), contrast" and t.mode == "lines" and t.fill is None]
    assert [set(t.y) == {-9.0} for t in lower] == [False, True]
    with pytest.raises(InputError, match=r"They would be drawn over each other\. .*or each with a label of its own"):
        plot_curves([one, other])


@pytest.mark.parametrize("label", ["", " "])
def test_a_label_is_a_text(label):
    with pytest.raises(InputError, match=r"^A label must be a text that is not empty"):
        plot_curves({label: swap_frame(MODELS, ("popqa",))})


def test_each_data_set_has_a_panel_of_its_own():
    models = {"a": 4, "b": 6}
    figure = plot_curves(knockout_frame(models), effects=knockout_effects(models), facet="dataset")
    assert titles(figure) == [f"{m}: {d}" for m in models for d in ("PopQA", "TriviaQA", "HotpotQA", "NQ")]
    for name, _ in ENTRIES:
        assert len(lines_of(figure, name)) == len(models)
    axes = {trace.xaxis for name, _ in ENTRIES[:2] for trace in lines_of(figure, name)}
    assert len(axes) == 2  # PopQA's two curves share a panel of each model
    ranges = {trace.name for trace in figure.data if trace.name == "Range of controls"}
    assert len(ranges) == 1


def test_one_hue_for_each_data_set():
    figure = plot_curves(knockout_frame(MODELS), colour="dataset")
    looks = [(trace.line.color, trace.line.dash) for trace in legend(figure)[:8]]
    assert looks[::2] == [(colour, "solid") for _, colour in ENTRIES[::2]]
    assert looks[1::2] == [(colour, "dash") for _, colour in ENTRIES[::2]]


def test_dark_has_the_same_curves_on_near_black():
    frame = knockout_frame(MODELS)
    light, dark = (plot_curves(frame, effects=knockout_effects(MODELS), theme=theme) for theme in ("light", "dark"))
    assert [list(t.y) for t in light.data] == [list(t.y) for t in dark.data]
    assert (dark.layout.paper_bgcolor, dark.layout.plot_bgcolor) == ("#14171a", "#14171a")
    text = go.Figure(dark).update_layout(template=None).to_json().casefold()
    assert not any(colour in text for colour in ('"white"', "#222222</", "color:#555555", '"#e6e6e6"'))

    def luminance(colour: str) -> float:
        parts = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
        return sum(
            w * (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4)
            for w, p in zip((0.2126, 0.7152, 0.0722), parts, strict=True)
        )

    for trace in legend(dark)[:8]:  # WCAG 2: 4.5 to 1
        assert (luminance(trace.line.color) + 0.05) / (luminance("#14171a") + 0.05) > 4.5
    assert len({trace.line.color for trace in legend(dark)[:8]}) == 8


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"colour": "datset"}, "There is no colour='datset'. Did you mean 'dataset'?"),
        ({"theme": "drak"}, "There is no theme='drak'. Did you mean 'dark'?"),
        ({"facet": "model"}, "facet='model' is neither None nor 'dataset', which gives each data set a panel."),
    ],
)
def test_unknown_choices(option, said):
    with pytest.raises(InputError) as told:
        plot_curves(pd.DataFrame(swap_frame(MODELS, ("popqa",))), **option)
    assert str(told.value) == said
