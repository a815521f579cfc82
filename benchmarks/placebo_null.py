"""Test the placebo probe of shuffled labels: how often its gap differs from the measured one if
states hold no truth signal.

    # rates at 40, 100 and 200 questions, about ten minutes on one core
    python benchmarks/placebo_null.py
    python benchmarks/placebo_null.py --worlds 50    # a quick estimate

States are the sum of a question part (the same for its true and its false row) and noise, without a
truth signal. The cut removes half of the question part. Labels are shuffled over rows, or within
questions as in the package, each with one draw and with several. Gaps, resamples and bands are
computed by the package.
"""

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from anchorlens.probing.cross_fitting import CrossFittedProbes
from anchorlens.probing.fit_probes import DRAWS, SHUFFLED, fit_placebo_probes, match_confidence
from anchorlens.probing.probes import LayerProbes, fit_layers
from anchorlens.probing.truth_rows import TruthRows
from anchorlens.questions.example import Example, Span
from anchorlens.questions.tokens import Answer, TokenRow
from anchorlens.statistics.bands import band
from anchorlens.statistics.delta import delta_p, is_flipped, support
from anchorlens.statistics.pathways import A, Q, group_curves
from anchorlens.statistics.resamples import Estimate, Resamples

Array = np.ndarray
WIDTH = 128


def made_rows(split: Sequence[str]) -> TruthRows:
    """Make a true and a false row for each question; ``split``: the split of each question."""
    rows: list[TokenRow] = []
    for q in range(len(split)):
        example = Example(
            example_id=f"e{q}",
            question_id=f"q{q}",
            dataset="made",
            question="",
            answers=(f"answer {q}",),
            subject=Span(0, 0),
            property=Span(0, 0),
        )
        answers = (Answer("", Span(0, 0), "gold", label) for label in (0, 1))
        rows += [
            TokenRow(
                id=f"e{q}|{answer.label}",
                group=example.question_id,
                ids=(),
                positions={},
                example=example,
                text="",
                question="",
                answer=answer,
                prompt_length=0,
            )
            for answer in answers
        ]
    return TruthRows(tuple(rows), (tuple(part for part in split for _ in (0, 1)),), ())


def shuffled_over_rows(rows: TruthRows, rng: np.random.Generator) -> Array:
    """Shuffle labels over rows (the earlier placebo): in a split, half of the true and half of the
    false rows get each label.
    """
    labels = rows.labels
    for name in ("train", "validation"):
        for label in (0, 1):
            where = np.array([i for i in rows.of(name) if rows.labels[i] == label])
            rng.shuffle(where)
            labels[where] = np.arange(len(where)) < (len(where) + label) // 2
    return labels


def gap(
    probes: CrossFittedProbes,
    rows: TruthRows,
    clean: torch.Tensor,
    cut: torch.Tensor,
    draws: Resamples,
) -> tuple[float, Array]:
    """Compute the gap Q minus A of one probe at its only layer, with its resamples."""
    test = rows.of("test")
    ids, labels = [rows.question_ids[i] for i in test], rows.labels[test]
    before, after = (probes.predict(states[:, test], ids) for states in (clean, cut))
    start = support(before, before, labels, "confidence")
    curves = group_curves(
        delta_p(before, after, labels, "confidence"), start, is_flipped(before, after), draws
    )
    return (
        float(curves[Q].value[0] - curves[A].value[0]),
        curves[Q].draws[:, 0] - curves[A].draws[:, 0],
    )


def world(n: int, question: float, seed: int) -> dict[str, tuple[float, float]]:
    """Return the interval of the measured gap minus the placebo gap, for every placebo."""
    rng = np.random.default_rng([seed, n])
    split = rng.permutation(
        np.repeat(
            ["train", "validation", "test"], [round(0.45 * n), round(0.15 * n), n - round(0.6 * n)]
        )
    )
    rows = made_rows(split.tolist())
    asked = np.repeat(question * rng.normal(size=(n, WIDTH)), 2, axis=0)
    noise, more = rng.normal(size=(2, 2 * n, WIDTH))
    clean, cut = (
        torch.tensor(x[None]).float() for x in (asked + noise, 0.5 * asked + noise + 0.5 * more)
    )
    ids = [rows.question_ids[i] for i in rows.of("test")]
    draws = Resamples.of(ids, n_resamples=300, seed=seed)
    read = fit_layers([0], clean, rows.labels, rows.question_ids, rows.split)
    fitted = CrossFittedProbes((read,))

    def over_rows() -> LayerProbes:
        return fit_layers(
            [0], clean, shuffled_over_rows(rows, rng), rows.question_ids, rows.split, like=read
        )

    within = [
        p
        for name, p in fit_placebo_probes(rows, [0], clean, fitted, seed=seed).items()
        if name.startswith(SHUFFLED)
    ]
    over = [over_rows() for _ in range(DRAWS)]
    placebos = {
        "over rows, one draw": [CrossFittedProbes((over[0],))],
        "over rows, several draws, rescaled": [
            CrossFittedProbes((match_confidence(p, read, rows, [0], clean),)) for p in over
        ],
        "within questions, one draw": within[:1],
        "within questions, several draws": within,
    }
    value, many = gap(fitted, rows, clean, cut, draws)
    found: dict[str, tuple[float, float]] = {}
    for name, probes in placebos.items():
        gaps = [gap(p, rows, clean, cut, draws) for p in probes]
        mixed = np.array(gaps[0][1])
        for i, (_, own) in enumerate(
            gaps
        ):  # each resample takes one draw in turn, as in a result's tables
            mixed[i :: len(gaps)] = own[i :: len(gaps)]
        difference = np.array([value - np.mean([v for v, _ in gaps])])
        unknown = np.full((len(many), 1), np.nan)  # only the pointwise interval is used
        size = np.array([len(set(ids))])
        made = band(
            Estimate(
                value=difference,
                error=unknown[0],
                draws=(many - mixed)[:, None],
                errors=unknown,
                n=size,
                n_questions=size,
                far=unknown[:2],
                effects=unknown[:0],
            )
        )
        found[name] = (float(made.low[0]), float(made.high[0]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--questions", type=int, nargs="+", default=[40, 100, 200])
    parser.add_argument("--question-part", type=float, nargs="+", default=[0.0, 1.0, 2.0])
    args = parser.parse_args()
    for n in args.questions:
        for part in args.question_part:
            worlds = [world(n, part, seed) for seed in range(args.worlds)]
            print(
                f"{n} questions, question's part {part:g} times the noise, {args.worlds} worlds"
                " without any truth:"
            )
            for name in worlds[0]:
                ends = np.array([w[name] for w in worlds])
                ends = ends[~np.isnan(ends).any(1)]
                low, high = 100 * (ends[:, 1] < 0).mean(), 100 * (ends[:, 0] > 0).mean()
                print(
                    f"  {name:36s} below 0 in {low:4.1f} %, above 0 in {high:4.1f} % of {len(ends)}"
                )


if __name__ == "__main__":
    main()
