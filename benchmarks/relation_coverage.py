"""Measure how often the bands of a swap cover the mean over relations, on the rows of real sweeps.

    python benchmarks/swap_nulls.py popqa-sample --limit 220 --out runs/nulls
    python benchmarks/swap_nulls.py --relations DIR --limit 240 --out runs/nulls
    python benchmarks/relation_coverage.py runs/nulls/popqa-sample runs/nulls/relations

The relations of all runs are the population. A draw takes 10 or 20 of them with replacement, with
all their questions; the truth is the mean over all questions of the population, each relation drawn
equally often. Coverage: share of draws in % whose simultaneous band over both anchors and all
layers contains the truth everywhere, drawn by relation and by question.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

import anchorlens as al
from anchorlens.constants import NULL_CONTROLS
from anchorlens.statistics.bands import band
from anchorlens.statistics.resamples import Resamples

NULLS = ("same_role", "norm_matched")
_ROW = ["cluster", "question_id"]


def differences(sweep: al.SweepResult, null: str) -> pd.DataFrame:
    """Return curve minus a null of each question, [question, anchor and layer]."""
    samples = sweep.samples(all_columns=True)
    samples = samples[~samples["by_construction"].astype(bool)]
    cells = samples.pivot_table(
        index=[*_ROW, "donor_id", "anchor", "layer"], columns="control", values="effect"
    )
    gaps = (cells["none"] - cells[NULL_CONTROLS[null]]).dropna()
    means = gaps.groupby([*_ROW, "anchor", "layer"]).mean()
    return means.unstack(["anchor", "layer"])


def coverage(
    rows: pd.DataFrame, n_relations: int, runs: int, *, by_relation: bool
) -> tuple[float, float]:
    """Return the shares of draws whose simultaneous band covers the truth at all cells, and of
    cells whose pointwise interval does.
    """
    values = rows.to_numpy(dtype=np.float64)
    relations = rows.index.get_level_values("cluster").to_numpy()
    names = np.unique(relations)
    members = [np.flatnonzero(relations == name) for name in names]
    truth = np.nansum(values, axis=0) / (~np.isnan(values)).sum(axis=0)
    covered: list[bool] = []
    pointwise: list[float] = []
    for seed in range(runs):
        rng = np.random.default_rng([seed, n_relations])
        drawn = rng.integers(len(names), size=n_relations)
        index = np.concatenate([members[i] for i in drawn])
        unit = np.repeat(np.arange(n_relations), [len(members[i]) for i in drawn])
        table = values[index]
        clusters: npt.NDArray[np.intp] | None = unit if by_relation else None
        draws = Resamples.of(np.arange(len(index)), clusters=clusters, n_resamples=400, seed=seed)
        made = band(draws.means(table, ~np.isnan(table)), limit=100)
        covered.append(bool(((made.sim_low <= truth) & (truth <= made.sim_high)).all()))
        pointwise.append(float(((made.low <= truth) & (truth <= made.high)).mean()))
    return float(np.mean(covered)), float(np.mean(pointwise))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="+", type=Path, help="runs of swaps, with relations")
    parser.add_argument("--runs", type=int, default=300, help="draws of each cell (default: 300)")
    parser.add_argument("--least", type=int, default=3, help="questions of a relation (default: 3)")
    args = parser.parse_args()
    sweeps = [sweep for run in args.run for sweep in al.load_run(run)]
    print("| null | relations drawn | by relation | by question | pointwise: relation | question |")
    print("| --- | --- | --- | --- | --- | --- |")
    for null in NULLS:
        rows = pd.concat([differences(sweep, null) for sweep in sweeps])
        sizes = rows.groupby(level="cluster").size()
        rows = rows[rows.index.get_level_values("cluster").isin(sizes[sizes >= args.least].index)]
        if null == NULLS[0]:
            kept = rows.index.get_level_values("cluster").nunique()
            print(f"Population: {len(rows)} questions of {kept} relations.")
        for n_relations in (10, 20):
            found = [
                coverage(rows, n_relations, args.runs, by_relation=one) for one in (True, False)
            ]
            cells = [f"{100 * one[part]:.1f}" for part in (0, 1) for one in found]
            print(f"| {null} | {n_relations} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
