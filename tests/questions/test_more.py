"""What is advised where questions are too few: limit= only where it can give more."""

import warnings

import pytest

import anchorlens as al
from anchorlens.errors import EmptySweepError
from anchorlens.questions.more import more_questions, questions_of
from anchorlens.questions.tokenised import check_not_empty, drop
from tests.questions.make import capitals, data_of


def advised(data):
    with questions_of(data):
        return more_questions()


def test_a_limit_is_named_where_it_can_be_raised_and_only_there():
    whole = al.load_qa("popqa-sample")
    rows = len(whole.pool) + sum(whole.pool_dropped.values())
    assert advised(al.load_qa("popqa-sample", limit=16)) == f"more questions (limit= up to {rows})"
    taken = f"a larger set, such as 'popqa' (all {rows} questions of popqa-sample are taken)"
    assert advised(whole) == advised(al.load_qa("popqa-sample", limit=rows + 5)) == taken
    assert advised(capitals(5)) == "more questions (limit= up to 12)"
    assert advised(capitals()) == "a larger set (all 12 questions of capitals are taken)"
    assert more_questions() == "more questions"


def test_a_sweeps_own_warning_and_error_advise_it(tiny_model):
    data = al.load_qa("popqa-sample", limit=60)
    rows = len(data.pool) + sum(data.pool_dropped.values())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        al.knockout_sweep(tiny_model("llama"), data, layers=[0], n_resamples=20, progress=False)
    said = [str(w.message) for w in told if "Few rows" in str(w.message)]
    assert said
    assert all(one.endswith(f"groups are noisy. Take more questions (limit= up to {rows}).") for one in said)
    few = data_of(list(capitals().examples[:3]))
    with pytest.raises(EmptySweepError, match=r"Take a larger set \(all 3 questions of made are taken\)\.$"):
        al.knockout_sweep(tiny_model("llama"), few, n_resamples=20, progress=False)


def test_what_helps_against_a_reason_names_it_too():
    gone = [drop(one, "no_distractor") for one in capitals().examples]
    with questions_of(capitals()), pytest.raises(EmptySweepError) as told:
        check_not_empty([], gone, "in capitals")
    assert str(told.value).endswith("take a larger set (all 12 questions of capitals are taken), or distractor='random'.")
