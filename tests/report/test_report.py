"""The report: one page, whole, without network, whatever stands in the questions."""

import json
import re
from base64 import b64decode
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import anchorlens as al
from anchorlens.cli.entry import main
from anchorlens.cli.output import outcome_json, show_claims
from anchorlens.display import minus
from anchorlens.errors import InputError, RunError
from anchorlens.figures.example_figure import plot_example
from anchorlens.figures.export import save_html
from anchorlens.report.contents import (
    count_drops,
    findings_table,
    format_value,
    names_of,
    provenance_by_section,
    studies_of,
    tables_of,
    words_of,
)
from anchorlens.report.page import render
from anchorlens.results.example_view import example_rows
from anchorlens.results.findings import (
    BEYOND_POSITIONS,
    NOT_DETECTED,
    NULL_MOVES,
    STANDS,
    Finding,
    Findings,
)
from anchorlens.running.run_study import Outcome
from tests.questions.make import CAPITALS, capitals
from tests.raised import raises

from .conftest import SMALL

HOSTILE = (
    "What is </script><script>document.title='x'</script> the <b>capital</b> of {{ 7 * 7 }} &amp;"
    " Peru?"
)


@pytest.fixture(scope="module")
def page(sweeps):
    return render(list(sweeps), "Two sweeps")


def rows(result, **more):
    return example_rows(
        result.samples(all_columns=True),
        result.examples(all_columns=True),
        result.anchors,
        result.layers,
        **more,
    )


def data_in(page):
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL
    )
    return json.loads(text)


@pytest.mark.parametrize("which", [0, 1])
def test_a_rows_curve_is_the_mean_over_its_donors(sweeps, which):
    result = sweeps[which]
    found = rows(result)
    assert [row["id"] for row in found] == list(result.example_ids)
    samples = result.samples(all_columns=True)
    for row in found[:5]:
        own = samples[
            (samples["example_id"] == row["id"])
            & (samples["control"] == "none")
            & (samples["metric"] == "p")
        ]
        for anchor in result.anchors:
            means = own[own["anchor"] == anchor].groupby("layer")["effect"].mean()
            assert np.allclose(
                row["curves"][anchor], means.reindex(list(result.layers)), atol=0.006
            )
        every = [
            (abs(v), v, k)
            for a in result.anchors
            for v, k in zip(row["curves"][a], result.layers, strict=True)
        ]
        assert abs(row["peak"]) == max(every)[0]
        assert row["curves"][row["place"]][list(result.layers).index(row["at"])] == row["peak"]
        at = own[own["layer"] == row["at"]]
        before = at["value_before"].iloc[0]
        if at["delta_kind"].iloc[0] == "confidence":  # in the clean prediction, as ΔP
            before = max(before, 1 - before)
        assert np.isclose(row["before"], before, atol=1e-4)
        assert row["peak"] >= -100 * row["before"] - 0.01
        assert row["pathway"] == (at["pathway"].iloc[0] or "")
    assert rows(result, ids=[found[3]["id"]]) == [found[3]]


def test_tokens_are_marked_once_and_say_the_text(sweeps):
    for result in sweeps:
        texts = result.examples().query("role == 'base'").set_index("example_id")["text"]
        for row in rows(result):
            if "\ufffd" in "".join(row["tokens"]):  # a letter of several tokens
                continue
            assert "".join(row["tokens"]).endswith(texts[row["id"]])
            marked = [p for where in row["marks"].values() for p in where]
            assert len(marked) == len(set(marked))
            assert row["answer"] in "".join(row["tokens"][p] for p in row["marks"]["answer"])
    assert any("cut:random_tokens" in row["marks"] for row in rows(sweeps[1]))


@pytest.mark.slow
def test_the_page_holds_everything_once(page, sweeps):
    assert page.count("plotly.js v") == 1
    for result in sweeps:
        assert result.run_id in page
        for line in result.verdict.splitlines():
            for cell in re.split(" {2,}", line.strip()):
                assert ">" + minus(cell).replace("'", "&#39;").replace(">", "&gt;") + "<" in page
    data = data_in(page)
    assert [len(sweep["rows"]) for sweep in data["sweeps"]] == [
        len(result.example_ids) for result in sweeps
    ]
    assert "no_distractor" in page
    # Nothing is fetched: what stands outside plotly's own script names no host.
    outside = re.sub(r"<script>/\*\*\s*\* plotly\.js.*?</script>", "", page, flags=re.DOTALL)
    assert len(outside) < len(page) / 2
    assert not re.findall(r"(?:src|href)=[\"'](?:https?:)?//", outside)


@pytest.mark.slow
def test_what_a_question_says_is_no_markup(tiny_model):
    made = capitals()
    first, start, at = made.examples[0], HOSTILE.index("Peru"), HOSTILE.index("capital")
    subject, about = (
        replace(first.subject, start=start, end=start + 4),
        replace(first.property, start=at, end=at + 7),
    )
    first = replace(first, question=HOSTILE, subject=subject, property=about)
    result = al.swap_sweep(
        tiny_model("llama"), replace(made, examples=(first, *made.examples[1:])), **SMALL
    )
    page = render([result], HOSTILE)
    assert "<script>document.title" not in page
    assert "49" not in page.split("<h1>")[1].split("</h1>")[0]
    assert any(row["question"] == HOSTILE for row in data_in(page)["sweeps"][0]["rows"])
    assert "<b>" not in result.plot_example(result.example_ids[0]).layout.title.text.split(
        "<br>", 1
    )[1].replace("<b><span", "")


@pytest.mark.slow
def test_a_report_has_the_same_bytes_after_figures_were_drawn(sweeps, tmp_path):
    before = render(sweeps, "One")
    save_html(sweeps[0].plot_example(0), tmp_path / "figure.html")
    assert render(sweeps, "One") == before


def test_what_was_dropped_and_where_it_comes_from(sweeps):
    table = count_drops([sweeps[1]])
    assert table.columns == ["reason", "rows", "example"]
    assert {reason: int(rows) for reason, rows, _ in table.rows} == sweeps[1].dropped_counts
    questions = set(sweeps[1].examples().query("role == 'dropped'")["question"])
    assert all(one.split(" (")[0] in questions or one in questions for *_, one in table.rows)
    assert [
        row[1:] for row in count_drops(sweeps).rows
    ] == table.rows  # nothing of the first was dropped
    facts = provenance_by_section(sweeps[0])
    assert facts["model"]["weights_sha256"] == sweeps[0].record["model"]["weights_sha256"]
    assert facts["config"]["n_donors"] == "2"


@pytest.mark.slow
def test_findings_stand_on_the_page_in_their_parts(sweeps):
    findings = Findings(
        headline="At k* = 9 the <effect> stands.",
        warnings=("Beware: text reaches AUC 0.70.",),
        rows=(("delta_p_vs_placebo", "-25.5"), ("and 2 more: contrasts()", "")),
        columns=("contrast", "value"),
        notes=("Layers: 4-6.",),
    )
    told = findings_table(findings)
    assert (told.columns, told.rows[1], told.numbers) == (
        ["contrast", "value"],
        ["and 2 more: contrasts()", ""],
        [False, False],
    )
    page = render([replace(sweeps[0], _memo={**sweeps[0]._memo, "findings": findings})], "One")
    for part in (
        '<p class="beware">Beware: text reaches AUC 0.70.</p>',
        '<p class="lead">At k* = 9 the &lt;effect&gt; stands.</p>',
        '<p class="note">Layers: 4-6.</p>',
    ):
        assert part in page
    assert page.index("−25.5") < page.index("Layers: 4-6.")


@pytest.mark.slow
def test_claims_of_several_sweeps_are_adjusted_on_the_page_and_on_the_terminal(sweeps, capsys):
    made = {"a": ((STANDS, 0.001), (NOT_DETECTED, 0.3)), "b": ((STANDS, 0.04),)}
    planted = [
        replace(
            sweeps[1],
            run_id=name,
            _memo={
                **sweeps[1]._memo,
                "findings": Findings(
                    tuple(
                        Finding("flip_rate", status, (2,), 9.0, 3.0, 15.0, 40, p=p)
                        for status, p in claims
                    )
                ),
            },
        )
        for name, claims in made.items()
    ]
    said = (
        "Adjusted by Holm over 2 sweeps with 3 claims: 2 stand in their sweep alone, 1 of them"
        " after the adjustment."
    )
    lost = "not detected after Holm over 2 sweeps"
    page = render(planted, "Two")
    assert (
        page.index(f"<caption>{said}</caption>")
        < page.index(lost)
        < page.index("Each card below")
        < page.index("<article>")
    )
    show_claims(planted)
    out = capsys.readouterr().out
    assert out.startswith(said)
    assert lost in out
    found = json.loads(outcome_json(Outcome(2, None, results=planted)))
    assert (found["adjustment"], [one["status"] for one in found["claims"]]) == (
        said,
        [STANDS, NOT_DETECTED, NOT_DETECTED],
    )
    assert "Adjusted" not in render(planted[:1], "One")
    show_claims(planted[:1])
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize("status", [BEYOND_POSITIONS, NULL_MOVES])
def test_figures_of_a_sweep_its_run_and_its_report_mark_what_its_findings_claim(
    sweeps, tmp_path, status
):
    control = sweeps[0].contrasts().query("quantity == 'delta_p_minus_null'")["control"].iloc[0]
    one = Finding("delta_p_minus_null", status, (1,), anchor="pre_answer", control=control)
    result = replace(sweeps[0], _memo={**sweeps[0]._memo, "findings": Findings((one,))})
    marks = [
        (trace.legendgroup, list(trace.x))
        for trace in al.plot_curves(result).data
        if trace.marker.symbol == "circle"
    ]
    assert [layers for _, layers in marks] == ([[1]] if status == BEYOND_POSITIONS else [])
    assert all(group.startswith("A-Anchored swap") for group, _ in marks)
    pages = [
        (result.save(tmp_path / "run") / "figure.html").read_text(encoding="utf8"),
        render([result], "One"),
    ]
    assert ['"symbol":"circle"' in page.replace(" ", "") for page in pages] == [
        status == BEYOND_POSITIONS
    ] * 2


@pytest.mark.slow
def test_one_table_a_protocol_without_what_all_sweeps_share(sweeps):
    (swap,), (first, second) = tables_of([sweeps[0]]), tables_of(sweeps)
    assert swap.rows == [
        [format_value(v) if isinstance(v, float) else minus(str(v)) for v in row]
        for row in swap_table(sweeps[0]).itertuples(index=False, name=None)
    ]
    assert first.columns == ["data set", *swap.columns]
    assert "AUC" in second.columns
    record = {**sweeps[0].record, "data": {**sweeps[0].record["data"], "name": "other"}}
    twice = replace(
        sweeps[0], record=record, _samples=sweeps[0]._samples.assign(dataset="other"), _memo={}
    )
    (both,) = tables_of([sweeps[0], twice])
    assert both.columns == first.columns
    assert [row[1:] for row in both.rows] == swap.rows * 2


def swap_table(result):
    return result.protocol.table([result])[1].drop(columns=["model", "data set"])


@pytest.mark.slow
def test_the_study_in_it_measures_the_same(sweeps, tmp_path, tiny):
    assert studies_of([sweeps[0]]) == []  # a table from memory stands in no file
    (text,) = studies_of(sweeps)
    assert studies_of([sweeps[1]]) == [text]
    other = replace(
        sweeps[1], record={**sweeps[1].record, "data": {**sweeps[1].record["data"], "limit": 5}}
    )
    assert ["limit = 5" in study for study in studies_of([sweeps[1], other])] == [False, True]
    (tmp_path / "study.toml").write_text(text.replace('"llama"', json.dumps(str(tiny("llama")))))
    study = al.Study.from_toml(tmp_path / "study.toml")
    (again,) = al.run_study(replace(study, device="cpu")).results
    pd.testing.assert_frame_equal(again.samples(), sweeps[1].samples())


@pytest.mark.slow
def test_runs_are_read_and_written(sweeps, tmp_path, capsys):
    al.save_run(list(sweeps), tmp_path / "run")
    with pytest.raises(SystemExit, match="^0$"):
        main(
            ["report", str(tmp_path / "run"), "--out", str(tmp_path / "a.html"), "--title", "Mine"]
        )
    assert "a.html" in capsys.readouterr().out
    text = (tmp_path / "a.html").read_text(encoding="utf8")
    assert "<title>Mine</title>" in text
    assert [*tmp_path.glob(".*")] == []


@pytest.mark.slow
def test_sweeps_that_share_no_figure_have_one_each(tiny_model):
    twice = [al.swap_sweep(tiny_model("llama"), capitals(), seed=seed, **SMALL) for seed in (0, 1)]
    assert render(twice, "seeds").count("<figure ") == 2


def test_what_cannot_be_reported(sweeps, tmp_path):
    for runs, out, said in (
        ([], "a.html", "at least one sweep"),
        (sweeps[0], "a.pdf", "ends with .html"),
        (sweeps[0], "no/where/a.html", "no directory"),
        ([sweeps[0], sweeps[0]], "a.html", "is there twice"),
        (tmp_path, "a.html", "is not a run"),
    ):
        with pytest.raises((InputError, RunError), match=said):
            al.save_report(runs, tmp_path / out)
    assert [*tmp_path.iterdir()] == []


def test_one_example_is_shown(sweeps):
    figure = sweeps[0].plot_example(sweeps[0].example_ids[2])
    country = list(CAPITALS)[2]
    assert country in figure.layout.title.text
    assert [trace.name for trace in figure.data] == [
        *("exact_question", "exact_question, norm_matched", "exact_question, same_role"),
        *("pre_answer", "pre_answer, norm_matched", "pre_answer, same_role"),
    ]
    looks = [(trace.marker.symbol, trace.line.dash) for trace in figure.data]
    assert looks == [
        ("circle", "solid"),
        *(("circle-open", "dot"), ("circle-open-dot", "dashdot")),
        ("square", "dash"),
        *(("square-open", "dot"), ("square-open-dot", "dashdot")),
    ]
    colours = [trace.line.color for trace in figure.data]
    assert [colours.index(colour) for colour in colours] == [0, 0, 0, 3, 3, 3]
    assert all(trace.mode == "lines+markers" for trace in figure.data)
    for wanted in (2, "italy", "the capital of ITALY?", -10):
        assert sweeps[0].plot_example(wanted) == figure
    with raises(InputError, "example", word="'France'"):
        sweeps[0].plot_example("Frence")


@pytest.mark.slow
def test_a_patch_sweep_is_shown_in_logits_with_its_positions_in_order(patch, tmp_path):
    figure = patch.plot_example(0)
    assert [trace.name for trace in figure.data] == list(patch.anchors)
    assert figure.layout.yaxis.title.text == "Δ logit_diff (logits)"
    samples = patch.samples().query("example_id == @patch.example_ids[0]")
    for trace in figure.data:
        assert list(trace.y) == pytest.approx(
            samples.query("anchor == @trace.name")["effect"].tolist(), abs=0.006
        )
    before = samples["value_before"].iloc[0]
    assert f"logit_diff before {before:.3f}" in figure.layout.title.text
    patch.save(tmp_path / "run")
    with pytest.raises(SystemExit, match="^0$"):
        main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report.html")])
    page = (tmp_path / "report.html").read_text("utf8")
    made = data_in(page)["sweeps"][0]["rows"]
    assert [(row["id"], row["change"], row["unit"]) for row in made] == [
        (n, "Δ logit_diff", "logits") for n in patch.example_ids
    ]
    assert ">largest Δ logit_diff</button>" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "heads"),
    [([0, 1], ("P", "ΔP")), ([2], ("logit_diff", "Δ logit_diff")), ([0, 2], ("value", "effect"))],
)
def test_the_examples_table_names_the_metric_that_its_sweeps_share(sweeps, patch, which, heads):
    page = render([[*sweeps, patch][k] for k in which], "Sweeps")
    for text in (
        f">{heads[0]} before</button>",
        f">{heads[1]} by layer</th>",
        f">largest {heads[1]}</button>",
    ):
        assert text in page


def figures_in(page):
    """The figures of a page, as plain values."""
    texts = re.findall(
        r'<figure [^>]*>.*?<script type="application/json">(.*?)</script>', page, re.DOTALL
    )
    return [json.loads(text) for text in texts]


@pytest.mark.slow
def test_a_report_of_curves_and_grids_draws_both(swap, patch, knockout):
    curves, grid = figures_in(render([swap, patch, knockout], "mixed"))
    names = {trace.get("name", "").partition(" (")[0] for trace in curves["data"]}
    assert {"Q-Anchored", "A-Anchored"} <= names
    assert {title["text"].partition(": ")[2] for title in curves["layout"]["annotations"][:2]} == {
        "swap",
        "knockout",
    }
    (cells,) = (trace for trace in grid["data"] if trace["type"] == "heatmap")
    measured = patch.grid(patch.example_ids[0])
    packed = cells["z"]
    values = np.frombuffer(b64decode(packed["bdata"]), packed["dtype"])
    values = values.reshape([int(size) for size in packed["shape"].split(",")])
    assert values.shape == measured.values.shape
    assert np.allclose(values, measured.values, equal_nan=True)
    assert grid["layout"]["yaxis"]["ticktext"] == [str(layer) for layer in measured.layers]


@pytest.mark.slow
def test_the_figure_of_a_report_has_the_controls_and_the_differences(swap):
    (figure,) = figures_in(render([swap], "one"))
    legends = {trace["name"] for trace in figure["data"] if trace.get("showlegend")}
    assert {"Null same_role", "Null norm_matched"} <= legends
    heads = [note["text"] for note in figure["layout"]["annotations"]]
    assert any(text.startswith("Difference from control: ΔP minus ") for text in heads)


@pytest.mark.slow
def test_the_words_of_a_page_are_defined_on_it_and_no_others(swap, patch):
    words = dict(words_of([swap], ["ΔP by layer. Null same_role."]))
    assert {"ΔP", "exact_question", "pre_answer", "same_role"} <= words.keys()
    assert not {"random_tokens", "k*", "AUC", "logit_diff"} & words.keys()
    page = render([patch], "patch")
    assert "<dt>logit_diff</dt>" in page
    assert "<dt>exact_question</dt>" not in page
    for word in ("before", *patch.controls):
        assert f"<dt>{word}</dt>" in page, word


@pytest.mark.slow
def test_the_curves_of_an_example_have_the_colours_of_the_figure(swap):
    page = render([swap], "one")
    (figure,) = figures_in(page)
    of_name = {"Q-Anchored": "exact_question", "A-Anchored": "pre_answer"}
    drawn = {}
    for trace in figure["data"]:
        name = trace.get("name", "").partition(" ")[0]
        if name in of_name and trace.get("line", {}).get("width", 0) > 1:
            drawn[of_name[name]] = trace["line"]["color"]
    (sweep,) = data_in(page)["sweeps"]
    own = {name: light for name, (light, _) in sweep["colours"].items()}
    assert own == drawn
    example = plot_example(swap, swap.example_ids[0])
    lines = {trace.name: trace.line.color for trace in example.data}
    assert {name: lines[name] for name in own} == own


@pytest.mark.slow
def test_a_report_names_its_work(swap, tmp_path, monkeypatch, capsys):
    """`anchorlens report` was silent for 42 s."""
    monkeypatch.setattr("anchorlens.progress._SILENCE", 0.0)
    al.save_report(swap, tmp_path / "a.html")
    assert "report: findings, figures and rows: 00:00 spent" in capsys.readouterr().err
    al.save_report(swap, tmp_path / "a.html", progress=False)
    assert capsys.readouterr().err == ""


def test_one_minus_sign_and_significant_digits(swap):
    findings = Findings(
        headline="The effect is -9.7 at layers 3-8.",
        rows=(("exact_question", "-9.7 [-19.3, +1.1]"),),
        columns=("anchor", "value"),
    )
    page = render([replace(swap, _memo={**swap._memo, "findings": findings})], "One")
    main = page[page.index('<section id="findings"') : page.index('<section id="rows"')]
    shown = re.sub(r"<script.*?</script>|aria-label=\"[^\"]*\"", "", main, flags=re.DOTALL)
    assert "The effect is −9.7 at layers 3-8." in shown
    assert (
        re.findall(r"(?<![\w.\]-])-\d[^<]*", re.sub(r"<pre>.*?</pre>", "", shown, flags=re.DOTALL))
        == []
    )
    assert [format_value(v) for v in (-0.00073951, 12.3456, -0.0, 1.0)] == [
        "−0.00074",
        "12.3",
        "0",
        "1",
    ]


def test_sweeps_of_one_data_set_are_told_apart_by_the_settings_that_differ(sweeps):
    """Two sweeps of the same questions had the same name in every table."""
    first = sweeps[0]
    config = {**first.record["config"], "known_only": True, "seed": 7}
    other = replace(first, record={**first.record, "config": config}, _memo={})
    names = names_of([first, other])
    assert names[0].endswith("(known and unknown questions)")
    assert names[1].endswith("(known questions only)")
    (table,) = tables_of([first, other])
    assert table.columns[0] == "settings"
    assert {row[0] for row in table.rows} == {"known and unknown questions", "known questions only"}
    assert {row[0] for row in count_drops([first, other]).rows} <= set(names)
    assert [name[-6:] for name in names_of([first, first])] == ["run 1)", "run 2)"]
