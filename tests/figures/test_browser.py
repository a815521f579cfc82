"""The saved page in a real browser: the legend at every width and in every font, isolating and restoring, nothing cut off; with a
mouse and with a keyboard alone, light and dark."""

from itertools import combinations
from typing import Any

import plotly.graph_objects as go
import pytest

from anchorlens.figures.curves import plot_curves
from anchorlens.figures.page import save_html
from anchorlens.figures.theme import in_theme

from .browser import asked, faint, tabbed, visited
from .synthetic import knockout_effects, knockout_frame, swap_frame
from .test_target import ENTRIES

pytestmark = pytest.mark.slow

WIDTHS = (390, 700, 1000, 1280, 1920)
# Where a page is narrower than 700 pixels, it scrolls.
LEAST = 700
# Columns of the legend, in Liberation and in DejaVu Sans; four everywhere else.
COLUMNS = {("target", 700): (4, 2), ("swap", 700): (2, 2), ("samples", 700): (2, 2), ("samples", 1000): (2, 2)}
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
const panels = [...gd.querySelectorAll(".xy .bg, .subplot .bg, rect.bg")].map(box);
const size = { width: gd.clientWidth, height: gd.clientHeight, svg: gd._fullLayout.height, body: document.body.scrollHeight,
  page: document.documentElement.scrollWidth };
return { entries, heading, panels, size };
}"""


def overlap(a: dict[str, float], b: dict[str, float]) -> bool:
    return a["left"] < b["right"] and b["left"] < a["right"] and a["top"] < b["bottom"] and b["top"] < a["bottom"]


@pytest.fixture(scope="module")
def figures() -> dict[str, go.Figure]:
    sets = ("popqa-sample", "triviaqa-sample", "hotpotqa-sample", "nq-sample")
    return {
        "target": plot_curves(knockout_frame(), effects=knockout_effects()),
        "swap": plot_curves(swap_frame()),
        "samples": plot_curves(swap_frame(datasets=sets)),
    }


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("font", ["Liberation Sans", "DejaVu Sans"])
@pytest.mark.parametrize("name", ["target", "swap", "samples"])
def test_legend_is_four_by_two_or_two_by_four_and_nothing_overlaps(figures, tmp_path, name, font, theme):
    figure = in_theme(go.Figure(figures[name]).update_layout(font_family=font), theme)
    with visited(save_html(figure, tmp_path / "page.html"), dark=theme == "dark") as page:
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.reload()
            page.wait_for_timeout(400)
            columns = COLUMNS.get((name, max(width, LEAST)), (4, 4))[font.startswith("DejaVu")]
            check(page.evaluate(BOXES), max(width, LEAST), columns)
        # What was arranged for one width is arranged anew for another.
        page.set_viewport_size({"width": 700, "height": 900})
        page.wait_for_timeout(900)
        check(page.evaluate(BOXES), 700, COLUMNS[name, 700][font.startswith("DejaVu")])


def check(seen: dict[str, Any], width: int, columns: int) -> None:
    """Nothing lies on anything else, nothing is cut off, and a data set's curves stand below one another."""
    entries, size = seen["entries"], seen["size"]
    for one, other in combinations(entries, 2):
        assert not overlap(one, other), f"{one['name']} and {other['name']} overlap"
    assert min(one["left"] for one in [*entries, *seen["heading"]]) >= 0
    assert max(one["right"] for one in [*entries, *seen["heading"]]) <= width
    assert size["width"] == size["page"] == width
    assert max(one["bottom"] for one in entries) <= size["height"] == size["svg"]
    assert size["body"] - size["height"] < 30  # nothing stands below the figure
    assert max(one["bottom"] for one in seen["heading"]) < min(panel["top"] for panel in seen["panels"])
    # Q above A of its set, set after set in so many columns.
    curves = entries_by_name(entries)
    assert len(curves) == 8
    order = list(curves)
    lefts = [round(curves[one]["left"]) for one in order]
    assert len(set(lefts)) == columns
    for question, answer in zip(order[::2], order[1::2], strict=True):
        assert question.startswith("Q-Anchored")
        assert answer == question.replace("Q-Anch", "A-Anch")
        assert abs(curves[question]["left"] - curves[answer]["left"]) < 1.5
        assert 0 < curves[answer]["top"] - curves[question]["top"] < 25


def entries_by_name(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The curves' entries, set by set."""
    named = {one["name"]: one for one in entries if "-Anchored" in one["name"]}
    sets = ("PopQA", "TriviaQA", "HotpotQA", "NQ")
    return {n: named[n] for s in sets for p in "QA" for n in named if n.startswith(p) and f"({s}" in n}


def test_isolate_and_restore_give_back_what_was_hidden(figures, tmp_path):
    script = """
    const first = shown();
    await click("A-Anchored (NQ)", 1);
    const hidden = shown();
    await click("Q-Anchored (TriviaQA)", 2);
    const alone = shown();
    await click("Q-Anchored (PopQA)", 2);
    const other = shown();
    await click("Q-Anchored (PopQA)", 2);
    return { first, hidden, alone, other, restored: shown() };
    """
    seen = asked(figures["target"], tmp_path, 1280, script)
    assert len(seen["first"]) > len(seen["hidden"])
    assert not any("A-Anchored (NQ)" in name for name in seen["hidden"])
    beside = [name for name in seen["first"] if name.startswith("Range of controls")]
    for alone, curve in ((seen["alone"], "Q-Anchored (TriviaQA)"), (seen["other"], "Q-Anchored (PopQA)")):
        assert {name.split("|")[0].split(",")[0] for name in alone} == {curve, "Range of controls"}
        assert [name for name in alone if name.startswith("Range")] == beside  # what one compares with stays
    # Neither the curve that was hidden comes back nor any placebo that waits for a click.
    assert seen["restored"] == seen["hidden"]


def test_without_its_script_a_figure_keeps_its_controls_to_itself(figures, tmp_path):
    """As a notebook shows it: what was never hidden by hand is restored, and no control comes with it."""
    script = """
    // What has points; the others are neither hidden nor seen.
    const drawn = () => gd._fullData.filter((one) => one.visible === true).map((one) => one.name + "|" + one.xaxis);
    const first = drawn();
    await click("Q-Anchored (PopQA)", 2);
    const alone = drawn();
    await click("Q-Anchored (PopQA)", 2);
    return { first, alone, restored: drawn() };
    """
    plain = go.Figure(figures["target"])
    plain.layout.meta = None  # the script does nothing to a figure that has no plan
    seen = asked(plain, tmp_path, 1280, script)
    assert {name.split("|")[0].split(",")[0] for name in seen["alone"]} == {"Q-Anchored (PopQA)", "Range of controls"}
    assert seen["restored"] == seen["first"]


def test_a_control_comes_with_one_click_and_goes_with_another(figures, tmp_path):
    script = """
    const name = () => shown().filter((one) => one.startsWith("Placebo gap")).length;
    const found = [name()];
    for (let k = 0; k < 2; k++) { await click("Placebo gap", 1); found.push(name()); }
    await click("Placebo gap", 2);
    return [...found, name()];
    """
    assert asked(figures["target"], tmp_path, 1000, script) == [0, 9, 0, 0]


def test_the_camera_names_its_file_and_makes_it_large(figures, tmp_path):
    options = asked(figures["swap"], tmp_path, 1000, "return gd._context.toImageButtonOptions;")
    assert (options["filename"], options["scale"]) == ("page", 3)


def test_arranging_comes_to_rest_when_the_window_changes(figures, tmp_path):
    script = """
    let drawn = 0;
    gd.on("plotly_afterplot", () => drawn++);
    const columns = [];
    for (const width of [700, 1500, 820]) {
      gd.style.width = width + "px";
      await Plotly.Plots.resize(gd);
      await wait(600);
      columns.push(Math.round(1 / gd._fullLayout.legend.entrywidth));
    }
    const before = drawn;
    await wait(1500);
    return { columns, more: drawn - before, entries: gd.querySelectorAll(".legendtext").length };
    """
    seen = asked(figures["swap"], tmp_path, 1600, script)
    assert seen["columns"] == [2, 4, 4]
    assert seen["more"] == 0
    assert seen["entries"] >= len(ENTRIES)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_keyboard_reaches_every_curve_and_every_button(figures, tmp_path, theme):
    path = save_html(in_theme(figures["target"], theme), tmp_path / "page.html")
    with visited(path, width=1000, dark=theme == "dark") as page:
        page.wait_for_timeout(400)
        stops = tabbed(page)
        assert [stop["at"] for stop in stops] == list(range(len(stops)))
        assert [stop for stop in stops if not (stop["name"] and stop["ring"] and stop["seen"])] == []
        names = {stop["name"] for stop in stops}
        entries = page.locator(".traces").all_text_contents()
        assert set(entries) | {"delta_all", "flip_rate", "auc_drop", "own_change"} <= names
        assert any("PNG" in name for name in names)
        assert len(entries) > 8
        told = page.evaluate("() => [document.querySelector('#anchorlens-figure')].map((one) => [one.role, one.ariaLabel])")
        assert told == [["figure", "ΔP by layer: attention knockout"]]


def test_every_stop_looks_different_while_it_has_the_focus(figures, tmp_path):
    for theme in ("light", "dark"):
        path = save_html(in_theme(figures["target"], theme), tmp_path / f"{theme}.html")
        with visited(path, width=1000, dark=theme == "dark") as page:
            page.wait_for_timeout(400)
            for chosen in ("[aria-label='Q-Anchored (PopQA)']", "[aria-label=flip_rate]", ".modebar-btn >> nth=0"):
                node = page.locator(chosen).first
                node.scroll_into_view_if_needed()
                page.mouse.move(500, 300)  # buttons of the corner are shown while the mouse is over the figure
                page.wait_for_timeout(400)
                box = node.bounding_box()
                clip = {"x": box["x"] - 6, "y": box["y"] - 6, "width": box["width"] + 12, "height": box["height"] + 12}
                before = page.screenshot(clip=clip)
                assert page.screenshot(clip=clip) == before  # it comes to rest
                page.keyboard.press("Tab")  # so that the browser knows that a keyboard is used
                node.focus()
                page.wait_for_timeout(200)
                assert page.screenshot(clip=clip) != before, (theme, chosen)
                page.evaluate("() => document.activeElement.blur()")


def test_keys_hide_isolate_restore_and_unfold_the_switch(tmp_path):
    figure = plot_curves(knockout_frame({"m": 12}), effects=knockout_effects({"m": 12}), width=500)
    data = "document.querySelector('#anchorlens-figure').data"
    shown = f"() => {data}.filter((t) => t.visible !== 'legendonly').map((t) => t.name)"
    with visited(save_html(figure, tmp_path / "page.html"), width=1000) as page:
        page.wait_for_timeout(400)
        first = page.evaluate(shown)
        page.locator("[aria-label='A-Anchored (NQ)']").focus()
        page.keyboard.press("Enter")
        hidden = page.evaluate(shown)
        assert {name.split(",")[0] for name in set(first) - set(hidden)} == {"A-Anchored (NQ)"}
        page.locator("[aria-label='Q-Anchored (PopQA)']").focus()
        page.keyboard.press("Shift+Enter")
        alone = page.evaluate(shown)
        assert {name.split(",")[0] for name in alone} == {"Q-Anchored (PopQA)", "Range of controls"}
        page.keyboard.press("Shift+Enter")
        assert page.evaluate(shown) == hidden  # and not what was hidden before
        page.locator("[aria-label='Placebo gap']").focus()
        page.keyboard.press("Space")
        assert any(name.startswith("Placebo gap (") for name in page.evaluate(shown))
        page.locator("g.updatemenu-header").focus()
        page.keyboard.press("Enter")
        choice = page.locator("g.updatemenu-dropdown-button[aria-label=auc_drop]")
        choice.focus()
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('#anchorlens-figure')._fullLayout.updatemenus[0].active === 2")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["target", "samples"])
def test_every_text_can_be_read(figures, tmp_path, name, theme):
    with visited(save_html(in_theme(figures[name], theme), tmp_path / "page.html"), dark=theme == "dark") as page:
        page.wait_for_timeout(400)
        assert faint(page) == []


def test_a_fact_that_is_wider_than_the_page_is_broken_between_its_words(figures, tmp_path):
    figure = go.Figure(figures["swap"])
    plan = figure.layout.meta["anchorlens"]
    figure.update_layout(meta={"anchorlens": {**plan, "parts": [["short", "a fact of many words " * 12, "end"]]}})
    with visited(save_html(figure, tmp_path / "page.html"), width=700) as page:
        page.wait_for_timeout(400)
        seen = page.evaluate(BOXES)
        assert max(line["right"] for line in seen["heading"]) <= 700
        assert max(line["bottom"] for line in seen["heading"]) < min(panel["top"] for panel in seen["panels"])
        assert page.locator(".gtitle").text_content().count("many") == 12
