"""Truth probes: optimum of scikit-learn, errors, files."""

import json
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from anchorlens.errors import InputError, LeakError
from anchorlens.probing import regularization
from anchorlens.probing.cross_fitting import CrossFittedProbes
from anchorlens.probing.probes import LayerProbes, TruthProbe, fit_layers, warn_of_calibration


def made(n_questions, seed=0, d=40, strength=1.5, prefix="q"):
    """Make two rows per question, the false one shifted along the first feature."""
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
    np.testing.assert_allclose(
        probe.predict_proba(held[0], held[2], allow_seen=True)[:, 1], losses[best][2], atol=2e-3
    )
    assert probe.validation_auc_ == pytest.approx(roc_auc_score(held[1], losses[best][2]), abs=1e-3)


def test_probe_has_the_interface_of_scikit_learn():
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


def test_training_and_validation_questions_are_refused():
    x, y, ids = made(20)
    held = made(5, seed=1, prefix="v")
    probe = TruthProbe().fit(x, y, question_ids=ids, validation=held)
    new = made(3, seed=2, prefix="new")
    assert probe.predict_proba(new[0], new[2]).shape == (6, 2)
    for seen in ("q4", "v1"):
        with pytest.raises(LeakError, match=seen):
            probe.predict_proba(new[0], [*new[2][:-1], seen])
    assert probe.predict_proba(x, ids, allow_seen=True).shape == (40, 2)


def test_invalid_input_is_refused():
    x, y, ids = made(10)
    for data, named, error, phrase in (
        ((x[::2], y[::2]), {"question_ids": ids[::2]}, InputError, "all 10 rows have one label"),
        (
            (x, y),
            {"question_ids": ids[:3]},
            InputError,
            r"one question id per row; got \(20, 40\), \(20,\) and 3 ids",
        ),
        ((x, y + 1), {"question_ids": ids}, InputError, "0 .true. or 1 .hallucination."),
        (
            (x, y),
            {"question_ids": ids, "validation": (x, y, ids)},
            LeakError,
            "10 questions occur in both training and",
        ),
    ):
        with pytest.raises(error, match=phrase):
            TruthProbe().fit(*data, **named)
    with pytest.raises(InputError, match=r"X: must have shape \[row 40\]"):
        TruthProbe().fit(x, y, question_ids=ids).predict_proba(x[:, :5], ids)


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
    split = [
        "train" if int(i[1:]) < 25 else "validation" if int(i[1:]) < 32 else "test" for i in ids
    ]
    states = torch.tensor(np.stack([weak, x])).float()
    return (
        fit_layers([3, 7], states, y, ids, split, site="mlp_out", model="m", dataset="d"),
        states,
        y,
        ids,
        split,
    )


def test_layers_best_layer_and_training_questions(layered):
    probes, states, _, ids, split = layered
    assert probes.layers == (3, 7)
    assert probes.probe_layer == 7
    assert probes.question_ids == {i for i, s in zip(ids, split, strict=True) if s != "test"}
    test = [i for i, s in enumerate(split) if s == "test"]
    p = CrossFittedProbes((probes,)).predict(states[:, test], [ids[i] for i in test])
    alone = probes.probes[7].predict_proba(states[1, test].numpy(), [ids[i] for i in test])[:, 1]
    np.testing.assert_array_equal(p[1], alone)
    assert probes.at([7]).layers == (7,)


def test_saved_as_safetensors_and_json_and_read_back_exactly(layered, tmp_path):
    probes, states, ids = CrossFittedProbes((layered[0], layered[0])), layered[1], layered[3]
    again = CrossFittedProbes.load(probes.save(tmp_path / "p"))
    assert sorted(f.name for f in (tmp_path / "p").iterdir()) == [
        "probes.json",
        "probes.safetensors",
    ]
    assert [(one.site, one.model, one.dataset, one.probe_layer) for one in again.splits] == [
        ("mlp_out", "m", "d", 7)
    ] * 2
    np.testing.assert_array_equal(
        again.predict(states, ids, allow_seen=True), probes.predict(states, ids, allow_seen=True)
    )
    with pytest.raises(LeakError):
        again.predict(states, ids)
    record = json.loads((tmp_path / "p" / "probes.json").read_text())
    for version in (2, 9):
        (tmp_path / "p" / "probes.json").write_text(
            json.dumps({**record, "format_version": version})
        )
        with pytest.raises(InputError, match=f"format {version}"):
            CrossFittedProbes.load(tmp_path / "p")
    with pytest.raises(InputError, match="missing"):
        CrossFittedProbes.load(tmp_path)


NAN = float("nan")


@pytest.mark.parametrize(
    ("scored", "probe_layer"),
    [
        (
            {0: (0.6, 0.2), 1: (0.86, 0.2), 2: (0.9, 0.05), 3: (0.88, 0.05)},
            1,
        ),  # the error is that of the best layer
        ({0: (0.6, 0.2), 1: (0.84, 0.2), 2: (0.9, 0.05), 3: (0.88, 0.05)}, 2),
        ({4: (0.9, 0.0), 9: (0.9, 0.0)}, 4),
        ({4: (NAN, NAN), 9: (0.7, 0.1)}, 9),
        ({0: (NAN, NAN)}, None),
    ],
)
def test_k_star_is_the_lowest_layer_within_one_standard_error_of_the_best(scored, probe_layer):
    """Only validation AUC and standard error of the probes matter."""
    x, y, ids = made(5, d=3)
    probes = LayerProbes({layer: TruthProbe().fit(x, y, question_ids=ids) for layer in scored})
    for layer, (auc, error) in scored.items():
        probes.probes[layer].validation_auc_, probes.probes[layer].validation_auc_se_ = auc, error
    if probe_layer is None:
        with pytest.raises(InputError, match="validation"):
            _ = probes.probe_layer
    else:
        assert probes.probe_layer == probe_layer


@pytest.mark.slow
def test_the_standard_error_is_that_of_whole_questions_drawn_again():
    x, y, ids = made(60)
    held = made(25, seed=1, prefix="v", strength=0.8)
    probe = TruthProbe().fit(x, y, question_ids=ids, validation=held)
    p, rng, aucs = (
        probe.predict_proba(held[0], held[2], allow_seen=True)[:, 1],
        np.random.default_rng(5),
        [],
    )
    for _ in range(600):
        rows = np.concatenate([[2 * q, 2 * q + 1] for q in rng.integers(25, size=25)])
        aucs.append(roc_auc_score(held[1][rows], p[rows]))
    assert probe.validation_auc_ < 0.95
    assert probe.validation_auc_se_ == pytest.approx(np.std(aucs), rel=0.15)
    perfect = TruthProbe().fit(
        x, y, question_ids=ids, validation=made(25, seed=1, prefix="v", strength=200.0)
    )
    assert perfect.validation_auc_ == 1
    inside = (
        25.5 / 26
    )  # no resample differs: half the spread of 25 comparisons, half a question from 1
    assert perfect.validation_auc_se_ == pytest.approx(0.5 * (inside * (1 - inside) / 25) ** 0.5)


def warned_of(call):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in told]


def test_one_warning_names_all_layers_that_did_not_converge(layered, monkeypatch):
    probes, states, y, ids, split = layered

    class Endless(LogisticRegression):
        """Solver that reports no convergence."""

        def fit(self, *data):
            super().fit(*data)
            self.n_iter_ = np.array([self.max_iter])
            return self

    monkeypatch.setattr(regularization, "LogisticRegression", Endless)
    fitted = fit_layers([3, 7], states, y, ids, split)
    (told,) = warned_of(lambda: warn_of_calibration([probes, fitted]))
    assert told.startswith("At layers 3, 7 the fit of the probe did not converge: ")


def test_a_layer_with_signal_and_a_penalty_at_the_edge_of_the_grid_is_named(layered, monkeypatch):
    probes, states, y, ids, split = layered
    assert warned_of(lambda: warn_of_calibration([probes])) == []
    last = tuple(c for c in regularization.GRID if c <= probes.probes[7].C_)
    for module in ("regularization", "probes"):
        monkeypatch.setattr(f"anchorlens.probing.{module}.GRID", last)
    (told,) = warned_of(lambda: warn_of_calibration([fit_layers([3, 7], states, y, ids, split)]))
    assert told.startswith("At layer 7 the best penalty of the probe is at the edge of the grid")
    assert f"(C = 1e-08 to {last[-1]:g})" in told
    assert "do not compare its size between layers. Use more questions" in told


def test_a_probe_times_a_factor_is_as_right_and_more_confident(layered):
    probe, states, ids = layered[0].probes[7], layered[1], layered[3]
    twice = probe.scale_log_odds(2.0)
    sure, plain = (
        one.decision_function(states[1].numpy(), ids, allow_seen=True) for one in (twice, probe)
    )
    np.testing.assert_allclose(sure, 2 * plain)
    assert twice.train_questions_ == probe.train_questions_


def test_log_odds_beyond_all_numbers_are_a_probability_without_a_warning():
    x, y, ids = made(40)
    probe = TruthProbe().fit(x, y, question_ids=ids).scale_log_odds(1e9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = probe.predict_proba(x, ids, allow_seen=True)
    assert set(p[:, 1].tolist()) == {0.0, 1.0} and (p.sum(1) == 1).all()


def test_a_question_is_scored_by_the_splits_that_did_not_see_it():
    x, y, ids = made(30, d=6)
    states = torch.tensor(x)[None].float()
    roles = [["train" if int(i[1:]) % 3 != s else "test" for i in ids] for s in range(3)]
    fits = tuple(fit_layers([4], states, y, ids, role) for role in roles)
    both = CrossFittedProbes((*fits, fits[0]))
    p = both.log_odds(4, x, ids)
    for s in range(3):
        rows = [i for i, name in enumerate(ids) if int(name[1:]) % 3 == s]
        alone = fits[s].probes[4].decision_function(x[rows], [ids[i] for i in rows])
        np.testing.assert_allclose(p[rows], alone)
    # A question that no split saw has the mean of all.
    every = [one.probes[4].decision_function(x[:2], ["new", "new"]) for one in both.splits]
    np.testing.assert_allclose(both.log_odds(4, x[:2], ["new", "new"]), np.mean(every, axis=0))
    with pytest.raises(LeakError, match="2 of these"):
        CrossFittedProbes(fits[:1]).log_odds(4, x[:4], ["q1", "q2", "q1", "q0"])
