"""What the answer's text alone tells, and what it cannot."""

import numpy as np

from anchorlens.truth.text_baseline import text_only_scores


def test_a_classifier_of_the_text_alone_sees_a_leak_and_no_more():
    train = ["Paris", "Rome", "1912", "1944"] * 6
    # Years are always false: the text tells.
    leaky = [0, 0, 1, 1] * 6
    scores = text_only_scores(train, leaky, ["Oslo", "1805"])
    assert scores[1] > 0.6 > 0.4 > scores[0]
    # Every string stands equally often on both sides: nothing can be learned.
    even = text_only_scores(train, [0, 0, 0, 0, 1, 1, 1, 1] * 3, ["Oslo", "1805"])
    np.testing.assert_allclose(even, 0.5, atol=1e-3)
