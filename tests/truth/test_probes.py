"""Truth probes: scikit-learn's optimum, what they refuse, what they keep on disk."""

import json

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from anchorlens.errors import InputError, LeakError
from anchorlens.truth.probes import LayerProbes, TruthProbe, fit_layers


def made(n_questions, seed=0, d=40, strength=1.5, prefix="q"):
    """Two rows a question, the false one shifted along the first feature."""
    rng = np.random.default_rng(seed)
    y = np.tile([0.0, 1.0], n_questions)
    x = rng.normal(size=(2 * n_questions, d)) * np.linspace(0.5, 3, d) + 7
    x[:, 0] += strength * y
    return x, y, [f"{prefix}{i // 2}" for i in range(2 * n_questions)]


@pytest.mark.parametrize("n_questions", [10, 60])  # fewer and more rows than features
def test_is_scikit_learns_optimum_on_standardised_features(n_questions):
    x, y, ids = made(n_questions)
    held = made(30, seed=1, prefix="v")
    probe = TruthProbe(penalties=(0.003, 0.3)).fit(x, y, question_ids=ids, validation=held)
    z = (x - x.mean(0)) / x.std(0)
    losses = {}
    for penalty in (0.003, 0.3):
        plain = LogisticRegression(C=penalty, max_iter=5000, tol=1e-10).fit(z, y)
        p = plain.predict_proba((held[0] - x.mean(0)) / x.std(0))[:, 1]
        losses[penalty] = (-np.log(np.where(held[1] == 1, p, 1 - p)).mean(), plain, p)
    best = min(losses, key=lambda c: losses[c][0])
    assert best == probe.C_
    np.testing.assert_allclose(probe.coef_, losses[best][1].coef_, atol=2e-3)
    np.testing.assert_allclose(probe.predict_proba(held[0], held[2], allow_seen=True)[:, 1], losses[best][2], atol=2e-3)
    assert probe.validation_auc_ == pytest.approx(roc_auc_score(held[1], losses[best][2]), abs=1e-3)


def test_in_scikit_learns_manner():
    x, y, ids = made(20)
    probe = TruthProbe(max_iter=50)
    assert clone(probe).get_params() == {"max_iter": 50, "penalties": probe.penalties}
    with pytest.raises(NotFittedError):
        probe.predict_proba(x, ids)
    assert probe.fit(x, y, question_ids=ids) is probe
    assert probe.classes_.tolist() == [0, 1]
    assert probe.n_features_in_ == 40
    both = probe.predict_proba(x, ids, allow_seen=True)
    np.testing.assert_allclose(both.sum(1), 1)
    assert (probe.predict(x, ids, allow_seen=True) == (both[:, 1] >= 0.5)).all()


def test_refuses_questions_that_it_has_seen_training_or_validation():
    x, y, ids = made(20)
    held = made(5, seed=1, prefix="v")
    probe = TruthProbe().fit(x, y, question_ids=ids, validation=held)
    new = made(3, seed=2, prefix="new")
    assert probe.predict_proba(new[0], new[2]).shape == (6, 2)
    for seen in ("q4", "v1"):
        with pytest.raises(LeakError, match=rf"was trained on 1 of the questions .*{seen}.*allow_seen=True"):
            probe.predict_proba(new[0], [*new[2][:-1], seen])
    assert probe.predict_proba(x, ids, allow_seen=True).shape == (40, 2)


def test_bad_input_is_named():
    x, y, ids = made(10)
    with pytest.raises(InputError, match="all 10 rows have one label"):
        TruthProbe().fit(x[::2], y[::2], question_ids=ids[::2])
    with pytest.raises(InputError, match=r"one question id for each row; got \(20, 40\), \(20,\) and 3 ids"):
        TruthProbe().fit(x, y, question_ids=ids[:3])
    with pytest.raises(InputError, match="0 .true. and 1 .hallucination."):
        TruthProbe().fit(x, y + 1, question_ids=ids)
    with pytest.raises(LeakError, match="10 questions stand in both training and validation"):
        TruthProbe().fit(x, y, question_ids=ids, validation=(x, y, ids))
    fitted = TruthProbe().fit(x, y, question_ids=ids)
    with pytest.raises(InputError, match=r"X must be \[row 40\]"):
        fitted.predict_proba(x[:, :5], ids)


def test_shuffled_labels_leave_no_signal_and_real_ones_do():
    x, y, ids = made(150, d=200)
    test = made(100, seed=3, d=200, prefix="t")
    mixed = np.tile([0.0, 1.0, 1.0, 0.0], 75)  # as many of each true label: nothing to do with it
    real = TruthProbe().fit(x, y, question_ids=ids).predict_proba(test[0], test[2])[:, 1]
    null = TruthProbe().fit(x, mixed, question_ids=ids).predict_proba(test[0], test[2])[:, 1]
    assert roc_auc_score(test[1], real) > 0.75
    assert abs(roc_auc_score(test[1], null) - 0.5) < 0.12


@pytest.fixture
def layered():
    x, y, ids = made(40, d=8)
    weak, _, _ = made(40, d=8, seed=9, strength=0.0)
    split = ["train" if int(i[1:]) < 25 else "validation" if int(i[1:]) < 32 else "test" for i in ids]
    states = torch.tensor(np.stack([weak, x])).float()
    return fit_layers([3, 7], states, y, ids, split, site="mlp_out", model="m", dataset="d"), states, y, ids, split


def test_layers_best_layer_and_training_questions(layered):
    probes, states, _, ids, split = layered
    assert probes.layers == (3, 7)
    assert probes.best_layer == 7
    assert probes.question_ids == {i for i, s in zip(ids, split, strict=True) if s != "test"}
    test = [i for i, s in enumerate(split) if s == "test"]
    p = probes.predict(states[:, test], [ids[i] for i in test])
    alone = probes.probes[7].predict_proba(states[1, test].numpy(), [ids[i] for i in test])[:, 1]
    np.testing.assert_array_equal(p[1], alone)
    assert probes.at([7]).layers == (7,)


def test_saved_as_safetensors_and_json_and_read_back_exactly(layered, tmp_path):
    probes, states, _, ids, _ = layered
    again = LayerProbes.load(probes.save(tmp_path / "p"))
    assert sorted(f.name for f in (tmp_path / "p").iterdir()) == ["probes.json", "probes.safetensors"]
    assert (again.site, again.model, again.dataset, again.best_layer) == ("mlp_out", "m", "d", 7)
    np.testing.assert_array_equal(again.predict(states, ids, allow_seen=True), probes.predict(states, ids, allow_seen=True))
    with pytest.raises(LeakError):
        again.predict(states, ids)
    record = json.loads((tmp_path / "p" / "probes.json").read_text())
    (tmp_path / "p" / "probes.json").write_text(json.dumps({**record, "format_version": 9}))
    with pytest.raises(InputError, match="probes of format 9"):
        LayerProbes.load(tmp_path / "p")
    with pytest.raises(InputError, match="holds no probes"):
        LayerProbes.load(tmp_path)
