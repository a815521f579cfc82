"""Measure a swap, its nulls and the donor's answer by anchor and layer.

    # known questions of the four embedded samples
    python benchmarks/swap_nulls.py
    # 64 rows of files, known or not
    python benchmarks/swap_nulls.py popqa.jsonl nq.jsonl --all-rows
    # relations as published with LRE (one json file for each), as questions
    python benchmarks/swap_nulls.py --relations DIR
    # CPU seconds of sweeps with different nulls, two rounds
    python benchmarks/swap_nulls.py popqa-sample --limit 40 --cost 2

Two shots, one donor per row, one row of the table per anchor and layer. ``swap`` and the nulls:
mean ΔP in points. ``donor's P``: mean P of the donor's answer after the swap and after
``norm_matched``, in percent. ``interchange``: share of rows in which the donor's answer becomes the
most likely one. The last column has the claims: ``P`` beyond other positions, ``C`` beyond a
matched change, ``D`` the donor's answer; in brackets where only the logit difference claims it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import anchorlens as al
from anchorlens.constants import NULL_CONTROLS
from anchorlens.results.findings import BEYOND_CHANGE, BEYOND_POSITIONS, DONORS_ANSWER

SAMPLES = ("popqa-sample", "triviaqa-sample", "hotpotqa-sample", "nq-sample")
LAYERS = (0, 8, 16, 22, 24, 28)
NULLS = ("same_role", "norm_matched", "displaced", "same_answer")
_COSTS = (("displaced",), ("same_role", "norm_matched"), NULLS)
_LETTERS = {BEYOND_POSITIONS: "P", BEYOND_CHANGE: "C", DONORS_ANSWER: "D"}
QUESTIONS = {
    "city_in_country": ("In what country is {}?", "country"),
    "company_hq": ("In what city is the headquarters of {}?", "headquarters"),
    "country_capital_city": ("What is the capital of {}?", "capital"),
    "country_currency": ("What is the official currency of {}?", "currency"),
    "country_language": ("What language is spoken in {}?", "language"),
    "country_largest_city": ("What is the largest city in {}?", "largest city"),
    "food_from_country": ("What country is {} from?", "country"),
    "landmark_in_country": ("What country is {} in?", "country"),
    "person_plays_instrument": ("What instrument does {} play?", "instrument"),
    "person_plays_pro_sport": ("What sport does {} play?", "sport"),
    "product_by_company": ("Which company developed {}?", "company"),
    "star_constellation": ("What constellation is {} part of?", "constellation"),
}
"""File of a relation -> its question and the property in it."""


def relation_rows(folder: Path) -> list[dict[str, object]]:
    """Return the rows of the relations of a directory, as questions."""
    rows: list[dict[str, object]] = []
    for name, (question, word) in QUESTIONS.items():
        samples = json.loads((folder / f"{name}.json").read_text(encoding="utf8"))["samples"]
        rows += [
            {
                "question": question.format(sample["subject"]),
                "answer": sample["object"],
                "subject": sample["subject"],
                "property": word,
                "relation": name,
            }
            for sample in samples
        ]
    return rows


def table_rows(sweep: al.SweepResult, name: str) -> list[list[str]]:
    """Return one row of the table per anchor and layer."""
    curves = sweep.curves(controls=True, all_columns=True)
    effects = curves.pivot(index=["anchor", "layer"], columns="control", values="effect")
    samples = sweep.samples(all_columns=True)
    donor = samples.pivot_table(
        index=["anchor", "layer"], columns="control", values="donor_p_after", observed=True
    )
    top = samples[samples["control"] == "none"].groupby(["anchor", "layer"])["donor_is_top_after"]
    accuracy = top.mean()
    first = curves.iloc[0]
    counts = f"{sweep.curves()['n'].max()} / {sweep.curves(all_columns=True)['n_clusters'].max()}"
    n_same = samples.loc[samples["control"] == "same_answer", "question_id"].nunique()
    by_logits = _claims_of(sweep, "logit_diff")
    by_p = _claims_of(sweep, "prob")
    rows: list[list[str]] = []
    for anchor in sweep.anchors:
        for layer in sweep.layers:
            cell = (anchor, layer)
            values = [effects.loc[cell, "none"]]
            values += [effects.loc[cell].get(control) for control in _controls()]
            texts = ["" if one is None or one != one else f"{one:+.1f}" for one in values]
            after, null = (
                100 * donor.loc[cell].get(c, float("nan")) for c in ("none", "norm_matched")
            )
            claims = "".join(
                letter
                if cell in by_p[status]
                else f"({letter})"
                if cell in by_logits[status]
                else ""
                for status, letter in _LETTERS.items()
            )
            rows.append(
                [
                    name,
                    counts,
                    str(n_same),
                    f"{first['value_before']:.2f}",
                    anchor,
                    str(layer),
                    *texts,
                    f"{after:.1f} / {null:.1f}",
                    f"{100 * accuracy.loc[cell]:.0f} %",
                    claims,
                ]
            )
    return rows


def _controls() -> list[str]:
    return [NULL_CONTROLS[name] for name in NULLS]


def _claims_of(sweep: al.SweepResult, metric: str) -> dict[str, set[tuple[str, int]]]:
    """Return status -> anchors and layers with it, also where too few relations name no layer."""
    from anchorlens.protocols.swap.claim_kinds import CLAIM_KINDS, collect_facts
    from anchorlens.protocols.swap.findings import statuses_of

    facts = collect_facts(sweep)
    is_other = metric != facts.metric
    found: dict[str, set[tuple[str, int]]] = {status: set() for status in _LETTERS}
    statuses = statuses_of(facts, facts.other_facts if is_other else facts.facts, is_other=is_other)
    for (anchor, name), along in statuses.items():
        for layer, status in along.items():
            if status == CLAIM_KINDS[name].status and status in found:
                found[status].add((anchor, layer))
    return found


def cost(model: object, name: str, limit: int, rounds: int) -> None:
    """Print the CPU seconds of sweeps at all layers with four donors, by null, in interleaved
    rounds.
    """
    data = al.load_qa(name, limit=limit)
    spent: dict[tuple[str, ...], list[float]] = {null: [] for null in _COSTS}
    for _ in range(rounds):
        for null, seconds in spent.items():
            start = time.process_time()
            al.swap_sweep(
                model, data, null=null, prompt="fewshot(2)", known_only=True, progress=False
            )
            seconds.append(time.process_time() - start)
    for null, seconds in spent.items():
        middle = f"{statistics.median(seconds):.1f}"
        print_row([", ".join(null), middle, f"{min(seconds):.1f}-{max(seconds):.1f}"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data", nargs="*", default=list(SAMPLES), help="names or files (default: the four samples)"
    )
    parser.add_argument("--relations", type=Path, help="directory of relations, in place of data")
    parser.add_argument(
        "--limit", type=int, default=64, help="number of rows before selection (default: 64)"
    )
    parser.add_argument(
        "--all-rows", action="store_true", help="keep questions that the model does not know"
    )
    parser.add_argument(
        "--layers",
        type=lambda text: tuple(map(int, text.split(","))),
        default=LAYERS,
        help="default: 0,8,16,22,24,28",
    )
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name or directory")
    parser.add_argument("--out", type=Path, help="directory in which the runs are kept")
    parser.add_argument(
        "--cost", type=int, default=0, metavar="ROUNDS", help="print CPU seconds instead"
    )
    args = parser.parse_args()
    model = al.load_model(args.model)
    if args.cost:
        cost(model, args.data[0], args.limit, args.cost)
        return
    heads = ["data", "n / clusters", "n same_answer", "P before", "anchor", "layer", "swap"]
    heads += [*NULLS, "donor's P", "interchange", "claims"]
    print_row(heads)
    print_row(["---"] * len(heads))
    for name in ["relations"] if args.relations else args.data:
        given = relation_rows(args.relations) if args.relations else name
        data = al.load_qa(given, limit=args.limit)
        sweep = al.swap_sweep(
            model,
            data,
            null=NULLS,
            layers=args.layers,
            n_donors=1,
            prompt="fewshot(2)",
            known_only=not args.all_rows,
            progress=False,
            n_spot_checks=2,
            out=None if args.out is None else args.out / Path(name).stem,
        )
        for row in table_rows(sweep, Path(name).stem):
            print_row(row)


def print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
