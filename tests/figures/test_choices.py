"""Labels, a panel for each data set, colours by data set, and the dark theme."""

import plotly.graph_objects as go
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.curves import plot_curves

from .browser import contrast
from .seen import curves_of, lines_of, looks, names, said, titles, told
from .synthetic import knockout_contrasts, knockout_frame, swap_effects, swap_frame
from .test_target import ENTRIES

MODELS = {"org/m": 6}


def test_labelled_runs_stand_side_by_side_whatever_differs():
    one = swap_frame(MODELS, ("popqa",))
    other = one.assign(
        prompt="fewshot(4)",
        readout="answer_joint",
        donor_rule="random",
        direction="denoising",
        effect=one["effect"] - 5,
    )
    contrast_tables = swap_effects(MODELS, ("popqa",))
    figure = plot_curves(
        {"qa": one, "four shots": [other]},
        contrast_tables={"qa": contrast_tables, "four shots": contrast_tables.assign(value=-9.0)},
    )
    assert titles(figure) == ["m: qa", "m: four shots"]
    # One entry for the curves of both panels: the titles tell them apart.
    assert names(figure) == ["Q-Anchored swap (PopQA)", "A-Anchored swap (PopQA)"]
    lines = [trace for trace in lines_of(figure, "Q-Anchored swap (PopQA)") if trace.fill is None]
    first, second = (trace for trace in lines if trace.xaxis in ("x", "x2"))
    assert list(second.y) == [value - 5 for value in first.y]
    assert "prompt qa; prompt fewshot(4)" in told(figure)
    assert figure.layout.yaxis.range == figure.layout.yaxis2.range
    lower = [trace for trace in lines if trace.xaxis in ("x3", "x4")]
    assert [set(t.y) == {-9.0} for t in lower] == [False, True]
    with pytest.raises(InputError, match="overlap"):
        plot_curves([one, other])


@pytest.mark.parametrize("label", ["", " "])
def test_a_label_is_a_text(label):
    with pytest.raises(InputError, match="^label"):
        plot_curves({label: swap_frame(MODELS, ("popqa",))})


@pytest.mark.slow
def test_each_data_set_has_a_panel_of_its_own():
    models = {"a": 4, "b": 6}
    figure = plot_curves(
        knockout_frame(models), contrast_tables=knockout_contrasts(models), facet="dataset"
    )
    assert titles(figure) == [
        f"{m}: {d}" for m in models for d in ("PopQA", "TriviaQA", "HotpotQA", "NQ")
    ]
    axes = [[trace.xaxis for trace in lines_of(figure, name)] for name, _ in ENTRIES]
    assert axes[::2] == axes[1::2]  # a data set's two curves share a panel of each model
    assert {len(own) for own in axes} == {len(models)}
    assert len({axis for own in axes for axis in own}) == 4 * len(models)


def test_one_hue_for_each_data_set():
    wanted = [(colour, dash) for _, colour in ENTRIES[::2] for dash in ("solid", "dash")]
    assert list(looks(plot_curves(knockout_frame(MODELS), colour="dataset")).values()) == wanted


@pytest.mark.slow
def test_dark_has_the_same_curves_on_near_black():
    frame = knockout_frame(MODELS)
    light, dark = (
        plot_curves(frame, contrast_tables=knockout_contrasts(MODELS), theme=theme)
        for theme in ("light", "dark")
    )
    assert [list(t.y) for t in light.data] == [list(t.y) for t in dark.data]
    assert (dark.layout.paper_bgcolor, dark.layout.plot_bgcolor) == ("#14171a", "#14171a")
    text = go.Figure(dark).update_layout(template=None).to_json().casefold()
    assert not any(
        colour in text
        for colour in ('"white"', "#222222</", "color:#555555", '"#e6e6e6"', "rgba(34,34,34,")
    )
    colours = {trace.line.color for trace in curves_of(dark)}
    assert len(colours) == 8
    grounds = [[int(colour[k : k + 2], 16) for k in (1, 3, 5)] for colour in (*colours, "#14171a")]
    assert min(contrast(own, grounds[-1]) for own in grounds[:-1]) > 4.5  # WCAG 2


@pytest.mark.slow
def test_paper_has_panels_and_legend_alone_on_white():
    frame, contrasts = knockout_frame(MODELS), knockout_contrasts(MODELS)
    plain, paper = (
        plot_curves(frame, contrast_tables=contrasts, style=style) for style in ("plain", "paper")
    )
    assert [t.to_plotly_json() for t in paper.data] == [t.to_plotly_json() for t in plain.data]
    assert titles(paper) == titles(plain) == ["m"]
    assert (said(paper), paper.layout.title.text, len(paper.layout.updatemenus)) == ("", "", 0)
    assert (paper.layout.paper_bgcolor, paper.layout.plot_bgcolor) == ("white", "white")
    assert plain.layout.height - paper.layout.height == 2 * 19  # the two lines of the heading
    assert told(paper) == told(plain)


def test_named_anchors_are_drawn_with_their_contrasts():
    frame, contrasts = swap_frame(MODELS, ("popqa",)), swap_effects(MODELS, ("popqa",))
    figure = plot_curves(frame, contrast_tables=contrasts, anchors=["pre_answer"], controls=True)
    assert {trace.name.partition(",")[0] for trace in figure.data} == {
        "A-Anchored swap (PopQA)",
        "Null displaced",
    }
    assert {trace.xaxis for trace in figure.data if not trace.showlegend} == {"x", "x2"}


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"colour": "datset"}, "colour='datset': unknown value. Did you mean 'dataset'"),
        ({"theme": "drak"}, "theme='drak': unknown value. Did you mean 'dark'"),
        ({"facet": "model"}, "facet='model': unknown value. Use None, or 'dataset'"),
        ({"style": "papre"}, "style='papre': unknown value. Did you mean 'paper'"),
        ({"style": "paper", "theme": "dark"}, "style='paper' has a white background"),
        (
            {"anchors": ["exact_questio"]},
            "anchors='exact_questio': not in these results. Did you mean 'exact_question'",
        ),
    ],
)
def test_unknown_choices(option, why):
    with pytest.raises(InputError, match=why):
        plot_curves(swap_frame(MODELS, ("popqa",)), **option)
