"""Estimate how often the findings of a swap claim a layer without an effect, and how often they
find an effect.

    python benchmarks/null_rates_swap.py                   300 sweeps of each kind and size
    python benchmarks/null_rates_swap.py --runs 1000 --sizes 20,40 --kinds sparse

Simulated sweeps without a model: samples of two anchors, each with a curve and the nulls
``same_role`` and ``norm_matched``, at 30 layers. ΔP is drawn with a correlation of 0.8 between
neighbouring layers. Worlds without an effect:

- ``normal``: noise (sd 10 points).
- ``shared level``: every question has its own level far below 0, shared by curve and nulls.
- ``heavy-tailed``: t-distributed noise with 3 degrees of freedom.
- ``skewed``: exponential falls of 10 points.
- ``sparse``: 15 % of the cells lose 50 to 70 points, the others stay near 0; the same for curve and
  nulls.
- ``curve sparse``: curve and nulls have the same mean, -9 points; the curve loses 60 points in 15 %
  of the cells, the nulls 9 in all.
- ``null sparse``: the same with the roles of curve and nulls exchanged.
- ``null moves``: the curve is noise around -1 point, the nulls are noise around +15 at one anchor
  and -15 at the other.

Worlds in which questions of a relation are alike, in curve and nulls alike (``--by-question`` draws
questions all the same):

- ``relations``: levels of relations (sd 8) beside rows (sd 8), all layers alike.
- ``unequal relations``: the same with relations of very different sizes.
- ``half alone``: half of the questions are a relation of their own.
- ``relation curves``: the level of a relation varies over layers.
- ``heavy-tailed relations``: levels are t-distributed with 3 degrees of freedom.
- ``sparse relations``: a fifth of the relations, others in each arm, fall by 40 points.
- ``shared donors``: two questions share a donor, whose level (sd 8) they have in common.

The two columns are the shares of sweeps in which a layer is claimed. For *beyond a matched change*
the curve and ``norm_matched`` fall by a further 30 points and ``same_role`` stays at 0: a
disturbance of the anchor's positions. For ``null moves`` nothing
is added.

The worlds and effects of ``swap_worlds.py`` have names that describe them: few rows at -100,
subgroups, flips, scales over layers, low P.

With ``effect``, ``normal`` noise, the first anchor's curve loses 8 points (``--effect``) at layers
10-19. With ``effect in 15 %`` (and 5, 30 %) it loses 60 points there in that share of the rows, and
the noise has sd 1. The two columns are then the shares of sweeps in which one of these layers is
claimed, ``wrong`` that in which another one is.
"""

import argparse
from itertools import product

import numpy as np
import numpy.typing as npt
import pandas as pd
import swap_worlds
from einops import rearrange
from scipy import stats
from swap_worlds import HOLDS
from swap_worlds import smooth as noise

from anchorlens.constants import MIN_CLUSTERS, MIN_QUESTIONS_FOR_SWAP_CLAIM
from anchorlens.protocols.registry import analysis_of
from anchorlens.results.estimates import LayerEstimate
from anchorlens.results.findings import BEYOND_CHANGE, BEYOND_POSITIONS, claim_status
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import SAMPLE_COLUMNS, SLOT_TYPES
from anchorlens.statistics.bands import band
from anchorlens.statistics.resamples import Resamples
from anchorlens.statistics.sign_flips import sign_flip_p

ANCHORS, CONTROLS, LAYERS = (
    ("exact_question", "pre_answer"),
    ("none", "same_role", "norm_matched"),
    30,
)
WORLDS = (
    "normal",
    "shared level",
    "heavy-tailed",
    "skewed",
    "sparse",
    "curve sparse",
    "null sparse",
    "null moves",
)
DEPENDENT = (
    "relations",
    "unequal relations",
    "half alone",
    "relation curves",
    "heavy-tailed relations",
    "sparse relations",
    "shared donors",
)
"""Worlds in which questions of a relation are alike."""
SMALLEST = 1.4
"""Smallest claimable change in points: 2 % of P before, 0.7."""
OTHER_NULLS = tuple(swap_worlds.NULLS)
OTHER_EFFECTS = tuple(swap_worlds.EFFECTS)
PARTIAL = {f"effect in {share} %": share / 100 for share in (5, 15, 30)}
"""Name and share of rows of the kinds with an effect in some rows."""


def draw(world: str, questions: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Draw ΔP without an effect, [anchor control question layer]."""
    z = noise(rng, len(ANCHORS), len(CONTROLS), questions, LAYERS)
    sparse = (
        -60 * (z < stats.norm.ppf(0.15)) * rng.uniform(5 / 6, 7 / 6, size=(questions, 1)) + z / 2
    )
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


def draw_kind(
    kind: str, questions: int, seed: int, *, disturbed: bool = False, effect: float = -8.0
) -> npt.NDArray[np.float64]:
    """Draw ΔP of one sweep, [anchor control question layer].

    Args:
        kind: A world, ``effect``, or one of :data:`PARTIAL`.
        questions: Number of questions.
        seed: Random seed of the sweep.
        disturbed: Whether curve and ``norm_matched`` fall by a further 30 points while
            ``same_role`` stays at 0.
        effect: Change of the first anchor's curve at the layers :data:`HOLDS` of the kind
            ``effect``.
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
        "model": "none",
        "dataset": kind,
        "protocol": "swap",
        "readout": "first_token",
        "delta_kind": "probability",
        "donor_id": "d",
        "cluster": "",
        "draw": 0,
        "metric": "p",
        "unit": "percentage points",
        "value_before": 0.7,
        "by_construction": False,
        "seed": 0,
        "n_patched": 3,
        "n_null_patched": 3,
        "pre_answer_token_differs": False,
    }
    own = index.to_frame(index=False).assign(
        question_id=lambda frame: frame["example_id"], effect=delta.ravel(), **same
    )
    samples = own.assign(
        **{name: None for name in SAMPLE_COLUMNS if name not in own.columns}
    ).astype(SLOT_TYPES)
    examples = pd.DataFrame({"role": "base", "example_id": samples["example_id"].unique()})
    config = {
        "anchors": ANCHORS,
        "layers": list(range(LAYERS)),
        "readout": "first_token",
        "delta_kind": "probability",
        "n_null_donors": 1,
        "n_resamples": n_resamples,
        "seed": 0,
    }
    record = {
        "config": config,
        "noise": {"floor": 1e-4},
        "model": {"name": "none"},
        "data": {"name": kind},
        "counts": {},
    }
    analysis = analysis_of("swap")
    return analysis.result.make(analysis, samples, examples, record, "simulated")


def draw_clusters(
    kind: str, questions: int, rng: np.random.Generator
) -> npt.NDArray[np.intp] | None:
    """Draw the relation of each question of a world with dependence; None for other worlds."""
    if kind not in DEPENDENT:
        return None
    # Ten relations at 20 and 40 questions, twenty at 100, thirty at 300.
    n_relations = {20: 10, 40: 10, 100: 20, 300: 30}.get(questions, max(10, questions // 5))
    if kind == "shared donors":
        return np.arange(questions) // 2
    if kind in ("unequal relations", "sparse relations"):
        shares = rng.dirichlet(np.full(n_relations, 1.5))
        first = np.arange(n_relations)
        return np.concatenate([first, rng.choice(n_relations, questions - n_relations, p=shares)])
    if kind == "half alone":
        together = questions // 2
        in_relations = np.arange(together) % max(n_relations // 2, 2)
        alone = np.arange(questions - together) + n_relations
        return np.concatenate([in_relations, alone])
    return np.arange(questions) % n_relations


def draw_dependent(
    kind: str, clusters: npt.NDArray[np.intp], rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Draw ΔP without an effect in a world in which questions of a relation are alike, [anchor
    control question layer]. Curve and nulls have levels of one distribution.
    """
    _, number = np.unique(clusters, return_inverse=True)
    n_relations = number.max() + 1
    shape = (len(ANCHORS), len(CONTROLS))
    z = 8 * noise(rng, *shape, len(number), LAYERS)
    if kind == "relation curves":
        levels = 8 * noise(rng, *shape, n_relations, LAYERS)
        return z + levels[:, :, number]
    if kind == "heavy-tailed relations":
        levels = 5 * rng.standard_t(3, size=(*shape, n_relations, 1))
        return z + levels[:, :, number]
    if kind == "sparse relations":
        levels = -40.0 * (rng.random((*shape, n_relations, 1)) < 0.2)
        return z / 4 + levels[:, :, number]
    if kind == "shared level":
        levels = rng.normal(-20, 8, size=(1, 1, n_relations, 1))
        return z + levels[:, :, number]
    levels = 8 * rng.normal(size=(*shape, n_relations, 1))
    return z + levels[:, :, number]


def draw_sweep(
    kind: str, questions: int, seed: int, *, disturbed: bool = False, effect: float = -8.0
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.intp] | None]:
    """Draw ΔP and relations of one sweep; see :func:`draw_kind`."""
    if kind in OTHER_NULLS:
        delta = swap_worlds.draw_world(kind, questions, seed)
        if disturbed:
            delta[:, [0, 2]] -= 30
        return delta, None
    rng = np.random.default_rng([seed, questions, *b"relations"])
    clusters = draw_clusters(kind, questions, rng)
    if clusters is None:
        return draw_kind(kind, questions, seed, disturbed=disturbed, effect=effect), None
    delta = draw_dependent(kind, clusters, rng)
    if disturbed:
        delta -= 30
        delta[:, 1] = noise(rng, len(ANCHORS), questions, LAYERS)
    return delta, clusters


def claims(
    delta: npt.NDArray[np.float64],
    n_resamples: int = 1000,
    level: float = 0.95,
    clusters: npt.NDArray[np.intp] | None = None,
    largest_p: float = 1.0,
    *,
    one_null: bool = False,
) -> dict[str, set[tuple[str, int]]]:
    """Return status -> claimed anchors and layers of one sweep, by the band and the rule of the
    findings, without data frames.

    Args:
        delta: ΔP, [anchor control question layer].
        n_resamples: Number of bootstrap resamples.
        level: Joint level of the band over anchors, layers and both nulls.
        clusters: Relation of each question. If None, questions are drawn.
        largest_p: Largest sign-flip p-value of a claim; 1 for the band alone.
        one_null: Whether ``same_role`` alone is measured, which the band then covers alone.
    """
    n = delta.shape[2]
    ids = np.arange(n)
    drawn = None if clusters is None or len(set(clusters)) < MIN_CLUSTERS else clusters
    draws = Resamples.of(ids, clusters=drawn, n_resamples=n_resamples)
    less = [
        rearrange(delta[:, 0] - delta[:, control], "anchor row layer -> row (anchor layer)")
        for control in ((1,) if one_null else (1, 2))
    ]
    values = np.concatenate(less, axis=1)
    one = band(draws.means(values, np.ones_like(values, dtype=bool)), level=level, limit=100)
    p = np.zeros(values.shape[1])
    if largest_p < 1:
        flipped = ids if drawn is None else drawn
        p = np.concatenate([sign_flip_p(own, flipped) for own in less])
    ends = (one.value, one.low, one.high, one.sim_low, one.sim_high, one.n, one.n_clusters)
    facts = list(map(LayerEstimate, *(end.tolist() for end in ends)))
    effects = np.tile(delta[:, 0].mean(1).ravel(), len(less)).tolist()
    found: dict[str, set[tuple[str, int]]] = {BEYOND_POSITIONS: set(), BEYOND_CHANGE: set()}
    cells = product((BEYOND_POSITIONS, BEYOND_CHANGE)[: len(less)], ANCHORS, range(LAYERS))
    for number, (claim, anchor, layer) in enumerate(cells):
        status = claim_status(
            facts[number],
            floor=SMALLEST,
            claim=claim,
            joint=True,
            effect=effects[number],
            least=MIN_QUESTIONS_FOR_SWAP_CLAIM,
        )
        if status == claim and p[number] <= largest_p:
            found[claim].add((anchor, layer))
    found[BEYOND_CHANGE] &= found[BEYOND_POSITIONS]
    return found


def false_rates(
    world: str,
    questions: int,
    runs: int,
    n_resamples: int = 1000,
    level: float = 0.95,
    largest_p: float = 1.0,
    *,
    by_question: bool = False,
) -> tuple[float, float]:
    """Return the shares of sweeps of a world with a false claim: beyond other positions, and beyond
    a matched change of a disturbance.
    """
    count = {BEYOND_POSITIONS: 0, BEYOND_CHANGE: 0}
    for seed, (status, disturbed) in product(
        range(runs), ((BEYOND_POSITIONS, False), (BEYOND_CHANGE, world != "null moves"))
    ):
        delta, clusters = draw_sweep(world, questions, seed, disturbed=disturbed)
        found = claims(delta, n_resamples, level, None if by_question else clusters, largest_p)
        count[status] += bool(found[status])
    return count[BEYOND_POSITIONS] / runs, count[BEYOND_CHANGE] / runs


def power(
    questions: int,
    runs: int,
    effect: float = -8.0,
    n_resamples: int = 1000,
    kind: str = "effect",
    largest_p: float = 1.0,
    *,
    one_null: bool = False,
) -> tuple[float, float, float]:
    """Return the shares of sweeps that claim a layer with the effect (beyond other positions,
    beyond a matched change) and another layer.
    """
    is_one = kind == "-10 at one layer (sd 10)"
    true = {(ANCHORS[0], layer) for layer in (swap_worlds.ONE_LAYER if is_one else HOLDS)}
    found: list[dict[str, set[tuple[str, int]]]] = []
    for seed in range(runs):
        if kind in OTHER_EFFECTS:
            delta = swap_worlds.draw_world(kind, questions, seed)
        else:
            delta = draw_kind(kind, questions, seed, effect=effect)
        found.append(claims(delta, n_resamples, largest_p=largest_p, one_null=one_null))
    positions, change = (
        sum(bool(one[status] & true) for one in found) / runs
        for status in (BEYOND_POSITIONS, BEYOND_CHANGE)
    )
    return positions, change, sum(bool(one[BEYOND_POSITIONS] - true) for one in found) / runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=300, help="sweeps per kind and size (default: 300)"
    )
    parser.add_argument(
        "--sizes", default="20,40,100,300", help="numbers of questions (default: 20,40,100,300)"
    )
    parser.add_argument(
        "--kinds",
        default=",".join([*WORLDS, *DEPENDENT, "effect", *PARTIAL]),
        help="kinds of sweeps, separated by commas, or 'other nulls', 'other effects' (default: all"
        " but these)",
    )
    parser.add_argument(
        "--effect", type=float, default=-8.0, help="points of the kind effect (default: -8)"
    )
    parser.add_argument(
        "--level",
        type=float,
        default=0.95,
        help="joint level of the band in worlds without an effect (default: 0.95)",
    )
    parser.add_argument(
        "--largest-p",
        type=float,
        default=1.0,
        help="largest p-value of a claim (default: 1, the band alone)",
    )
    parser.add_argument(
        "--by-question", action="store_true", help="draw questions instead of relations"
    )
    parser.add_argument(
        "--one-null", action="store_true", help="effects are measured against same_role alone"
    )
    args = parser.parse_args()
    groups = {"other nulls": OTHER_NULLS, "other effects": OTHER_EFFECTS}
    kinds = [kind for word in args.kinds.split(",") for kind in groups.get(word, (word,))]
    print("| sweep | questions | beyond other positions | beyond a matched change | wrong |")
    print("| --- | --- | --- | --- | --- |")
    for kind in kinds:
        for questions in map(int, args.sizes.split(",")):
            if kind == "effect" or kind in PARTIAL or kind in OTHER_EFFECTS:
                found = power(
                    questions,
                    args.runs,
                    args.effect,
                    kind=kind,
                    largest_p=args.largest_p,
                    one_null=args.one_null,
                )
                shares = "{:.3f} | {:.3f} | {:.3f}".format(*found)
            else:
                shares = "{:.3f} | {:.3f} | -".format(
                    *false_rates(
                        kind,
                        questions,
                        args.runs,
                        level=args.level,
                        largest_p=args.largest_p,
                        by_question=args.by_question,
                    )
                )
            print(f"| {kind} | {questions} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
