"""Heatmaps of patch sweeps."""

import re

import numpy as np
import pytest
from plotly.colors import diverging

from anchorlens.errors import InputError
from anchorlens.figures.export import caption_of
from anchorlens.figures.grid_heatmap import plot_grids
from anchorlens.figures.layout import INK, fit_figure
from anchorlens.figures.palette import THEMES, hex_of, luminance
from anchorlens.protocols.patch.patch_result import PatchGrid, PatchResult

PLACES = {
    "position": ("pos:0", "pos:1", "pos:2"),
    "head": ("head:0", "head:1"),
    "segment": ("subject", "rest"),
    "head_position": ("pos:0 head:0", "pos:1 head:0", "pos:1 head:1"),
}


class Result(PatchResult):
    """Result with made-up values: 100 * pair + 10 * layer + place."""

    def __init__(
        self,
        by="position",
        example_ids=("a", "b"),
        no_mean="",
        metric="logit_diff",
        first="The",
        *,
        at=(3, 4),
        site="resid_pre",
        direction="denoising",
        model="gpt2",
        times=1.0,
    ):
        config = {"by": by, "site": site, "metric": metric, "direction": direction}
        record = {"config": config, "model": {"name": model}, "data": {"name": "cats"}}
        self.__dict__.update(
            record=record,
            example_ids=example_ids,
            first=first,
            reason=no_mean,
            at=at,
            times=times,
        )

    @property
    def no_mean(self):
        return self.reason

    def grid(self, pair="mean", quantity="effect", control="none"):
        places = PLACES[self.by]
        rows = 10.0 * np.arange(len(self.at))[:, None]
        values = self.times * (100.0 * (pair == "b") + rows + np.arange(len(places)))
        stands = np.zeros_like(values, dtype=bool)
        stands[1, :2] = pair == "mean"
        tokens = (
            ("",) * len(places)
            if self.by == "head"
            else (self.first, " <cat>", " sat")[: len(places)]
        )
        other = tokens if self.by == "head" else (self.first, " dog", " sat")[: len(places)]
        return PatchGrid(
            pair=str(pair),
            quantity=quantity,
            unit="logit",
            values=values,
            layers=self.at,
            places=places,
            clean_tokens=tokens,
            corrupted_tokens=other,
            stands=stands,
            by_construction=stands,
            n=12,
            note="",
        )


def test_values_ticks_and_colours():
    figure = plot_grids([Result()])
    cells, outline = figure.data
    assert np.array(cells.z).tolist() == [[0, 1, 2], [10, 11, 12]]
    assert figure.layout.yaxis.ticktext == ("3", "4")
    assert figure.layout.xaxis.ticktext == ("The", "<b>·dog</b> (·&lt;cat&gt;)", "·sat")
    assert (
        figure.layout.coloraxis.cmin,
        figure.layout.coloraxis.cmid,
        figure.layout.coloraxis.cmax,
    ) == (-12, 0, 12)
    assert "Layer 4, pos:1" in cells.text[1][1]
    assert cells.text[1][1].endswith("stands")
    # Two neighbouring cells of the second row have six borders outside: no line runs between them.
    segments = {(outline.x[i], outline.x[i + 1]) for i in range(0, len(outline.x), 3)}
    assert len(outline.x) == 18
    assert segments == {(-0.5, -0.5), (-0.5, 0.5), (0.5, 1.5), (1.5, 1.5)}


def test_the_title_names_model_data_set_and_metric_and_explains_the_star():
    title = plot_grids([Result(metric="callable:rank")]).layout.title.text
    assert "<b>Change of rank (logits), clean into corrupted, resid_pre</b>" in title
    assert ">gpt2 on cats; mean over 12 groups of pairs<" in title
    assert ">outlined: cells that stand<" in title
    stars = Result(first="*")
    assert (
        "* (k): position k, whose token differs between pairs"
        in plot_grids([stars]).layout.title.text
    )
    assert "* (k)" not in plot_grids([stars], pair="a").layout.title.text
    assert plot_grids([stars]).layout.xaxis.ticktext[0] == "* (0)"


def test_the_name_of_the_pair_below_the_slider_is_visible():
    (slider,) = plot_grids([Result()]).layout.sliders
    assert slider.currentvalue.font.color == INK
    assert slider.font.color == INK  # labels of the ticks


@pytest.mark.parametrize("theme", THEMES)
def test_a_cell_without_an_effect_is_apart_from_one_that_was_not_measured(theme):
    """Near-white on light grey: cells of edges without an effect looked like no edge."""
    ground = plot_grids([Result()], theme=theme).layout.plot_bgcolor
    middle = hex_of(
        tuple(int(c) / 255 for c in re.findall(r"\d+", diverging.RdBu[len(diverging.RdBu) // 2]))
    )
    darker, lighter = sorted([luminance(ground), luminance(middle)])
    assert (lighter + 0.05) / (darker + 0.05) > 1.4


def test_the_slider_shows_the_mean_and_each_pair():
    figure = plot_grids([Result(), Result()])
    (slider,) = figure.layout.sliders
    assert [step.label for step in slider.steps] == ["mean", "a", "b"]
    data, layout = slider.steps[2].args
    assert data["z"][0] == [[100, 101, 102], [110, 111, 112]]
    assert data["x"][1] == []  # no outline of a single pair
    assert layout["coloraxis.cmax"] == 112
    assert "pair b" in layout["title.text"]
    assert "xaxis2.ticktext" in layout
    assert not fit_figure(figure, 900).layout.sliders  # of a picture


def test_a_panel_that_would_be_white_on_a_shared_scale_has_its_own():
    """Heads of up to 1.75 logits beside a stream of 22 were one white panel."""
    shared = plot_grids([Result(), Result(times=0.3)])
    assert [trace.coloraxis for trace in shared.data[::2]] == ["coloraxis", "coloraxis"]
    assert "colour scale" not in shared.layout.title.text
    figure = plot_grids([Result(), Result(by="head", times=0.05)])
    assert [trace.coloraxis for trace in figure.data[::2]] == ["coloraxis", "coloraxis2"]
    layout = figure.layout
    assert (layout.coloraxis.cmax, layout.coloraxis2.cmax) == (12, pytest.approx(0.55))
    # Each bar begins where its panel ends, and the next panel leaves room for it.
    assert layout.coloraxis.colorbar.x == layout.xaxis.domain[1]
    assert layout.coloraxis2.colorbar.x == layout.xaxis2.domain[1]
    assert layout.xaxis2.domain[0] - layout.xaxis.domain[1] > 0.15
    assert "colour scales differ" in layout.title.text
    assert "Each panel has its own colour scale, centred at 0." in caption_of(figure)
    _, moved = layout.sliders[0].steps[2].args
    assert (moved["coloraxis.cmax"], moved["coloraxis2.cmax"]) == (112, pytest.approx(5.55))


def test_one_pair_has_no_slider_and_is_named():
    figure = plot_grids([Result()], pair="a")
    assert not figure.layout.sliders
    assert "Pair a: logit_diff after the patch minus before (logits)." in caption_of(figure)
    assert "Outlined" not in caption_of(figure)
    assert "Outlined" in caption_of(plot_grids([Result()]))


def test_without_a_mean_the_first_pair_is_shown():
    (slider,) = plot_grids([Result(no_mean="lengths differ")]).layout.sliders
    assert [step.label for step in slider.steps] == ["a", "b"]


def test_heads_by_position_are_rows():
    figure = plot_grids([Result("head_position")])
    assert figure.layout.yaxis.ticktext == ("3.0", "3.1", "4.0", "4.1")
    z = np.array(figure.data[0].z, dtype=float)
    assert z[3, 1] == 12
    assert np.isnan(z[1, 0])  # a cell that was not measured
    assert figure.layout.xaxis.ticktext[0] == "The"


def test_heads_have_numbers():
    assert plot_grids([Result("head")]).layout.xaxis.ticktext == ("0", "1")


def by_row(figure, number):
    """Values of a panel by the label of their row; rows without a value are left out."""
    axis = "" if number == 1 else str(number)
    ticks = figure.layout[f"yaxis{axis}"]
    labels = dict(zip(ticks.tickvals, ticks.ticktext, strict=True))
    cells = figure.data[2 * (number - 1)]
    assert cells.yaxis == f"y{axis}"
    found = {}
    for at, values in zip(cells.y, np.array(cells.z, dtype=float), strict=True):
        if not np.isnan(values).all():
            found[labels[at]] = values.tolist()
    return found


@pytest.mark.parametrize("at", [(16, 18, 20), (0, 30), (4, 8, 12)])
def test_panels_of_other_layers_have_each_value_at_its_own_layer(at):
    left = Result(at=(4, 8, 12))
    right = Result("head", at=at, site="z")
    figure = plot_grids([left, right])
    for number, result in ((1, left), (2, right)):
        values = result.grid().values.tolist()
        assert by_row(figure, number) == dict(zip(map(str, result.at), values, strict=True))
    first, second = figure.layout.yaxis, figure.layout.yaxis2
    # One height is one layer.
    assert (first.ticktext, first.range) == (second.ticktext, second.range)
    assert first.ticktext == tuple(map(str, sorted({*left.at, *at})))
    assert (first.showticklabels, second.showticklabels) == (None, None)
    assert second.matches is None
    assert ("grey: not measured" in figure.layout.title.text) == (at != left.at)
    # The outline is around the cells of the second layer.
    rows = [row for row in figure.data[3].y if row is not None]
    assert (min(rows) + max(rows)) / 2 == sorted({*left.at, *at}).index(at[1])


def test_each_panel_names_its_own_axes():
    results = [Result(), Result("head", site="z"), Result("head_position"), Result("segment")]
    layout = plot_grids(results).layout
    axes = [(layout[f"xaxis{k or ''}"], layout[f"yaxis{k or ''}"]) for k in ("", 2, 3, 4)]
    assert [(x.title.text, y.title.text) for x, y in axes] == [
        ("Position", "Layer"),
        ("Head", "Layer"),
        ("Position", "Layer.head"),
        ("Segment", "Layer"),
    ]
    assert axes[1][0].ticktext == ("0", "1")
    assert axes[2][1].ticktext == ("3.0", "3.1", "4.0", "4.1")
    assert [note.text for note in layout.annotations] == [
        "resid_pre",
        "z",
        "resid_pre",
        "resid_pre",
    ]


def test_panels_name_the_settings_in_which_they_differ():
    other = Result(model="gpt2-xl", direction="noising")
    figure = plot_grids([Result(), other])
    assert [note.text for note in figure.layout.annotations] == [
        "resid_pre, gpt2, clean into corrupted",
        "resid_pre, gpt2-xl, corrupted into clean",
    ]
    assert "gpt2 and gpt2-xl on cats" in figure.layout.title.text
    assert "<b>Change of logit_diff (logits)</b>" in figure.layout.title.text


def test_the_control_that_is_drawn_is_named():
    figure = plot_grids([Result()], control="other_pair")
    assert "(logits), control other_pair, clean" in figure.layout.title.text
    assert "Control other_pair: another pair's activations" in caption_of(figure)


def test_segments_have_their_names_and_of_a_pair_their_tokens():
    stars = Result("segment", first="*")
    assert plot_grids([stars]).layout.xaxis.ticktext[0] == "subject"
    assert "*" not in plot_grids([stars]).layout.title.text
    assert plot_grids([Result("segment")], pair="a").layout.xaxis.ticktext == (
        "subject: The",
        "rest: <b>·dog</b> (·&lt;cat&gt;)",
    )


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([], "empty"),
        ([Result(), Result(example_ids=("c",))], "different pairs"),
        ([Result(), Result(metric="prob")], "different metrics"),
    ],
)
def test_errors(results, message):
    with pytest.raises(InputError, match=message) as error:
        plot_grids(results)
    assert error.value.arguments == ("results",)
