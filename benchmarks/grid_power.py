"""Estimate what a patch sweep with a band over its whole grid can find with few pairs.

    python benchmarks/grid_power.py --runs 50

Simulated effects of pairs without a model, on a grid of 30 layers and 2 or 32 positions. Half of
the variance of a cell lies between pairs and blocks of four positions; the rest has a correlation
of .9 between neighbouring layers. The patch has a mean of 1 (sd 1) at 8 layers of 2 positions, the
controls have none.

Columns, in percent: sweeps in which a true cell stands, share of the true cells that stand, sweeps
in which another cell stands; and the first two by p-values of at most 5 % against both controls.
"""

import argparse

import numpy as np
import numpy.typing as npt
from null_rates_patch import claimed

from anchorlens.statistics.sign_flips import sign_flip_p

LAYERS = 30
GRIDS = (2, 32)
TRUE = (slice(10, 18), slice(0, 2))
Array = npt.NDArray[np.float64]


def noise(rng: np.random.Generator, pairs: int, positions: int) -> Array:
    """Draw noise of sd 1, [pair layer position]."""
    pair = rng.normal(size=(pairs, 1, 1))
    blocks = rng.normal(size=(pairs, 1, -(-positions // 4)))
    own = rng.normal(size=(pairs, LAYERS, positions))
    for layer in range(1, LAYERS):
        own[:, layer] = 0.9 * own[:, layer - 1] + np.sqrt(1 - 0.81) * own[:, layer]
    return 0.5 * pair + 0.5 * np.repeat(blocks, 4, axis=2)[:, :, :positions] + np.sqrt(0.5) * own


def draw(pairs: int, positions: int, seed: int) -> Array:
    """Draw the effects of patch and both controls, [patch or control, pair, layer, position]."""
    rng = np.random.default_rng([seed, pairs, positions])
    effects = np.stack([noise(rng, pairs, positions) for _ in range(3)])
    effects[(0, slice(None), *TRUE)] += 1
    return effects


def small_p(effects: Array) -> npt.NDArray[np.bool_]:
    """Return the cells whose p-values against both controls are at most 5 %, [layer position]."""
    n = effects.shape[1]
    small = np.ones(effects[0, 0].size, dtype=bool)
    for control in effects[1:]:
        less = (effects[0] - control).reshape(n, -1)
        small &= sign_flip_p(less, np.arange(n)) <= 0.05
    return small.reshape(effects.shape[2:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=50, help="sweeps per cell (default: 50)")
    parser.add_argument("--resamples", type=int, default=500, help="resamples (default: 500)")
    args = parser.parse_args()
    print("| grid | pairs | some true cell | true cells | another cell | some, p | cells, p |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for positions in GRIDS:
        for pairs in (12, 20, 40):
            counts = np.zeros(5)
            for seed in range(args.runs):
                effects = draw(pairs, positions, seed)
                true = np.zeros((LAYERS, positions), dtype=bool)
                true[TRUE] = True
                found = claimed(effects, n_resamples=args.resamples)
                small = small_p(effects)
                counts += (
                    found[true].any(),
                    found[true].mean(),
                    found[~true].any(),
                    small[true].any(),
                    small[true].mean(),
                )
            cells = " | ".join(f"{100 * one / args.runs:.0f}" for one in counts)
            print(f"| {LAYERS} x {positions} | {pairs} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
