"""A classifier that sees nothing but the answer's text: what it can tell, a probe need not have read from the model's knowledge."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression


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


__all__ = ["text_only_scores"]
