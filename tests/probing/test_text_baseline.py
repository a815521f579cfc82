"""Text baselines from the answer alone, and from question and answer."""

import random
import time

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

import anchorlens as al
from anchorlens.probing.text_baseline import answer_text_scores, fit_in_span, text_baselines
from anchorlens.probing.truth_rows import TruthRows
from anchorlens.questions.false_answers import assign_false_answers, split_questions
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import Answer, RowTokenizer
from tests.questions.make import example

NAMES = [
    f"{a}{b}{c}"
    for a in "BDGKLMNPRST"
    for b in ("a", "e", "i", "o", "u")
    for c in ("rnes", "lvic", "stun", "dmar", "phil", "wick")
]


def make_pair_rows(tokenizer, pairs):
    """Make rows of (question, true, false), split in three in order."""
    rows, split = [], []
    for i, (question, true, false) in enumerate(pairs):
        made = example(
            question, question.split()[-1].rstrip("?"), question.split()[1], true, example_id=str(i)
        )
        for text, label in ((true, 0), (false, 1)):
            rows.append(
                tokenizer.row(
                    made, Answer(text, Answer.gold(text).exact, "gold", label), f"{i}|{label}"
                )
            )
            split.append(("train", "validation", "test", "train", "test")[i % 5])
    return TruthRows(tuple(rows), (tuple(split),), ())


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())


def test_a_classifier_of_the_text_alone_sees_a_leak_and_no_more():
    train = ["Paris", "Rome", "1912", "1944"] * 6
    # Years are always false: the text tells.
    leaky = [0, 0, 1, 1] * 6
    scores = answer_text_scores(train, leaky, ["Oslo", "1805"])
    assert scores[1] > 0.6 > 0.4 > scores[0]
    # Every string stands equally often on both sides: nothing can be learned.
    even = answer_text_scores(train, [0, 0, 0, 0, 1, 1, 1, 1] * 3, ["Oslo", "1805"])
    np.testing.assert_allclose(even, 0.5, atol=1e-3)


def drawn(rng, n, shared):
    """Draw questions about two names with another as answer, balanced in strings.

    ``shared``: the true answer is one of the two.
    """
    pairs = []
    for _ in range(n // 5):
        # Two questions lend each other their answers inside every split.
        block = []
        for _ in range(5):
            a, b, c, d, e, f = rng.sample(NAMES, 6)
            one, two = (
                (f"Who knew {a} of {b}?", a if shared else e),
                (
                    f"Who saw {c} of {d}?",
                    c if shared else f,
                ),
            )
            block.append(((*one, two[1]), (*two, one[1])))
        pairs += [pair[0] for pair in block] + [pair[1] for pair in block]
    return pairs[:n]


@pytest.mark.parametrize("half", [False, True])
def test_overlap_of_question_and_answer_raises_qa_text_auc_only(tokenizer, half):
    """The true answer shares a word with its question, the false one does not; every string is true
    once and false once.

    Half: only the answer's surname stands in the question.
    """
    rng = random.Random(int(half))
    pairs = drawn(rng, 100, shared=True)
    if half:
        pairs = [
            (question, f"{rng.choice(NAMES)} {true}", f"{rng.choice(NAMES)} {false}")
            for question, true, false in pairs
        ]
    rows = make_pair_rows(tokenizer, pairs)
    found = text_baselines(rows, n_resamples=300, seed=0)
    assert found["qa_text_auc"].ci_low > 0.5
    if not half:
        rows.check_balance()
        assert found["qa_text_auc"].auc > 0.9
        assert (
            found["answer_text_auc"].auc == pytest.approx(0.5, abs=0.02)
            and found["answer_text_auc"].ci_low < 0.5
        )


@pytest.mark.slow
@pytest.mark.exhaustive
def test_random_pairs_exceed_chance_in_at_most_one_set_of_twenty(tokenizer):
    """60 sets of 60 questions without any leak: lower end above 0.5 in at most 5 %."""
    rng = random.Random(2)
    sets = [
        text_baselines(
            make_pair_rows(tokenizer, drawn(rng, 60, shared=False)), n_resamples=200, seed=i
        )["qa_text_auc"]
        for i in range(60)
    ]
    assert sum(found.ci_low > 0.5 for found in sets) <= 3
    assert np.mean([found.auc for found in sets]) == pytest.approx(0.5, abs=0.03)


def test_scores_belong_to_the_rows_of_the_test_split(tokenizer):
    rows = make_pair_rows(tokenizer, drawn(random.Random(3), 40, shared=True))
    found = text_baselines(rows, n_resamples=50, seed=0)
    for baseline in found.values():
        there = np.isin(np.arange(len(rows.rows)), rows.of("test"))
        assert baseline.scores.shape == (len(rows.rows),)
        np.testing.assert_array_equal(~np.isnan(baseline.scores), there)
        below = (
            baseline.scores[there & (rows.labels == 0)][:, None]
            - baseline.scores[there & (rows.labels == 1)][None, :]
        )
        assert baseline.auc == pytest.approx(((below < 0) + 0.5 * (below == 0)).mean())


def test_600_rows_take_no_longer_than_seconds(tokenizer):
    rows = make_pair_rows(tokenizer, drawn(random.Random(4), 300, shared=False))
    assert len(rows.rows) == 600
    start = time.perf_counter()
    text_baselines(rows, n_resamples=1000, seed=0)
    # About one second on a free core.
    assert time.perf_counter() - start < 10


@pytest.mark.slow
@pytest.mark.shared_data
def test_real_comparisons_do_not_leak_by_the_answer_in_the_question(shared_data):
    """Without matching, true answers occurred in 11 % of the questions, false ones in 0 %."""
    rows = al.load_qa("hotpotqa", path=shared_data / "hotpotqa.jsonl", limit=600).examples
    assigned = assign_false_answers(rows, split_questions(rows))
    kept = [row for row in rows if row.example_id in assigned.false]
    words = [
        (
            f" {row.question.lower()} ",
            row.answers[0].lower(),
            assigned.false[row.example_id].lower(),
        )
        for row in kept
    ]
    true, false = (
        [f" {pair[side]} " in pair[0].replace("?", " ").replace(",", " ") for pair in words]
        for side in (1, 2)
    )
    assert abs(sum(true) - sum(false)) <= 0.01 * len(kept)
    assert sum(gone.reason == "answer_in_question" for gone in assigned.dropped) > 0.05 * len(rows)


def test_a_fit_in_the_span_of_the_rows_is_the_fit_on_all_features():
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(40, 300)) * (rng.random((40, 300)) < 0.1)
    features = csr_matrix(np.vstack([dense, dense[:5]]))  # equal rows add no direction
    labels = rng.integers(0, 2, 45)
    weights, intercept = fit_in_span(features, labels)
    plain = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(features, labels)
    # Both stop at the default tolerance of the gradient.
    np.testing.assert_allclose(weights, plain.coef_[0], rtol=0, atol=1e-3)
    assert abs(intercept - plain.intercept_[0]) < 1e-3
