"""Estimate how often a patch sweep claims a cell of its grid without an effect, and how often it
finds an effect.

    # 300 sweeps of each world and size
    python benchmarks/null_rates_patch.py
    python benchmarks/null_rates_patch.py --runs 100 --sizes 10,20 --worlds sparse --controls 1
    # the effects of a real sweep, drawn anew, in place of the worlds
    python benchmarks/null_rates_patch.py --rows runs/facts

Simulated sweeps without a model: effects of pairs (one per group), in logits, on a grid of 30
layers and 20 places (``--places``), with the controls ``other_pair`` and ``norm_matched``. Noise
has a correlation of 0.8 between neighbouring layers and sd 1 unless stated.

Worlds in which no cell may be claimed; ``effect`` and controls are drawn independently:

- ``normal``, ``heavy-tailed`` (t with 3 degrees of freedom), ``skewed`` (centred exponential):
  noise around 0.
- ``sparse``: a cell of a pair is 0, except in 5 %, where it is +6 or -6.
- ``one-sided sparse``: every cell is 5 in 15 % of the pairs and 0 otherwise, under the patch and
  under both controls.
- ``control moves``: patch and ``other_pair`` have the mean 2 at every cell, ``norm_matched`` 0.
- ``control opposite``: the patch has the mean 0, both controls have the mean -2.
- ``patch sparse``: the patch is 5 in 15 % of the pairs, else 0; ``other_pair`` has the same mean,
  0.75, in all pairs (sd 0.1), ``norm_matched`` is 0 (sd 0.1). ``control sparse``: the roles of
  patch and ``other_pair`` are exchanged. ``control rare``: the same with 15 in 5 % of the pairs.
- ``mixed``: a third of the places each are ``normal``, ``control moves``, and the same with
  ``norm_matched`` in place of ``other_pair``.

Worlds with an effect, controls around 0, normal noise: ``one cell`` (mean 2 at one cell), ``block``
(mean 1 at 8 layers of 2 places) and ``block in 30 %`` (5 in 30 % of the pairs at 8 layers of 2
places, noise of sd 0.3). ``claimed`` is then the share of sweeps that claim a cell with the effect,
``cells`` the mean share of these cells that are claimed, ``wrong`` the share of sweeps that claim
another one.

``--rows`` draws the groups of a measured sweep with replacement, without the cells that follow by
construction:

- ``labels exchanged``: patch and controls are exchanged at random within each group, so that no
  control differs from the patch.
- ``signs drawn``: all effects of a group are multiplied by 1 or -1 at random, so that all means are
  0.
- ``as measured``: here a true cell is one that stands in the sweep of all groups, and a wrong one
  has, over all groups, no effect beyond both controls in one direction.
"""

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy import stats

import anchorlens as al
from anchorlens.protocols.patch.grid_statistics import GridStatistics
from anchorlens.protocols.patch.standing_cells import cell_status
from anchorlens.results.estimates import LayerEstimate
from anchorlens.results.findings import STANDS
from anchorlens.statistics.bands import Band, band
from anchorlens.statistics.resamples import Resamples
from anchorlens.statistics.sign_flips import sign_flip_p

LAYERS, PLACES = 30, 20
CONTROLS = ("other_pair", "norm_matched")
NULLS = (
    "normal",
    "heavy-tailed",
    "skewed",
    "sparse",
    "one-sided sparse",
    "control moves",
    "control opposite",
    "patch sparse",
    "control sparse",
    "control rare",
    "mixed",
)
EFFECTS = ("one cell", "block", "block in 30 %")
MEASURED = ("labels exchanged", "signs drawn", "as measured")
Array = npt.NDArray[np.float64]


def noise(rng: np.random.Generator, *shape: int) -> Array:
    """Draw unit normal noise with correlation 0.8 between neighbours along the last axis but one
    (layers).
    """
    out = rng.normal(size=shape)
    for layer in range(1, shape[-2]):
        out[..., layer, :] = 0.8 * out[..., layer - 1, :] + 0.6 * out[..., layer, :]
    return out


def true_cells(world: str, places: int = PLACES) -> npt.NDArray[np.bool_]:
    """Return the cells of a world with an effect, [layer place]; ``places`` is at least 8."""
    cells = np.zeros((LAYERS, places), dtype=bool)
    if world == "one cell":
        cells[12, 7] = True
    elif world in EFFECTS:
        cells[10:18, 6:8] = True
    return cells


def draw(world: str, pairs: int, seed: int, places: int = PLACES) -> Array:
    """Draw the effects of one sweep, [patch or control, pair, layer, place]."""
    rng = np.random.default_rng([seed, pairs, *world.encode()])
    z = noise(rng, 1 + len(CONTROLS), pairs, LAYERS, places)
    if world == "heavy-tailed":
        return stats.t.ppf(stats.norm.cdf(z), 3)
    if world == "skewed":
        return stats.expon.ppf(stats.norm.cdf(z)) - 1
    if world == "sparse":
        return 6.0 * (z > stats.norm.ppf(0.975)) - 6.0 * (z < stats.norm.ppf(0.025))
    if world == "one-sided sparse":
        return 5.0 * (z > stats.norm.ppf(0.85)) + 0.05 * rng.normal(size=z.shape)
    if world in ("patch sparse", "control sparse", "control rare"):
        share, size = (0.05, 15.0) if world == "control rare" else (0.15, 5.0)
        rare = size * (z[0] > stats.norm.ppf(1 - share))
        even = share * size + 0.1 * z[1]
        return np.stack(
            [rare, even, 0.1 * z[2]] if world == "patch sparse" else [even, rare, 0.1 * z[2]]
        )
    if world == "control moves":
        z[:2] += 2
    if world == "control opposite":
        z[1:] -= 2
    if world == "mixed":
        third = places // 3
        z[:2, :, :, :third] += 2
        z[::2, :, :, third : 2 * third] += 2
    if world in EFFECTS:
        cells = true_cells(world, places)
        if world == "block in 30 %":
            z *= 0.3
            z[0][np.ix_(rng.random(pairs) < 0.3, *map(np.unique, np.nonzero(cells)))] += 5
        else:
            z[0] += cells * (2.0 if world == "one cell" else 1.0)
    return z


def claimed(
    effects: Array,
    n_controls: int = 2,
    n_resamples: int = 1000,
    level: float = 0.95,
    largest_p: float = 1.0,
) -> npt.NDArray[np.bool_]:
    """Return the cells that stand, [layer place], by the bands and the rule of the findings.

    Args:
        effects: Effects of patch and controls, [patch or control, pair, layer, place].
        n_controls: Number of controls that were measured.
        n_resamples: Number of bootstrap resamples.
        level: Joint level of each band.
        largest_p: Largest sign-flip p-value of a claim, the larger of those of the controls; 1 for
            the bands alone.
    """
    groups = np.arange(effects.shape[1])
    draws, cells = Resamples.of(groups, n_resamples=n_resamples), effects.shape[2:]

    def facts(values: Array) -> list[LayerEstimate]:
        flat = values.reshape(len(values), -1)
        one: Band = band(draws.means(flat, np.ones_like(flat, dtype=bool)), level=level)
        ends = (one.value, one.low, one.high, one.sim_low, one.sim_high, one.n, one.n_clusters)
        return list(map(LayerEstimate, *(end.tolist() for end in ends)))

    own, *less = [facts(effects[0])] + [
        facts(effects[0] - effects[1 + i]) for i in range(n_controls)
    ]
    found = [
        cell_status(fact, dict(zip(CONTROLS, beside, strict=False)), 1e-4)
        for fact, *beside in zip(own, *less, strict=True)
    ]
    stands = np.array([status == STANDS for status in found])
    if largest_p < 1 and stands.any():
        for i in range(n_controls):
            less_control = (effects[0] - effects[1 + i]).reshape(len(groups), -1)
            stands &= sign_flip_p(less_control, groups) <= largest_p
    return stands.reshape(cells)


def rates(
    world: str,
    pairs: int,
    runs: int,
    n_controls: int = 2,
    n_resamples: int = 1000,
    level: float = 0.95,
    *,
    places: int = PLACES,
) -> tuple[float, float, float]:
    """Return the share of sweeps that claim a true cell, the share of true cells claimed, and of
    sweeps that claim another.
    """
    true = true_cells(world, places)

    def draw_one(seed: int) -> Array:
        return draw(world, pairs, seed, places)

    return _rates(draw_one, true, ~true, runs, n_controls, n_resamples, level)


def _rates(
    draw_one: Callable[[int], Array],
    true: npt.NDArray[np.bool_],
    wrong: npt.NDArray[np.bool_],
    runs: int,
    n_controls: int,
    n_resamples: int,
    level: float,
) -> tuple[float, float, float]:
    counts = np.zeros(3)
    for seed in range(runs):
        found = claimed(draw_one(seed), n_controls, n_resamples, level)
        counts += (found[true].any(), found[true].mean() if true.any() else 0.0, found[wrong].any())
    return tuple((counts / runs).tolist())


def measured_effects(statistics: GridStatistics) -> Array:
    """Return the effects of a sweep, means of each group, [patch or control, group, 1, cell]; a
    cell is a layer and a place.
    """
    tables = [statistics.table(control) for control in ("none", *CONTROLS)]
    fixed = [statistics.by_construction(control) for control in ("none", *CONTROLS)]
    cells = [cell for cell in tables[0].columns if not any(one.get(cell, True) for one in fixed)]
    return np.stack(
        [table[cells].groupby("question_id").mean().to_numpy()[:, None] for table in tables]
    )


def draw_measured(world: str, measured: Array, pairs: int, seed: int) -> Array:
    """Draw groups of a measured sweep with replacement, [patch or control, group, 1, cell]."""
    rng = np.random.default_rng([seed, pairs, *world.encode()])
    groups = rng.integers(measured.shape[1], size=pairs)
    if world == "labels exchanged":
        return measured[
            rng.permuted(np.tile(np.arange(len(measured))[:, None], pairs), axis=0), groups
        ]
    return measured[:, groups] * (
        rng.choice([-1.0, 1.0], size=(pairs, 1, 1)) if world == "signs drawn" else 1.0
    )


def measured_rates(
    world: str,
    measured: Array,
    pairs: int,
    runs: int,
    n_controls: int = 2,
    n_resamples: int = 1000,
    level: float = 0.95,
) -> tuple[float, float, float]:
    """Return the shares of :func:`rates` for groups drawn from a measured sweep."""
    true, wrong = np.zeros(measured.shape[2:], dtype=bool), np.ones(measured.shape[2:], dtype=bool)
    if world == "as measured":
        mean = measured.mean(1)
        true = claimed(measured, n_controls, n_resamples, level)
        wrong = ~((mean[0] * (mean[0] - mean[1 : 1 + n_controls])) > 0).all(0)
    return _rates(
        lambda seed: draw_measured(world, measured, pairs, seed),
        true,
        wrong,
        runs,
        n_controls,
        n_resamples,
        level,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=300, help="sweeps per world and size (default: 300)"
    )
    parser.add_argument(
        "--sizes", default="10,20,40,100", help="numbers of groups (default: 10,20,40,100)"
    )
    drawn = parser.add_mutually_exclusive_group()
    drawn.add_argument(
        "--worlds",
        default=",".join([*NULLS, *EFFECTS]),
        help="simulated worlds, separated by commas (default: all)",
    )
    drawn.add_argument(
        "--rows",
        metavar="RUN",
        help="folder of a patch sweep with both controls, whose groups are drawn",
    )
    parser.add_argument(
        "--controls", type=int, default=2, choices=(1, 2), help="number of controls (default: 2)"
    )
    parser.add_argument(
        "--places",
        type=int,
        default=PLACES,
        help=f"places of the simulated grid of {LAYERS} layers, at least 8 (default: {PLACES})",
    )
    parser.add_argument(
        "--resamples", type=int, default=1000, help="bootstrap resamples (default: 1000)"
    )
    parser.add_argument(
        "--level",
        type=float,
        default=0.95,
        help="joint level of each band (default: that of the findings)",
    )
    args = parser.parse_args()
    options = (args.runs, args.controls, args.resamples, args.level)
    if args.rows:
        measured = measured_effects(al.load_run(args.rows)[0].statistics)
        worlds = {world: partial(measured_rates, world, measured) for world in MEASURED}
    else:
        worlds = {
            world: partial(rates, world, places=args.places) for world in args.worlds.split(",")
        }
    print("| world | groups | claimed | cells | wrong |\n| --- | --- | --- | --- | --- |")
    for world, rates_of in worlds.items():
        for pairs in map(int, args.sizes.split(",")):
            hit, share, wrong = rates_of(pairs, *options)
            first = f"{hit:.3f} | {share:.3f}" if world in (*EFFECTS, "as measured") else "- | -"
            print(f"| {world} | {pairs} | {first} | {wrong:.3f} |", flush=True)


if __name__ == "__main__":
    main()
