"""Estimate false positive rates and power of the contrasts of a knockout, in simulations (METHOD 5, 6).

    python benchmarks/null_rates.py              # the tables of docs/statistics.md; about ten minutes on one core
    python benchmarks/null_rates.py --runs 100   # a quick estimate

A simulated world is the log-odds of a probe: clean, under the cut of E_Q (the exact question tokens), and under the placebo cut. No
model is needed: the script tests the package's computation of intervals from P.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from anchorlens.protocols.knockout.findings import SPECIFIC, STANDS, layers_standing
from anchorlens.statistics.bands import auc_band, band
from anchorlens.statistics.contrasts import Arm, Estimate, auc_difference, auc_of, delta_p_vs_placebo, flip_rate, row_specific_effect
from anchorlens.statistics.delta import delta_p, is_flipped
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED, gaps, group_curves, quantity_frame
from anchorlens.statistics.resamples import Resamples

Array = np.ndarray
Cut = Callable[[np.random.Generator, Array, Array], Array]
CLAIMS = STANDS | SPECIFIC
GAP = "gap difference (description)"


class Rate(NamedTuple):
    """Shares of runs whose pointwise interval lies below 0, and above."""

    contrast: str
    below: float
    above: float


def by_question(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw standard normal noise; a quarter of its variance is shared by the two rows of a question."""
    half = rng.normal(size=(*shape[:-1], shape[-1] // 2))
    return 0.5 * np.repeat(half, 2, axis=-1) + np.sqrt(0.75) * rng.normal(size=shape)


def noise(size: float) -> Cut:
    """Return a cut that adds noise independent of the row to the log-odds."""
    return lambda rng, clean, truth: clean + size * by_question(rng, clean.shape)  # noqa: ARG005


def sized_by_question(rng: np.random.Generator, clean: Array, truth: Array) -> Array:  # noqa: ARG001
    """Add noise whose size differs between questions."""
    size = np.repeat(np.exp(0.6 * rng.normal(size=(*clean.shape[:-1], clean.shape[-1] // 2))), 2, axis=-1)
    return clean + size * rng.normal(size=clean.shape)


def shifted_by_question(rng: np.random.Generator, clean: Array, truth: Array) -> Array:  # noqa: ARG001
    """Shift both rows of a question together."""
    shift = np.repeat(1.5 * rng.normal(size=(*clean.shape[:-1], clean.shape[-1] // 2)), 2, axis=-1)
    return clean + shift + 0.3 * rng.normal(size=clean.shape)


def sized_with_confidence(rng: np.random.Generator, clean: Array, truth: Array) -> Array:  # noqa: ARG001
    """Add noise that is larger for confident rows."""
    return clean + (0.3 + np.abs(clean)) * rng.normal(size=clean.shape)


def sized_against_confidence(rng: np.random.Generator, clean: Array, truth: Array) -> Array:  # noqa: ARG001
    """Add noise that is larger for uncertain rows."""
    return clean + 2 / (0.5 + np.abs(clean)) * rng.normal(size=clean.shape)


def halved(rng: np.random.Generator, clean: Array, truth: Array) -> Array:  # noqa: ARG001
    """Halve the log-odds and add noise."""
    return 0.5 * clean + 0.4 * by_question(rng, clean.shape)


def erased(rng: np.random.Generator, clean: Array, truth: Array) -> Array:
    """Remove the part of the log-odds that depends on the label."""
    return clean - truth + 0.4 * by_question(rng, clean.shape)


def erased_in_some(rng: np.random.Generator, clean: Array, truth: Array) -> Array:
    """Remove the part that depends on the label in 30 % of the rows."""
    return clean - truth * (rng.random(clean.shape) < 0.3) + 0.4 * by_question(rng, clean.shape)


NULLS: dict[str, tuple[Cut, Cut]] = {
    "noise": (noise(0.8), noise(0.8)),
    "noise, size by question": (sized_by_question, sized_by_question),
    "shift by question": (shifted_by_question, shifted_by_question),
    "size with confidence": (sized_with_confidence, sized_with_confidence),
    "size against confidence": (sized_against_confidence, sized_against_confidence),
}
EFFECTS: dict[str, tuple[Cut, Cut]] = {
    "cut halves the logit": (halved, noise(0.4)),
    "cut erases the truth part": (erased, noise(0.4)),
    "cut erases it in 30 % of rows": (erased_in_some, noise(0.4)),
    "cut only noisier than placebo": (noise(1.2), noise(0.4)),
}


def world(rng: np.random.Generator, n: int, cuts: tuple[Cut, Cut], layers: int = 1) -> tuple[Arm, Arm, Array, np.ndarray]:
    """Draw both arms [layer row], labels (1: false answer) and questions; noise is AR(0.8) over layers."""
    label = np.tile([0.0, 1.0], n)
    truth = np.broadcast_to(1.25 * (2 * label - 1), (layers, 2 * n))
    clean = truth + _along_layers(rng, (layers, 2 * n))
    own, other = (cut(rng, clean, truth) for cut in cuts)
    p = [1 / (1 + np.exp(-x)) for x in (clean, own, other)]
    return Arm(p[0], p[1]), Arm(p[0], p[2]), label, np.repeat(np.arange(n), 2)


def _along_layers(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    steps = by_question(rng, shape)
    for layer in range(1, shape[0]):
        steps[layer] = 0.8 * steps[layer - 1] + 0.6 * steps[layer]
    return steps


def contrasts(own: Arm, other: Arm, label: Array, draws: Resamples, seed: int) -> dict[str, Estimate]:
    """Compute all four contrasts."""
    return {
        "delta_p_vs_placebo": delta_p_vs_placebo(own, other, label, "confidence", draws),
        "flip_rate": flip_rate(own, other, draws),
        "auc_drop": auc_difference(own.after, other.after, label, draws),
        "row_specific_effect": row_specific_effect(own, label, "confidence", draws, seed),
    }


def gap_difference(own: Arm, other: Arm, label: Array, draws: Resamples) -> Estimate:
    """Compute the gap between the pathways minus the placebo's gap; shows why it is only a description."""
    curves = {
        name: group_curves(delta_p(arm.before, arm.after, label, "confidence"), arm.before, is_flipped(arm.before, arm.after), draws)
        for name, arm in ((SIZE_MATCHED, own), (RANDOM, other))
    }
    return next(estimate for name, _, estimate in gaps(curves) if name == "gap_difference")


def rates(n: int, cuts: tuple[Cut, Cut], *, runs: int, seed: int, resamples: int = 500) -> Iterator[Rate]:
    """Yield for each contrast the shares of runs whose pointwise interval lies below and above 0."""
    below, above = (dict.fromkeys((*CLAIMS, GAP), 0) for _ in range(2))
    for run in range(runs):
        rng = np.random.default_rng([seed, n, run])
        own, other, label, ids = world(rng, n, cuts)
        draws = Resamples.of(ids, n_resamples=resamples, seed=run)
        found = contrasts(own, other, label, draws, run) | {GAP: gap_difference(own, other, label, draws)}
        for name, estimate in found.items():
            made = band(estimate.value, estimate.draws, estimate.n)
            below[name] += int(made.high[0] < 0)
            above[name] += int(made.low[0] > 0)
    for name in (*CLAIMS, GAP):
        yield Rate(name, below[name] / runs, above[name] / runs)


def simultaneous(
    n: int, cuts: tuple[Cut, Cut] = NULLS["noise"], *, runs: int, seed: int, layers: int = 30, resamples: int = 500
) -> dict[str, float]:
    """Compute how often each band covers 0 (AUC: 0.5) at all layers, and how often the verdict names a layer."""
    covered = {"pointwise": 0, "simultaneous": 0, "auc, simultaneous": 0}
    named = 0
    for run in range(runs):
        rng = np.random.default_rng([seed, n, run, 30])
        own, other, label, ids = world(rng, n, cuts, layers)
        draws = Resamples.of(ids, n_resamples=resamples, seed=run)
        found = contrasts(own, other, label, draws, run)
        made = band(found["delta_p_vs_placebo"].value, found["delta_p_vs_placebo"].draws, found["delta_p_vs_placebo"].n)
        covered["pointwise"] += bool(((made.low <= 0) & (made.high >= 0)).all())
        covered["simultaneous"] += bool(((made.sim_low <= 0) & (made.sim_high >= 0)).all())
        chance = auc_of(1 / (1 + np.exp(-_along_layers(rng, (layers, 2 * n)))), label, draws)
        read = auc_band(chance.value, chance.draws, chance.n)
        covered["auc, simultaneous"] += bool(((read.sim_low <= 0.5) & (read.sim_high >= 0.5)).all())
        frame = pd.concat([quantity_frame(range(layers), name, RANDOM, found[name]) for name in STANDS])
        named += bool(layers_standing(frame))
    return {name: count / runs for name, count in covered.items()} | {"names a layer": named / runs}


def _table(title: str, worlds: dict[str, tuple[Cut, Cut]], runs: int, seed: int) -> None:
    print(f"\n{title}\n")
    print("| world | questions | " + " | ".join((*CLAIMS, GAP)) + " |\n| --- | --- |" + " --- |" * (len(CLAIMS) + 1))
    for name, cuts in worlds.items():
        for n in (20, 40, 100):
            cells = [f"{100 * r.below:.1f} / {100 * r.above:.1f}" for r in rates(n, cuts, runs=runs, seed=seed)]
            print(f"| {name} | {n} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="simulated sweeps per cell of a table")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    head = "Share of runs (%) whose 95 % interval lies below 0 / above 0"
    _table(f"Nothing is there. {head} (nominal 2.5 / 2.5)", NULLS, args.runs, args.seed)
    _table(f"Something is there. {head}", EFFECTS, args.runs, args.seed)
    print("\nThirty layers of noise. Share of sweeps (%)\n")
    columns = ("pointwise", "simultaneous", "auc, simultaneous", "names a layer")
    print("| questions | " + " | ".join(columns) + " |\n| --- |" + " --- |" * len(columns))
    for n in (20, 40, 100):
        found = simultaneous(n, runs=args.runs, seed=args.seed, resamples=1000)
        print(f"| {n} | " + " | ".join(f"{100 * found[name]:.1f}" for name in columns) + " |", flush=True)


if __name__ == "__main__":
    main()
