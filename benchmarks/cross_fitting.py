"""Measure the intervals of the AUC of cross-fitted probes, in simulations (METHOD 5, 6).

    python benchmarks/cross_fitting.py                         # the table of docs/statistics.md
    python benchmarks/cross_fitting.py --runs 50 --sizes 40    # a quick estimate

Every question has a true and a false answer. Their features are a label part along one direction, a
part shared by both rows, and noise. Questions are divided into five folds; the probe of a fold is a
logistic regression on the other four. The cut and the placebo add noise; with ``erased``, the cut
also takes 70 % of the label part. The truth is the mean over the five probes of their AUCs on new
questions, which are known exactly.

Two estimates: one ranking of all rows (``pooled``, the package), and the mean of the AUCs within
folds (``within``). Columns, in % of runs: coverage of the AUC's 95 % interval and share whose lower
end exceeds 0.5 (``pooled, fixed``: as for a fixed probe; ``pooled``: with ``cross_fitted=True``);
coverage of ``auc_drop`` and share whose interval lies below 0.
"""

import argparse

import numpy as np
from scipy.stats import norm

from anchorlens.statistics.bands import Band, auc_band, band
from anchorlens.statistics.resamples import Estimate, Resamples

Array = np.ndarray
FOLDS, NOISE, KEPT = 5, 0.5, 0.3


def fit(x: Array, y: Array, penalty: float) -> tuple[Array, float]:
    """Fit a logistic regression on standardised features by Newton's method; return weights and
    intercept.
    """
    mean, sd = x.mean(0), x.std(0)
    z = np.c_[(x - mean) / sd, np.ones(len(x))]
    penalties = np.append(np.full(x.shape[1], penalty), 1e-9)
    w = np.zeros(z.shape[1])
    for _ in range(12):
        p = 1 / (1 + np.exp(-z @ w))
        w -= np.linalg.solve(
            (z.T * (p * (1 - p))) @ z + np.diag(penalties), z.T @ (p - y) + penalties * w
        )
    return w[:-1] / sd, w[-1] - (mean / sd) @ w[:-1]


def scores_of(
    rng: np.random.Generator, n: int, width: int, signal: float, kept: float
) -> tuple[Array, Array, Array]:
    """Draw a sweep; return scores [clean, cut, placebo; row], true AUCs of these and the fold of
    each row.
    """
    direction, label = rng.normal(size=width), np.tile([-0.5, 0.5], n)
    direction /= np.linalg.norm(direction)
    base = 0.6 * np.repeat(rng.normal(size=(n, width)), 2, axis=0) + 0.8 * rng.normal(
        size=(2 * n, width)
    )
    arms = ((1.0, 0.0), (kept, NOISE), (1.0, NOISE))
    states = [
        base + share * signal * np.outer(label, direction) + size * rng.normal(size=base.shape)
        for share, size in arms
    ]
    fold = np.repeat(rng.permutation(np.arange(n) % FOLDS), 2)
    scores, aucs = np.empty((3, 2 * n)), np.empty((3, FOLDS))
    for f in range(FOLDS):
        w, intercept = fit(states[0][fold != f], label[fold != f] + 0.5, 1.0)
        for arm, (share, size) in enumerate(arms):
            scores[arm, fold == f] = states[arm][fold == f] @ w + intercept
            aucs[arm, f] = norm.cdf(
                share * signal * (w @ direction) / np.linalg.norm(w) / np.sqrt(2 * (1 + size**2))
            )
    return scores, aucs.mean(1), fold


def within_folds(
    draws: Resamples, scores: Array, label: Array, fold: Array, minus: Array | None = None
) -> Estimate:
    """Compute the mean over folds of the AUCs within them, or of their differences."""
    parts = [
        None if one is None else np.where(fold == np.arange(FOLDS)[:, None], one, np.nan)
        for one in (scores, minus)
    ]
    each = draws.aucs(parts[0], label, minus=parts[1])
    error, errors = (np.sqrt((one**2).sum(-1)) / FOLDS for one in (each.error, each.errors))
    far = each.far.mean(-1)
    return Estimate(
        value=np.array([each.value.mean()]),
        error=np.array([error]),
        draws=each.draws.mean(-1)[:, None],
        errors=errors[:, None],
        n=np.array([each.n.sum()]),
        n_questions=np.array([each.n_questions.sum()]),
        far=far[:, None],
        effects=far[:0, None],
    )


def measure(n: int, width: int, signal: float, kept: float, runs: int) -> Array:
    """Return the columns of a row of the table, in %."""
    rows: list[list[bool]] = []
    for run in range(runs):
        rng = np.random.default_rng([n, width, int(10 * signal), int(10 * kept), run])
        scores, truth, fold = scores_of(rng, n, width, signal, kept)
        label, draws = (
            np.tile([0.0, 1.0], n),
            Resamples.of(np.repeat(np.arange(n), 2), n_resamples=500, seed=run),
        )
        pooled, within = draws.aucs(scores[:1], label), within_folds(draws, scores[0], label, fold)
        drops = (
            draws.aucs(scores[1:2], label, minus=scores[2:]),
            within_folds(draws, scores[1], label, fold, minus=scores[2]),
        )
        aucs = (auc_band(pooled), auc_band(pooled, cross_fitted=True), auc_band(within))
        held = [value for made in aucs for value in (covers(made, truth[0]), made.low[0] > 0.5)]
        bands = [band(one, limit=1) for one in drops]
        rows.append(
            held
            + [
                value
                for made in bands
                for value in (covers(made, truth[1] - truth[2]), made.high[0] < 0)
            ]
        )
    return 100 * np.mean(rows, axis=0)


def covers(made: Band, truth: float) -> bool:
    return bool(made.low[0] <= truth <= made.high[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=300, help="simulated sweeps per row of the table"
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=(40, 100), help="numbers of questions"
    )
    args = parser.parse_args()
    columns = ("AUC: pooled, fixed", "pooled", "within", "auc_drop: pooled", "within")
    print(
        f"| world | features | questions | {' | '.join(columns)}"
        f" |\n|{' --- |' * (3 + len(columns))}"
    )
    for world, signal, kept in (
        ("no signal", 0.0, 1.0),
        ("signal", 1.6, 1.0),
        ("signal, erased", 1.6, KEPT),
    ):
        for width in (30, 100):
            for n in args.sizes:
                found = measure(n, width, signal, kept, args.runs).reshape(-1, 2)
                cells = " | ".join(f"{covered:.0f}, {beyond:.0f}" for covered, beyond in found)
                print(f"| {world} | {width} | {n} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
