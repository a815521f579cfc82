"""Measure a swap and its three nulls by layer and anchor, on the embedded samples and on files.

    python benchmarks/swap_nulls.py                                    known questions of the four embedded samples
    python benchmarks/swap_nulls.py popqa.jsonl nq.jsonl --all-rows    64 rows of files, known or not
    python benchmarks/swap_nulls.py popqa-sample --limit 40 --cost 2   CPU seconds of sweeps with different nulls, two rounds

Two shots, one donor per row. Each cell is ``swap / same_role / norm_matched / displaced``: mean ΔP in points. The last columns are
the layers of the findings.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import anchorlens as al
from anchorlens.constants import NULL_CONTROLS
from anchorlens.results.estimates import format_layers
from anchorlens.results.findings import CONTENT, LOCALISED, STANDS

SAMPLES = ("popqa-sample", "triviaqa-sample", "hotpotqa-sample", "nq-sample")
LAYERS = (0, 4, 8, 12, 16, 20, 22, 24, 28)
_SMALL = 0.2
_COSTS = (("displaced",), ("same_role", "norm_matched"), tuple(NULL_CONTROLS))


def rows_of(sweep: al.SweepResult, name: str) -> list[list[str]]:
    """Return one row of the table per anchor."""
    curves = sweep.curves(controls=True, all_columns=True).pivot(index=["anchor", "control"], columns="layer", values="effect")
    rows: list[list[str]] = []
    for anchor in sweep.anchors:
        one = sweep.curves(all_columns=True).query("anchor == @anchor").iloc[0]
        cells = [
            " / ".join(_number(curves.loc[(anchor, control), k], one["p_before"]) for control in ("none", *NULL_CONTROLS.values()))
            for k in sweep.layers
        ]
        claims = [
            format_layers(sorted(k for f in sweep.findings.statements if (f.anchor, f.status) == (anchor, status) for k in f.layers))
            for status in (LOCALISED, CONTENT, STANDS)
        ]
        rows.append(
            [
                name,
                str(one["n"]),
                f"{one['p_before']:.2f}",
                anchor,
                *(cell.replace("-", "\N{MINUS SIGN}") for cell in cells),
                *claims,
            ]
        )
    return rows


def _number(points: float, p_before: float) -> str:
    """Format points without decimals, or with one where P before is small."""
    text = f"{points:.{0 if p_before > _SMALL else 1}f}"
    return text.lstrip("-") if float(text) == 0 else text


def cost(model: object, name: str, limit: int, rounds: int) -> None:
    """Print the CPU seconds of sweeps at all layers with four donors, by null, in interleaved rounds."""
    data, spent = al.load_qa(name, limit=limit), {null: list[float]() for null in _COSTS}
    for _ in range(rounds):
        for null, seconds in spent.items():
            start = time.process_time()
            al.swap_sweep(model, data, null=null, prompt="fewshot(2)", known_only=True, progress=False)
            seconds.append(time.process_time() - start)
    for null, seconds in spent.items():
        print_row([", ".join(null), f"{statistics.median(seconds):.1f}", f"{min(seconds):.1f}-{max(seconds):.1f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", default=list(SAMPLES), help="names or files (default: the four samples)")
    parser.add_argument("--limit", type=int, default=64, help="number of rows before selection (default: 64)")
    parser.add_argument("--all-rows", action="store_true", help="keep questions that the model does not know")
    parser.add_argument("--layers", type=lambda text: tuple(map(int, text.split(","))), default=LAYERS, help="default: 0,4,...")
    parser.add_argument("--cost", type=int, default=0, metavar="ROUNDS", help="print CPU seconds instead")
    args = parser.parse_args()
    model = al.load_model("smollm2-135m-instruct")
    if args.cost:
        cost(model, args.data[0], args.limit, args.cost)
        return
    print_row(["data", "n", "P before", "anchor", *map(str, args.layers), "localised", "content", "beyond displaced"])
    print_row(["---"] * (len(args.layers) + 7))
    for name in args.data:
        data = al.load_qa(name, limit=args.limit)
        options = {"prompt": "fewshot(2)", "known_only": not args.all_rows, "progress": False, "n_spot_checks": 2}
        sweep = al.swap_sweep(model, data, null=tuple(NULL_CONTROLS), layers=args.layers, n_donors=1, **options)
        for row in rows_of(sweep, Path(name).stem):
            print_row(row)


def print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
