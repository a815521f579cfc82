"""Estimate false positive rates and power of the contrasts of a knockout, in simulations (METHOD 5, 6).

    python benchmarks/null_rates.py                       # the tables of docs/statistics.md; about ten minutes on one core
    python benchmarks/null_rates.py --runs 100            # a quick estimate
    python benchmarks/null_rates.py --tables claims       # one of: nulls, effects, claims, layers

A simulated world is the log-odds of a probe: clean, under the cut of E_Q (the exact question tokens), and under the placebo cut. No
model is needed: the script tests the package's computation of intervals from P.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from anchorlens.protocols.knockout.findings import CLAIMS, PARTIAL_LEVEL, STANDS, layers_standing
from anchorlens.statistics.bands import auc_band, band, holm, p_values
from anchorlens.statistics.contrasts import Arm, delta_p_vs_placebo, flip_rate, mean_of, row_specific_changes
from anchorlens.statistics.delta import delta_p, is_flipped
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED, gaps, group_curves, quantity_frame
from anchorlens.statistics.resamples import Estimate, Resamples

Array = np.ndarray
Cut = Callable[[np.random.Generator, Array, Array], Array]
OWN = "row_specific_effect (description)"
GAP = "gap difference (description)"
SHOWN = (*CLAIMS, OWN, GAP)
SWEEPS = 8
"""Sweeps of a study."""


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


def attenuated(size: float) -> Cut:
    """Return a cut that takes a quarter of the log-odds and adds noise."""
    return lambda rng, clean, truth: 0.75 * clean + size * rng.normal(size=clean.shape)  # noqa: ARG005


def sparse(rng: np.random.Generator, clean: Array, truth: Array) -> Array:  # noqa: ARG001
    """Move a tenth of the rows by 5 log-odds to either side, most often both rows of a question."""
    hit = np.repeat(rng.random((*clean.shape[:-1], clean.shape[-1] // 2)) < 0.12, 2, axis=-1) & (rng.random(clean.shape) < 0.8)
    return clean + 0.1 * rng.normal(size=clean.shape) + hit * rng.choice([-5.0, 5.0], clean.shape)


def heavy_tailed(rng: np.random.Generator, clean: Array, truth: Array) -> Array:  # noqa: ARG001
    """Add noise from a t distribution with 2 degrees of freedom, in part shared by the rows of a question."""
    shared = np.repeat(rng.standard_t(2, (*clean.shape[:-1], clean.shape[-1] // 2)), 2, axis=-1)
    return clean + 0.7 * (0.6 * shared + 0.8 * rng.standard_t(2, clean.shape))


NULLS: dict[str, tuple[Cut, Cut]] = {
    "noise": (noise(0.8), noise(0.8)),
    "noise, size by question": (sized_by_question, sized_by_question),
    "shift by question": (shifted_by_question, shifted_by_question),
    "size with confidence": (sized_with_confidence, sized_with_confidence),
    "size against confidence": (sized_against_confidence, sized_against_confidence),
    "heavy-tailed": (heavy_tailed, heavy_tailed),
    "sparse": (sparse, sparse),
}
EFFECTS: dict[str, tuple[Cut, Cut]] = {
    "cut halves the logit": (halved, noise(0.4)),
    "cut erases the truth part": (erased, noise(0.4)),
    "cut erases it in 30 % of rows": (erased_in_some, noise(0.4)),
    "cut only noisier than placebo": (noise(1.2), noise(0.4)),
    "both attenuate, cut noisier": (attenuated(1.6), attenuated(0.4)),
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
    """Compute all four contrasts, and the row-specific effect of the cut alone."""
    cut, placebo = (row_specific_changes(arm, label, "confidence", draws.cluster, seed) for arm in (own, other))
    return {
        "delta_p_vs_placebo": delta_p_vs_placebo(own, other, label, "confidence", draws),
        "flip_rate": flip_rate(own, other, draws),
        "auc_drop": draws.aucs(own.after, label, minus=other.after),
        "row_specific_vs_placebo": mean_of(cut - placebo, draws),
        OWN: mean_of(cut, draws),
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
    below, above = (dict.fromkeys(SHOWN, 0) for _ in range(2))
    for run in range(runs):
        rng = np.random.default_rng([seed, n, run])
        own, other, label, ids = world(rng, n, cuts)
        draws = Resamples.of(ids, n_resamples=resamples, seed=run)
        found = contrasts(own, other, label, draws, run) | {GAP: gap_difference(own, other, label, draws)}
        for name, estimate in found.items():
            made = band(estimate, rate=name == "flip_rate")
            below[name] += int(made.high[0] < 0)
            above[name] += int(made.low[0] > 0)
    for name in SHOWN:
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
        made = band(found["delta_p_vs_placebo"])
        covered["pointwise"] += bool(((made.low <= 0) & (made.high >= 0)).all())
        covered["simultaneous"] += bool(((made.sim_low <= 0) & (made.sim_high >= 0)).all())
        read = auc_band(draws.aucs(_along_layers(rng, (layers, 2 * n)), label))
        covered["auc, simultaneous"] += bool(((read.sim_low <= 0.5) & (read.sim_high >= 0.5)).all())
        frame = pd.concat([quantity_frame(range(layers), name, RANDOM, found[name]) for name in STANDS])
        named += bool(layers_standing(frame))
    return {name: count / runs for name, count in covered.items()} | {"names a layer": named / runs}


def claims(n: int, cuts: tuple[Cut, Cut], *, runs: int, seed: int, resamples: int = 1000) -> dict[str, float]:
    """Compute the shares of sweeps with each claim, and of studies of :data:`SWEEPS` sweeps with a claim on a contrast.

    Returns:
        ``stands``: all three contrasts, 95 % intervals. ``specific``: and ``row_specific_vs_placebo``. ``specific, own value``: and
        ``row_specific_effect`` of the cut alone (former rule). ``one or two``: a contrast, but not all, by its 98.3 % interval;
        ``one or two, 95 %`` without that correction (former rule). ``study``: any contrast by Holm over all contrasts of a study;
        ``study, 95 %``: without a correction.
    """
    count = dict.fromkeys(("stands", "specific", "specific, own value", "one or two", "one or two, 95 %"), 0)
    p_by_run: list[list[float]] = []
    for run in range(runs):
        rng = np.random.default_rng([seed, n, run, 7])
        own, other, label, ids = world(rng, n, cuts)
        draws = Resamples.of(ids, n_resamples=resamples, seed=run)
        found = contrasts(own, other, label, draws, run)

        def beyond(name: str, sign: int, level: float, found: dict[str, Estimate] = found) -> bool:
            made = band(found[name], level=level, rate=name == "flip_rate")
            return bool(made.low[0] > 0 if sign > 0 else made.high[0] < 0)

        usual, strict = ([beyond(name, claim.sign, level) for name, claim in STANDS.items()] for level in (0.95, PARTIAL_LEVEL))
        count["stands"] += all(usual)
        count["specific"] += all(usual) and beyond("row_specific_vs_placebo", -1, 0.95)
        count["specific, own value"] += all(usual) and beyond(OWN, -1, 0.95)
        count["one or two"] += any(strict) and not all(usual)
        count["one or two, 95 %"] += any(usual) and not all(usual)
        right_side = [np.sign(found[name].value[0]) == claim.sign for name, claim in STANDS.items()]
        p = [float(p_values(found[name], rate=name == "flip_rate")[0]) for name in STANDS]
        p_by_run.append([one if side else 1.0 for one, side in zip(p, right_side, strict=True)])
    shares = {name: number / runs for name, number in count.items()}
    # Studies are drawn from the runs, because contrasts of one sweep depend on one another, and sweeps do not.
    rng, tables = np.random.default_rng(seed), np.array(p_by_run)
    studies = [tables[rng.choice(runs, SWEEPS, replace=False)].ravel() for _ in range(400)]
    shares["study"] = float(np.mean([(holm(p) <= 0.05).any() for p in studies]))
    shares["study, 95 %"] = float(np.mean([(p <= 0.05).any() for p in studies]))
    return shares


def _claims_table(runs: int, seed: int) -> None:
    print("\nClaims of the verdict. Share of sweeps (%); last two columns: of studies of eight sweeps\n")
    known, names = (
        NULLS | EFFECTS,
        ("stands", "specific", "specific, own value", "one or two", "one or two, 95 %", "study", "study, 95 %"),
    )
    print("| world | questions | " + " | ".join(names) + " |\n| --- | --- |" + " --- |" * len(names))
    for name, cuts in known.items():
        for n in (20, 40, 100):
            found = claims(n, cuts, runs=runs, seed=seed)
            print(f"| {name} | {n} | " + " | ".join(f"{100 * found[one]:.1f}" for one in names) + " |", flush=True)


def _table(title: str, worlds: dict[str, tuple[Cut, Cut]], runs: int, seed: int) -> None:
    print(f"\n{title}\n")
    print("| world | questions | " + " | ".join(SHOWN) + " |\n| --- | --- |" + " --- |" * len(SHOWN))
    for name, cuts in worlds.items():
        for n in (20, 40, 100):
            cells = [f"{100 * r.below:.1f} / {100 * r.above:.1f}" for r in rates(n, cuts, runs=runs, seed=seed)]
            print(f"| {name} | {n} | " + " | ".join(cells) + " |", flush=True)


def _layers_table(runs: int, seed: int) -> None:
    print("\nThirty layers of noise. Share of sweeps (%)\n")
    columns = ("pointwise", "simultaneous", "auc, simultaneous", "names a layer")
    print("| questions | " + " | ".join(columns) + " |\n| --- |" + " --- |" * len(columns))
    for n in (20, 40, 100):
        found = simultaneous(n, runs=runs, seed=seed, resamples=1000)
        print(f"| {n} | " + " | ".join(f"{100 * found[name]:.1f}" for name in columns) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="simulated sweeps per cell of a table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--tables", default="nulls,effects,claims,layers", help="tables to print, separated by commas (default: all)"
    )
    args = parser.parse_args()
    tables = args.tables.split(",")
    head = "Share of runs (%) whose 95 % interval lies below 0 / above 0"
    if "nulls" in tables:
        _table(f"Nothing is there. {head} (nominal 2.5 / 2.5)", NULLS, args.runs, args.seed)
    if "effects" in tables:
        _table(f"Something is there. {head}", EFFECTS, args.runs, args.seed)
    if "claims" in tables:
        _claims_table(args.runs, args.seed)
    if "layers" in tables:
        _layers_table(args.runs, args.seed)


if __name__ == "__main__":
    main()
