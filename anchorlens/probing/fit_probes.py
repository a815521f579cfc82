"""Fit the probes of a sweep and its placebo probes (METHOD 5)."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor

from anchorlens.display import warn
from anchorlens.probing.cross_fitting import CrossFittedProbes
from anchorlens.probing.placebo_labels import half_splits, shuffle_labels
from anchorlens.probing.probes import LayerProbes, TruthProbe, fit_layers, warn_of_calibration
from anchorlens.probing.truth_rows import TruthRows
from anchorlens.questions.drops import MORE_QUESTIONS

Array = npt.NDArray[np.float64]
SHUFFLED = "shuffled_labels"
DRAWS = 5
"""Number of draws of ``shuffled_labels`` over all splits."""
_MAX_POWER = 9


def fit_probes(
    rows: TruthRows,
    layers: Sequence[int],
    states: Float[Tensor, "layer example d_model"],
    *,
    site: str,
    model: str,
    dataset: str,
) -> CrossFittedProbes:
    """Fit one probe per layer in every split."""
    splits: list[LayerProbes] = []
    for roles in rows.splits:
        probes = fit_layers(
            layers,
            states,
            rows.labels,
            rows.question_ids,
            roles,
            site=site,
            model=model,
            dataset=dataset,
        )
        splits.append(probes)
    warn_of_calibration(splits)
    return CrossFittedProbes(tuple(splits))


def fit_placebo_probes(
    rows: TruthRows,
    layers: Sequence[int],
    states: Float[Tensor, "layer example d_model"],
    read: CrossFittedProbes,
    *,
    seed: int,
) -> dict[str, CrossFittedProbes]:
    """Fit the probes of ``shuffled_labels`` (``shuffled_labels_1``, one per draw) and
    ``cross_fold`` (``fold_a``, ``fold_b``).

    Penalties are those of ``read``. A probe of shuffled labels is less confident than ``read``, so
    ΔP would be smaller. Its log-odds are therefore rescaled to the mean confidence of ``read``.
    """
    splits = list(zip(rows.each, cycle(read.splits), strict=False))

    def fit(labels: Array, roles: Sequence[str], like: LayerProbes) -> LayerProbes:
        return fit_layers(
            layers,
            states,
            labels,
            rows.question_ids,
            roles,
            site=like.site,
            model=like.model,
            dataset=like.dataset,
            like=like,
        )

    sets: dict[str, CrossFittedProbes] = {}
    for draw in range(n_draws(len(splits))):
        shuffled: list[LayerProbes] = []
        for number, (one, like) in enumerate(splits):
            labels = shuffle_labels(one, seed, draw * len(splits) + number)
            probes = fit(labels, one.split, like)
            shuffled.append(match_confidence(probes, like, one, layers, states))
        sets[f"{SHUFFLED}_{draw + 1}"] = CrossFittedProbes(tuple(shuffled))
    # Of each split, its two halves.
    folds_a: list[list[str]] = []
    folds_b: list[list[str]] = []
    for one, _ in splits:
        half_a, half_b = half_splits(one, seed)
        folds_a.append(half_a)
        folds_b.append(half_b)
    if not all(_trains_on_both_labels(rows.labels, fold) for fold in [*folds_a, *folds_b]):
        warn(
            "cross_fold is left out: one half of the training questions has answers of one label"
            f" only. Use {MORE_QUESTIONS}."
        )
        return sets
    for name, folds in (("fold_a", folds_a), ("fold_b", folds_b)):
        halves: list[LayerProbes] = []
        for fold, (_, like) in zip(folds, splits, strict=True):
            halves.append(fit(rows.labels, fold, like))
        sets[name] = CrossFittedProbes(tuple(halves))
    return sets


def _trains_on_both_labels(labels: Array, roles: Sequence[str]) -> bool:
    return len(set(labels[np.asarray(roles) == "train"])) == 2


def n_draws(n_splits: int) -> int:
    """Return the number of draws of ``shuffled_labels`` per split, about ``DRAWS`` in all."""
    return max(1, DRAWS // n_splits)


def match_confidence(
    probes: LayerProbes,
    read: LayerProbes,
    rows: TruthRows,
    layers: Sequence[int],
    states: Float[Tensor, "layer example d_model"],
) -> LayerProbes:
    """Rescale the log-odds of probes to the mean confidence of ``read`` on the validation rows,
    layer by layer.
    """
    validation = rows.of("validation")
    ids = [rows.question_ids[i] for i in validation]
    scaled: dict[int, TruthProbe] = {}
    for layer, state in zip(layers, states, strict=True):
        x = state[validation].numpy()
        probe = probes.probes[layer]
        before = np.abs(probe.decision_function(x, ids, allow_seen=True))
        target = read.probes[layer].decision_function(x, ids, allow_seen=True)
        factor = confidence_factor(before, float(_confidence(target)))
        scaled[layer] = probe.scale_log_odds(factor)
    return replace(probes, probes=scaled)


def confidence_factor(log_odds: Array, confidence: float) -> float:
    """Return the factor, 1e-9 to 1e9, that gives log-odds [row] the mean confidence max(P,
    1 - P).
    """

    def excess(power: float) -> float:
        return float(_confidence(10.0**power * log_odds)) - confidence

    if excess(_MAX_POWER) <= 0 or excess(-_MAX_POWER) >= 0:
        return 10.0 ** (_MAX_POWER if excess(_MAX_POWER) <= 0 else -_MAX_POWER)
    root = brentq(excess, -_MAX_POWER, _MAX_POWER)
    return 10.0 ** float(root)  # pyright: ignore[reportArgumentType]


def _confidence(log_odds: Array) -> np.floating:
    return expit(np.abs(log_odds)).mean()
