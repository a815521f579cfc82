"""Text classifiers as baselines of truth probes: AUC without the model's activations (METHOD 3)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product, starmap
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, hstack
from scipy.special import expit
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler, normalize

from anchorlens.probing.truth_rows import TruthRows
from anchorlens.questions.example import normalise
from anchorlens.statistics.bands import auc_band
from anchorlens.statistics.resamples import Resamples

Array = npt.NDArray[np.float64]
Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class TextBaseline:
    """AUC of a text classifier on the test rows, with a 95 % interval over questions."""

    auc: float
    ci_low: float
    ci_high: float
    scores: Array  # P(hallucination), [row of the truth rows]; NaN for rows that are not tested


def answer_text_scores(
    train: Iterable[str], train_labels: npt.ArrayLike, test: Iterable[str]
) -> Array:
    """Return P(hallucination), [row of test], by logistic regression on character n-grams (TF-IDF)
    of the answer.
    """
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True)
    features = vectors.fit_transform(_mark(train))
    model = LogisticRegression(C=10.0, max_iter=1000).fit(features, np.asarray(train_labels))
    return model.predict_proba(vectors.transform(_mark(test)))[:, 1]


def _mark(texts: Iterable[str]) -> list[str]:
    """Mark the ends of texts, so that also an answer of punctuation only has a token to score."""
    return [f"^{text}$" for text in texts]


def qa_text_scores(train: Pairs, train_labels: npt.ArrayLike, test: Pairs) -> Array:
    """Return P(hallucination), [row of test], by logistic regression on question and answer.

    Features: overlap of answer and question (standardised), shared character n-grams, n-grams of
    the answer, and cross features. A cross feature (hashed) pairs a word or word pair of the
    question with the form or a word of the answer.
    """
    both = [*train, *test]
    n_train = len(train)
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    marked_questions = _mark(question for question, _ in both)
    marked_answers = _mark(answer for _, answer in both)
    vectors.fit([*marked_questions[:n_train], *marked_answers[:n_train]])
    questions = csr_matrix(vectors.transform(marked_questions))
    answers = csr_matrix(vectors.transform(marked_answers))
    overlaps = np.array(list(starmap(_overlap, both)))
    scaled = StandardScaler().fit(overlaps[:n_train]).transform(overlaps)
    hasher = FeatureHasher(2**16, input_type="string")
    crossed = hasher.transform(starmap(_cross_features, both))
    blocks = [
        csr_matrix(scaled),
        normalize(csr_matrix(questions.multiply(answers))),
        answers,
        normalize(crossed),
    ]
    features = hstack(blocks).tocsr()
    weights, intercept = fit_in_span(features[:n_train], np.asarray(train_labels))
    return expit(features[n_train:] @ weights + intercept)


def fit_in_span(features: csr_matrix, labels: npt.NDArray[Any]) -> tuple[Array, float]:
    """Return weights and intercept of a logistic regression, fitted in a basis of the span of its
    rows.

    The optimum of a fit with an L2 penalty lies in that span, which has tens of dimensions where
    the features have tens of thousands.
    """
    gram = (features @ features.T).toarray()
    squares, vectors = np.linalg.eigh(gram)
    is_kept = squares > _SMALLEST_SQUARE * squares[-1]
    basis = vectors[:, is_kept] / np.sqrt(squares[is_kept])
    model = LogisticRegression(C=1.0, max_iter=1000).fit(gram @ basis, labels)
    return features.T @ (basis @ model.coef_[0]), float(model.intercept_[0])


# Directions of the training rows below this share of the largest squared length are rounding.
_SMALLEST_SQUARE = 1e-12


def _overlap(question: str, answer: str) -> tuple[float, ...]:
    """Return features of the overlap of an answer with its question."""
    question = normalise(question)
    answer = normalise(answer)
    words = answer.split()
    question_words = set(question.split())
    grams = _trigrams(answer)
    question_grams = _trigrams(question)
    start = f" {question} ".find(f" {answer} ")
    shared = [word for word in words if word in question_words]
    return (
        float(start >= 0),
        0.0 if start < 0 else start / len(question),
        len(shared) / max(len(words), 1),
        float(max(map(len, shared), default=0)),
        float(bool(words) and words[0] in question_words),
        float(bool(words) and words[-1] in question_words),
        len(grams & question_grams) / max(len(grams), 1),
        len(grams & question_grams) / max(len(grams | question_grams), 1),
        float(len(words)),
        float(np.log1p(len(answer))),
    )


def _trigrams(text: str) -> set[str]:
    padded = f" {text} "
    return {padded[i : i + 3] for i in range(len(padded) - 2)}


# Words of a question that are crossed, from both ends; a few questions of TriviaQA have hundreds.
_QUESTION_WORDS = 24


def _cross_features(question: str, answer: str) -> list[str]:
    """Return words and word pairs of a question, each crossed with the form and the words of the
    answer.
    """
    words = normalise(answer).split()
    question_words = normalise(question).split()
    half = _QUESTION_WORDS // 2
    if len(question_words) > _QUESTION_WORDS:
        question_words = question_words[:half] + question_words[-half:]
    # "14 May" has the form "00 a".
    form = " ".join("0" * len(word) if word.isdigit() else "a" for word in words)
    case = "A" if answer[:1].isupper() else "a"
    of_answer = [f"={form}", f"={case}{len(words)}", *words[:4]]
    of_question = [*question_words, *map(" ".join, pairwise(question_words))]
    return [f"{left}|{right}" for left, right in product(of_question, of_answer)]


def text_baselines(rows: TruthRows, *, n_resamples: int, seed: int) -> dict[str, TextBaseline]:
    """Fit ``answer_text_auc`` and ``qa_text_auc`` (question and answer) in every split, and score
    its test rows.
    """
    pairs = [(row.question, row.answer.exact.of(row.answer.text)) for row in rows.rows]
    answers = [answer for _, answer in pairs]
    labels = rows.labels
    scores = np.full((2, len(pairs)), np.nan)
    for one in rows.each:
        train = one.of("train", "validation")
        test = one.of("test")
        scores[0, test] = answer_text_scores(
            _pick(answers, train), labels[train], _pick(answers, test)
        )
        scores[1, test] = qa_text_scores(_pick(pairs, train), labels[train], _pick(pairs, test))
    tested = rows.of("test")
    draws = Resamples.of(_pick(rows.question_ids, tested), n_resamples=n_resamples, seed=seed)
    aucs = draws.aucs(scores[:, tested], labels[tested])
    band = auc_band(aucs, cross_fitted=len(rows.splits) > 1)
    baselines: dict[str, TextBaseline] = {}
    for i, name in enumerate(("answer_text_auc", "qa_text_auc")):
        baselines[name] = TextBaseline(
            auc=float(band.value[i]),
            ci_low=float(band.low[i]),
            ci_high=float(band.high[i]),
            scores=scores[i],
        )
    return baselines


_Item = TypeVar("_Item")


def _pick(items: Sequence[_Item], indices: Sequence[int]) -> list[_Item]:
    return [items[i] for i in indices]
