"""Estimate how often a knockout claims something where relations differ and the cut does not.

    python benchmarks/null_rates_relations.py --runs 600

Simulated contrasts at one layer without a model. Every relation has its own attenuation under the
cut and another one under the placebo, both from one lognormal distribution (sd of the log .6 or
1.2), so that cut and placebo do the same on average over relations. Claims are made with whole
relations drawn, and for relations of one size also with questions drawn.

Relations: ``equal``, 20 of one size; ``unequal``, 20 whose sizes fall as 1/1, 1/2, 1/3, ...;
``half alone``, ten of one size, and a relation of its own for each question of the other half.

Columns, in percent of sweeps: all three contrasts stand; one or two stand; one is reversed; any of
these; a contrast has a sign-flip p-value of at most 5 % after the factor of several looks.
"""

import argparse

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.protocols.knockout.findings import STANDS
from anchorlens.results.claims import Looks, claim_statements
from anchorlens.results.estimates import estimates_at
from anchorlens.statistics.contrasts import Arm, delta_p_vs_placebo, flip_rate
from anchorlens.statistics.exchanged_arms import arm_differences, effects_of_cut
from anchorlens.statistics.pathways import RANDOM, quantity_frame
from anchorlens.statistics.resamples import Resamples
from anchorlens.statistics.sign_flips import sign_flip_p

KIND = "confidence"
FLOOR = 1e-4
Array = npt.NDArray[np.float64]


def relation_of(kind: str, questions: int) -> npt.NDArray[np.intp]:
    """Return the relation of each question."""
    place = np.arange(questions) / questions
    if kind == "equal":
        return (place * 20).astype(np.intp)
    if kind == "unequal":
        ends = np.cumsum(1 / np.arange(1, 21))
        return np.searchsorted(ends / ends[-1], place, side="right").astype(np.intp)
    assert kind == "half alone"
    return np.where(place < 0.5, place * 20, np.arange(questions) + 20).astype(np.intp)


def draw(
    rng: np.random.Generator, kind: str, questions: int, spread: float
) -> tuple[Arm, Arm, Array, npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Draw cut, placebo, labels, question and relation of each row."""
    question = np.repeat(np.arange(questions), 2)
    relation = relation_of(kind, questions)[question]
    label = np.tile([0.0, 1.0], questions)
    clean = 1.2 * (2 * label - 1) + rng.normal(size=len(label))

    def change() -> Array:
        kept = np.exp(rng.normal(0, spread, relation.max() + 1))[relation]
        return kept * clean + 0.8 * rng.normal(size=len(clean))

    before, cut, placebo = (1 / (1 + np.exp(-z))[None] for z in (clean, change(), change()))
    return Arm(before, cut), Arm(before, placebo), label, question, relation


def statuses(
    arms: tuple[Arm, Arm],
    label: Array,
    question: npt.NDArray[np.intp],
    clusters: npt.NDArray[np.intp],
    resamples: int,
) -> tuple[list[str], bool]:
    """Return the statuses of the contrasts, and whether one has a p-value of at most 5 %."""
    cut, placebo = arms
    draws = Resamples.of(question, clusters=clusters, n_resamples=resamples)
    estimates = {
        "delta_p_vs_placebo": delta_p_vs_placebo(cut, placebo, label, KIND, draws),
        "flip_rate": flip_rate(cut, placebo, draws, FLOOR),
        "auc_drop": draws.aucs(cut.after, label, minus=placebo.after),
    }
    frames = [
        quantity_frame([0], name, RANDOM, one, rate=name == "flip_rate")
        for name, one in estimates.items()
    ]
    differences = arm_differences(cut, placebo, label, KIND, FLOOR)
    flips = {name: float(sign_flip_p(one, clusters)[0]) for name, one in differences.items()}
    effects = effects_of_cut(cut, placebo, label, KIND, FLOOR)
    statements = claim_statements(
        STANDS,
        estimates_at(pd.concat(frames), 0),
        Looks.of(estimates, STANDS, 0, flips=flips),
        0,
        effects={name: float(one[0]) for name, one in effects.items()},
        floor=FLOOR,
    )
    return [one.status for one in statements], min(flips.values()) <= 0.05 / len(flips)


def rates(
    kind: str, questions: int, spread: float, *, runs: int, by_relation: bool, resamples: int
) -> Array:
    """Return the percentages of a cell of the table."""
    counts = np.zeros(5)
    for run in range(runs):
        rng = np.random.default_rng([run, questions, len(kind), round(10 * spread)])
        cut, placebo, label, question, relation = draw(rng, kind, questions, spread)
        clusters = relation if by_relation else question
        found, is_small = statuses((cut, placebo), label, question, clusters, resamples)
        n = found.count("stands")
        is_reversed = "reversed" in found
        counts += (
            n == len(found),
            0 < n < len(found),
            is_reversed,
            n > 0 or is_reversed,
            is_small,
        )
    return 100 * counts / runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200, help="sweeps per cell (default: 200)")
    parser.add_argument("--resamples", type=int, default=500, help="resamples (default: 500)")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=(20, 40, 100, 300), help="numbers of questions"
    )
    args = parser.parse_args()
    print("| relations | log sd | questions | drawn | stands | one or two | reversed | any | p |")
    print("| --- |" + " --- |" * 8)
    for kind in ("equal", "unequal", "half alone"):
        for spread in (0.6, 1.2):
            for questions in args.sizes:
                for by_relation in (True, False) if kind == "equal" else (True,):
                    found = rates(
                        kind,
                        questions,
                        spread,
                        runs=args.runs,
                        by_relation=by_relation,
                        resamples=args.resamples,
                    )
                    cells = " | ".join(f"{one:.1f}" for one in found)
                    unit = "relations" if by_relation else "questions"
                    print(f"| {kind} | {spread} | {questions} | {unit} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
