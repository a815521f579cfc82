"""Claims of studies of eight sweeps, before and after the adjustment over sweeps.

    # the tables of docs/several_looks.md; about half an hour on one core
    python benchmarks/null_rates_study.py
    python benchmarks/null_rates_study.py --runs 20    # a quick estimate

Knockouts are simulated as in ``benchmarks/null_rates.py``; findings and adjustment are those of the
package. Swaps and patch sweeps are simulated as in ``benchmarks/null_rates_swap.py`` and
``benchmarks/null_rates_patch.py`` (30 layers, 8 places), without any effect: there a claim is left
after the adjustment if its p-value is at most 0.05 / 8, which is the first step of Holm's method.
"""

import argparse

import null_rates_patch
import null_rates_swap
import numpy as np
from null_rates import Cut, contrasts, erased_in_some, findings_of, noise, world

from anchorlens.protocols.knockout.findings import STANDS
from anchorlens.results.adjusted_claims import adjust_findings
from anchorlens.results.findings import ALPHA, REVERSED, SPECIFIC, Findings
from anchorlens.results.findings import STANDS as STANDING
from anchorlens.statistics.resamples import Resamples

SWEEPS, WITH_EFFECT = 8, 2
"""Sweeps of a study, and how many of them have an effect."""
PLACES = 8
"""Places of a patch sweep's grid of 30 layers."""
CELLS: tuple[tuple[str, tuple[Cut, Cut], str, tuple[Cut, Cut], int], ...] = (
    (
        "noise",
        (noise(0.8), noise(0.8)),
        "erased in 30 % of rows",
        (erased_in_some, noise(0.4)),
        100,
    ),
    ("noise", (noise(0.8), noise(0.8)), "erased in 30 % of rows", (erased_in_some, noise(0.4)), 40),
)
"""Name and cuts of sweeps without an effect, name and cuts of those with one, and number of
questions.
"""


NULL_STUDIES = (
    ("swap", "normal", 40),
    ("swap", "sparse", 40),
    ("swap", "relations", 100),
    ("patch", "normal", 40),
    ("patch", "sparse", 40),
    ("patch", "mixed", 40),
)
"""Protocol, world and number of questions or pairs of studies without any effect."""


def findings_of_run(n: int, cuts: tuple[Cut, Cut], run: int, *, seed: int) -> Findings:
    """Return the findings of one simulated knockout, with p-values of sign flips."""
    sweep = world(np.random.default_rng([seed, n, run, 8]), n, cuts)
    own, other, label, ids = sweep
    draws = Resamples.of(ids, n_resamples=1000, seed=run)
    return findings_of(sweep, contrasts(own, other, label, draws, run))


def studies(
    n: int, null: tuple[Cut, Cut], effect: tuple[Cut, Cut], *, runs: int, seed: int
) -> dict[str, float]:
    """Compute how often studies of ``SWEEPS`` sweeps claim something, before and after the
    adjustment over sweeps.

    Returns:
        ``null``: share of studies without an effect that claim something. ``stands``, ``specific``:
        share of sweeps with the effect ``effect``, two in a study, in which all three contrasts
        stand, and are specific. ``false``: share of these studies that claim something in another
        sweep. Each ``alone`` (in the sweep) and ``Holm``.
    """
    made = {
        kind: [findings_of_run(n, cuts, run, seed=seed + k) for run in range(runs * size)]
        for k, (kind, cuts, size) in enumerate(
            (("null", null, SWEEPS), ("effect", effect, WITH_EFFECT))
        )
    }
    found = {
        f"{name}, {how}": 0.0
        for name in ("null", "stands", "specific", "false")
        for how in ("alone", "Holm")
    }
    for study in range(runs):
        nothing, something = (
            one[study * len(one) // runs : (study + 1) * len(one) // runs] for one in made.values()
        )
        for true, sweeps in ((0, nothing), (WITH_EFFECT, [*something, *nothing[WITH_EFFECT:]])):
            frame = adjust_findings([({"run_id": str(at)}, one) for at, one in enumerate(sweeps)])
            has_effect = frame["run_id"].astype(int) < true
            for how, column in (("alone", "status_alone"), ("Holm", "status")):
                claimed = frame[column].isin((STANDING, SPECIFIC, REVERSED))
                found[f"{'false' if true else 'null'}, {how}"] += (
                    claimed & ~has_effect
                ).any() / runs
                stands = (
                    frame[has_effect & (frame[column] == STANDING)]
                    .groupby("run_id")
                    .size()
                    .eq(len(STANDS))
                )
                found[f"stands, {how}"] += stands.sum() / (WITH_EFFECT * runs)
                found[f"specific, {how}"] += (has_effect & (frame[column] == SPECIFIC)).sum() / (
                    WITH_EFFECT * runs
                )
    return found


def null_studies(protocol: str, world: str, n: int, runs: int) -> tuple[float, float]:
    """Return the shares of studies of ``SWEEPS`` sweeps without an effect that claim something,
    before and after the adjustment over sweeps.

    Args:
        protocol: ``swap`` or ``patch``.
        world: World of ``null_rates_swap.py`` or ``null_rates_patch.py``.
        n: Number of questions or pairs of a sweep.
        runs: Number of studies.
    """
    alone = jointly = 0
    for study in range(runs):
        seeds = range(SWEEPS * study, SWEEPS * (study + 1))
        claiming = [seed for seed in seeds if _claims_something(protocol, world, n, seed, 1.0)]
        alone += bool(claiming)
        share = ALPHA / SWEEPS
        jointly += any(_claims_something(protocol, world, n, seed, share) for seed in claiming)
    return alone / runs, jointly / runs


def _claims_something(protocol: str, world: str, n: int, seed: int, largest_p: float) -> bool:
    if protocol == "patch":
        effects = null_rates_patch.draw(world, n, seed, PLACES)
        return bool(null_rates_patch.claimed(effects, largest_p=largest_p).any())
    delta, clusters = null_rates_swap.draw_sweep(world, n, seed)
    found = null_rates_swap.claims(delta, clusters=clusters, largest_p=largest_p)
    return any(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=200, help="simulated studies of each kind in a row of the table"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(
        "| no effect | effect in two sweeps | questions | null: claims | effect: stands | effect:"
        " specific | others: claims |"
    )
    print("| --- |" + " --- |" * 6)
    for null, null_cuts, effect, cuts, n in CELLS:
        found = studies(n, null_cuts, cuts, runs=args.runs, seed=args.seed)
        pairs = (
            (found[f"{name}, alone"], found[f"{name}, Holm"])
            for name in ("null", "stands", "specific", "false")
        )
        cells = [f"{100 * alone:.1f} / {100 * jointly:.1f}" for alone, jointly in pairs]
        print(f"| {null} | {effect} | {n} | " + " | ".join(cells) + " |", flush=True)
    print("\n| protocol | no effect | questions | null: claims |\n| --- | --- | --- | --- |")
    for protocol, kind, n in NULL_STUDIES:
        rates = null_studies(protocol, kind, n, args.runs)
        text = " / ".join(f"{100 * rate:.1f}" for rate in rates)
        print(f"| {protocol} | {kind} | {n} | {text} |", flush=True)


if __name__ == "__main__":
    main()
