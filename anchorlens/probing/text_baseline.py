"""Text classifiers as baselines of truth probes: AUC without the model's activations (METHOD 3)."""

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
    """AUC of a text classifier on the test rows, with a 95 % interval over questions."""

    auc: float
    ci_low: float
    ci_high: float
    scores: Array  # P(hallucination), [row of the truth rows]; NaN for rows that are not tested


def answer_text_scores(train: Iterable[str], train_labels: npt.ArrayLike, test: Iterable[str]) -> Array:
    """Return P(hallucination), [row of test], by logistic regression on character n-grams (TF-IDF) of the answer."""
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True)
    # Boundary marks give answers of punctuation only a token, so that they are scored.
    features = vectors.fit_transform([f"^{text}$" for text in train])
    model = LogisticRegression(C=10.0, max_iter=1000).fit(features, np.asarray(train_labels))
    return model.predict_proba(vectors.transform([f"^{text}$" for text in test]))[:, 1]


def qa_text_scores(train: Pairs, train_labels: npt.ArrayLike, test: Pairs) -> Array:
    """Return P(hallucination), [row of test], by logistic regression on question and answer.

    Features: overlap of answer and question (standardised), shared character n-grams, n-grams of the answer, and cross features. A
    cross feature (hashed) pairs a word or word pair of the question with the form or a word of the answer.
    """
    both = [*train, *test]
    n_train = len(train)
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    vectors.fit([f"^{text}$" for pair in train for text in pair])
    questions, answers = (csr_matrix(vectors.transform([f"^{pair[side]}$" for pair in both])) for side in (0, 1))
    overlaps = np.array([_overlap(*pair) for pair in both])
    scaled = StandardScaler().fit(overlaps[:n_train]).transform(overlaps)
    crossed = FeatureHasher(2**16, input_type="string").transform(_cross_features(*pair) for pair in both)
    blocks = [csr_matrix(scaled), normalize(csr_matrix(questions.multiply(answers))), answers, normalize(crossed)]
    features = hstack(blocks).tocsr()
    model = LogisticRegression(C=1.0, max_iter=1000).fit(features[:n_train], np.asarray(train_labels))
    return model.predict_proba(features[n_train:])[:, 1]


def _overlap(question: str, answer: str) -> tuple[float, ...]:
    """Return features of the overlap of an answer with its question."""
    question, answer = normalise(question), normalise(answer)
    words, question_words = answer.split(), set(question.split())
    grams, question_grams = _trigrams(answer), _trigrams(question)
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
    """Return words and word pairs of a question, each crossed with the form and the words of the answer."""
    question_words, words = normalise(question).split(), normalise(answer).split()
    if len(question_words) > _QUESTION_WORDS:
        question_words = question_words[: _QUESTION_WORDS // 2] + question_words[-_QUESTION_WORDS // 2 :]
    form = " ".join("0" * len(word) if word.isdigit() else "a" for word in words)
    of_answer = [f"={form}", f"={'A' if answer[:1].isupper() else 'a'}{len(words)}", *words[:4]]
    of_question = [*question_words, *map(" ".join, pairwise(question_words))]
    return [f"{left}|{right}" for left, right in product(of_question, of_answer)]


def text_baselines(rows: TruthRows, *, n_resamples: int, seed: int) -> dict[str, TextBaseline]:
    """Fit ``answer_text_auc`` and ``qa_text_auc`` (question and answer) in every split, and score its test rows."""
    pairs = [(row.question, row.answer.exact.of(row.answer.text)) for row in rows.rows]
    labels, scores = rows.labels, np.full((2, len(pairs)), np.nan)
    for one in rows.each:
        train, test = one.of("train", "validation"), one.of("test")
        fit, score = [pairs[i] for i in train], [pairs[i] for i in test]
        scores[0, test] = answer_text_scores([answer for _, answer in fit], labels[train], [answer for _, answer in score])
        scores[1, test] = qa_text_scores(fit, labels[train], score)
    tested = rows.of("test")
    draws = Resamples.of([rows.question_ids[i] for i in tested], n_resamples=n_resamples, seed=seed)
    band = auc_band(draws.aucs(scores[:, tested], labels[tested]), cross_fitted=len(rows.splits) > 1)
    ends = zip(("answer_text_auc", "qa_text_auc"), band.value, band.low, band.high, scores, strict=True)
    return {name: TextBaseline(float(auc), float(low), float(high), own) for name, auc, low, high, own in ends}
