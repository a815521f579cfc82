"""Tables of knockout runs in Markdown: one of the layer k*, and one of chosen layers for each sweep.

python examples/knockout_tables.py runs/ko-matched runs/ko-random
"""

import argparse

import anchorlens as al

QUANTITIES = (
    ("AUC", "auc", "none", 2), ("cut", "auc_knocked_out", "none", 2), ("gap", "gap", "none", 1),
    ("matched gap", "gap", "matched", 1), ("placebo gap", "placebo_gap", "random_tokens", 1),
    ("effect", "effect", "random_tokens", 1), ("shuffled gap", "placebo_gap", "shuffled_labels", 1),
    ("cross-fold gap", "placebo_gap", "cross_fold", 1),
)  # fmt: skip


def said(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if digits == 2 else f"{value:+.1f}"


def row_of(ko: al.PathwayResult, layer: int, *, intervals: bool) -> list[str]:
    curves = ko.curves()
    here = curves[curves["layer"] == layer].set_index("pathway")
    facts = ko.effects().set_index(["quantity", "control", "layer"])
    cells = []
    for _, quantity, control, digits in QUANTITIES:
        fact = facts.loc[(quantity, control, layer)]
        cell = said(fact["value"], digits)
        if intervals and quantity in ("auc", "effect"):
            cell += f" [{said(fact['ci_low'], digits)}, {said(fact['ci_high'], digits)}]"
        cells.append(cell)
    q, a, everyone = (here.loc[name] for name in ("Q-Anchored", "A-Anchored", "All"))
    sizes = (f" ({q['n']})", f" ({a['n']})") if intervals else ("", "")
    groups = [said(q["delta_p"], 1) + sizes[0], said(a["delta_p"], 1) + sizes[1], said(everyone["delta_p"], 1)]
    return [*cells[:2], *groups, *cells[2:]]


def table(first: list[str], rows: list[list[str]]) -> str:
    head = [*first, "AUC", "AUC cut", "Q", "A", "All", *(name for name, *_ in QUANTITIES[2:])]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--every", type=int, default=1, help="layers of the second tables: every so many")
    args = parser.parse_args()
    everything = [sweep for run in args.runs for sweep in al.load_run(run)]
    sweeps = [ko for ko in everything if isinstance(ko, al.PathwayResult) and ko.protocol.name == "knockout"]
    best = [
        [ko.dataset, ko.record["config"]["distractor"], f"{ko.text_only['auc']:.2f}", str(ko.k_star),
         *row_of(ko, ko.k_star if ko.k_star is not None else ko.layers[-1], intervals=True)]
        for ko in sweeps
    ]  # fmt: skip
    print(table(["data set", "distractor", "text only", "k*"], best))
    for ko in sweeps:
        layers = sorted({*range(0, len(ko.layers), args.every), ko.k_star or 0, ko.layers[-1]})
        text = ko.text_only
        print(f"\n## {ko.dataset}, {ko.record['config']['distractor']} distractors\n\n{ko.verdict}\n")
        print(f"AUC of the answer's text alone: {text['auc']:.2f} [{text['ci_low']:.2f}, {text['ci_high']:.2f}].\n")
        print(table(["layer"], [[str(layer), *row_of(ko, layer, intervals=False)] for layer in layers]))


if __name__ == "__main__":
    main()
