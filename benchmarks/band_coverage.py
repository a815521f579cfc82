"""Measure how often the simultaneous bands cover the true curve at all layers, in simulations (METHOD 6).

    python benchmarks/band_coverage.py             400 curves of each world and size; about 15 minutes on one core
    python benchmarks/band_coverage.py --runs 100  a quick estimate

A world draws values at 30 layers with a correlation of 0.9 between neighbouring layers; the truth is the mean of 160,000 rows.

Means of ΔP, one row per question:

- ``normal``: noise (sd 10 points).
- ``heavy-tailed``: the same with a scale per question whose square is inverse gamma (Student t with 2 degrees of freedom).
- ``skewed``: 15 % of the cells lose most of P, the others hardly move.
- ``sparse``: the same with 5 % of the cells.
- ``log-odds``: P falls by a log-normal number of log-odds, at middle layers.
- ``all lost``: nearly all of P is lost at middle layers; P is near 0 or 1.
- ``curve sparse``: curve minus null, both with the same mean; the curve falls far in 15 % of the cells, the null evenly.
- ``null sparse``: the same with the roles exchanged and 5 % of the cells.

Rates: ``flips 15 %`` and ``flips 5 %``, minus the flips of a placebo with the same rate.

AUC, two rows per question: normal scores with AUC 0.7 and 0.95, ``heavy-tailed AUC`` (scores with t noise, 2 degrees of freedom),
and ``difference of AUCs`` of two equal probes.

Columns: coverage of the pointwise interval (mean over layers) and of the simultaneous band, in %; share of curves with a layer whose
truth lies below / above the band; mean width of the band; share of layers whose band excludes 0 (AUC: 0.5), a false claim where the
truth is 0.
"""

import argparse
from collections.abc import Callable

import numpy as np
from scipy import stats

from anchorlens.statistics.bands import Band, auc_band, band
from anchorlens.statistics.resamples import Estimate, Resamples

Array = np.ndarray
LAYERS, SIZES = 30, (10, 20, 40, 100)
PLATEAU = np.clip(np.minimum(np.arange(LAYERS) / 6, (LAYERS - 1 - np.arange(LAYERS)) / 8), 0, 1)


def noise(rng: np.random.Generator, n: int) -> Array:
    """Draw unit normal noise with correlation 0.9 between neighbouring layers, [row layer]."""
    out = rng.normal(size=(n, LAYERS))
    for layer in range(1, LAYERS):
        out[:, layer] = 0.9 * out[:, layer - 1] + np.sqrt(1 - 0.81) * out[:, layer]
    return out


def happens(rng: np.random.Generator, n: int, share: float) -> Array:
    """Draw True in a share of the cells, in runs of neighbouring layers."""
    return noise(rng, n) < stats.norm.ppf(share)


def normal(rng: np.random.Generator, n: int) -> Array:
    return 10 * noise(rng, n)


def heavy_tailed(rng: np.random.Generator, n: int) -> Array:
    return np.clip(6 * noise(rng, n) / np.sqrt(rng.gamma(1, 1, (n, 1))), -100, 100)


def falling(share: float) -> Callable[[np.random.Generator, int], Array]:
    def world(rng: np.random.Generator, n: int) -> Array:
        p = rng.beta(1.2, 1.2, (n, 1))
        lost = happens(rng, n, share) * -100 * p * rng.beta(6, 2, (n, 1))
        return lost + 0.8 * noise(rng, n) * np.minimum(p, 1 - p)

    return world


def log_odds(rng: np.random.Generator, n: int) -> Array:
    p = rng.beta(2, 1.3, (n, 1))
    shift = 1.2 * np.exp(0.8 * rng.normal(size=(n, 1))) * PLATEAU + 0.7 * noise(rng, n) * np.abs(rng.standard_t(3, (n, 1)))
    return 100 * (1 / (1 + np.exp(shift - np.log(p / (1 - p)))) - p)


def all_lost(rng: np.random.Generator, n: int) -> Array:
    kept = np.clip(0.93 + 0.1 * noise(rng, n), 0, 1) * np.maximum(PLATEAU, 0.3)
    return -100 * rng.beta(0.6, 0.4, (n, 1)) * kept


def shapes(share: float, sign: int) -> Callable[[np.random.Generator, int], Array]:
    def world(rng: np.random.Generator, n: int) -> Array:
        far = -60 * rng.uniform(0.8, 1.2, (n, 1)) * happens(rng, n, share)
        return sign * (far - (-60 * share + noise(rng, n)))

    return world


def flip_difference(share: float) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: 100.0 * happens(rng, n, share) - 100.0 * happens(rng, n, share)


MEANS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "normal": normal, "heavy-tailed": heavy_tailed, "skewed": falling(0.15), "sparse": falling(0.05), "log-odds": log_odds,
    "all lost": all_lost, "curve sparse": shapes(0.15, 1), "null sparse": shapes(0.05, -1),
}  # fmt: skip
RATES = {"flips 15 %": flip_difference(0.15), "flips 5 %": flip_difference(0.05)}


def paired_scores(shift: float, *, heavy: bool = False) -> Callable[[np.random.Generator, int], tuple[Array, Array]]:
    """Return a world of scores of a true and a false row per question, with a common part, and of a second probe like it."""

    def world(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        common = np.repeat(noise(rng, n), 2, axis=0)
        tails = np.sqrt(rng.gamma(1, 1, (2 * n, 1))) if heavy else 1.0
        signal = shift * np.tile([0.0, 1.0], n)[:, None]
        first, second = (signal + 0.7 * common + 0.7 * noise(rng, 2 * n) / tails for _ in range(2))
        return first.T, second.T

    return world


AUCS = {
    "AUC 0.7": (paired_scores(0.74), False), "AUC 0.95": (paired_scores(2.32), False),
    "heavy-tailed AUC": (paired_scores(1.6, heavy=True), False), "difference of AUCs": (paired_scores(1.8), True),
}  # fmt: skip


def measure(
    truth: Array, runs: int, band_of: Callable[[np.random.Generator, int], Band], seed: tuple[int, ...], zero: float
) -> list[float]:
    """Return the columns of a row of the table."""
    total = np.zeros(6)
    for run in range(runs):
        made = band_of(np.random.default_rng([*seed, run]), run)
        below, above = truth < made.sim_low, truth > made.sim_high
        total += [
            ((made.low <= truth) & (truth <= made.high)).mean(), not (below | above).any(), below.any(), above.any(),
            (made.sim_high - made.sim_low).mean(), ((made.sim_low > zero) | (made.sim_high < zero)).mean(),
        ]  # fmt: skip
    return list(total / runs)


def mean_row(name: str, n: int, runs: int, resamples: int) -> list[float]:
    """Return the columns for a mean or a rate."""
    world = (MEANS | RATES)[name]
    rng = np.random.default_rng(1)
    truth = np.mean([world(rng, 4000).mean(0) for _ in range(40)], axis=0)
    if name in RATES or name.endswith(" sparse"):
        truth = np.zeros(LAYERS)

    def band_of(rng: np.random.Generator, run: int) -> Band:
        draws, rows = Resamples.of(np.arange(n), n_resamples=resamples, seed=run), world(rng, n)
        return band(draws.means(rows, np.ones_like(rows, dtype=bool)), rate=name in RATES, limit=100)

    return measure(truth, runs, band_of, (3, n, *name.encode()), 0.0)


def auc_row(name: str, n: int, runs: int, resamples: int) -> list[float]:
    """Return the columns for an AUC; widths in hundredths."""
    world, is_difference = AUCS[name]
    first, _ = world(np.random.default_rng(1), 40_000)
    pairs = [stats.mannwhitneyu(row[1::2], row[::2]).statistic / 40_000**2 for row in first]
    truth = np.zeros(LAYERS) if is_difference else np.full(LAYERS, np.mean(pairs))

    def band_of(rng: np.random.Generator, run: int) -> Band:
        one, two = world(rng, n)
        draws, label = Resamples.of(np.repeat(np.arange(n), 2), n_resamples=resamples, seed=run), np.tile([0.0, 1.0], n)
        estimate: Estimate = draws.aucs(one, label, minus=two if is_difference else None)
        return band(estimate) if is_difference else auc_band(estimate)

    columns = measure(truth, runs, band_of, (5, n, *name.encode()), 0.0 if is_difference else 0.5)
    return [*columns[:4], 100 * columns[4], columns[5]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400, help="curves per world and size (default: 400)")
    parser.add_argument("--resamples", type=int, default=1000, help="resamples per curve (default: 1000)")
    parser.add_argument("--worlds", help="names of worlds, separated by commas (default: all)")
    args = parser.parse_args()
    known = [*MEANS, *RATES, *AUCS]
    print("| world | questions | pointwise | simultaneous | below / above | width | layers off 0 |\n|" + " --- |" * 7)
    for name in args.worlds.split(",") if args.worlds else known:
        for n in SIZES:
            row = auc_row if name in AUCS else mean_row
            point, all_layers, below, above, width, off = row(name, n, args.runs, args.resamples)
            cells = (
                f"{100 * point:.1f} | {100 * all_layers:.1f} | {100 * below:.1f} / {100 * above:.1f} | {width:.1f} | {100 * off:.1f}"
            )
            print(f"| {name} | {n} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
