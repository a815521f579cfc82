"""The difference of two runs: paired by row, right where the answer is known, and honest where
there is none.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from anchorlens.errors import InputError
from anchorlens.figures.choose_figure import plot_heatmap
from anchorlens.figures.curves import plot_curves
from anchorlens.protocols.registry import analysis_of
from anchorlens.results.sweep import SweepResult
from anchorlens.running.compare import compare
from anchorlens.runs.schema import SAMPLE_COLUMNS
from tests.raised import raises


def result(frame: pd.DataFrame, protocol: str = "swap") -> SweepResult:
    """Return a result with these samples and nothing else."""
    record = {
        "model": {"name": "m"},
        "data": {"name": "popqa"},
        "config": {"readout": "first_token"},
    }
    return SweepResult(analysis_of(protocol), "id", record, (), (), (), frame, pd.DataFrame())


def run(values: np.ndarray, *, first: int = 0, donors: int = 1, **more: object) -> SweepResult:
    """Values of ΔP, [row layer]; two rows a question."""
    rows = [
        {
            "example_id": f"e{row + first}",
            "question_id": f"q{(row + first) // 2}",
            "protocol": "swap",
            "anchor": "exact_question",
            "pathway": "",
            "layer": layer,
            "site": "resid_pre",
            "direction": "noising",
            "knockout_mode": "",
            "donor_rule": "same_relation",
            "window": 1,
            "readout": "first_token",
            "delta_kind": "probability",
            "donor_id": f"d{donor}",
            "control": control,
            "seed": 0,
            "metric": "p",
            "unit": "percentage points",
            "model": "m",
            "dataset": "popqa",
            "effect": value + (donor - (donors - 1) / 2) * 10,
        }
        for control in ("none", "null")
        for (row, layer), value in np.ndenumerate(values if control == "none" else values * 0 + 99)
        for donor in range(donors)
    ]
    return result(pd.DataFrame(rows).reindex(columns=list(SAMPLE_COLUMNS)).assign(**more))


def test_the_difference_is_that_of_shared_rows_and_controls_have_no_part():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(20, 3)) * 20, rng.normal(size=(24, 3)) * 20
    found = compare(run(a, donors=2), run(b, first=4), labels=("qa", "fewshot"))
    shared = b[:16] - a[4:]
    assert found.table()["difference"].to_numpy() == pytest.approx(shared.mean(0))
    assert found.table()["first"].to_numpy() == pytest.approx(a[4:].mean(0))
    assert found.table()[["n", "only_first", "only_second"]].drop_duplicates().values.tolist() == [
        [8, 4, 8]
    ]
    assert "fewshot minus qa" in repr(found)
    assert list(found.table().columns)[:5] == ["anchor", "layer", "difference", "ci_low", "ci_high"]
    spoilt = found.table()
    spoilt["difference"] = 0  # what is given out is a copy
    assert found.table()["difference"].to_numpy() == pytest.approx(shared.mean(0))


def test_pairing_sees_what_two_bands_hide():
    """Questions differ far more from each other than the runs do."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=(40, 2)) * 30
    found = compare(run(a), run(a - 2 + rng.normal(size=a.shape))).table()
    assert (found["sim_high"] < 0).all()
    assert (found["ci_high"] - found["ci_low"] < 2).all()
    same = compare(run(a), run(a)).table()
    assert set(same["difference"]) == {0.0}


def test_p_says_whether_the_runs_can_be_exchanged_and_counts_every_sweep():
    rng = np.random.default_rng(4)
    a = rng.normal(size=(40, 3)) * 20
    b = a + rng.normal(size=a.shape) - [0, 0, 3]
    one = compare(run(a), run(b)).table()
    assert one.loc[2, "p"] == pytest.approx(1 / 1000)
    assert one.loc[:1, "p"].min() > 0.05
    assert set(compare(run(a), run(a)).table()["p"]) == {1.0}
    both = compare([run(a), run(a)], [run(b), run(b)]).table()
    assert both["p"].min() == pytest.approx(2 / 1000)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_of_two_runs_alike_the_interval_excludes_zero_in_one_of_twenty():
    rng = np.random.default_rng(2)
    outside, anywhere = [], []
    for k in range(300):
        question = rng.normal(size=(30, 1)) * 20
        a, b = (np.repeat(question + rng.normal(size=(30, 4)) * 8, 2, axis=0) for _ in range(2))
        table = compare(run(a), run(b), n_resamples=300, seed=k).table()
        outside += ((table["ci_low"] > 0) | (table["ci_high"] < 0)).tolist()
        anywhere.append(bool(((table["sim_low"] > 0) | (table["sim_high"] < 0)).any()))
    assert 0.03 < np.mean(outside) < 0.075
    assert 0.01 < np.mean(anywhere) < 0.09


def test_a_comparison_is_a_curve():
    rng = np.random.default_rng(3)
    a = rng.normal(size=(40, 4)) * 10
    figure = plot_curves(compare(run(a), run(a - 5)), metric="difference")
    line = next(trace for trace in figure.data if trace.mode == "lines" and not trace.fill)
    assert list(line.y) == pytest.approx([-5] * 4)
    assert figure.layout.yaxis.title.text == "difference (points)"
    assert not [trace for trace in figure.data if trace.name.endswith("P before")]


def test_a_comparison_begins_with_what_it_shows():
    a = np.random.default_rng(3).normal(size=(40, 2)) * 10
    assert repr(compare(run(a), run(a - [0, 5]))).startswith(
        "Curves differ: exact_question at layer 1.\n"
    )
    assert repr(compare(run(a), run(a))).startswith("No difference was detected at any layer.\n")
    assert repr(compare(run(a[:38]), run(a[:38] - 5))).startswith(
        "Nothing is claimed: 20 shared questions are needed"
    )


def test_a_difference_that_few_questions_carry_is_noted():
    a = np.random.default_rng(3).normal(size=(40, 3))
    found = compare(run(a), run(a - np.where(np.arange(40) < 4, 60, 0)[:, None]))
    assert found.table()["n_effective"].to_numpy() == pytest.approx(2)
    note = (
        "Few questions carry the difference on popqa (effective number 2.0 of 20): the band allows"
        " for an unseen question"
    )
    # Nothing is claimed of two questions of twenty, so nothing is said about who carries it.
    assert note not in repr(found)
    a = np.random.default_rng(3).normal(size=(160, 3))
    many = repr(compare(run(a), run(a - np.where(np.arange(160) < 30, 60, 0)[:, None])))
    assert many.startswith("Curves differ")
    assert note.replace("2.0 of 20", "15.0 of 80") in many
    assert "Few questions" not in repr(compare(run(a), run(a - 5)))


@pytest.mark.slow
def test_bands_hold_jointly_over_anchors_and_sweeps():
    """One sweep of one anchor has its own band; further anchors and sweeps widen it, not the
    pointwise interval.
    """
    a = np.random.default_rng(4).normal(size=(80, 2)) * 10
    b = np.random.default_rng(5).normal(size=(80, 2)) * 10

    def sweep(values, *anchors, model="m"):
        samples = [
            run(values * (1 + at), anchor=anchor, model=model).samples(all_columns=True)
            for at, anchor in enumerate(anchors)
        ]
        made = result(pd.concat(samples, ignore_index=True))
        return replace(made, record={**made.record, "model": {"name": model}})

    alone = compare(sweep(a, "x"), sweep(b, "x")).table()
    two_anchors = compare(sweep(a, "x", "y"), sweep(b, "x", "y"))
    two_sweeps = compare(
        *([sweep(values, "x"), sweep(values[::-1], "x", model="n")] for values in (a, b))
    )
    width = alone["sim_high"] - alone["sim_low"]
    for other in (
        two_anchors.table().query("anchor == 'x'"),
        two_sweeps.table().query("model == 'm'"),
    ):
        np.testing.assert_allclose(
            other[["difference", "ci_low", "ci_high"]], alone[["difference", "ci_low", "ci_high"]]
        )
        assert (other["sim_high"].to_numpy() - other["sim_low"].to_numpy() > width.to_numpy()).all()
    assert "95 % band over all layers and anchors\n" in repr(two_anchors)
    assert "95 % band over all layers, anchors and 2 sweeps\n" in repr(two_sweeps)
    changed = compare(
        *([sweep(values, "x"), sweep(values, "x", model="n")] for values in (a, a - [5, 0]))
    )
    assert repr(changed).startswith("Curves differ: m, x at layer 0; n, x at layer 0.\n")


@pytest.mark.parametrize(
    ("measured", "metric", "said"),
    [
        ({}, None, "ΔP in points"),
        ({"metric": "flip"}, None, "flip rate in points"),
        ({"metric": "logit_diff", "unit": "logit"}, None, "Δ logit_diff in logits"),
        (
            {"logit_diff_before": 1.0, "logit_diff_after": 3.0},
            "logit_diff",
            "Δ logit_diff in logits",
        ),
    ],
)
def test_metric_and_unit_are_those_of_the_samples(measured, metric, said):
    a, b = (run(np.full((20, 2), value), **measured) for value in (2.0, 5.0))
    found = compare(a, b, metric=metric)
    derived = metric is not None
    assert set(found.table()["first"]) == {2.0}
    assert set(found.table()["difference"]) == {0.0 if derived else 3.0}
    assert f"Comparison: second minus first, {said};" in repr(found)
    axis = plot_curves(found, metric="difference").layout.yaxis.title.text
    assert axis == ("difference (logits)" if "logit" in said else "difference (points)")


@pytest.mark.slow
def test_positions_are_in_order():
    """Anchors of ``patch``; a sort as text would put position 10 after position 1."""
    frames = [
        run(np.full((20, 2), float(p)), anchor=f"pos:{p}", position=p).samples(all_columns=True)
        for p in range(12)
    ]
    one = result(pd.concat(frames, ignore_index=True))
    found, order = compare(one, one), [f"pos:{p}" for p in range(12)]
    assert found.table()["anchor"].unique().tolist() == order
    assert found.curves()["position"].unique().tolist() == list(range(12))
    assert [line.split()[0] for line in repr(found).splitlines()[4:]] == order
    assert plot_heatmap(found, metric="difference").data[0].y == tuple(order[::-1])


def test_what_cannot_be_compared():
    a = run(np.zeros((4, 2)))
    with pytest.raises(InputError, match=r"^The two runs share no row"):
        compare(a, run(np.zeros((4, 2)), first=4))
    with raises(InputError, "metric"):
        compare(a, a, metric="flip")
    with pytest.raises(InputError, match="compare takes"):
        compare(a, [])
    with raises(InputError, "n_resamples"):
        compare(a, a, n_resamples=1)
    other = result(a.samples(), "patch_tokens")
    with pytest.raises(InputError, match=r"^The two runs share no sweep"):
        compare([a, a], other)


def test_rows_of_one_id_and_other_texts_are_no_pairs():
    """Ids of rows in lists are their numbers: two lists of pairs have the same."""

    def with_texts(name, of):
        one = run(np.zeros((4, 2)))
        ids = sorted(set(one.samples(all_columns=True)["example_id"]))
        rows = [{"role": "base", "example_id": i, "question": f"{of} {i}?"} for i in ids]
        record = one.record | {"data": {"name": "pairs", "sha256": name}}
        return replace(one, record=record, _examples=pd.DataFrame(rows))

    a = with_texts("a", "What is")
    with pytest.raises(InputError, match=r"4 of 4 rows have the same id and other texts: 'e0'"):
        compare(a, with_texts("b", "Who is"))
    # A part of the rows, and the same rows in other prompts.
    assert len(compare(a, with_texts("b", "What is")).table()) == 2
    assert len(compare(a, with_texts("a", "Who is")).table()) == 2


def test_the_verdict_names_the_relations_and_ten_to_nineteen_name_no_layer():
    a = np.random.default_rng(3).normal(size=(80, 2)) * 10
    b = a - [0, 5] + np.random.default_rng(4).normal(size=a.shape)

    def verdict(relations):
        first, second = (run(one) for one in (a, b))
        names = {f"q{i}": f"r{i % relations}" for i in range(40)}
        for one in (first, second):
            one._samples["cluster"] = one._samples["question_id"].map(names)
        found = compare(first, second)
        return repr(found), set(found.table()["n_clusters"])

    text, drawn = verdict(11)
    assert drawn == {11}
    assert text.startswith(
        "Nothing is claimed: 20 clusters of questions are needed to name layers, and here are 11.\n"
        "40 questions of 11 relations: whole relations are drawn. Intraclass correlation of the"
        " largest difference "
    )
    text, drawn = verdict(20)
    assert drawn == {20} and text.startswith("Curves differ: exact_question at layer 1.\n")
    text, drawn = verdict(4)
    assert drawn == {40}
    assert "40 questions of 4 relations: questions are drawn" in text
    assert "Nothing is said beyond these relations" in text


def test_small_differences_have_two_digits():
    a = np.random.default_rng(3).normal(size=(40, 2)) * 1e-4
    assert "-0.001 " in repr(compare(run(a), run(a - [0, 1e-3])))
