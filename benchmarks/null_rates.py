"""Estimate false positive rates and power of the contrasts of a knockout, in simulations (METHOD 5,
6).

    # the tables of docs/statistics.md
    python benchmarks/null_rates.py
    # a quick estimate
    python benchmarks/null_rates.py --runs 100
    # real rows: questions of saved knockouts as the population
    python benchmarks/null_rates.py --real RUN ...

A simulated world is the log-odds of a probe: clean, under the cut of E_Q (the exact question
tokens), and under the placebo cut. No model is needed: the script tests the package's computation
of intervals from P. With ``--real``, questions of a saved run are drawn with replacement at k*; in
the null, a coin decides for each question which of its two cuts is the placebo.

Tables: ``contrasts`` (share of runs whose pointwise interval lies below 0 / above 0), ``claims``
(statuses of the verdict, by the package's rule) and ``layers`` (thirty layers). Columns of
``claims``, in % of sweeps:

- ``stands``: all three contrasts, 95 % intervals. ``specific``: and ``row_specific_vs_placebo``.
- ``one or two``: a contrast, but not all, by its 98.3 % interval and a sign-flip p-value of at most
  1.7 %. ``reversed``: the same on the other side. ``any claim``: one of these or ``stands``.
- ``the placebo moves``: an interval excludes 0, but the cut itself is less than half of the
  difference, so nothing is claimed.
"""

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from anchorlens.loading.load_run import load_run
from anchorlens.protocols.knockout.findings import (
    CLAIMS,
    STANDS,
    knockout_findings,
    layers_standing,
)
from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult
from anchorlens.results.claims import Looks
from anchorlens.results.findings import NULL_MOVES, REVERSED, SPECIFIC, Findings
from anchorlens.results.findings import STANDS as STANDING
from anchorlens.statistics.bands import auc_band
from anchorlens.statistics.contrasts import (
    Arm,
    delta_p_vs_placebo,
    flip_rate,
    mean_of,
    row_specific_changes,
)
from anchorlens.statistics.delta import delta_p, is_flipped
from anchorlens.statistics.exchanged_arms import arm_differences, effects_of_cut
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED, gaps, group_curves, quantity_frame
from anchorlens.statistics.resamples import Estimate, Resamples
from anchorlens.statistics.sign_flips import sign_flip_p

Array = np.ndarray
Cut = Callable[[np.random.Generator, Array, Array], Array]
Sweep = tuple[Arm, Arm, Array, Array]
"""Both arms [layer row], labels (1: false answer) and questions."""
Draw = Callable[[np.random.Generator, int], Sweep]
OWN = "row_specific_effect (description)"
GAP = "gap difference (description)"
SHOWN = (*CLAIMS, OWN, GAP)


def by_question(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw standard normal noise; a quarter of its variance is shared by the two rows of a
    question.
    """
    half = rng.normal(size=(*shape[:-1], shape[-1] // 2))
    return 0.5 * np.repeat(half, 2, axis=-1) + np.sqrt(0.75) * rng.normal(size=shape)


def noise(size: float) -> Cut:
    """Return a cut that adds noise independent of the row to the log-odds."""
    return lambda rng, clean, truth: clean + size * by_question(rng, clean.shape)  # noqa: ARG005


def sized_by_question(rng: np.random.Generator, clean: Array, truth: Array) -> Array:  # noqa: ARG001
    """Add noise whose size differs between questions."""
    size = np.repeat(
        np.exp(0.6 * rng.normal(size=(*clean.shape[:-1], clean.shape[-1] // 2))), 2, axis=-1
    )
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
    hit = np.repeat(rng.random((*clean.shape[:-1], clean.shape[-1] // 2)) < 0.12, 2, axis=-1) & (
        rng.random(clean.shape) < 0.8
    )
    return clean + 0.1 * rng.normal(size=clean.shape) + hit * rng.choice([-5.0, 5.0], clean.shape)


def heavy_tailed(rng: np.random.Generator, clean: Array, truth: Array) -> Array:  # noqa: ARG001
    """Add noise from a t distribution with 2 degrees of freedom, in part shared by the rows of a
    question.
    """
    shared = np.repeat(rng.standard_t(2, (*clean.shape[:-1], clean.shape[-1] // 2)), 2, axis=-1)
    return clean + 0.7 * (0.6 * shared + 0.8 * rng.standard_t(2, clean.shape))


def falling(rng: np.random.Generator, clean: Array, truth: Array) -> Array:  # noqa: ARG001
    """Take 3 to 6 log-odds from the clean prediction in 15 % of the rows; the others hardly
    move.
    """
    lost = (rng.random(clean.shape) < 0.15) * rng.uniform(3, 6, clean.shape)
    return clean - np.sign(clean) * lost + 0.1 * rng.normal(size=clean.shape)


def world(rng: np.random.Generator, n: int, cuts: tuple[Cut, Cut], layers: int = 1) -> Sweep:
    """Draw a sweep of ``n`` questions with a true and a false answer each; noise is AR(0.8) over
    layers.
    """
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


CUTS: dict[str, tuple[Cut, Cut]] = {
    "noise": (noise(0.8), noise(0.8)),
    "noise, size by question": (sized_by_question, sized_by_question),
    "shift by question": (shifted_by_question, shifted_by_question),
    "size with confidence": (sized_with_confidence, sized_with_confidence),
    "size against confidence": (sized_against_confidence, sized_against_confidence),
    "heavy-tailed": (heavy_tailed, heavy_tailed),
    "sparse": (sparse, sparse),
    "skewed": (falling, falling),
    "both attenuate, cut noisier": (attenuated(1.6), attenuated(0.4)),
    "cut only noisier than placebo": (noise(1.2), noise(0.4)),
    "cut halves the logit": (halved, noise(0.4)),
    "cut erases the truth part": (erased, noise(0.4)),
    "cut erases it in 30 % of rows": (erased_in_some, noise(0.4)),
}
WORLDS: dict[str, Draw] = {name: partial(world, cuts=cuts) for name, cuts in CUTS.items()}
NULLS = tuple(CUTS)[:8]


def real_worlds(folder: str) -> dict[str, Draw]:
    """Return the null and the effect of each knockout of a saved run, at k*."""
    worlds: dict[str, Draw] = {}
    for result in load_run(folder):
        if isinstance(result, PathwayResult) and RANDOM in (tables := result.tables()):
            k, cluster = [result.layers.index(result.shown_layer)], result.draws.cluster
            own, other = (
                Arm(tables[c].before[k], tables[c].after[k]) for c in (SIZE_MATCHED, RANDOM)
            )
            rows_of = [np.flatnonzero(cluster == q) for q in np.unique(cluster)]
            for name, is_null in (("null", True), ("as measured", False)):
                draw = partial(
                    real_world,
                    own=own,
                    other=other,
                    labels=result.labels,
                    rows_of=rows_of,
                    is_null=is_null,
                )
                worlds[f"{result.dataset}, {name}"] = draw
    return worlds


def real_world(
    rng: np.random.Generator,
    n: int,
    *,
    own: Arm,
    other: Arm,
    labels: Array,
    rows_of: list[Array],
    is_null: bool,
) -> Sweep:
    """Draw questions of a saved sweep with replacement; in a null, a coin for each question
    exchanges its arms.
    """
    picked = [rows_of[i] for i in rng.integers(0, len(rows_of), n)]
    rows, ids = np.concatenate(picked), np.repeat(np.arange(n), [len(one) for one in picked])
    exchanged = (rng.random(n) < 0.5)[ids] & is_null
    first, second = own.after[:, rows], other.after[:, rows]
    before = own.before[:, rows]
    return (
        Arm(before, np.where(exchanged, second, first)),
        Arm(before, np.where(exchanged, first, second)),
        labels[rows],
        ids,
    )


def contrasts(
    own: Arm, other: Arm, label: Array, draws: Resamples, seed: int
) -> dict[str, Estimate]:
    """Compute all four contrasts, and the row-specific effect of the cut alone."""
    cut, placebo = (
        row_specific_changes(arm, label, "confidence", draws.cluster, seed) for arm in (own, other)
    )
    return {
        "delta_p_vs_placebo": delta_p_vs_placebo(own, other, label, "confidence", draws),
        "flip_rate": flip_rate(own, other, draws),
        "auc_drop": draws.aucs(own.after, label, minus=other.after),
        "row_specific_vs_placebo": mean_of(cut - placebo, draws),
        OWN: mean_of(cut, draws),
    }


def gap_difference(own: Arm, other: Arm, label: Array, draws: Resamples) -> Estimate:
    """Compute the gap between the pathways minus the placebo's gap; shows why it is only a
    description.
    """
    curves = {
        name: group_curves(
            delta_p(arm.before, arm.after, label, "confidence"),
            arm.before,
            is_flipped(arm.before, arm.after),
            draws,
        )
        for name, arm in ((SIZE_MATCHED, own), (RANDOM, other))
    }
    return next(estimate for name, _, estimate in gaps(curves) if name == "gap_difference")


def findings_of(
    sweep: Sweep, found: dict[str, Estimate], *, intervals_alone: bool = False
) -> Findings:
    """Return the findings of a simulated sweep of one layer with the contrasts ``found``, computed
    as for a measured one; with ``intervals_alone`` without sign flips.
    """
    own, other, label, ids = sweep
    flips: dict[str, float] = {}
    if not intervals_alone:
        differences = arm_differences(own, other, label, "confidence")
        flips = {name: float(sign_flip_p(one, ids)[0]) for name, one in differences.items()}
    claimed = {name: one for name, one in found.items() if name in CLAIMS}
    frames = [
        quantity_frame([0], name, RANDOM, one, rate=name == "flip_rate")
        for name, one in claimed.items()
    ]
    # A probe with signal; its AUCs stand in the headline only.
    n = len(np.unique(ids))
    ends = {"ci_low": 0.8, "ci_high": 1.0, "sim_low": 0.8, "sim_high": 1.0}
    for name, control in (("auc", "none"), ("auc_after", SIZE_MATCHED), ("auc_after", RANDOM)):
        row = {"quantity": name, "control": control, "layer": 0, "value": 0.9, **ends}
        frames.append(pd.DataFrame([{**row, "n": n, "n_clusters": n}]))
    config = {
        "readout": "probe",
        "delta_kind": "confidence",
        "placebos": True,
        "anchors": ["exact_question"],
    }
    alone = effects_of_cut(own, other, label, "confidence")
    effects = {name: {0: float(values[0])} for name, values in alone.items()}
    effects["row_specific_vs_placebo"] = {0: float(found[OWN].value[0])}
    return knockout_findings(
        {"config": config, "probe": {"probe_layer": 0}},
        0,
        pd.concat(frames),
        Looks.of(claimed, STANDS, 0, flips=flips),
        effects=effects,
    )


def statuses_of(findings: Findings) -> dict[str, bool]:
    """Return whether a sweep has each status of the table ``claims``."""
    status = {one.quantity: one.status for one in findings.statements}
    n = sum(status[name] == STANDING for name in STANDS)
    held = {
        "stands": n == len(STANDS),
        "specific": status["row_specific_vs_placebo"] == SPECIFIC,
        "one or two": 0 < n < len(STANDS),
        "reversed": any(status[name] == REVERSED for name in STANDS),
        "the placebo moves": any(status[name] == NULL_MOVES for name in STANDS),
    }
    held["any claim"] = held["stands"] or held["one or two"] or held["reversed"]
    return held


def sides_of(found: dict[str, Estimate]) -> dict[str, int]:
    """Return the side of 0 on which the pointwise interval of each contrast lies at the only layer,
    else 0.
    """
    sides: dict[str, int] = {}
    for name, estimate in found.items():
        made = quantity_frame([0], name, RANDOM, estimate, rate=name == "flip_rate").iloc[0]
        sides[name] = int(made["ci_low"] > 0) - int(made["ci_high"] < 0)
    return sides


def sweep_rates(
    n: int,
    draw: Draw,
    *,
    runs: int,
    seed: int,
    resamples: int,
    intervals_alone: bool = False,
) -> dict[str, float]:
    """Compute the cells of a row of the tables ``contrasts`` (``name <``, ``name >``) and
    ``claims``.
    """
    count: dict[str, float] = {}
    for run in range(runs):
        sweep = draw(np.random.default_rng([seed, n, run]), n)
        own, other, label, ids = sweep
        draws = Resamples.of(ids, n_resamples=resamples, seed=run)
        found = contrasts(own, other, label, draws, run) | {
            GAP: gap_difference(own, other, label, draws)
        }
        sides = sides_of(found)
        held = {
            f"{name} {side}": sides[name] == sign
            for name in SHOWN
            for side, sign in (("<", -1), (">", 1))
        }
        held |= statuses_of(findings_of(sweep, found, intervals_alone=intervals_alone))
        count = {name: count.get(name, 0) + 100 * value / runs for name, value in held.items()}
    return count


def layer_rates(
    n: int, cuts: tuple[Cut, Cut], *, runs: int, seed: int, resamples: int, layers: int = 30
) -> dict[str, float]:
    """Compute how often bands cover 0 (AUC: 0.5) at all layers, and how often the verdict names a
    layer.
    """
    count: dict[str, float] = {}
    for run in range(runs):
        rng = np.random.default_rng([seed, n, run, 30])
        own, other, label, ids = world(rng, n, cuts, layers)
        draws = Resamples.of(ids, n_resamples=resamples, seed=run)
        found = contrasts(own, other, label, draws, run)
        frames = {
            name: quantity_frame(range(layers), name, RANDOM, found[name], rate=name == "flip_rate")
            for name in CLAIMS
        }
        held = {
            name: bool(((one["sim_low"] <= 0) & (one["sim_high"] >= 0)).all())
            for name, one in frames.items()
        }
        one = frames["delta_p_vs_placebo"]
        held["pointwise delta_p_vs_placebo"] = bool(
            ((one["ci_low"] <= 0) & (one["ci_high"] >= 0)).all()
        )
        read = auc_band(draws.aucs(_along_layers(rng, (layers, 2 * n)), label))
        held["auc"] = bool(((read.sim_low <= 0.5) & (read.sim_high >= 0.5)).all())
        alone = effects_of_cut(own, other, label, "confidence")
        effects = {name: dict(enumerate(values.tolist())) for name, values in alone.items()}
        standing = layers_standing(pd.concat([frames[name] for name in STANDS]), effects)
        held["names a layer"] = bool(standing)
        count = {name: count.get(name, 0) + 100 * value / runs for name, value in held.items()}
    return count


STATUSES = ("stands", "specific", "one or two", "reversed", "any claim", "the placebo moves")


def print_sweeps(worlds: dict[str, Draw], tables: list[str], args: argparse.Namespace) -> None:
    """Print the tables ``contrasts`` and ``claims``."""
    rates = {
        (name, n): sweep_rates(
            n,
            draw,
            runs=args.runs,
            seed=args.seed,
            resamples=args.resamples,
            intervals_alone=args.intervals_alone,
        )
        for name, draw in worlds.items()
        for n in args.sizes
    }
    if "contrasts" in tables:
        cells = {
            key: [f"{found[f'{name} <']:.1f} / {found[f'{name} >']:.1f}" for name in SHOWN]
            for key, found in rates.items()
        }
        print_table(
            "Share of runs (%) whose pointwise interval lies below 0 / above 0", SHOWN, cells
        )
    if "claims" in tables:
        cells = {key: [f"{found[name]:.1f}" for name in STATUSES] for key, found in rates.items()}
        print_table("Claims of the verdict, share of sweeps (%)", STATUSES, cells)


def print_table(
    title: str, columns: tuple[str, ...], cells: dict[tuple[str, int], list[str]]
) -> None:
    print(
        f"\n{title}\n\n| world | questions | {' | '.join(columns)} |\n| --- | ---"
        f" |{' --- |' * len(columns)}"
    )
    for (name, n), row in cells.items():
        print(f"| {name} | {n} | {' | '.join(row)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=1000, help="simulated sweeps per cell of a table"
    )
    parser.add_argument("--resamples", type=int, default=1000, help="resamples per sweep")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=(20, 40, 100), help="numbers of questions"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--intervals-alone",
        action="store_true",
        help="make claims without the p-values of sign flips, as a former rule did",
    )
    parser.add_argument("--worlds", help="names of worlds, separated by semicolons (default: all)")
    parser.add_argument(
        "--real",
        nargs="+",
        metavar="RUN",
        help="run directories whose questions are the population",
    )
    parser.add_argument(
        "--tables",
        default="contrasts,claims,layers",
        help="tables to print, separated by commas (default: all)",
    )
    args = parser.parse_args()
    tables = args.tables.split(",")
    worlds = (
        {name: draw for folder in args.real for name, draw in real_worlds(folder).items()}
        if args.real
        else WORLDS
    )
    worlds = {name: worlds[name] for name in args.worlds.split(";")} if args.worlds else worlds
    if {"contrasts", "claims"} & set(tables):
        print_sweeps(worlds, tables, args)
    if "layers" in tables and not args.real:
        rates = {
            (name, n): layer_rates(
                n, CUTS[name], runs=args.runs, seed=args.seed, resamples=args.resamples
            )
            for name in NULLS
            if name in worlds
            for n in args.sizes
        }
        columns = (*CLAIMS, "auc", "pointwise delta_p_vs_placebo", "names a layer")
        cells = {key: [f"{found[name]:.1f}" for name in columns] for key, found in rates.items()}
        print_table(
            "Thirty layers: share of sweeps (%) whose band contains 0 (AUC: 0.5) at all of them",
            columns,
            cells,
        )


if __name__ == "__main__":
    main()
