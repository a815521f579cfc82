"""The saved page in a real browser: the legend at every width and in every font, isolating and restoring, nothing cut off."""

from itertools import combinations
from typing import Any

import plotly.graph_objects as go
import pytest

from anchorlens.figures.curves import plot_curves

from .browser import asked
from .synthetic import knockout_effects, knockout_frame, swap_frame
from .test_target import ENTRIES

pytestmark = pytest.mark.slow

BOXES = """
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
const size = { width: gd.clientWidth, height: gd.clientHeight, svg: gd._fullLayout.height, body: document.body.scrollHeight };
return { entries, heading, panels, size };
"""


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


def measured(figure: go.Figure, folder: Any, width: int, font: str) -> dict[str, Any]:
    return asked(go.Figure(figure).update_layout(font_family=font), folder, width, BOXES)


@pytest.mark.parametrize("font", ["Liberation Sans", "DejaVu Sans"])
@pytest.mark.parametrize(
    ("name", "width", "columns"),
    [
        ("target", 700, {"Liberation Sans": 4, "DejaVu Sans": 2}),
        ("target", 1000, {"Liberation Sans": 4, "DejaVu Sans": 4}),
        ("target", 1280, {"Liberation Sans": 4, "DejaVu Sans": 4}),
        ("target", 1920, {"Liberation Sans": 4, "DejaVu Sans": 4}),
        ("swap", 700, {"Liberation Sans": 2, "DejaVu Sans": 2}),
        ("swap", 1000, {"Liberation Sans": 4, "DejaVu Sans": 4}),
        ("samples", 700, {"Liberation Sans": 2, "DejaVu Sans": 2}),
        ("samples", 1280, {"Liberation Sans": 4, "DejaVu Sans": 4}),
    ],
)
def test_legend_is_four_by_two_or_two_by_four_and_nothing_overlaps(figures, tmp_path, name, width, columns, font):
    seen = measured(figures[name], tmp_path, width, font)
    entries, size = seen["entries"], seen["size"]
    for one, other in combinations(entries, 2):
        assert not overlap(one, other), f"{one['name']} and {other['name']} overlap"
    assert min(one["left"] for one in [*entries, *seen["heading"]]) >= 0
    assert max(one["right"] for one in [*entries, *seen["heading"]]) <= width
    assert max(one["bottom"] for one in entries) <= size["height"] == size["svg"]
    assert size["body"] - size["height"] < 30  # nothing but the answer of this test stands below the figure
    assert max(one["bottom"] for one in seen["heading"]) < min(panel["top"] for panel in seen["panels"])
    # Q above A of its set, set after set in so many columns.
    curves = entries_by_name(entries)
    assert len(curves) == 8
    order = list(curves)
    lefts = [round(curves[one]["left"]) for one in order]
    assert len(set(lefts)) == columns[font]
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
