"""Labels and splits of placebo probes."""

import runpy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import anchorlens as al
from anchorlens.probing.placebo_labels import half_splits, shuffle_labels
from anchorlens.probing.truth_rows import TruthRows
from tests.probing.rows import rows_of

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "placebo_null.py"


@pytest.fixture(scope="module")
def rows(tiny_model):
    return rows_of(tiny_model("llama"), al.load_qa("popqa-sample", limit=90))


def test_labels_are_flipped_for_half_of_the_questions_and_both_rows_of_one_together(rows):
    labels, mixed = rows.labels, shuffle_labels(rows, 0)
    np.testing.assert_array_equal(labels[rows.of("test")], mixed[rows.of("test")])
    for name in ("train", "validation"):
        where = rows.of(name)
        flipped = {}
        for i in where:
            flipped.setdefault(rows.question_ids[i], []).append(labels[i] != mixed[i])
        assert all(len(set(both)) == 1 and len(both) == 2 for both in flipped.values())
        n = sum(both[0] for both in flipped.values())
        assert abs(n - len(flipped) / 2) <= 0.5
    draws = [shuffle_labels(rows, 0, draw) for draw in range(5)]
    train = rows.of("train")
    assert all(
        abs(np.corrcoef(a[train], b[train])[0, 1]) < 0.6
        for i, a in enumerate(draws)
        for b in draws[:i]
    )
    np.testing.assert_array_equal(draws[3], shuffle_labels(rows, 0, 3))


def test_questions_of_one_row_get_each_label_equally_often(rows):
    """Generated answers have one row per question."""
    ones = [i for i in range(len(rows.rows)) if (i // 2 + i) % 2 == 0]
    single = TruthRows(tuple(rows.rows[i] for i in ones), (tuple(rows.split[i] for i in ones),), ())
    assert max(Counter(single.question_ids).values()) == 1
    labels, mixed = single.labels, shuffle_labels(single, 0)
    for name in ("train", "validation"):
        where = single.of(name)
        for label in (0, 1):
            there = mixed[[i for i in where if labels[i] == label]]
            assert abs(there.sum() - len(there) / 2) <= 0.5
        assert abs(mixed[where].sum() - len(where) / 2) <= 1


def test_halves_share_no_question_and_no_answer_and_are_alike_in_size(rows):
    # Two questions of one split with one answer, which no other question shares.
    linked = list(rows.rows)
    train = rows.of("train")
    pair = train[0], train[-1]
    for place in pair:
        example = replace(linked[place].example, answers=(*linked[place].example.answers, "Xanadu"))
        for i in train:
            if rows.question_ids[i] == rows.question_ids[place]:
                linked[i] = replace(linked[i], example=example)
    assert rows.question_ids[pair[0]] != rows.question_ids[pair[1]]
    for seed in range(6):
        a, b = half_splits(TruthRows(tuple(linked), rows.splits, ()), seed)
        assert a[pair[0]] == a[pair[1]]
        used = [{i for i, s in enumerate(fold) if s in ("train", "validation")} for fold in (a, b)]
        assert used[0] | used[1] == set(rows.of("train", "validation"))
        assert not used[0] & used[1]
        answers = [
            {answer.lower() for i in half for answer in linked[i].example.answers} for half in used
        ]
        assert not answers[0] & answers[1]
        sizes = [Counter(fold)["train"] for fold in (a, b)]
        assert abs(sizes[0] - sizes[1]) <= 0.2 * sum(sizes)
        assert [i for i, s in enumerate(a) if s == "test"] == rows.of("test")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_shuffled_placebo_is_a_null_where_states_hold_the_question_and_no_truth():
    """Labels shuffled over rows are rejected far too often, labels flipped by question are not."""
    script = runpy.run_path(str(SCRIPT))
    worlds = [script["world"](100, 1.0, seed) for seed in range(120)]

    def off(name):
        return np.mean([low > 0 or high < 0 for low, high in (world[name] for world in worlds)])

    assert off("over rows, one draw") > 0.1
    assert off("within questions, several draws") <= 0.06
