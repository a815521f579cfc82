"""Estimate how often the findings of a swap claim a layer without an effect, and how often they find an effect.

    python benchmarks/null_rates_swap.py                   300 sweeps of each kind and size
    python benchmarks/null_rates_swap.py --runs 1000 --sizes 20,40 --kinds sparse

Simulated sweeps without a model: samples of two anchors, each with a curve and the nulls ``same_role`` and ``norm_matched``, at 30
layers. ΔP is drawn with a correlation of 0.8 between neighbouring layers. Worlds without an effect:

- ``normal``: noise (sd 10 points).
- ``shared level``: every question has its own level far below 0, shared by curve and nulls.
- ``heavy-tailed``: t-distributed noise with 3 degrees of freedom.
- ``skewed``: exponential falls of 10 points.
- ``sparse``: 15 % of the cells lose 50 to 70 points, the others stay near 0; the same for curve and nulls.
- ``curve sparse``: curve and nulls have the same mean, -9 points; the curve loses 60 points in 15 % of the cells, the nulls 9 in
  all.
- ``null sparse``: the same with the roles of curve and nulls exchanged.
- ``null moves``: the curve is noise around -1 point, the nulls are noise around +15 at one anchor and -15 at the other.

``localised`` and ``content`` are the shares of sweeps in which a layer is claimed. For ``content`` the curve and ``norm_matched``
fall by a further 30 points and ``same_role`` stays at 0: a disturbance of the anchor's positions, which is localised but no
content. For ``null moves`` nothing is added.

With ``effect``, ``normal`` noise, the first anchor's curve loses 8 points (``--effect``) at layers 10-19. With ``effect in 15 %``
(and 5, 30 %) it loses 60 points there in that share of the rows, and the noise has sd 1. The two columns are then the shares of
sweeps in which one of these layers is claimed, ``wrong`` that in which another one is.
"""

import argparse
from itertools import product

import numpy as np
import numpy.typing as npt
import pandas as pd
from einops import rearrange
from scipy import stats

from anchorlens.protocols.registry import analysis_of
from anchorlens.protocols.swap.findings import status_of
from anchorlens.results.estimates import LayerEstimate
from anchorlens.results.findings import CONTENT, LOCALISED
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import SAMPLE_COLUMNS, SLOT_TYPES
from anchorlens.statistics.bands import band
from anchorlens.statistics.resamples import Resamples

ANCHORS, CONTROLS, LAYERS = ("exact_question", "pre_answer"), ("none", "same_role", "norm_matched"), 30
HOLDS = range(10, 20)
WORLDS = (
    "normal", "shared level", "heavy-tailed", "skewed", "sparse", "curve sparse", "null sparse", "null moves",
)  # fmt: skip
PARTIAL = {f"effect in {share} %": share / 100 for share in (5, 15, 30)}
"""Name and share of rows of the kinds with an effect in some rows."""


def noise(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float64]:
    """Draw unit normal noise with correlation 0.8 between neighbours along the last axis."""
    steps = rng.normal(size=shape)
    out = np.empty(shape)
    out[..., 0] = steps[..., 0]
    for layer in range(1, shape[-1]):
        out[..., layer] = 0.8 * out[..., layer - 1] + 0.6 * steps[..., layer]
    return out


def draw(world: str, questions: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Draw ΔP without an effect, [anchor control question layer]."""
    z = noise(rng, len(ANCHORS), len(CONTROLS), questions, LAYERS)
    sparse = -60 * (z < stats.norm.ppf(0.15)) * rng.uniform(5 / 6, 7 / 6, size=(questions, 1)) + z / 2
    if world == "shared level":
        return 10 * z + rng.normal(-30, 15, size=(questions, 1))
    if world == "heavy-tailed":
        return 6 * stats.t.ppf(stats.norm.cdf(z), 3)
    if world == "skewed":
        return -10 * stats.expon.ppf(stats.norm.cdf(z))
    if world == "sparse":
        return sparse
    if world in ("curve sparse", "null sparse"):
        even = -9 + z
        curve, nulls = (sparse, even) if world == "curve sparse" else (even, sparse)
        return np.concatenate([curve[:, :1], nulls[:, 1:]], axis=1)
    if world == "null moves":
        return 10 * z + np.array([[-1.0, 15.0, 15.0], [-1.0, -15.0, -15.0]])[:, :, None, None]
    return 10 * z


def draw_kind(kind: str, questions: int, seed: int, *, disturbed: bool = False, effect: float = -8.0) -> npt.NDArray[np.float64]:
    """Draw ΔP of one sweep, [anchor control question layer].

    Args:
        kind: A world, ``effect``, or one of :data:`PARTIAL`.
        questions: Number of questions.
        seed: Random seed of the sweep.
        disturbed: Whether curve and ``norm_matched`` fall by a further 30 points while ``same_role`` stays at 0.
        effect: Change of the first anchor's curve at the layers :data:`HOLDS` of the kind ``effect``.
    """
    rng = np.random.default_rng([seed, questions, *kind.encode()])
    delta = draw(kind, questions, rng) / (10 if kind in PARTIAL else 1)
    if disturbed:
        delta -= 30
        delta[:, 1] = noise(rng, len(ANCHORS), questions, LAYERS)
    if kind == "effect":
        delta[0, 0, :, HOLDS.start : HOLDS.stop] += effect
    if kind in PARTIAL:
        delta[0, 0, rng.random(questions) < PARTIAL[kind], HOLDS.start : HOLDS.stop] -= 60
    return delta


def simulated(kind: str, questions: int, seed: int, n_resamples: int = 1000) -> SweepResult:
    """Make a sweep with random ΔP; only the columns that curves and findings use are filled in."""
    delta = draw_kind(kind, questions, seed)
    index = pd.MultiIndex.from_product(
        [ANCHORS, CONTROLS, [f"q{i:03d}" for i in range(questions)], range(LAYERS)],
        names=["anchor", "control", "example_id", "layer"],
    )
    same = {
        "model": "none", "dataset": kind, "protocol": "swap", "readout": "first_token", "delta_kind": "probability", "donor_id": "d",
        "metric": "p", "unit": "percentage points", "value_before": 0.7, "by_construction": False, "seed": 0, "n_patched": 3,
        "n_null_patched": 3, "pre_answer_token_differs": False,
    }  # fmt: skip
    own = index.to_frame(index=False).assign(question_id=lambda frame: frame["example_id"], effect=delta.ravel(), **same)
    samples = own.assign(**{name: None for name in SAMPLE_COLUMNS if name not in own.columns}).astype(SLOT_TYPES)
    examples = pd.DataFrame({"role": "base", "example_id": samples["example_id"].unique()})
    config = {
        "anchors": ANCHORS, "layers": list(range(LAYERS)), "readout": "first_token", "delta_kind": "probability", "n_null_donors": 1,
        "n_resamples": n_resamples, "seed": 0,
    }  # fmt: skip
    record = {"config": config, "noise": {"floor": 1e-4}, "model": {"name": "none"}, "data": {"name": kind}, "counts": {}}
    analysis = analysis_of("swap")
    return analysis.result.make(analysis, samples, examples, record, "simulated")


def claims(delta: npt.NDArray[np.float64], n_resamples: int = 1000, level: float = 0.95) -> dict[str, set[tuple[str, int]]]:
    """Return status -> claimed anchors and layers of one sweep, by the band and the rule of the findings, without data frames.

    Args:
        delta: ΔP, [anchor control question layer].
        n_resamples: Number of bootstrap resamples.
        level: Joint level of the band.
    """
    draws = Resamples.of(np.arange(delta.shape[2]), n_resamples=n_resamples)
    effects, found = delta[:, 0].mean(1), dict[str, set[tuple[str, int]]]()
    for control, claim in ((1, LOCALISED), (2, CONTENT)):
        less = rearrange(delta[:, 0] - delta[:, control], "anchor question layer -> question (anchor layer)")
        one = band(draws.means(less, np.ones_like(less, dtype=bool)), level=level, limit=100)
        facts = map(LayerEstimate, *(end.tolist() for end in (one.value, one.low, one.high, one.sim_low, one.sim_high, one.n)))
        cells = zip(product(ANCHORS, range(LAYERS)), facts, effects.ravel().tolist(), strict=True)
        found[claim] = {place for place, fact, effect in cells if status_of(fact, effect, 1e-4, claim) == claim}
    return {**found, CONTENT: found[CONTENT] & found[LOCALISED]}


def false_rates(world: str, questions: int, runs: int, n_resamples: int = 1000, level: float = 0.95) -> tuple[float, float]:
    """Return the shares of sweeps of a world with a false claim: localised, and content of a disturbance."""
    count = {LOCALISED: 0, CONTENT: 0}
    for seed, (status, disturbed) in product(range(runs), ((LOCALISED, False), (CONTENT, world != "null moves"))):
        count[status] += bool(claims(draw_kind(world, questions, seed, disturbed=disturbed), n_resamples, level)[status])
    return count[LOCALISED] / runs, count[CONTENT] / runs


def power(
    questions: int, runs: int, effect: float = -8.0, n_resamples: int = 1000, kind: str = "effect"
) -> tuple[float, float, float]:
    """Return the shares of sweeps that claim a layer with the effect (localised, content) and another layer."""
    true = {(ANCHORS[0], layer) for layer in HOLDS}
    found = [claims(draw_kind(kind, questions, seed, effect=effect), n_resamples) for seed in range(runs)]
    localised, content = (sum(bool(one[status] & true) for one in found) / runs for status in (LOCALISED, CONTENT))
    return localised, content, sum(bool(one[LOCALISED] - true) for one in found) / runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300, help="sweeps per kind and size (default: 300)")
    parser.add_argument("--sizes", default="20,40,100", help="numbers of questions (default: 20,40,100)")
    parser.add_argument(
        "--kinds", default=",".join([*WORLDS, "effect", *PARTIAL]), help="kinds of sweeps, separated by commas (default: all)"
    )
    parser.add_argument("--effect", type=float, default=-8.0, help="points of the kind effect (default: -8)")
    parser.add_argument(
        "--level", type=float, default=0.95, help="joint level of the band in worlds without an effect (default: 0.95)"
    )
    args = parser.parse_args()
    print("| sweep | questions | localised | content | wrong |\n| --- | --- | --- | --- | --- |")
    for kind in args.kinds.split(","):
        for questions in map(int, args.sizes.split(",")):
            if kind == "effect" or kind in PARTIAL:
                shares = "{:.3f} | {:.3f} | {:.3f}".format(*power(questions, args.runs, args.effect, kind=kind))
            else:
                shares = "{:.3f} | {:.3f} | -".format(*false_rates(kind, questions, args.runs, level=args.level))
            print(f"| {kind} | {questions} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
