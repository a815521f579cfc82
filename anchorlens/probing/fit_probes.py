"""The probes of a sweep: those that are read, how steady their k* is, and those of the placebos (METHOD 5)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor

from anchorlens.probing.placebo_labels import half_splits, shuffle_labels
from anchorlens.probing.probes import LayerProbes, TruthProbe, fit_layers
from anchorlens.probing.truth_rows import TruthRows
from anchorlens.questions.build_rows import MORE_QUESTIONS
from anchorlens.warn import warn

Array = npt.NDArray[np.float64]
SHUFFLED = "shuffled_labels"
DRAWS = 5
"""Draws of ``shuffled_labels``, and of questions for the steadiness of k*."""
_FURTHEST = 9


def fit_probes(
    rows: TruthRows,
    layers: Sequence[int],
    states: Float[Tensor, "layer example d_model"],
    *,
    site: str,
    model: str,
    dataset: str,
    seed: int,
) -> LayerProbes:
    """Fit the probes that are read, and k* of ``DRAWS`` bootstrap draws of the same questions with the same penalties.

    Questions are drawn again inside their split: across a new border answers would stand on the side on which they were not learnt
    (measured on the samples: validation AUCs of .97 fell to .47 .. .98).
    """
    ids, split = rows.question_ids, rows.split
    read = fit_layers(layers, states, rows.labels, ids, split, site=site, model=model, dataset=dataset)
    found: list[int] = []
    for draw in range(DRAWS):
        where, names = _resample_questions(rows, np.random.default_rng([seed, draw]))
        own = (rows.labels[where], names, [rows.split[i] for i in where])
        if all(
            len({y for y, part in zip(own[0], own[2], strict=True) if part == name}) == 2 for name in ("train", "validation")
        ):
            found.append(fit_layers(layers, states, *own, like=read, where=where).probe_layer)
    return replace(read, probe_layer_over_seeds=tuple(found))


def _resample_questions(rows: TruthRows, rng: np.random.Generator) -> tuple[list[int], list[str]]:
    """Rows of as many questions as there are, drawn with replacement inside each split, and a name for the question of each."""
    where, names = list[int](), list[str]()
    ids = rows.question_ids
    for name in ("train", "validation"):
        members: dict[str, list[int]] = {}
        for i in rows.of(name):
            members.setdefault(ids[i], []).append(i)
        known = sorted(members)
        for copy, place in enumerate(rng.integers(len(known), size=len(known)).tolist()):
            where += members[known[place]]
            names += [f"{known[place]}#{copy}"] * len(members[known[place]])
    return where, names


def fit_placebo_probes(
    rows: TruthRows, layers: Sequence[int], states: Float[Tensor, "layer example d_model"], read: LayerProbes, *, seed: int
) -> dict[str, LayerProbes]:
    """The probes of ``shuffled_labels`` (``shuffled_labels_1`` and on, one a draw) and ``cross_fold`` (``fold_a``, ``fold_b``).

    All have the penalties of the probes that are read. Those of shuffled labels are made as confident as these: a ΔP is a change of
    confidence, and a probe that learnt nothing has less of it to lose.
    """

    def fit(labels: Array, split: Sequence[str]) -> LayerProbes:
        return fit_layers(
            layers, states, labels, rows.question_ids, split, site=read.site, model=read.model, dataset=read.dataset, like=read
        )

    sets: dict[str, LayerProbes] = {}
    for draw in range(DRAWS):
        blind = fit(shuffle_labels(rows, seed, draw), rows.split)
        sets[f"{SHUFFLED}_{draw + 1}"] = match_confidence(blind, read, rows, layers, states)
    folds = half_splits(rows, seed)
    if all(len({y for y, part in zip(rows.labels, fold, strict=True) if part == "train"}) == 2 for fold in folds):
        return sets | {name: fit(rows.labels, fold) for name, fold in zip(("fold_a", "fold_b"), folds, strict=True)}
    warn(f"cross_fold is left out: one half of the training questions has answers of one label only. Take {MORE_QUESTIONS}.")
    return sets


def match_confidence(
    probes: LayerProbes,
    read: LayerProbes,
    rows: TruthRows,
    layers: Sequence[int],
    states: Float[Tensor, "layer example d_model"],
) -> LayerProbes:
    """The same probes, their log-odds times a factor that gives them the mean confidence of ``read`` on the validation rows."""
    held = rows.of("validation")
    ids = [rows.question_ids[i] for i in held]
    scaled: dict[int, TruthProbe] = {}
    for layer, state in zip(layers, states, strict=True):
        x = state[held].numpy()
        own, wanted = (np.abs(p.probes[layer].decision_function(x, ids, allow_seen=True)) for p in (probes, read))
        scaled[layer] = probes.probes[layer].scale_log_odds(confidence_factor(own, float(_confidence(wanted))))
    return replace(probes, probes=scaled)


def confidence_factor(log_odds: Array, confidence: float) -> float:
    """Return the factor, 1e-9 to 1e9, under which log-odds [row] have this mean confidence, max(P, 1 - P)."""

    def missing(power: float) -> float:
        return float(_confidence(10.0**power * log_odds)) - confidence

    if missing(_FURTHEST) <= 0 or missing(-_FURTHEST) >= 0:
        return 10.0 ** (_FURTHEST if missing(_FURTHEST) <= 0 else -_FURTHEST)
    return 10.0 ** float(brentq(missing, -_FURTHEST, _FURTHEST))  # pyright: ignore[reportArgumentType]


def _confidence(log_odds: Array) -> np.floating:
    return expit(np.abs(log_odds)).mean()
