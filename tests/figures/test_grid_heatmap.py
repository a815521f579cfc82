"""Heatmaps of patch sweeps."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.export import caption_of
from anchorlens.figures.grid_heatmap import plot_grids
from anchorlens.figures.layout import INK, fit_figure
from anchorlens.protocols.patch.patch_result import PatchGrid

PLACES = {
    "position": ("pos:0", "pos:1", "pos:2"), "head": ("head:0", "head:1"),
    "head_position": ("pos:0 head:0", "pos:1 head:0", "pos:1 head:1"),
}  # fmt: skip


@dataclass
class Result:
    """Result with made-up values: 100 * pair + 10 * layer + place."""

    by: str = "position"
    example_ids: tuple[str, ...] = ("a", "b")
    no_mean: str = ""
    record: dict = field(default_factory=dict)
    metric: str = "logit_diff"
    first: str = "The"

    def __post_init__(self):
        config = {"by": self.by, "site": "resid_pre", "metric": self.metric, "direction": "denoising"}
        self.record = {"config": config, "model": {"name": "gpt2"}, "data": {"name": "cats"}}

    def grid(self, pair="mean", quantity="effect", control="none"):
        places = PLACES[self.by]
        values = 100.0 * (pair == "b") + 10.0 * np.arange(2)[:, None] + np.arange(len(places))
        stands = np.zeros_like(values, dtype=bool)
        stands[1, :2] = pair == "mean"
        tokens = ("",) * len(places) if self.by == "head" else (self.first, " <cat>", " sat")[: len(places)]
        other = tokens if self.by == "head" else (self.first, " dog", " sat")[: len(places)]
        return PatchGrid(
            pair=str(pair), quantity=quantity, unit="logit", values=values, layers=(3, 4), places=places, clean_tokens=tokens,
            corrupted_tokens=other, stands=stands, by_construction=stands, n=12, note="",
        )  # fmt: skip


def test_values_ticks_and_colours():
    figure = plot_grids([Result()])
    cells, outline = figure.data
    assert np.array(cells.z).tolist() == [[0, 1, 2], [10, 11, 12]]
    assert figure.layout.yaxis.ticktext == ("3", "4")
    assert figure.layout.xaxis.ticktext == ("The", "<b>·dog</b> (·&lt;cat&gt;)", "·sat")
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmid, figure.layout.coloraxis.cmax) == (-12, 0, 12)
    assert "Layer 4, pos:1" in cells.text[1][1]
    assert cells.text[1][1].endswith("stands")
    # Two neighbouring cells of the second row have six borders outside: no line runs between them.
    segments = {(outline.x[i], outline.x[i + 1]) for i in range(0, len(outline.x), 3)}
    assert len(outline.x) == 18
    assert segments == {(-0.5, -0.5), (-0.5, 0.5), (0.5, 1.5), (1.5, 1.5)}


def test_the_title_names_model_data_set_and_metric_and_explains_the_star():
    title = plot_grids([Result(metric="callable:rank")]).layout.title.text
    assert "<b>Change of rank, clean into corrupted, resid_pre</b>" in title
    assert "gpt2 on cats; mean over 12 groups of pairs; outlined: cells that stand<" in title
    stars = Result(first="*")
    assert "*: tokens that differ between pairs" in plot_grids([stars]).layout.title.text
    assert "*:" not in plot_grids([stars], pair="a").layout.title.text


def test_the_name_of_the_pair_below_the_slider_is_visible():
    (slider,) = plot_grids([Result()]).layout.sliders
    assert slider.currentvalue.font.color == INK


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


def test_one_pair_has_no_slider_and_is_named():
    figure = plot_grids([Result()], pair="a")
    assert not figure.layout.sliders
    assert "Pair a: logit_diff after the patch minus before (logit)." in caption_of(figure)
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


@pytest.mark.parametrize(("results", "message"), [([], "empty"), ([Result(), Result(example_ids=("c",))], "different pairs")])
def test_errors(results, message):
    with pytest.raises(InputError, match=message) as error:
        plot_grids(results)
    assert error.value.arguments == ("results",)
