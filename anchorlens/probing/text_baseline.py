"""Classifiers of text without a model: the share of a probe's AUC that needs no knowledge of the model (METHOD 3)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, hstack
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
    """AUC of a text classifier on the test split, with its 95 % interval over questions."""

    auc: float
    ci_low: float
    ci_high: float
    scores: Array  # P(hallucination), [row of the truth rows]; NaN outside the test split


def text_only_scores(train: Iterable[str], train_labels: npt.ArrayLike, test: Iterable[str]) -> Array:
    """P(hallucination), [row of test], from the answer's text alone: character n-grams, TF-IDF, logistic regression."""
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True)
    # An answer of nothing but punctuation still has to be scored: the boundary mark makes it a token.
    features = vectors.fit_transform([f"^{text}$" for text in train])
    model = LogisticRegression(C=10.0, max_iter=1000).fit(features, np.asarray(train_labels))
    return model.predict_proba(vectors.transform([f"^{text}$" for text in test]))[:, 1]


def qa_text_scores(train: Pairs, train_labels: npt.ArrayLike, test: Pairs) -> Array:
    """P(hallucination), [row of test], from question and answer: logistic regression on four blocks of features.

    Overlap of answer and question (standardised); character n-grams that they share; those of the answer; each word and word pair of
    the question with the form of the answer and with each of its words (hashed).
    """
    both = [*train, *test]
    fitted = len(train)
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    vectors.fit([f"^{text}$" for pair in train for text in pair])
    asked, said = (csr_matrix(vectors.transform([f"^{pair[side]}$" for pair in both])) for side in (0, 1))
    overlaps = np.array([_overlap(*pair) for pair in both])
    scaled = StandardScaler().fit(overlaps[:fitted]).transform(overlaps)
    crossed = FeatureHasher(2**16, input_type="string").transform(_cross_features(*pair) for pair in both)
    blocks = [csr_matrix(scaled), normalize(csr_matrix(asked.multiply(said))), said, normalize(crossed)]
    features = hstack(blocks).tocsr()
    model = LogisticRegression(C=1.0, max_iter=1000).fit(features[:fitted], np.asarray(train_labels))
    return model.predict_proba(features[fitted:])[:, 1]


def _overlap(question: str, answer: str) -> tuple[float, ...]:
    asked, said = normalise(question), normalise(answer)
    words, there = said.split(), set(asked.split())
    grams, asked_grams = _trigrams(said), _trigrams(asked)
    place = f" {asked} ".find(f" {said} ")
    shared = [word for word in words if word in there]
    return (
        float(place >= 0),
        0.0 if place < 0 else place / len(asked),
        len(shared) / max(len(words), 1),
        float(max(map(len, shared), default=0)),
        float(bool(words) and words[0] in there),
        float(bool(words) and words[-1] in there),
        len(grams & asked_grams) / max(len(grams), 1),
        len(grams & asked_grams) / max(len(grams | asked_grams), 1),
        float(len(words)),
        float(np.log1p(len(said))),
    )


def _trigrams(text: str) -> set[str]:
    padded = f" {text} "
    return {padded[i : i + 3] for i in range(len(padded) - 2)}


# A question of hundreds of words (a few of TriviaQA) would cross too many; what is asked for stands at its ends.
_ASKED_WORDS = 24


def _cross_features(question: str, answer: str) -> list[str]:
    """Words and word pairs of a question, each with the form and the words of the answer."""
    asked, words = normalise(question).split(), normalise(answer).split()
    if len(asked) > _ASKED_WORDS:
        asked = asked[: _ASKED_WORDS // 2] + asked[-_ASKED_WORDS // 2 :]
    form = " ".join("0" * len(word) if word.isdigit() else "a" for word in words)
    of_answer = [f"={form}", f"={'A' if answer[:1].isupper() else 'a'}{len(words)}", *words[:4]]
    of_question = [*asked, *map(" ".join, pairwise(asked))]
    return [f"{left}|{right}" for left, right in product(of_question, of_answer)]


def text_baselines(rows: TruthRows, *, n_resamples: int, seed: int) -> dict[str, TextBaseline]:
    """``answer_text_auc`` (the answer) and ``qa_text_auc`` (question and answer): fitted on train and validation, scored on test."""
    pairs = [(row.question, row.answer.exact.of(row.answer.text)) for row in rows.rows]
    train, test = rows.of("train", "validation"), rows.of("test")
    fit, score, labels = [pairs[i] for i in train], [pairs[i] for i in test], rows.labels
    scores = {
        "answer_text_auc": text_only_scores([answer for _, answer in fit], labels[train], [answer for _, answer in score]),
        "qa_text_auc": qa_text_scores(fit, labels[train], score),
    }
    draws = Resamples.of([rows.question_ids[i] for i in test], n_resamples=n_resamples, seed=seed)
    n = np.array([draws.weights.shape[1]], dtype=np.int64)
    baselines: dict[str, TextBaseline] = {}
    for name, found in scores.items():
        auc, many = draws.aucs(found, labels[test])
        band = auc_band(np.array([auc]), many[:, None], n)
        everywhere = np.full(len(pairs), np.nan)
        everywhere[test] = found
        baselines[name] = TextBaseline(auc, float(band.low[0]), float(band.high[0]), everywhere)
    return baselines
