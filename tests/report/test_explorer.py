"""The explorer: what it is given, what it refuses, and what its script does in a browser."""

import importlib.util
import json
import re
from html import unescape
from importlib.resources import files

import pytest

import anchorlens as al
from anchorlens.errors import InputError
from anchorlens.figures.labels import anchor_colours
from anchorlens.figures.palette import darken, lighten
from anchorlens.report.explorer import contents
from anchorlens.results.example_view import example_rows
from tests.figures.browser import contrast, run
from tests.questions.make import refused
from tests.raised import raises


@pytest.mark.slow
def test_rows_are_those_of_a_report(sweeps, patch):
    for result in (*sweeps, patch):
        made = contents(result)
        assert made["layers"] == list(result.layers)
        assert set(made["colours"]) == set(result.anchors)
        rows = example_rows(
            result.samples(all_columns=True),
            result.examples(all_columns=True),
            result.anchors,
            result.layers,
        )
        assert [row["curves"] for row in made["rows"]] == [row["curves"] for row in rows]
        assert json.loads(json.dumps(made)) == made


@pytest.mark.slow
def test_every_anchor_says_which_tokens_are_its_own(swap, knockout):
    at = swap.examples().query("role == 'base'").set_index("example_id")["positions"]
    for row in contents(swap)["rows"]:
        own = json.loads(at[row["id"]])
        assert row["places"]["exact_question"] == own["exact_question"]
        assert row["places"]["pre_answer"] == own["pre_answer"]
        assert row["places"]["exact_question, same_role"] == []  # differs from donor to donor
        assert row["answer"] in "".join(row["tokens"][p] for p in row["answer_tokens"])
    row = contents(knockout)["rows"][0]
    said = {name: "".join(row["tokens"][p] for p in where) for name, where in row["places"].items()}
    question = next(e for e in al.load_qa("popqa-sample").examples if e.question == row["question"])
    assert question.subject.of(question.question) in said["exact_question"]
    assert set(row["places"]["exact_question"]).isdisjoint(
        row["places"]["exact_question, random_tokens"]
    )
    assert said["exact_question, random_tokens"]


def test_an_anchor_of_patch_is_its_token(patch):
    for row in contents(patch)["rows"]:
        assert row["places"] == {f"pos:{p}": [p] for p in range(len(row["tokens"]))}


def test_what_is_chosen_is_known(swap, patch):
    pytest.importorskip("anywidget")
    assert al.explore(patch).layer == contents(patch)["rows"][0]["at"]
    shown = al.explore(swap)
    assert shown.example == swap.example_ids[0]
    assert shown.layer == contents(swap)["rows"][0]["at"]
    shown = al.explore(swap, example="Japan", layer=swap.layers[-1])
    assert (shown.example, shown.layer) == ("Japan", swap.layers[-1])
    shown.layer = 0
    with refused(InputError, "layer=77: not measured. Use one of 0, 1", "layer"):
        shown.layer = 77
    with raises(InputError, "example", word="'Japan'"):
        shown.example = "Jpan"
    assert (shown.example, shown.layer) == ("Japan", 0)
    shown.example = "of peru"
    assert (
        shown.example
        == al.explore(swap, example="peru").example
        == al.explore(swap, example=-1).example
        == "Peru"
    )
    assert repr(shown).startswith("Explorer('Activation swap: ")


@pytest.mark.slow
def test_mistakes_are_told(swap, unchecked):
    pytest.importorskip("anywidget")
    with raises(InputError, "sweep"):
        al.explore([swap, swap])
    with raises(InputError, "example", word="'Japan'"):
        al.explore(swap, example="Jpan")
    for layer in (77, 1.5, "1"):
        with pytest.raises(
            InputError, match=re.escape(f"layer={layer!r}: not measured. Use one of 0, 1")
        ):
            al.explore(swap, layer=layer)


def test_without_anywidget_it_says_what_to_install(swap, monkeypatch):
    right = importlib.util.find_spec
    monkeypatch.setattr(
        "anchorlens.report.explorer.find_spec",
        lambda name, *more: None if name == "anywidget" else right(name, *more),
    )
    with pytest.raises(InputError, match="explorer"):
        al.explore(swap)


# --- in a browser
# --------------------------------------------------------------------------------------------------------------

# Tokens with markup, a line's end, two anchors on one token, layers with a hole, a layer that was
# not measured.
ROWS = [
    {
        "id": "a",
        "question": "What is the capital of <b>Peru</b>?",
        "answer": "Lima",
        "label": "",
        "pathway": "",
        "metric": "P",
        "change": "ΔP",
        "unit": "points",
        "before": 0.52,
        "peak": -50.0,
        "at": 0,
        "place": "exact_question",
        "answer_tokens": [7],
        "tokens": ["Q", ":", " capital", " of", " <b>Peru</b>", "?\n", "A:", " Lima"],
        "places": {
            "exact_question": [2, 4],
            "subject": [4],
            "pre_answer": [6],
            "exact_question, null": [],
        },
        "curves": {
            "exact_question": [-50.0, -40.0, -10.0, 2.5],
            "subject": [-30.0, -45.0, -5.0, -0.04],
            "pre_answer": [0.0, -1.0, -30.0, None],
            "exact_question, null": [-20.0, -10.0, 0.0, 0.0],
        },
    },
    {
        "id": "b",
        "question": "Who wrote Emma?",
        "answer": "Jane Austen",
        "label": "false",
        "pathway": "Q-Anchored",
        "metric": "logit_diff",
        "change": "Δ logit_diff",
        "unit": "logit",
        "before": 0.9,
        "peak": 12.0,
        "at": 8,
        "place": "exact_question",
        "answer_tokens": [3],
        "tokens": ["Q:", " Emma", "A:", " Jane"],
        "places": {"exact_question": [1], "pre_answer": [2]},
        "curves": {"exact_question": [1.0, 2.0, 12.0, 3.0], "pre_answer": [0.0, 0.0, 0.0, 0.0]},
    },
]
COLOURS = anchor_colours("d", "swap", ["exact_question", "subject", "pre_answer"])
DATA = {
    "heading": "Activation swap: m on d",
    "layers": [0, 4, 8, 29],
    "rows": ROWS,
    "colours": {anchor: [darken(one), lighten(one)] for anchor, one in COLOURS.items()},
}
# A model as a notebook's: values, and who listens to their change.
PAGE = """<!doctype html><html lang="en" {theme}><head><meta charset="utf-8"><title>explorer</title><style>{css}
body {{ margin: 0; background: {paper}; }}</style></head><body><div id="here"></div>
<script type="module">
const faults = [];
window.addEventListener("error", (event) => faults.push(event.message));
console.error = console.warn = (...said) => faults.push(said.join(" "));
const values = {{ data: {data}, example: "a", layer: 0 }}, listeners = {{}}, saved = [];
const model = {{
  get: (name) => values[name],
  set(name, value) {{ values[name] = value; (listeners["change:" + name] || []).forEach((does) => does()); }},
  save_changes() {{ saved.push({{ example: values.example, layer: values.layer }}); }},
  on(kind, does) {{ (listeners[kind] ||= []).push(does); }},
  off(kind, does) {{ listeners[kind] = listeners[kind].filter((one) => one !== does); }},
}};
const source = {source};
const {{ default: widget }} = await import(URL.createObjectURL(new Blob([source], {{ type: "text/javascript" }})));
const el = document.getElementById("here");
const end = widget.render({{ model, el }});
const find = (what) => el.querySelector(what);
const all = (what) => [...el.querySelectorAll(what)];
const numbers = () => all("tbody tr").map((one) => [one.children[1].textContent, one.children[2].textContent]);
const marks = () => all("mark").map((one) => [one.textContent, one.style.getPropertyValue("--strength"), one.title]);
const say = (what, kind) => what.dispatchEvent(new Event(kind, {{ bubbles: true }}));
const answer = await (async () => {{ {script} }})();
const told = document.createElement("pre");
told.id = "told";
told.hidden = true;
told.textContent = JSON.stringify({{ answer, faults }});
document.body.append(told);
</script></body></html>"""


def asked(folder, script, *, theme="", paper="white"):
    """What a script finds on a page with the explorer."""
    home = files("anchorlens.report")
    source, css = (
        home.joinpath(f"explorer.{kind}").read_text(encoding="utf8") for kind in ("js", "css")
    )
    safe = [json.dumps(value).replace("</", "<\\/") for value in (DATA, source)]
    path = folder / "page.html"
    made = PAGE.format(
        css=css, data=safe[0], source=safe[1], script=script, theme=theme, paper=paper
    )
    path.write_text(made, encoding="utf8")
    found = re.search(
        r'<pre id="told"[^>]*>(.*?)</pre>', run(folder, 900, "--dump-dom", path.as_uri()), re.DOTALL
    )
    assert found is not None, "the page's script did not finish"
    told = json.loads(unescape(found[1]))
    assert told["faults"] == []
    return told["answer"]


@pytest.mark.slow
def test_the_slider_moves_tokens_numbers_and_the_line(tmp_path):
    script = """
    const here = () => Number(find(".here").getAttribute("x1"));
    const slider = find("input[type=range]");
    const first = { numbers: numbers(), marks: marks(), here: here(), said: slider.getAttribute("aria-valuetext") };
    slider.value = "2"; say(slider, "input");
    const then = { numbers: numbers(), marks: marks(), here: here(), output: find("output").textContent, saved: [...saved] };
    slider.value = "3"; say(slider, "input");
    const last = { numbers: numbers(), here: here(), label: find("svg[role=img]").getAttribute("aria-label") };
    return { first, then, last, max: slider.max, text: find(".tokens").textContent, bold: all("b").length };
    """
    seen = asked(tmp_path, script)
    first, then, last = seen["first"], seen["then"], seen["last"]
    wanted = {
        "exact_question": "−50.0",
        "subject": "−30.0",
        "pre_answer": "0.0",
        "exact_question, null": "−20.0",
    }
    assert first["numbers"] == [[name, value] for name, value in wanted.items()]
    assert [mark[0] for mark in first["marks"]] == [" capital", " <b>Peru</b>", "A:"]
    assert [mark[1] for mark in first["marks"]] == ["50%", "50%", "0%"]
    assert first["marks"][1][2] == "exact_question: −50.0; subject: −30.0, position 4"
    assert first["said"] == "layer 0"
    assert then["numbers"][:3] == [
        ["exact_question", "−10.0"],
        ["subject", "−5.0"],
        ["pre_answer", "−30.0"],
    ]
    assert [mark[1] for mark in then["marks"]] == ["10%", "10%", "30%"]
    assert (then["output"], then["saved"]) == ("8", [{"example": "a", "layer": 8}])
    assert last["numbers"][2] == ["pre_answer", "not measured"]
    assert "At layer 29: exact_question +2.5, subject 0.0, pre_answer not measured" in last["label"]
    # Layers stand where they are, not one beside the other.
    assert (then["here"] - first["here"]) / (last["here"] - first["here"]) == pytest.approx(
        8 / 29, abs=1e-3
    )
    assert seen["max"] == "3"
    assert "⏎" in seen["text"]
    assert seen["bold"] == 0, "what a question says is no markup"


@pytest.mark.slow
def test_examples_are_searched_and_chosen(tmp_path):
    script = """
    const options = () => all("option").map((one) => one.value), search = find("input[type=search]"), chooser = find("select");
    const said = () => [find(".count").textContent, options(), chooser.value, find(".facts").textContent];
    const first = said();
    search.value = "AUSTEN emma"; say(search, "input");
    const filtered = said();
    search.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
    const entered = { said: said(), numbers: numbers(), saved: saved.at(-1) };
    search.value = "nothing such"; say(search, "input");
    const none = said();
    search.value = ""; say(search, "input");
    chooser.value = "a"; say(chooser, "change");
    const back = said();
    model.set("example", "b");  // from Python
    const python = said();
    return { first, filtered, entered, none, back, python };
    """
    seen = asked(tmp_path, script)
    facts = "answer Lima · P before 0.520 · largest change −50.0 at exact_question, layer 0"
    assert seen["first"] == ["2 of 2 examples", ["a", "b"], "a", facts]
    assert seen["filtered"] == [
        "1 of 2 examples",
        ["a", "b"],
        "a",
        facts,
    ], "the shown example stays in the list"
    other = (
        "answer Jane Austen · which is false · pathway Q-Anchored · logit_diff before 0.900 ·"
        " largest change +12.00 at exact_question, layer 8"
    )
    assert seen["entered"] == {
        "said": ["1 of 2 examples", ["a", "b"], "b", other],
        "numbers": [["exact_question", "+1.00"], ["pre_answer", "0.00"]],
        "saved": {"example": "b", "layer": 0},
    }
    assert seen["none"] == ["0 of 2 examples", ["b"], "b", other]
    assert seen["back"][2:] == ["a", facts]
    assert seen["python"][2:] == ["b", other]


@pytest.mark.slow
def test_controls_are_native_named_and_keep_a_notebooks_keys_away(tmp_path):
    script = """
    let heard = 0;
    document.addEventListener("keydown", () => heard++);
    find("select").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
    const label = (one) => one.labels[0].firstChild.textContent.trim();
    const named = all("input, select").map((one) => [one.tagName, one.type, label(one), one.tabIndex]);
    const chart = find("svg[role=img]"), box = chart.getBoundingClientRect();
    chart.dispatchEvent(new MouseEvent("click", { clientX: box.left + box.width * 0.33, clientY: box.top + 20, bubbles: true }));
    const clicked = values.layer;
    end();
    model.set("layer", 29);
    const lab = find("select").closest("[data-lm-suppress-shortcuts]") !== null;  // as JupyterLab looks for it
    return { heard, lab, named, clicked, after: find("output").textContent };
    """
    seen = asked(tmp_path, script)
    assert (seen["heard"], seen["lab"]) == (0, True)
    assert seen["named"] == [
        ["INPUT", "search", "Search", 0],
        ["SELECT", "select-one", "Example", 0],
        ["INPUT", "range", "Layer", 0],
    ]
    assert seen["clicked"] == 8
    assert seen["after"] == "8", "a view that was closed listens no more"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theme", "paper"), [("theme=light", "rgb(255, 255, 255)"), ("theme=dark", "rgb(17, 17, 17)")]
)
def test_what_is_written_can_be_read_in_both_themes(tmp_path, theme, paper):
    """Contrast of the text, of its lines and of the strongest tint with what lies behind them: 4.5
    and 3, as WCAG asks.
    """
    script = """
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const over = (colour, ground) => {
      canvas.fillStyle = ground; canvas.fillRect(0, 0, 1, 1);
      canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
      return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const paper = getComputedStyle(document.body).backgroundColor, rgb = (some) => `rgb(${some.join(", ")})`;
    const pair = (colour, ground = paper) => [over(colour, ground), over(ground, ground)];
    const style = (what) => getComputedStyle(what);
    const written = [".heading", ".facts", ".count", "thead th:nth-child(2)", "output", ".tokens span"];
    return {
      texts: written.map((one) => pair(style(find(one)).color)),
      marks: all("mark").map((one) => pair(style(one).color, rgb(over(style(one).backgroundColor, paper)))),
      lines: all("svg[role=img] path").map((one) => pair(style(one).stroke)),
    };
    """
    seen = asked(tmp_path, script, theme=theme, paper=paper)
    least = {kind: min(contrast(*pair) for pair in pairs) for kind, pairs in seen.items()}
    assert min(least["texts"], least["marks"]) >= 4.5
    assert (least["lines"] >= 3, len(seen["lines"])) == (True, 4)
    tints = [f"rgb({', '.join(map(str, ground))})" for _, ground in seen["marks"]]
    assert tints[0] != tints[2] == paper, "the answer site has no effect at layer 0"
