"""The main job, end to end, on the packaged model and the embedded questions; `make demo` runs it.

SmolLM2-135M on questions in the form of four question-answering data sets (samples written for anchorlens, not the data sets
themselves), with two of the four protocols.

Swap: questions that the model answers right. At each of its 30 layers the residual stream is swapped with that of another question:
once at the exact question tokens (anchor `question`), once at the position that predicts the answer (anchor `pre_answer`). How far
does the probability of the model's own answer fall?

Knockout: true and false answers. A truth probe reads the stream at the answer's last token; attention from the exact question tokens
is cut off. Answers for which the probe changes its mind are Q-Anchored, the others A-Anchored. That picture describes;
what is claimed is how much more the cut does than one of as many *other* question tokens (the placebo), row by row.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

from anchorlens.errors import AnchorlensError

# Two answered questions in front of each: without them the model is far less sure of what it knows.
PROMPT = "fewshot(2)"
SETS = ("popqa-sample", "triviaqa-sample", "hotpotqa-sample", "nq-sample")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="run directory to write (default: runs/demo)")
    parser.add_argument(
        "--limit", type=int, default=22, help="questions drawn from each set for the swap; those the model knows are measured"
    )
    parser.add_argument("--knockout-limit", type=int, default=110, help="questions drawn from each set for the knockout")
    parser.add_argument("--layers", default="all", help="of the swap: all (default), or e.g. 0-28:4")
    parser.add_argument("--sets", nargs="+", default=SETS, help=f"question sets (default: {' '.join(SETS)})")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    warnings.formatwarning = lambda message, *_: f"Note: {message}\n"
    print(__doc__)
    print("Loading SmolLM2-135M (the first time it is fetched from the package index and converted: about a minute) ...")
    started = time.perf_counter()
    import anchorlens as al
    from anchorlens.cli.output import show_result
    from anchorlens.runs.store import check_target

    target = check_target(args.out, overwrite=True)
    model = al.load_model("smollm2-135m-instruct")
    results: list[al.SweepResult] = []
    measured = 0.0

    def keep(result: al.SweepResult) -> None:
        """On disk and on the screen at once: nobody waits for the rest."""
        results.append(result)
        folder = al.save_run(results, target, overwrite=True)
        show_result(result)
        spent = time.perf_counter() - started
        print(
            f"[{spent:.0f} s] {len(results)} of {2 * len(args.sets)} sweeps are in the figure: {folder / 'figure.html'}\n",
            flush=True,
        )

    for name in args.sets:
        few, many = (al.load_qa(name, limit=limit, seed=args.seed) for limit in (args.limit, args.knockout_limit))
        began = time.perf_counter()
        keep(al.swap_sweep(model, few, known_only=True, prompt=PROMPT, n_donors=1, layers=args.layers, seed=args.seed))
        keep(al.knockout_sweep(model, many, seed=args.seed))
        measured += time.perf_counter() - began
    report = al.save_report(results, target.with_name(f"{target.name}-report.html"))
    spent = time.perf_counter() - started
    print(f"This took {spent:.0f} s, {measured:.0f} of them measuring.")
    print(f"Open {target / 'figure.html'} (figure) and {report} (findings and every example) in a browser.")
    print("docs/swap.md and docs/knockout.md say how to read it.")


if __name__ == "__main__":
    try:
        main()
    except AnchorlensError as why:
        sys.exit(f"Error: {why}")
