"""Claims of studies of several knockout sweeps, before and after the adjustment over sweeps.

python benchmarks/null_rates_study.py                 # the table of docs/several_looks.md; about eight minutes on one core
python benchmarks/null_rates_study.py --runs 20       # a quick estimate

Sweeps are simulated as in ``benchmarks/null_rates.py``; findings and adjustment are those of the package.
"""

import argparse

import numpy as np
import pandas as pd
from null_rates import Cut, contrasts, erased_in_some, noise, world

from anchorlens.protocols.knockout.findings import CLAIMS, STANDS, knockout_findings
from anchorlens.results.adjusted_claims import adjust_findings
from anchorlens.results.claims import Looks
from anchorlens.results.findings import REVERSED, SPECIFIC, Findings
from anchorlens.results.findings import STANDS as STANDING
from anchorlens.statistics.pathways import RANDOM, SIZE_MATCHED, quantity_frame
from anchorlens.statistics.resamples import Resamples

SWEEPS, WITH_EFFECT = 8, 2
"""Sweeps of a study, and how many of them have an effect."""
CELLS: tuple[tuple[str, tuple[Cut, Cut], str, tuple[Cut, Cut], int], ...] = (
    ("noise", (noise(0.8), noise(0.8)), "erased in 30 % of rows", (erased_in_some, noise(0.4)), 100),
    ("noise", (noise(0.8), noise(0.8)), "erased in 30 % of rows", (erased_in_some, noise(0.4)), 40),
)
"""Name and cuts of sweeps without an effect, name and cuts of those with one, and number of questions."""


def findings_of(n: int, cuts: tuple[Cut, Cut], run: int, *, seed: int, resamples: int = 1000) -> Findings:
    """Return the findings of one simulated sweep, computed as for a measured one."""
    rng = np.random.default_rng([seed, n, run, 8])
    own, other, label, ids = world(rng, n, cuts)
    draws = Resamples.of(ids, n_resamples=resamples, seed=run)
    claimed = {name: one for name, one in contrasts(own, other, label, draws, run).items() if name in CLAIMS}
    frame = pd.concat(quantity_frame([0], name, RANDOM, one, rate=name == "flip_rate") for name, one in claimed.items())
    # A probe with signal; its AUCs stand in the headline only.
    aucs = pd.DataFrame({"quantity": ["auc", "auc_after", "auc_after"], "control": ["none", SIZE_MATCHED, RANDOM]})
    frame = pd.concat([frame, aucs.assign(layer=0, value=0.9, ci_low=0.8, ci_high=1.0, sim_low=0.8, sim_high=1.0, n=n)])
    config = {"readout": "probe", "delta_kind": "confidence", "placebos": True, "anchors": ["exact_question"]}
    return knockout_findings({"config": config, "probe": {"probe_layer": 0}}, 0, frame, Looks.of(claimed, STANDS, 0))


def studies(n: int, null: tuple[Cut, Cut], effect: tuple[Cut, Cut], *, runs: int, seed: int) -> dict[str, float]:
    """Compute how often studies of ``SWEEPS`` sweeps claim something, before and after the adjustment over sweeps.

    Returns:
        ``null``: share of studies without an effect that claim something. ``stands``, ``specific``: share of sweeps with the effect
        ``effect``, two in a study, in which all three contrasts stand, and are specific. ``false``: share of these studies that
        claim something in another sweep. Each ``alone`` (in the sweep) and ``Holm``.
    """
    made = {
        kind: [findings_of(n, cuts, run, seed=seed + k) for run in range(runs * size)]
        for k, (kind, cuts, size) in enumerate((("null", null, SWEEPS), ("effect", effect, WITH_EFFECT)))
    }
    found = {f"{name}, {how}": 0.0 for name in ("null", "stands", "specific", "false") for how in ("alone", "Holm")}
    for study in range(runs):
        nothing, something = (one[study * len(one) // runs : (study + 1) * len(one) // runs] for one in made.values())
        for true, sweeps in ((0, nothing), (WITH_EFFECT, [*something, *nothing[WITH_EFFECT:]])):
            frame = adjust_findings([({"run_id": str(at)}, one) for at, one in enumerate(sweeps)])
            has_effect = frame["run_id"].astype(int) < true
            for how, column in (("alone", "status_alone"), ("Holm", "status")):
                claimed = frame[column].isin((STANDING, SPECIFIC, REVERSED))
                found[f"{'false' if true else 'null'}, {how}"] += (claimed & ~has_effect).any() / runs
                stands = frame[has_effect & (frame[column] == STANDING)].groupby("run_id").size().eq(len(STANDS))
                found[f"stands, {how}"] += stands.sum() / (WITH_EFFECT * runs)
                found[f"specific, {how}"] += (has_effect & (frame[column] == SPECIFIC)).sum() / (WITH_EFFECT * runs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="simulated studies of each kind in a row of the table")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print("| no effect | effect in two sweeps | questions | null: claims | effect: stands | effect: specific | others: claims |")
    print("| --- |" + " --- |" * 6)
    for null, null_cuts, effect, cuts, n in CELLS:
        found = studies(n, null_cuts, cuts, runs=args.runs, seed=args.seed)
        pairs = ((found[f"{name}, alone"], found[f"{name}, Holm"]) for name in ("null", "stands", "specific", "false"))
        cells = [f"{100 * alone:.1f} / {100 * jointly:.1f}" for alone, jointly in pairs]
        print(f"| {null} | {effect} | {n} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
