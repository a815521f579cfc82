"""Measure a swap and a knockout of SmolLM2-135M on four question sets; `make demo` runs this
script.

The question sets are samples written for anchorlens in the form of PopQA, TriviaQA, HotpotQA and
NQ, not the data sets themselves.

Both measure every fourth layer.

Swap: questions that the model answers correctly. The residual stream is patched with that of
another question, at the exact question tokens (anchor `exact_question`) or at the position that
predicts the answer (anchor `pre_answer`). The result is the change of the answer's probability, in
percentage points (ΔP).

Knockout: true and false answers. Attention from the exact question tokens is cut. A truth probe, a
classifier that predicts whether the answer is false, reads the residual stream at the answer's last
token. Rows whose prediction flips are Q-Anchored, the others A-Anchored. This split is a
description. The claim is the difference from the placebo, which cuts the same number of *other*
question tokens, row by row.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

from anchorlens.errors import AnchorlensError

# Two answered questions in front of each question raise P of the answer.
PROMPT = "fewshot(2)"
# Questions of the swap: the model knows at least 20 of them, below which nothing is claimed.
LIMITS = {"popqa-sample": 42, "triviaqa-sample": 28, "hotpotqa-sample": 34, "nq-sample": 44}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/demo"),
        help="run directory to write (default: runs/demo)",
    )
    parser.add_argument(
        "--limit",
        type=int,
        help="questions drawn from each set for the swap (default: 28 to 44, of which the model"
        " knows at least 20)",
    )
    parser.add_argument(
        "--knockout-limit",
        type=int,
        default=52,
        help="questions drawn from each set for the knockout",
    )
    # At layer 0 little can be found: a swap of the answer position changes nothing, and same_role
    # cannot act.
    parser.add_argument("--layers", default="3-27:4", help="layers (default: 3-27:4), or all")
    parser.add_argument(
        "--sets", nargs="+", default=[*LIMITS], help=f"question sets (default: {' '.join(LIMITS)})"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    warnings.formatwarning = lambda message, *_: f"Note: {message}\n"
    print(__doc__)
    print("Loading SmolLM2-135M (the first run downloads and converts it: about a minute) ...")
    started = time.perf_counter()
    import anchorlens as al
    from anchorlens.cli.output import show_result
    from anchorlens.runs.final_write import check_target

    target = check_target(args.out, overwrite=True)
    model = al.load_model("smollm2-135m-instruct")
    results: list[al.SweepResult] = []
    measured = 0.0

    def keep(result: al.SweepResult) -> None:
        """Print a sweep as soon as it is finished; save the first, and then after each set."""
        results.append(result)
        show_result(result)
        if len(results) > 1 and len(results) % 2:
            return
        folder = al.save_run(results, target, overwrite=True)
        spent = time.perf_counter() - started
        print(
            f"[{spent:.0f} s] {len(results)} of {2 * len(args.sets)} sweeps are in the figure:"
            f" {folder / 'figure.html'}\n",
            flush=True,
        )

    for name in args.sets:
        few, many = (
            al.load_qa(name, limit=limit, seed=args.seed)
            for limit in (args.limit or LIMITS.get(name, max(LIMITS.values())), args.knockout_limit)
        )
        began = time.perf_counter()
        keep(
            al.swap_sweep(
                model,
                few,
                known_only=True,
                prompt=PROMPT,
                n_donors=1,
                # One draw of the null instead of four saves a third of the time.
                n_null_draws=1,
                layers=args.layers,
                seed=args.seed,
            )
        )
        # The placebo's tokens before and after the subject, a description, are left out to save
        # time.
        keep(
            al.knockout_sweep(
                model, many, split_placebo_by_side=False, layers=args.layers, seed=args.seed
            )
        )
        measured += time.perf_counter() - began
    report = al.save_report(results, target.with_name(f"{target.name}-report.html"))
    spent = time.perf_counter() - started
    print(f"Total time {spent:.0f} s, of which {measured:.0f} s measuring.")
    print(
        f"Open {target / 'figure.html'} (figure) and {report} (findings and every example) in a"
        " browser."
    )
    print("docs/swap.md and docs/knockout.md explain how to read them.")


if __name__ == "__main__":
    try:
        main()
    except AnchorlensError as why:
        sys.exit(f"Error: {why}")
