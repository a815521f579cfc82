"""Measure how often the simultaneous bands cover the true curve at all layers, in simulations
(METHOD 6).

    python benchmarks/band_coverage.py                  400 curves of each world and size
    python benchmarks/band_coverage.py --runs 100       a quick estimate
    python benchmarks/band_coverage.py --real RUN ...   questions of saved sweeps as the population

A world draws values at 30 layers with a correlation of 0.9 between neighbouring layers; the truth
is the mean of 160,000 rows. With ``--real``, questions of a saved run are drawn with replacement,
and the truth is the value over all its questions.

Means of ΔP, one row per question:

- ``normal``: noise (sd 10 points).
- ``heavy-tailed``: the same with a scale per question whose square is inverse gamma (Student t with
  2 degrees of freedom).
- ``skewed``: 15 % of the cells lose most of P, the others hardly move.
- ``sparse``: the same with 5 % of the cells.
- ``log-odds``: P falls by a log-normal number of log-odds, at middle layers.
- ``all lost``: nearly all of P is lost at middle layers; P is near 0 or 1.
- ``curve sparse``: curve minus null, both with the same mean; the curve falls far in 15 % of the
  cells, the null evenly.
- ``null sparse``: the same with the roles exchanged and 5 % of the cells.
- ``rare``: one question in 30 loses 50 points at all layers, the others hardly move. A sample
  without such a question looks like one without an effect.

Steps: ``accuracy 90 %``, a metric function that is 1 for nine of ten questions at half of the
layers and 0 at the others; ``accuracy 90 %, no bound`` without the exact bound for layers at which
all questions agree.

Rates: ``flips 15 %`` and ``flips 5 %``, minus the flips of a placebo with the same rate.

AUC, two rows per question: normal scores with AUC 0.7 and 0.95, ``heavy-tailed AUC`` (scores with t
noise, 2 degrees of freedom), and ``difference of AUCs`` of two equal probes.

Columns: coverage of the pointwise interval (mean over layers) and of the simultaneous band, in %;
share of curves with a layer whose truth lies below / above the band; share of layers whose band
misses the truth (a false claim where the truth is 0); mean width of the band (AUC: in hundredths);
share of curves that few questions carry, whose band allows for a question at the end of the scale.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from anchorlens.constants import NULL_CONTROLS, P
from anchorlens.loading.load_run import load_run
from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult
from anchorlens.statistics.bands import Band, auc_band, band, is_concentrated
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED, Q
from anchorlens.statistics.resamples import Resamples

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
    shift = 1.2 * np.exp(0.8 * rng.normal(size=(n, 1))) * PLATEAU + 0.7 * noise(rng, n) * np.abs(
        rng.standard_t(3, (n, 1))
    )
    return 100 * (1 / (1 + np.exp(shift - np.log(p / (1 - p)))) - p)


def all_lost(rng: np.random.Generator, n: int) -> Array:
    kept = np.clip(0.93 + 0.1 * noise(rng, n), 0, 1) * np.maximum(PLATEAU, 0.3)
    return -100 * rng.beta(0.6, 0.4, (n, 1)) * kept


def shapes(share: float, sign: int) -> Callable[[np.random.Generator, int], Array]:
    def world(rng: np.random.Generator, n: int) -> Array:
        far = -60 * rng.uniform(0.8, 1.2, (n, 1)) * happens(rng, n, share)
        return sign * (far - (-60 * share + noise(rng, n)))

    return world


def rare(rng: np.random.Generator, n: int) -> Array:
    return noise(rng, n) - 50 * (rng.random((n, 1)) < 1 / 30)


def flip_difference(share: float) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: 100.0 * happens(rng, n, share) - 100.0 * happens(rng, n, share)


class World(NamedTuple):
    """Population from which rows are drawn.

    Attributes:
        draw: Function of a generator and a number of questions; values [question layer], or scores
            of two probes [layer row] of the true and the false answer of each question.
        truth: Value at each layer; None: that of 160,000 drawn rows.
        kind: ``mean``, ``rate``, ``step``, ``auc`` or ``auc difference``.
    """

    draw: Callable[[np.random.Generator, int], Array]
    truth: Array | None = None
    kind: str = "mean"


def paired_scores(
    shift: float, *, heavy: bool = False
) -> Callable[[np.random.Generator, int], Array]:
    """Return a world of scores of a true and a false row per question, with a common part, and of a
    second probe like it.
    """

    def world(rng: np.random.Generator, n: int) -> Array:
        common = np.repeat(noise(rng, n), 2, axis=0)
        tails = np.sqrt(rng.gamma(1, 1, (2 * n, 1))) if heavy else 1.0
        signal = shift * np.tile([0.0, 1.0], n)[:, None]
        return np.array(
            [(signal + 0.7 * common + 0.7 * noise(rng, 2 * n) / tails).T for _ in range(2)]
        )

    return world


def steps(rng: np.random.Generator, n: int) -> Array:
    """Draw values that are 1 for nine of ten questions at half of the layers, and 0 elsewhere."""
    return ((rng.random((n, LAYERS)) < 0.9) & (np.arange(LAYERS) < LAYERS // 2)).astype(float)


ZERO = np.zeros(LAYERS)
STEP = 0.9 * (np.arange(LAYERS) < LAYERS // 2)
# Kind of values -> by how much an unseen question may differ.
SPANS = {"mean": 0, "rate": 100, "step": 1}
WORLDS = {
    "normal": World(normal),
    "heavy-tailed": World(heavy_tailed),
    "skewed": World(falling(0.15)),
    "sparse": World(falling(0.05)),
    "log-odds": World(log_odds),
    "all lost": World(all_lost),
    "curve sparse": World(shapes(0.15, 1), ZERO),
    "null sparse": World(shapes(0.05, -1), ZERO),
    "rare": World(rare),
    "accuracy 90 %": World(steps, STEP, "step"),
    "accuracy 90 %, no bound": World(steps, STEP),
    "flips 15 %": World(flip_difference(0.15), ZERO, "rate"),
    "flips 5 %": World(flip_difference(0.05), ZERO, "rate"),
    "AUC 0.7": World(paired_scores(0.74), kind="auc"),
    "AUC 0.95": World(paired_scores(2.32), kind="auc"),
    "heavy-tailed AUC": World(paired_scores(1.6, heavy=True), kind="auc"),
    "difference of AUCs": World(paired_scores(1.8), ZERO, "auc difference"),
}


def real_worlds(folder: str) -> dict[str, World]:
    """Return the curve, its contrasts and AUCs of each sweep of a run, with its questions as the
    population.
    """
    worlds: dict[str, World] = {}
    for result in load_run(folder):
        samples = result.samples(all_columns=True)
        samples = samples[samples["metric"] == P]
        # Layers that hold by construction are in no simultaneous band of the package.
        samples = samples[
            samples.groupby(["anchor", "layer"])["by_construction"].transform("mean") <= 0.5
        ]
        sides = {control: by_question(rows) for control, rows in samples.groupby("control")}
        found = {
            "curve": sides["none"],
            "curve Q": by_question(
                samples[(samples["control"] == "none") & (samples["pathway"] == Q)]
            ),
        }
        found |= {
            f"minus {name}": sides["none"] - sides[c]
            for name, c in NULL_CONTROLS.items()
            if c in sides
        }
        if RANDOM in sides:
            found["minus placebo"] = sides[SIZE_MATCHED] - sides[RANDOM]
        name = f"{result.protocol.name} {result.dataset}"
        worlds |= {
            f"{name}, {what}": drawn_from(values.dropna())
            for what, values in found.items()
            if len(values)
        }
        if isinstance(result, PathwayResult) and RANDOM in sides:
            arms = [result.tables()[control].after for control in (SIZE_MATCHED, RANDOM)]
            worlds[f"{name}, AUC"] = scores_of(result, [result.tables()["none"].before] * 2, "auc")
            worlds[f"{name}, AUC minus placebo"] = scores_of(result, arms, "auc difference")
    return worlds


def by_question(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean effect of each question at every anchor and layer."""
    return rows.pivot_table(index="question_id", columns=["anchor", "layer"], values="effect")


def drawn_from(values: pd.DataFrame) -> World:
    """Return the world of questions of a table, without layers that are the same in all."""
    table = values.to_numpy(dtype=np.float64)
    table = table[:, table.std(0) > 1e-6]
    return World(lambda rng, n: table[rng.integers(0, len(table), n)], table.mean(0))


def scores_of(result: PathwayResult, arms: list[Array], kind: str) -> World:
    """Return the world of the scores of true and false answers, over questions that have both in
    both arms.
    """
    cluster, labels = result.draws.cluster, result.labels
    pairs = [np.flatnonzero(cluster == q) for q in np.unique(cluster)]
    usable = [rows[np.argsort(labels[rows])] for rows in pairs if sorted(labels[rows]) == [0, 1]]
    table = np.array(arms)[
        :, :, np.array([rows for rows in usable if not np.isnan(np.array(arms)[:, :, rows]).any()])
    ]
    return World(
        lambda rng, n: table[:, :, rng.integers(0, table.shape[2], n)].reshape(
            *table.shape[:2], -1
        ),
        auc_of(table, kind),
        kind,
    )


def auc_of(scores: Array, kind: str) -> Array:
    """Return the AUC of the first probe at each layer, or minus that of the second, from scores
    [probe layer question label].
    """
    false, true = scores[..., 0], scores[..., 1]
    auc = np.array(
        [
            [stats.mannwhitneyu(*pair).statistic for pair in zip(*one, strict=True)]
            for one in zip(true, false, strict=True)
        ]
    )
    auc /= false.shape[-1] ** 2
    return auc[0] - auc[1] if kind == "auc difference" else auc[0]


def truth_of(world: World) -> Array:
    """Return the true value at each layer."""
    rng = np.random.default_rng(1)
    if world.truth is not None:
        return world.truth
    if world.kind == "auc":
        return np.full(
            LAYERS, auc_of(world.draw(rng, 40_000).reshape(2, LAYERS, -1, 2), world.kind).mean()
        )
    return np.mean([world.draw(rng, 4000).mean(0) for _ in range(40)], axis=0)


def band_of(world: World, rng: np.random.Generator, n: int, resamples: int, seed: int) -> Band:
    """Draw ``n`` questions and return the bands of the package."""
    rows = world.draw(rng, n)
    if world.kind in SPANS:
        draws = Resamples.of(np.arange(n), n_resamples=resamples, seed=seed)
        return band(
            draws.means(rows, np.ones_like(rows, dtype=bool)),
            span=SPANS[world.kind],
            limit=100,
        )
    draws, label = (
        Resamples.of(np.repeat(np.arange(n), 2), n_resamples=resamples, seed=seed),
        np.tile([0.0, 1.0], n),
    )
    if world.kind == "auc":
        return auc_band(draws.aucs(rows[0], label))
    return band(draws.aucs(rows[0], label, minus=rows[1]), limit=1)


def measure(name: str, world: World, n: int, runs: int, resamples: int) -> Array:
    """Return the columns of a row of the table, as means over runs."""
    truth, total = truth_of(world), np.zeros(7)
    for run in range(runs):
        made = band_of(world, np.random.default_rng([3, n, *name.encode(), run]), n, resamples, run)
        below, above = truth < made.sim_low, truth > made.sim_high
        total += [
            ((made.low <= truth) & (truth <= made.high)).mean(),
            not (below | above).any(),
            below.any(),
            above.any(),
            (below | above).mean(),
            (made.sim_high - made.sim_low).mean() * (100 if world.kind.startswith("auc") else 1),
            is_concentrated(made.n_effective, made.n).any(),
        ]
    return total / runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=400, help="curves per world and size (default: 400)"
    )
    parser.add_argument(
        "--resamples", type=int, default=1000, help="resamples per curve (default: 1000)"
    )
    parser.add_argument("--worlds", help="names of worlds, separated by semicolons (default: all)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of questions")
    parser.add_argument(
        "--real",
        nargs="+",
        metavar="RUN",
        help="run directories whose questions are the population",
    )
    args = parser.parse_args()
    worlds = (
        {name: world for folder in args.real for name, world in real_worlds(folder).items()}
        if args.real
        else WORLDS
    )
    print(
        "| world | questions | pointwise | simultaneous | below / above | layers missed | width |"
        " few carry |\n|" + " --- |" * 8
    )
    for name in args.worlds.split(";") if args.worlds else worlds:
        for n in args.sizes:
            point, every, below, above, missed, width, few = measure(
                name, worlds[name], n, args.runs, args.resamples
            )
            cells = [
                f"{100 * point:.1f}",
                f"{100 * every:.1f}",
                f"{100 * below:.1f} / {100 * above:.1f}",
                f"{100 * missed:.1f}",
            ]
            cells += [f"{width:.1f}", f"{100 * few:.0f}"]
            print(f"| {name} | {n} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
