"""Compare scores of edges with theory on planted circuits (:mod:`planted_circuits`).

    python benchmarks/planted_edges.py --markdown docs/edges_known_answers.md

Prints one row per edge that has a score by any method, and the largest score of all others. Exit
code 1 if an exact effect differs from its formula by more than 1e-4.
"""

import argparse
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from peers.report import markdown_table, rich_table, show, write_section
from planted_circuits import CIRCUITS, STEPS, Circuit, measure_attribution, measure_exact

TITLE = "All edges"
COLUMNS = ("circuit", "edge", "theory", "exact", "EAP", f"EAP-IG, {STEPS} steps")
ALLOWED = 1e-4


def rows_of(circuit: Circuit) -> tuple[list[tuple[str, ...]], float, float]:
    """Return the rows of a circuit, the largest score of its edges without a row, and the largest
    difference of an exact effect from its formula.
    """
    exact = measure_exact(circuit)
    measured = (exact, measure_attribution(circuit), measure_attribution(circuit, steps=STEPS))
    formulas = (circuit.exact, circuit.attribution, circuit.integrated(STEPS))
    named = set().union(*formulas)
    rows: list[tuple[str, ...]] = []
    rest = 0.0
    for edge in exact:
        values = [scores[edge] for scores in measured]
        if edge in named:
            values = [circuit.exact.get(edge, 0.0), *values]
            # Without a negative zero.
            rows.append((circuit.name, f"`{edge}`", *(f"{round(v, 4) + 0.0:.4f}" for v in values)))
        else:
            rest = max(rest, *map(abs, values))
    difference = max(abs(value - circuit.exact.get(edge, 0.0)) for edge, value in exact.items())
    return rows, rest, difference


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--markdown",
        type=Path,
        default=None,
        metavar="FILE",
        help="also write the table into this file",
    )
    args = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    rest, difference = 0.0, 0.0
    for make in CIRCUITS.values():
        own, *worst = rows_of(make())
        rows += own
        rest, difference = max(rest, worst[0]), max(difference, worst[1])
    note = (
        f"Largest difference of an exact effect from its formula: {difference:.0e}. All other edges"
        f" of these models have a score of 0 by every method (largest: {rest:.0e})."
    )
    if args.markdown is not None:
        command = f"`{shlex.join(['python', 'benchmarks/planted_edges.py', *sys.argv[1:]])}`"
        write_section(args.markdown, TITLE, [command, "", note, "", *markdown_table(COLUMNS, rows)])
    show([rich_table(COLUMNS, rows)], [note])
    sys.exit(difference > ALLOWED)


if __name__ == "__main__":
    main()
