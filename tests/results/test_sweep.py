"""A sweep's result: what it says of itself."""

import copy
import os
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import anchorlens as al
from anchorlens.cli.entry import cli
from anchorlens.cli.output import show_result
from anchorlens.errors import InputError
from anchorlens.results.findings import Findings
from anchorlens.runs.schema import CONTRAST_COLUMNS, CURVE_KEYS, answer_first
from tests.questions.make import capitals, refused

OPTIONS = {"n_donors": 2, "align": "last", "layers": (0, 2), "seed": 3, "progress": False}


@pytest.fixture(scope="module")
def sweep(tiny_model):
    return al.swap_sweep(tiny_model("llama"), capitals(5), **OPTIONS)


@pytest.mark.slow
def test_repr_and_notebook_table_name_shape_and_counts(sweep):
    text = repr(sweep)
    assert "delta_p [anchor 2, layer 2, example 5]" in text
    assert text.startswith(sweep.verdict)
    lines = text.removeprefix(sweep.verdict).splitlines()[1:]
    assert len(lines) <= 10 and max(map(len, lines)) <= 100
    assert "<pre" not in sweep._repr_html_()
    assert "readout first_token" in text
    assert "dropped: none" in text
    assert "<table" in sweep._repr_html_()
    assert "n = 5" in sweep._repr_html_()
    assert sweep._repr_html_().startswith("<p><b>Nothing is claimed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "floor", "said"),
    [
        ("bfloat16", 0.25, "bfloat16: rounding changes an effect by up to 0.25 points, measured"),
        ("bfloat16", 0.0, ""),
        ("bfloat16", None, ""),
        ("float32", 0.25, ""),
    ],
)
def test_a_sweep_in_half_precision_names_its_rounding(sweep, capsys, dtype, floor, said):
    record = sweep.record | {
        "model": sweep.record["model"] | {"dtype": dtype},
        "noise": {"floor": floor},
    }
    half = replace(sweep, record=record, _memo={})
    show_result(half)
    printed = capsys.readouterr().out
    for text in (half.rounding_note, repr(half), half._repr_html_(), printed):
        assert said in text
        assert said or "rounding" not in text


def test_the_verdict_in_a_notebook_is_a_table_with_the_cells_of_the_text(sweep):
    findings = Findings(
        headline="P <falls>.",
        warnings=("Beware: few.",),
        rows=(("exact_question", "-9.7 [-19.3, +1.1]"), ("pre_answer", "+0.2 [-1.0, +1.4]")),
        columns=("anchor", "curve minus null"),
        notes=("At layers 3-8.",),
    )
    shown = replace(sweep, _memo={**sweep._memo, "findings": findings})
    page = shown._repr_html_()
    table = page[: page.index("</table>")]
    assert re.findall(r"<th [^>]*>(.*?)</th>", table) == list(findings.columns)
    cells = [cell.replace("-", "−") for row in findings.rows for cell in row]
    assert re.findall(r"<td [^>]*>(.*?)</td>", table) == cells
    assert table.count("<tr>") == 3
    assert page.startswith("<p>Beware: few.</p><p><b>P &lt;falls&gt;.</b></p><table>")
    assert "<p>At layers 3-8.</p>" in page
    assert str(shown).startswith("Beware: few.\nP <falls>.\n  anchor ")  # text in a terminal


@pytest.mark.slow
def test_names_of_model_and_data_are_no_markup_in_a_notebook(sweep):
    record = {
        **sweep.record,
        "model": {"name": "<script>m</script>"},
        "data": {"name": "<img src=x>"},
    }
    page = replace(sweep, record=record, _memo={})._repr_html_()
    assert "&lt;script&gt;m&lt;/script&gt; on &lt;img src=x&gt;, n = 5" in page
    assert "<script" not in page
    assert "<img" not in page


def test_curves_of_one_quantity(sweep):
    pd.testing.assert_frame_equal(sweep.curves(metric="p"), sweep.curves())
    assert set(sweep.curves(controls=True, metric="p")["metric"]) == {"p"}
    with refused(InputError, "metric='flip': not in this sweep. Known: p.", "metric"):
        sweep.curves(metric="flip")


@pytest.mark.slow
def test_curves_of_the_logit_difference_are_those_of_the_two_columns(sweep, tmp_path):
    """``curves(metric="logit_diff")``: mean over questions of the change, in logits."""
    found = sweep.curves(controls=True, metric="logit_diff")
    assert (set(found["metric"]), set(found["unit"])) == ({"logit_diff"}, {"logit"})
    samples = sweep.samples()
    change = samples["logit_diff_after"] - samples["logit_diff_before"]
    key = ["control", "anchor", "layer"]
    wanted = (
        change.groupby([samples[name] for name in (*key, "example_id")]).mean().groupby(key).mean()
    )
    for row in found.itertuples():
        assert row.effect == pytest.approx(wanted[row.control, row.anchor, row.layer])
        assert row.ci_low <= row.effect <= row.ci_high or pd.isna(row.ci_low)
    joined = sweep.samples_with_inputs(controls=True, metric="logit_diff")
    assert (
        joined["effect"] - (joined["logit_diff_after"] - joined["logit_diff_before"])
    ).abs().max() == 0
    assert set(sweep.curves(controls=True)["metric"]) == {"p"}
    (again,) = al.load_run(sweep.save(tmp_path / "run"))
    pd.testing.assert_frame_equal(again.curves(controls=True, metric="logit_diff"), found)
    figure = al.plot_curves(sweep, metric="logit_diff")
    assert figure.layout.yaxis.title.text == "Δ logit_diff (logits)"
    out = tmp_path / "figure.html"
    drawn = CliRunner().invoke(
        cli, ["figure", str(tmp_path / "run"), "--metric", "logit_diff", "--out", str(out)]
    )
    assert drawn.exit_code == 0, drawn.output
    assert out.is_file()


@pytest.mark.slow
def test_a_share_is_mean_delta_p_over_mean_p_before_with_pointwise_intervals(sweep):
    """The interval is that of the ratio over resamples of questions: with equal shares in all
    questions it has no width.
    """
    found, points = sweep.curves(controls=True, metric="share"), sweep.curves(controls=True)
    assert (set(found["metric"]), set(found["unit"])) == ({"share"}, {"% of P before"})
    np.testing.assert_allclose(found["effect"], points["effect"] / points["value_before"])
    assert found["sim_low"].isna().all() and (found["ci_low"] <= found["effect"]).all()
    equal = sweep.samples(all_columns=True).assign(effect=lambda frame: -60 * frame["value_before"])
    same = (
        type(sweep)
        .make(sweep.protocol, equal, sweep.examples(all_columns=True), sweep.record, sweep.run_id)
        .curves(metric="share")
    )
    np.testing.assert_allclose(same[["effect", "ci_low", "ci_high"]], -60)
    with refused(InputError, "metric='share': not in this sweep", "metric"):
        sweep.samples(metric="share")


DESCRIBED = {"anchor_difference", "delta_logit_diff", "donor_p_change", "interchange_accuracy"}


@pytest.mark.parametrize("control", ["same_role", "norm_matched"])
def test_an_anchor_less_its_null_is_paired_by_question(sweep, control):
    """``delta_p_minus_null``: the donor that measured both, and the mean over questions of the
    difference.
    """
    contrasts = sweep.contrasts(all_columns=True)
    assert sorted(contrasts.columns) == sorted(CONTRAST_COLUMNS)
    assert set(contrasts["quantity"]) == {
        "delta_p_minus_null",
        "delta_logit_diff_minus_null",
        "donor_p_minus_null",
        *DESCRIBED,
    }
    contrasts = contrasts[
        (contrasts["quantity"] == "delta_p_minus_null") & (contrasts["control"] == control)
    ]
    assert set(contrasts["anchor"]) == set(sweep.anchors)
    samples = sweep.samples()
    null = samples[samples["control"] == control]
    keys = ["example_id", "question_id", "donor_id", "anchor", "layer"]
    null = null.groupby(keys, as_index=False)["effect"].mean()  # over draws
    both = samples[samples["control"] == "none"].merge(null, on=keys, suffixes=("", "_null"))
    assert len(both) == len(null) < (samples["control"] == "none").sum()
    wanted = (both["effect"] - both["effect_null"]).groupby([both["anchor"], both["layer"]]).mean()
    for row in contrasts.itertuples():
        assert row.value == pytest.approx(wanted[row.anchor, row.layer])
        assert row.ci_low <= row.value <= row.ci_high
        assert row.n == both["question_id"].nunique()


def test_without_a_null_anchors_are_compared_with_each_other_alone(tiny_model):
    alone = al.swap_sweep(tiny_model("llama"), capitals(3), n_null_donors=0, **OPTIONS)
    assert set(alone.contrasts()["quantity"]) == DESCRIBED
    assert sorted(alone.contrasts(all_columns=True).columns) == sorted(CONTRAST_COLUMNS)


LEAD = ["anchor", "layer", "effect", "ci_low", "ci_high", "value_before", "n"]


def test_frames_show_what_was_found_first(sweep, monkeypatch):
    """In a terminal of 80 columns, and in a notebook, which shows ten columns from either end."""
    assert list(sweep.curves().columns)[: len(LEAD)] == LEAD
    assert list(sweep.curves(controls=True).columns)[: len(LEAD) + 1] == [
        *LEAD[:3],
        "control",
        *LEAD[3:],
    ]
    assert list(sweep.samples().columns)[:5] == [
        "example_id",
        "layer",
        "effect",
        "control",
        "anchor",
    ]
    assert list(sweep.contrasts().columns)[:5] == [
        "quantity",
        "layer",
        "value",
        "control",
        "anchor",
    ]
    assert list(sweep.examples().columns)[:5] == [
        "example_id",
        "role",
        "question",
        "answer",
        "label",
    ]
    assert list(sweep.summary().columns)[:3] == ["anchor", "max_layer", "effect"]
    monkeypatch.setattr(
        "pandas.io.formats.format.get_terminal_size", lambda: os.terminal_size((80, 24))
    )
    frames = {
        "effect": (
            sweep.curves(),
            sweep.curves(controls=True),
            sweep.samples(),
            sweep.samples_with_inputs(),
            sweep.summary(),
        ),
        "value": (sweep.contrasts(),),
    }
    for column, shown in frames.items():
        for frame in shown:
            with pd.option_context("display.max_columns", 0, "display.width", 80):
                told = repr(frame.head())
                assert f" {column} " in told.splitlines()[0], told
                assert max(map(len, told.splitlines())) <= 80
            with pd.option_context("display.max_columns", 20):
                assert f"<th>{column}</th>" in frame._repr_html_()


def test_what_is_the_same_in_every_row_comes_last(sweep):
    same = (set(CURVE_KEYS) - {"anchor", "layer"}) & set(sweep.curves())
    assert set(list(sweep.curves().columns)[-len(same) :]) == same
    two = pd.concat([sweep.curves(), sweep.curves().assign(model="another")])
    assert answer_first(two)[: len(LEAD) + 1] == [*LEAD, "model"]
    assert sorted(answer_first(two)) == sorted(two.columns)
    one = sweep.curves().query("anchor == 'exact_question'")
    assert answer_first(one)[: len(LEAD)] == LEAD
    rows = one.assign(pathway="Q-Anchored").pipe(
        lambda q: pd.concat([q, q.assign(pathway="A-Anchored")])
    )
    assert answer_first(rows)[: len(LEAD)] == ["pathway", *LEAD[1:]]


FRAMES = ("curves", "samples", "contrasts", "examples", "summary", "samples_with_inputs")


@pytest.mark.parametrize("name", FRAMES)
def test_frames_leave_out_empty_columns_unless_all_are_asked_for(sweep, name):
    shown, full = getattr(sweep, name)(), getattr(sweep, name)(all_columns=True)
    left_out = [column for column in full if column not in shown]
    assert full[left_out].isna().all().all()
    pd.testing.assert_frame_equal(full[list(shown.columns)], shown)
    assert not set(shown) & {"pathway", "knockout_mode", "auc", "popularity"}
    assert {"effect", "ci_low", "ci_high", "n"} <= set(sweep.curves().columns)


def test_figures_draw_curves_without_their_empty_columns(sweep):
    full = sweep.curves(controls=True, all_columns=True)
    assert al.plot_curves(sweep.curves(controls=True)) == al.plot_curves(full)


def test_what_is_given_out_is_a_copy(sweep):
    for frame in (
        sweep.samples,
        sweep.examples,
        sweep.curves,
        sweep.contrasts,
        sweep.samples_with_inputs,
    ):
        before = frame()
        changed = frame()
        changed.iloc[:, 0] = "spoilt"
        pd.testing.assert_frame_equal(frame(), before)
    tensor = sweep.delta_p
    tensor += 1
    assert not np.allclose(tensor, sweep.delta_p)


def test_results_are_equal_if_they_are_the_same_object(sweep):
    """Frames have no truth value, so that a comparison of all fields failed."""
    again = copy.deepcopy(sweep)
    assert sweep == sweep
    assert sweep != again
    assert again not in [sweep]
    assert len({sweep, again}) == 2
