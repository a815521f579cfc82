"""Labels and splits of probes that must not know anything."""

import numpy as np
import pytest

import anchorlens as al
from anchorlens.truth.placebo_labels import half_splits, shuffled_labels
from tests.truth.rows import rows_of


def test_shuffles_and_folds(tiny_model):
    rows = rows_of(tiny_model("llama"), al.load_qa("popqa-sample", limit=90))
    labels, mixed = rows.labels, shuffled_labels(rows, 0)
    for name in ("train", "validation"):
        where = rows.of(name)
        assert mixed[where].mean() == pytest.approx(0.5, abs=0.02)
        assert abs(np.corrcoef(labels[where], mixed[where])[0, 1]) < 0.1
    np.testing.assert_array_equal(labels[rows.of("test")], mixed[rows.of("test")])
    a, b = half_splits(rows, 0)
    used = [{q for q, s in zip(rows.question_ids, fold, strict=True) if s in ("train", "validation")} for fold in (a, b)]
    assert used[0]
    assert used[1]
    assert not used[0] & used[1]
