"""Probes of a sweep and of its placebos."""

import numpy as np
import pytest
import torch

import anchorlens as al
from anchorlens.probing.fit_probes import (
    DRAWS,
    confidence_factor,
    fit_placebo_probes,
    fit_probes,
    match_confidence,
)
from anchorlens.probing.probes import LayerProbes, TruthProbe
from tests.probing.rows import rows_of

FACTS = {"site": "resid_post", "model": "m", "dataset": "d"}


@pytest.fixture(scope="module")
def rows(tiny_model):
    return rows_of(tiny_model("llama"), al.load_qa("popqa-sample", limit=90))


@pytest.fixture(scope="module")
def states(rows):
    """Layer 2 is noise, layer 5 encodes the truth."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, len(rows.rows), 12))
    x[1, :, 0] += 2.5 * rows.labels
    return torch.tensor(x).float()


@pytest.fixture(scope="module")
def read(rows, states):
    return fit_probes(rows, [2, 5], states, **FACTS)


@pytest.mark.slow
def test_k_star_is_chosen_in_each_split_and_never_looks_at_test_rows(tiny_model, states):
    rows = rows_of(tiny_model("llama"), al.load_qa("popqa-sample", limit=90), n_splits=5)
    x = torch.tensor(np.random.default_rng(0).normal(size=(3, len(rows.rows), 12))).float()
    x[1, :, 0] += 2.5 * torch.tensor(rows.labels)
    read = fit_probes(rows, [2, 5, 7], x, **FACTS)
    assert read.probe_layers == (5,) * 5 and read.probe_layer == 5
    for split, one in enumerate(rows.each):
        spoilt = x.clone()
        spoilt[:, one.of("test")] = 1e3
        again = fit_probes(one, [2, 5, 7], spoilt, **FACTS)
        np.testing.assert_array_equal(
            again.splits[0].probes[5].coef_, read.splits[split].probes[5].coef_
        )
    noise = torch.tensor(np.random.default_rng(3).normal(size=(8, len(rows.rows), 12))).float()
    assert len(set(fit_probes(rows, range(8), noise, **FACTS).probe_layers)) > 1


def test_placebos_have_the_penalties_and_the_confidence_of_the_probes_that_are_read(
    rows, states, read
):
    sets = fit_placebo_probes(rows, [2, 5], states, read, seed=0)
    assert list(sets) == [*(f"shuffled_labels_{i + 1}" for i in range(DRAWS)), "fold_a", "fold_b"]
    held = rows.of("validation")
    ids = [rows.question_ids[i] for i in held]

    def confidence(probes):
        p = probes.predict(states[:, held], ids, allow_seen=True)
        return np.maximum(p, 1 - p).mean(1)

    for name, probes in sets.items():
        assert {k: p.C_ for k, p in probes.splits[0].probes.items()} == {
            k: p.C_ for k, p in read.splits[0].probes.items()
        }
        if name.startswith("shuffled"):
            np.testing.assert_allclose(confidence(probes), confidence(read), atol=1e-6)
    blind = [probes for name, probes in sets.items() if name.startswith("shuffled")]
    assert len({probes.fingerprint for probes in blind}) == DRAWS
    test, labels = rows.of("test"), rows.labels[rows.of("test")]
    ids = [rows.question_ids[i] for i in test]

    def told(probes):
        p = probes.predict(states[:, test], ids)[1]
        return p[labels == 1].mean() - p[labels == 0].mean()

    assert abs(np.mean([told(probes) for probes in blind])) < told(read) / 3


def test_every_probe_of_a_placebo_scores_the_test_questions_of_its_split_alone(tiny_model):
    """Half a split may not score the other half: its false answers are right answers there, so
    labels would leak.
    """
    rows = rows_of(tiny_model("llama"), al.load_qa("popqa-sample", limit=90), n_splits=5)
    x = torch.tensor(np.random.default_rng(0).normal(size=(1, len(rows.rows), 12))).float()
    read = fit_probes(rows, [2], x, **FACTS)
    sets = fit_placebo_probes(rows, [2], x, read, seed=0)
    assert {"fold_a", "fold_b"} < set(sets)
    for name, probes in {"read": read, **sets}.items():
        for one, split in zip(probes.splits, rows.each, strict=True):
            test = split.of("test")
            ids = [rows.question_ids[i] for i in test]
            alone = one.probes[2].decision_function(x[0, test].numpy(), ids)
            np.testing.assert_allclose(
                probes.log_odds(2, x[0, test].numpy(), ids), alone, err_msg=name
            )


def test_rescaling_changes_no_prediction(rows, states, read):
    tame = TruthProbe(penalties=(1e-6,)).fit(
        states[1, :40].numpy(), rows.labels[:40], question_ids=rows.question_ids[:40]
    )
    (bold,) = match_confidence(
        LayerProbes({5: tame}), read.splits[0], rows, [5], states[1:]
    ).probes.values()
    x, ids = states[1].numpy(), rows.question_ids
    assert (bold.predict(x, ids, allow_seen=True) == tame.predict(x, ids, allow_seen=True)).all()
    assert (
        np.abs(bold.decision_function(x, ids, allow_seen=True)).mean()
        > 1
        > np.abs(tame.coef_).max()
    )


def test_confidence_factor():
    one = np.log(3.0)  # P = 0.75
    assert confidence_factor(np.array([one, -one]), 0.9) == pytest.approx(2.0)
    assert confidence_factor(np.array([one]), 0.75) == pytest.approx(1.0)
    assert confidence_factor(np.zeros(3), 0.9) == 1e9
