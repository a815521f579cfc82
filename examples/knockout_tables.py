"""Print tables of knockout runs in Markdown: claims at k*, description of the pathways, and both by
layer.

python examples/knockout_tables.py runs/ko-matched runs/ko-random
python examples/knockout_tables.py runs/ko-matched --short    # the first two tables only
"""

import argparse
from collections.abc import Sequence

import anchorlens as al
from anchorlens.results.estimates import LayerEstimate, format_ranges

CLAIMED = (
    ("delta_p_vs_placebo", "random_tokens", 1),
    ("flip_rate", "random_tokens", 1),
    ("auc_drop", "random_tokens", 2),
    ("row_specific_vs_placebo", "random_tokens", 1),
    ("row_specific_effect", "size_matched", 1),
    ("row_specific_effect", "random_tokens", 1),
)
HEADS = (
    "delta_p_vs_placebo",
    "flip_rate",
    "auc_drop",
    "row_specific_vs_placebo",
    "row_specific_effect, E_Q",
    "row_specific_effect, others",
)


def with_interval(fact: "LayerEstimate | None", digits: int, *, sign: bool = True) -> str:
    return "-" if fact is None or fact.value != fact.value else fact.to_text(digits, sign=sign)


def plain(fact: "LayerEstimate | None", digits: int) -> str:
    return (
        "-"
        if fact is None or fact.value != fact.value
        else f"{fact.value:{'+' if digits == 1 else ''}.{digits}f}"
    )


def text_auc(text: "dict[str, float] | None") -> str:
    return (
        "-" if text is None else f"{text['auc']:.2f} [{text['ci_low']:.2f}, {text['ci_high']:.2f}]"
    )


def claims_row(ko: al.PathwayResult) -> list[str]:
    """Return a row of the table of claims."""
    facts = ko.facts(ko.shown_layer)
    cells = [with_interval(facts.get((name, control)), digits) for name, control, digits in CLAIMED]
    n = facts[CLAIMED[0][:2]].n if CLAIMED[0][:2] in facts else 0
    stands = [
        k for one in ko.findings.statements if one.quantity == "all_contrasts" for k in one.layers
    ]
    return [
        text_auc(ko.answer_text_auc),
        text_auc(ko.qa_text_auc),
        str(ko.shown_layer),
        str(n),
        with_interval(facts["auc", "none"], 2, sign=False),
        plain(facts.get(("auc_after", "size_matched")), 2),
        plain(facts.get(("auc_after", "random_tokens")), 2),
        *cells,
        format_ranges(stands) or "-",
    ]


def pathways_row(ko: al.PathwayResult, layer: int) -> list[str]:
    """Return a row of the table of pathways and gaps."""
    facts, at = ko.facts(layer), ko.layers.index(layer)
    groups = ko.groups()["none"]
    means = [
        (
            "-"
            if groups[name].value[at] != groups[name].value[at]
            else f"{groups[name].value[at]:+.1f} ({groups[name].n[at]})"
        )
        for name in ("Q-Anchored", "A-Anchored", "All")
    ]
    gaps = [
        plain(facts.get(key), 1)
        for key in (
            ("gap", "none"),
            ("gap", "size_matched"),
            ("placebo_gap", "random_tokens"),
            ("placebo_gap", "shuffled_labels"),
            ("cross_fold_gap", "cross_fold"),
        )
    ]
    return [
        plain(facts["auc", "none"], 2),
        plain(facts.get(("auc_after", "none")), 2),
        *means,
        *gaps,
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+")
    parser.add_argument(
        "--every", type=int, default=1, help="step between the layers of the last tables"
    )
    parser.add_argument("--short", action="store_true", help="leave out the tables by layer")
    args = parser.parse_args()
    everything = [sweep for run in args.runs for sweep in al.load_run(run)]
    sweeps = [
        ko
        for ko in everything
        if isinstance(ko, al.PathwayResult) and ko.protocol.name == "knockout"
    ]
    names = [[ko.dataset, ko.record["config"]["distractor"]] for ko in sweeps]
    head = ["data set", "distractor"]
    first = [
        "answer_text_auc",
        "qa_text_auc",
        "k*",
        "n",
        "AUC",
        "E_Q cut",
        "others cut",
        *HEADS,
        "layers",
    ]
    print(
        table(
            [*head, *first],
            [[*name, *claims_row(ko)] for name, ko in zip(names, sweeps, strict=True)],
        )
    )
    pathways = [
        "AUC",
        "AUC cut",
        "Q (n)",
        "A (n)",
        "All (n)",
        "gap",
        "size_matched gap",
        "placebo gap",
        "shuffled gap",
        "cross-fold gap",
    ]
    rows = [
        [*name, str(ko.shown_layer), *pathways_row(ko, ko.shown_layer)]
        for name, ko in zip(names, sweeps, strict=True)
    ]
    print("\n" + table([*head, "k*", *pathways], rows))
    for ko in () if args.short else sweeps:
        layers = sorted({*range(0, len(ko.layers), args.every), ko.probe_layer or 0, ko.layers[-1]})
        print(
            f"\n## {ko.dataset}, {ko.record['config']['distractor']}"
            f" distractors\n\n```\n{ko.verdict}\n```\n"
        )
        lines: list[list[str]] = []
        for layer in layers:
            facts = ko.facts(layer)
            claims = [
                plain(facts.get((name, control)), digits) for name, control, digits in CLAIMED
            ]
            lines.append([str(layer), *claims, *pathways_row(ko, layer)])
        print(table(["layer", *HEADS, *pathways], lines))


if __name__ == "__main__":
    main()
