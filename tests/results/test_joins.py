"""Samples beside the inputs that they were measured on: one for one, whoever is whose donor."""

import warnings
from functools import cache

import pandas as pd
import pytest

import anchorlens as al
from anchorlens.errors import InputError
from anchorlens.prompts.dataset import Dropped
from anchorlens.results.joins import join_inputs
from tests.protocols.sweeps import questions, swept
from tests.questions.make import CAPITALS, capitals, equal_lengths
from tests.tiers import choose_cases

SWAP = {
    "n_donors": 3,
    "align": "last",
    "layers": (0, 2),
    "n_resamples": 20,
    "n_spot_checks": 0,
    "progress": False,
}


# Of every protocol one, two models and three sets among them.
MADE = {
    "swap": lambda llama, _: al.swap_sweep(llama, capitals(), **SWAP),
    "denoising": lambda _, gpt2: al.swap_sweep(
        gpt2, equal_lengths(), direction="denoising", **SWAP
    ),
    "mean": lambda llama, _: al.swap_sweep(
        llama, capitals(), donors="mean", **SWAP | {"n_donors": 1}
    ),
    "probe": lambda llama, _: al.swap_sweep(llama, questions(), readout="probe", **SWAP),
    **{
        name: lambda llama, _, name=name: swept(llama, name)
        for name in ("knockout", "patch_tokens", "answer_only")
    },
}
QUICK = [name for name in MADE if name != "probe"]


@pytest.fixture(scope="module")
def sweeps(tiny_model):
    """``sweeps(name)``, each made once."""

    @cache
    def make(name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return MADE[name](tiny_model("llama"), tiny_model("gpt2"))

    return make


@pytest.mark.parametrize("name", choose_cases(QUICK, MADE))
def test_every_sample_has_its_row_and_stands_once(name, sweeps):
    """Checked against the examples, looked up one by one."""
    sweep = sweeps(name)
    samples, joined = sweep.samples(), sweep.samples_with_inputs(controls=True)
    pd.testing.assert_frame_equal(joined[samples.columns], samples)
    base = sweep.examples().query("role == 'base'").set_index("example_id").to_dict("index")
    for example_id, own in joined.groupby("example_id"):
        for column in ("question", "answer", "label", "text", "span_source"):
            assert set(own[column]) == {base[example_id][column]}
        assert own["subject"].iloc[0] in own["question"].iloc[0]
        assert own["property"].iloc[0] in own["question"].iloc[0]
        assert len(own["subject"].iloc[0]) > 0
    assert len(sweep.samples_with_inputs()) == (samples["control"] == "none").sum()


def test_the_join_that_one_would_write_doubles_rows_and_this_one_does_not(sweeps):
    sweep = sweeps("swap")
    samples, examples = sweep.samples(), sweep.examples()
    roles = examples.groupby("example_id")["role"].nunique()
    assert (roles == 2).any()  # measured, and somebody's donor
    naive = samples.merge(examples, on="example_id")
    twice = samples["example_id"].isin(roles.index[roles == 2]).sum()
    assert len(naive) == len(samples) + twice > len(samples)
    assert len(sweep.samples_with_inputs(controls=True)) == len(samples)


def test_segments_and_donors_are_those_of_the_questions(sweeps):
    row = sweeps("swap").samples_with_inputs().query("example_id == 'Japan'").iloc[0]
    assert (row["question"], row["answer"]) == ("What is the capital of Japan?", "Tokyo")
    assert (row["subject"], row["property"]) == ("Japan", "capital")
    for name in ("swap", "denoising", "patch_tokens"):
        joined = sweeps(name).samples_with_inputs(controls=True)
        rows = sweeps(name).examples().query("role == 'donor'").set_index("example_id")
        for column in ("question", "answer"):
            assert (
                joined[f"donor_{column}"].tolist() == rows.loc[joined["donor_id"], column].tolist()
            )
    swap = sweeps("swap").samples_with_inputs()
    assert swap["donor_answer"].tolist() == [CAPITALS[donor] for donor in swap["donor_id"]]


def test_where_no_row_gives_anything_no_donor_is_named(sweeps):
    for name in ("mean", "knockout"):
        joined = sweeps(name).samples_with_inputs(controls=True)
        assert joined["donor_id"].nunique() >= 1
        assert set(joined["donor_question"]) == set(joined["donor_answer"]) == {""}


def test_a_placebos_draw_is_not_taken_for_a_row_of_that_name(sweeps):
    """Draws are called 0, 1, ...; so may be the rows of a user's file."""
    sweep = sweeps("knockout")
    joined = sweep.samples_with_inputs(controls=True)
    draws = set(joined.loc[joined["control"] == "shuffled_labels", "donor_id"])
    examples = sweep.examples(all_columns=True)
    called = dict(
        zip(
            sorted(set(examples["example_id"])),
            sorted(draws) + sorted(set(examples["example_id"])),
            strict=False,
        )
    )
    named = join_inputs(
        sweep.samples().assign(example_id=lambda frame: frame["example_id"].map(called)),
        examples.assign(example_id=examples["example_id"].map(called)),
        sweep.record["config"],
    )
    assert draws <= set(named["example_id"]) | set(examples["example_id"].map(called))
    assert set(named["donor_question"]) == {""}


def test_another_question_of_answer_only_stands_in_the_changed_input(sweeps):
    sweep = sweeps("answer_only")
    joined = sweep.samples_with_inputs(controls=True)
    asked = {one.example_id: one.question for one in al.load_qa("popqa-sample").pool}
    other = joined[joined["control"] == "other_question"]
    assert other["donor_question"].tolist() == other["donor_id"].map(asked).tolist()
    assert (other["donor_question"] != other["question"]).all()
    assert set(joined.loc[joined["control"] == "none", "donor_question"]) == {""}


def test_one_quantity(sweeps):
    sweep = sweeps("patch_tokens")
    assert set(sweep.samples_with_inputs(metric="flip")["metric"]) == {"flip"}
    assert len(sweep.samples_with_inputs(metric="p")) + len(
        sweep.samples_with_inputs(metric="flip")
    ) == len(sweep.samples_with_inputs())
    with pytest.raises(InputError, match="'flip'"):
        sweep.samples_with_inputs(metric="flop")


@pytest.mark.slow
def test_runs_that_are_read_join_in_the_same_way(sweeps, tmp_path):
    """Several models and sets in one directory: the same names of rows stand for other rows in
    another sweep.
    """
    chosen = [sweeps(name) for name in ("swap", "denoising", "knockout", "answer_only")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no figure of so different curves
        read = al.load_run(al.save_run(chosen, tmp_path / "run"))
    for sweep, again in zip(chosen, read, strict=True):
        for column in ("tokens", "positions"):
            assert [list(one) for one in again.samples_with_inputs()[column]] == [
                list(one) for one in sweep.samples_with_inputs()[column]
            ]
        both = (
            one.samples_with_inputs(controls=True).drop(columns=["tokens"])
            for one in (again, sweep)
        )
        pd.testing.assert_frame_equal(
            *both, check_dtype=False
        )  # text that was read has a type of its own
    whole = pd.concat([sweep.samples_with_inputs() for sweep in read], ignore_index=True)
    assert len(whole) == sum((sweep.samples()["control"] == "none").sum() for sweep in read)
    assert whole.groupby("run_id")["model"].nunique().tolist() == [1] * 4


def test_what_was_left_out_is_named_as_the_data_name_it(sweeps):
    gone = [one for name in QUICK for one in sweeps(name).dropped]
    assert len(gone) > 0
    assert {type(one) for one in gone} == {Dropped}
    for sweep in map(sweeps, QUICK):
        assert (
            len(sweep.dropped)
            == sum(sweep.dropped_counts.values())
            == sum(sweep.record["counts"]["dropped"].values())
        )
        assert sweep.dropped_counts == sweep.record["counts"]["dropped"]
