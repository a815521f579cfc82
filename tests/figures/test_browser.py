"""The saved page in a browser: nothing clipped, isolating and restoring curves, keyboard, contrast
of texts.
"""

from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from anchorlens.figures.curves import plot_curves
from anchorlens.figures.export import save_html
from anchorlens.figures.palette import in_theme

from .browser import faint, tabbed, visited
from .synthetic import (
    DATASETS,
    TARGET_MODELS,
    full_figure,
    knockout_contrasts,
    knockout_frame,
    swap_frame,
)

pytestmark = pytest.mark.slow

# Columns of the legend by width of the page.
COLUMNS = {700: 2, 1280: 4, 1920: 4}
BOXES = """() => {
const gd = document.getElementById("anchorlens-figure");
const box = (node) => {
  const b = node.getBoundingClientRect();
  return { left: b.left, right: b.right, top: b.top, bottom: b.bottom };
};
const entries = [...gd.querySelectorAll(".traces")].map((one) => {
  const text = one.querySelector(".legendtext, .legend2text"), line = one.querySelector(".layers path");
  const a = box(text), b = line ? box(line) : a;
  return { name: text.textContent, left: Math.min(a.left, b.left), right: a.right, top: a.top, bottom: a.bottom };
});
const heading = [...gd.querySelectorAll(".gtitle tspan, .gtitle")].map(box);
const top = gd.getBoundingClientRect().top;
const panels = Object.values(gd._fullLayout._plots).map((one) => ({ left: one.xaxis._offset, top: top + one.yaxis._offset }));
const size = { width: gd.clientWidth, height: gd.clientHeight, svg: gd._fullLayout.height, body: document.body.scrollHeight,
  page: document.documentElement.scrollWidth };
return { entries, heading, panels, size };
}"""


def overlap(a: dict[str, float], b: dict[str, float]) -> bool:
    return (
        a["left"] < b["right"]
        and b["left"] < a["right"]
        and a["top"] < b["bottom"]
        and b["top"] < a["bottom"]
    )


@pytest.fixture(scope="module")
def figures() -> dict[str, go.Figure]:
    models, sets = dict.fromkeys(TARGET_MODELS, 12), tuple(f"{name}-sample" for name in DATASETS)
    return {
        "target": full_figure(knockout_frame(models), contrast_tables=knockout_contrasts(models)),
        "samples": plot_curves(swap_frame(models, sets)),
    }


@contextmanager
def opened(figure: go.Figure, folder: Path, **options: Any) -> Iterator[Any]:
    """The figure's page in a browser, after its heading and legends have been fitted."""
    with visited(save_html(figure, folder / "page.html"), **options) as page:
        page.wait_for_timeout(400)
        yield page


@pytest.mark.parametrize(
    "font", ["Liberation Sans", pytest.param("DejaVu Sans", marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("name", ["target", "samples"])
def test_nothing_is_clipped_and_nothing_overlaps(figures, tmp_path, name, font):
    figure = go.Figure(figures[name]).update_layout(font_family=font)
    with visited(save_html(figure, tmp_path / "page.html"), width=1000) as page:
        for width, columns in [*COLUMNS.items(), (700, 2)]:  # the last one after a wider one
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function(
                "(w) => document.querySelector('#anchorlens-figure')._fullLayout.width === w",
                arg=width,
            )
            page.wait_for_timeout(600)
            check(page.evaluate(BOXES), width, columns)


def check(seen: dict[str, Any], width: int, columns: int) -> None:
    """Nothing overlaps, nothing is cut off, and the answer of a data set stands to the right of its
    question.
    """
    entries, size = seen["entries"], seen["size"]
    for one, other in combinations(entries, 2):
        assert not overlap(one, other), f"{one['name']} and {other['name']} overlap"
    assert min(one["left"] for one in [*entries, *seen["heading"]]) >= 0
    assert max(one["right"] for one in [*entries, *seen["heading"]]) <= width
    assert size["width"] == size["page"] == width
    assert max(one["bottom"] for one in entries) <= size["height"] == size["svg"]
    assert size["body"] - size["height"] < 80  # only the closed caption stands below the figure
    assert max(one["bottom"] for one in seen["heading"]) < min(
        panel["top"] for panel in seen["panels"]
    )
    lefts = {round(panel["left"]) for panel in seen["panels"]}
    assert len(lefts) == (1 if width < 900 else 2)  # panels stand below each other, or side by side
    curves = [one for one in entries if "-Anchored" in one["name"]]
    assert len({round(one["left"]) for one in curves}) == columns
    for question, answer in zip(curves[::2], curves[1::2], strict=True):
        assert answer["name"] == question["name"].replace("Q-Anch", "A-Anch")
        assert abs(answer["top"] - question["top"]) < 1.5
        assert answer["left"] > question["left"]


# Visible traces of the curves, or with ``legend2`` of what stands beside them.
SHOWN = """(legend) => document.querySelector("#anchorlens-figure")._fullData
  .filter((one) => one.visible === true && !one.showlegend && (one.legend || "legend") === legend)
  .map((one) => one.name + "|" + (one.xaxis || "x"))"""


def clicked(page: Any, name: str, times: int, legend: str = "legend") -> list[str]:
    """Click a legend entry, and return the visible traces of a legend."""
    entry = page.locator(".traces", has_text=name).locator(".legendtoggle, .legend2toggle").first
    before = page.evaluate(SHOWN, legend)
    entry.dblclick() if times == 2 else entry.click()
    # Plotly waits for a second click.
    changed = f"([legend, before]) => JSON.stringify(({SHOWN})(legend)) !== JSON.stringify(before)"
    page.wait_for_function(changed, arg=[legend, before], polling=50)
    page.wait_for_timeout(100)
    return page.evaluate(SHOWN, legend)


def bare(names: list[str]) -> set[str]:
    return {name.split("|")[0].split(",")[0] for name in names}


def test_isolate_and_restore_give_back_what_was_hidden(figures, tmp_path):
    with opened(figures["target"], tmp_path, height=1100) as page:
        first, beside = page.evaluate(SHOWN, "legend"), page.evaluate(SHOWN, "legend2")
        hidden = clicked(page, "A-Anchored (NQ)", 1)
        assert bare(first) - bare(hidden) == {"A-Anchored (NQ)"}
        for curve in ("Q-Anchored (TriviaQA)", "Q-Anchored (PopQA)"):
            assert bare(clicked(page, curve, 2)) == {curve}
        # The curve that was hidden does not come back.
        assert clicked(page, "Q-Anchored (PopQA)", 2) == hidden
        assert page.evaluate(SHOWN, "legend2") == beside
        without = [name for name in beside if "random_tokens" not in name]
        assert [clicked(page, "Placebo random_tokens", 1, "legend2") for _ in range(2)] == [
            without,
            beside,
        ]
        assert len(beside) - len(without) == 16


def test_without_its_script_a_figure_keeps_its_second_legend(figures, tmp_path):
    """As a notebook shows it: what was never hidden by hand is restored."""
    plain = go.Figure(figures["target"])
    plain.layout.meta = None  # the script does not fit a figure without a plan
    with opened(plain, tmp_path, height=1100) as page:
        first, beside = page.evaluate(SHOWN, "legend"), page.evaluate(SHOWN, "legend2")
        assert bare(clicked(page, "Q-Anchored (PopQA)", 2)) == {"Q-Anchored (PopQA)"}
        assert page.evaluate(SHOWN, "legend2") == beside
        assert clicked(page, "Q-Anchored (PopQA)", 2) == first


def test_a_saved_picture_has_no_switch_and_the_page_keeps_it(figures, tmp_path):
    wanted = """() => { const gd = document.querySelector("#anchorlens-figure"), layout = structuredClone(gd.layout);
        delete layout.updatemenus;
        layout.width = gd._fullLayout.width;
        return Plotly.toImage({ data: gd.data, layout }, { format: "png", scale: 3 }); }"""
    with opened(figures["target"], tmp_path) as page:
        page.mouse.move(600, 300)
        with page.expect_download() as download:
            page.locator(".modebar-btn").first.click()
        picture = download.value.path().read_bytes()
        assert picture == b64decode(page.evaluate(wanted).partition(",")[2])
        assert download.value.suggested_filename == "page.png"
        assert page.locator(".updatemenu-header").count() == 1


def test_fitting_comes_to_rest_and_the_camera_names_its_file(figures, tmp_path):
    with opened(figures["samples"], tmp_path, width=1500) as page:
        count = """(ms) => new Promise((done) => { let drawn = 0; const gd = document.querySelector("#anchorlens-figure");
            gd.on("plotly_afterplot", () => drawn++); setTimeout(() => done(drawn), ms); })"""
        page.set_viewport_size({"width": 820, "height": 900})
        page.wait_for_timeout(900)
        assert page.evaluate(count, 1000) == 0
        options = page.evaluate(
            "() => document.querySelector('#anchorlens-figure')._context.toImageButtonOptions"
        )
        assert (options["filename"], options["scale"]) == ("page", 3)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_keyboard_reaches_every_curve_and_every_button_and_each_looks_different_then(
    figures, tmp_path, theme
):
    with opened(
        in_theme(figures["target"], theme), tmp_path, width=1000, dark=theme == "dark"
    ) as page:
        stops = tabbed(page)
        assert [stop["at"] for stop in stops] == list(range(len(stops)))
        assert [
            stop for stop in stops if not (stop["name"] and stop["ring"] and stop["seen"])
        ] == []
        names = {stop["name"] for stop in stops}
        entries = page.locator(".traces").all_text_contents()
        assert {*entries, "ΔP minus random_tokens", "Caption"} <= names
        assert any("PNG" in name for name in names)
        assert len(entries) > 8
        told = page.evaluate(
            "() => [document.querySelector('#anchorlens-figure')].map((one) => [one.role,"
            " one.ariaLabel])"
        )
        assert told == [["figure", "ΔP by layer: attention knockout"]]
        for chosen in (
            "[aria-label='Q-Anchored (PopQA)']",
            "g.updatemenu-header",
            ".modebar-btn >> nth=0",
        ):
            assert looks_different(page, page.locator(chosen).first), chosen


def looks_different(page: Any, node: Any) -> bool:
    """Whether a stop looks different while it has the focus."""
    page.evaluate("() => document.activeElement.blur()")
    node.scroll_into_view_if_needed()
    page.mouse.move(500, 300)  # buttons of the corner are shown while the mouse is over the figure
    page.wait_for_timeout(400)
    box = node.bounding_box()
    clip = {
        "x": box["x"] - 6,
        "y": box["y"] - 6,
        "width": box["width"] + 12,
        "height": box["height"] + 12,
    }
    before = page.screenshot(clip=clip)
    assert page.screenshot(clip=clip) == before  # it comes to rest
    page.keyboard.press("Tab")  # so that the browser knows that a keyboard is used
    node.focus()
    page.wait_for_timeout(200)
    return page.screenshot(clip=clip) != before


def test_keys_hide_isolate_restore_and_unfold_the_switch(tmp_path):
    figure = plot_curves(
        knockout_frame({"m": 12}),
        contrast_tables=knockout_contrasts({"m": 12}),
        controls=True,
        width=500,
    )
    data = "document.querySelector('#anchorlens-figure').data"
    shown = f"() => {data}.filter((t) => t.visible !== 'legendonly').map((t) => t.name)"
    with opened(figure, tmp_path, width=1000) as page:
        first = page.evaluate(shown)
        page.locator("[aria-label='A-Anchored (NQ)']").focus()
        page.keyboard.press("Enter")
        hidden = page.evaluate(shown)
        assert {name.split(",")[0] for name in set(first) - set(hidden)} == {"A-Anchored (NQ)"}
        page.locator("[aria-label='Q-Anchored (PopQA)']").focus()
        page.keyboard.press("Shift+Enter")
        kept = [
            name
            for name in page.evaluate(shown)
            if "random_tokens" not in name and "All rows" not in name
        ]
        assert {name.split(",")[0] for name in kept} == {"Q-Anchored (PopQA)"}
        page.keyboard.press("Shift+Enter")
        assert page.evaluate(shown) == hidden  # and not what was hidden before
        page.locator("[aria-label='Placebo random_tokens']").focus()
        page.keyboard.press("Space")
        assert not any("random_tokens" in name for name in page.evaluate(shown))
        page.locator("g.updatemenu-header").focus()
        page.keyboard.press("Enter")
        choice = page.locator("g.updatemenu-dropdown-button[aria-label='AUC minus random_tokens']")
        choice.focus()
        page.keyboard.press("Enter")
        page.wait_for_function(
            "() => document.querySelector('#anchorlens-figure')._fullLayout.updatemenus[0].active"
            " === 2"
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["target", "samples"])
def test_every_text_can_be_read(figures, tmp_path, name, theme):
    with opened(in_theme(figures[name], theme), tmp_path, dark=theme == "dark") as page:
        assert faint(page) == []


def test_parts_of_the_heading_that_do_not_fit_are_left_out(figures, tmp_path):
    figure = go.Figure(figures["samples"])
    plan = figure.layout.meta["anchorlens"]
    figure.update_layout(
        meta={"anchorlens": {**plan, "parts": ["short", "a fact of many words " * 12]}}
    )
    with opened(figure, tmp_path, width=700) as page:
        assert max(line["right"] for line in page.evaluate(BOXES)["heading"]) <= 700
        assert page.locator(".gtitle").text_content().endswith("short")
