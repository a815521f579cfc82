"""A classifier that sees nothing but the answer's text: what it can tell, a probe need not have read from the model's knowledge."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from anchorlens.statistics.resamples import Resamples, interval
from anchorlens.truth.labelled import TruthRows


def text_only_scores(train: Iterable[str], train_labels: npt.ArrayLike, test: Iterable[str]) -> npt.NDArray[np.float64]:
    """P(hallucination) from the answer's text alone: character n-grams, TF-IDF, logistic regression.

    What such a classifier can tell, a probe need not have read from the model's knowledge. Under ``given`` answers its AUC must lie
    near 0.5.

    Args:
        train: Answers of the training rows.
        train_labels: 1 where false.
        test: Answers to score.

    Returns:
        [row of test]
    """
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True)
    # An answer of nothing but punctuation still has to be scored: the boundary mark makes it a token.
    features = vectors.fit_transform([f"^{text}$" for text in train])
    model = LogisticRegression(C=10.0, max_iter=1000).fit(features, np.asarray(train_labels))
    return model.predict_proba(vectors.transform([f"^{text}$" for text in test]))[:, 1]


def text_only(rows: TruthRows, *, n_resamples: int, seed: int) -> dict[str, float]:
    """AUC on the test split of a classifier that sees nothing but the answer's text, with its interval over questions.

    Returns:
        ``auc``, ``ci_low``, ``ci_high``.
    """
    train, test = rows.of("train", "validation"), rows.of("test")
    texts = [row.answer.exact.of(row.answer.text) for row in rows.rows]
    scores = text_only_scores([texts[i] for i in train], rows.labels[train], [texts[i] for i in test])
    draws = Resamples.of([rows.question_ids[i] for i in test], n_resamples=n_resamples, seed=seed)
    auc, many = draws.aucs(scores, rows.labels[test])
    low, high = interval(many[:, None], np.array([True]))
    return {"auc": auc, "ci_low": float(low[0]), "ci_high": float(high[0])}


__all__ = ["text_only", "text_only_scores"]
