"""Clusters: what is drawn, and how alike its questions are."""

import numpy as np
import pandas as pd
import pytest

from anchorlens.results.clusters_text import cluster_note
from anchorlens.statistics.clusters import find_clusters, intraclass_correlation
from anchorlens.statistics.resamples import Resamples
from anchorlens.statistics.sign_flips import sign_flip_p


def rows(questions, clusters, donors=None):
    donors = [f"d{i}" for i in range(len(questions))] if donors is None else donors
    return pd.DataFrame({"question_id": questions, "cluster": clusters, "donor_id": donors})


def together(found, *names):
    return len({found.of_question[name] for name in names}) == 1


def test_ten_relations_are_drawn_and_fewer_are_not():
    names = [f"q{i}" for i in range(20)]
    ten = find_clusters(rows(names, [f"r{i % 10}" for i in range(20)]))
    assert (ten.n_named, ten.n_drawn, ten.is_by_question) == (10, 10, False)
    assert together(ten, "q0", "q10") and not together(ten, "q0", "q1")
    nine = find_clusters(rows(names, [f"r{i % 9}" for i in range(20)]))
    assert (nine.n_named, nine.n_drawn, nine.is_by_question) == (9, 20, True)


@pytest.mark.parametrize("n_large", [20, 21, 36])
def test_relations_are_not_drawn_if_one_has_more_than_half_of_the_questions(n_large):
    names = [f"q{i}" for i in range(40)]
    clusters = ["large"] * n_large + [f"r{i % 15}" for i in range(40 - n_large)]
    n_named = len(set(clusters))
    # Rows of one question count once.
    found = find_clusters(rows(names * 2, clusters * 2, [f"d{i}" for i in range(80)]))
    is_large = n_large > 20
    assert (found.n_named, found.is_by_question) == (n_named, is_large or n_named < 10)
    assert found.n_largest == (n_large if is_large else 0)
    assert found.n_drawn == (40 if found.is_by_question else n_named)
    note = cluster_note(found, 40)
    if n_named >= 10:
        why = f"because {n_large} are of one relation. Nothing is said beyond these relations."
        assert (why in note) is is_large


def test_questions_without_a_relation_are_no_large_cluster():
    names = [f"q{i}" for i in range(60)]
    found = find_clusters(rows(names, [f"r{i}" if i < 10 else "" for i in range(60)]))
    assert (found.n_drawn, found.n_largest, found.is_by_question) == (60, 0, False)


def test_questions_without_a_relation_are_clusters_of_their_own():
    names = [f"q{i}" for i in range(30)]
    found = find_clusters(rows(names, [f"r{i}" if i < 10 else "" for i in range(30)]))
    assert found.n_drawn == 30


def test_questions_that_share_a_donor_are_drawn_together_unless_too_few_are_left():
    names = [f"q{i}" for i in range(24)]
    pairs = find_clusters(rows(names, [""] * 24, [f"d{i // 2}" for i in range(24)]))
    assert (pairs.n_drawn, pairs.is_by_donor) == (12, True)
    assert together(pairs, "q0", "q1") and not together(pairs, "q1", "q2")
    few = find_clusters(rows(names, [""] * 24, [f"d{i // 4}" for i in range(24)]))
    assert (few.n_drawn, few.is_by_donor) == (24, False)
    # A statistic serves every question and joins none.
    mean = find_clusters(rows(names, [""] * 24, ["mean"] * 24))
    assert (mean.n_drawn, mean.is_by_donor) == (24, False)


def test_few_donors_of_many_questions_are_a_limit_that_is_told():
    names = [f"q{i}" for i in range(40)]
    five = find_clusters(rows(names, [""] * 40, [f"d{i // 5}" for i in range(40)]))
    assert (five.is_by_donor, five.per_donor) == (False, 5.0)
    note = cluster_note(five, 40)
    assert note.startswith("There are 5.0 questions for each donor, and fewer than 10 clusters")
    related = find_clusters(rows(names, ["r"] * 40, [f"d{i // 5}" for i in range(40)]))
    assert note in cluster_note(related, 40)
    # Three donors each, drawn from all questions, join nearly all: a weak dependence.
    rng = np.random.default_rng(0)
    drawn = [f"d{rng.integers(40)}" for _ in range(120)]
    mixed = find_clusters(rows(names * 3, [""] * 120, drawn))
    assert mixed.per_donor < 3
    assert cluster_note(mixed, 40) == ""


def test_donors_join_relations_through_a_chain():
    names = [f"q{i}" for i in range(40)]
    clusters = [f"r{i % 20}" for i in range(40)]
    donors = [f"d{i}" for i in range(40)]
    donors[0] = donors[1] = "shared"
    found = find_clusters(rows(names, clusters, donors))
    assert together(found, "q0", "q1", "q20", "q21")
    assert found.n_drawn == 19


def test_the_intraclass_correlation_is_that_of_the_levels():
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(2000), 5)
    values = rng.normal(size=2000)[clusters] * 2 + rng.normal(size=10000)
    assert intraclass_correlation(values, clusters) == pytest.approx(0.8, abs=0.03)
    alone = intraclass_correlation(rng.normal(size=10000), clusters)
    assert alone == pytest.approx(0, abs=0.03)
    assert np.isnan(intraclass_correlation(values[:10], np.zeros(10)))
    assert np.isnan(intraclass_correlation(values[:10], np.arange(10)))


@pytest.mark.slow
def test_a_level_per_cluster_is_covered_if_clusters_are_drawn():
    """Drawn by question, the interval of a mean is too short."""
    covered = {True: 0, False: 0}
    for seed in range(200):
        rng = np.random.default_rng(seed)
        clusters = np.repeat(np.arange(25), 8)
        values = (rng.normal(size=25)[clusters] + rng.normal(size=200))[:, None]
        for by_cluster in covered:
            draws = Resamples.of(
                np.arange(200), clusters=clusters if by_cluster else None, n_resamples=200
            )
            one = draws.means(values, np.ones_like(values, dtype=bool))
            covered[by_cluster] += bool(abs(one.value[0]) <= 1.96 * one.error[0])
            assert one.n_questions[0] == 200
            assert one.n[0] == (25 if by_cluster else 200)
    assert covered[True] >= 0.88 * 200
    assert covered[False] <= 0.75 * 200


def test_exchangeable_arms_have_uniform_p_values_and_an_effect_a_small_one():
    clusters = np.repeat(np.arange(20), 3)
    smallest = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        level = rng.normal(size=(20, 1))[clusters]
        values = level + rng.normal(size=(60, 30))
        smallest.append(sign_flip_p(values, clusters, n_flips=199, seed=seed).min())
    assert np.mean(np.array(smallest) <= 0.05) <= 0.1
    by_row = [
        sign_flip_p(
            np.random.default_rng(seed).normal(size=(20, 1))[clusters]
            + np.random.default_rng(seed + 1000).normal(size=(60, 30)) / 10,
            np.arange(60),
            n_flips=199,
        ).min()
        for seed in range(60)
    ]
    assert np.mean(np.array(by_row) <= 0.05) > 0.12  # rows flipped one by one
    rng = np.random.default_rng(0)
    values = rng.normal(size=(60, 30))
    values[:, 4] += 2
    p = sign_flip_p(values, clusters)
    assert p[4] <= 0.01
    assert np.delete(p, 4).min() > 0.05
    silent = sign_flip_p(np.zeros((60, 3)), clusters)
    assert silent.tolist() == [1, 1, 1]
    unknown = np.full((60, 2), np.nan)
    unknown[:, 0] = 1.0
    assert np.isnan(sign_flip_p(unknown, clusters)[1])
