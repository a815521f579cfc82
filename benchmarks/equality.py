"""Compare the cone engine with the reference engine on every cell of some questions of each data
set (SmolLM2-135M, float32).

    # the embedded questions
    python benchmarks/equality.py
    # popqa.jsonl, triviaqa.jsonl, hotpotqa.jsonl and nq.jsonl of a directory
    python benchmarks/equality.py --data DIR

Measures both anchors and their nulls, with one random donor per question, at every layer or at
those of --layers. Prints one JSON line per data set. Exit code 1 if a cell differs by more than
0.001 percentage points.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import anchorlens as al

SETS = ("popqa", "triviaqa", "hotpotqa", "nq")
ALLOWED = 1e-3
CELL = ["example_id", "donor_id", "anchor", "control", "layer"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="directory with the four jsonl files (default: the embedded samples)",
    )
    parser.add_argument(
        "--sets", default=",".join(SETS), help="data sets, separated by commas (default: all)"
    )
    parser.add_argument(
        "--questions", type=int, default=32, help="measured questions per set (default: 32)"
    )
    parser.add_argument("--layers", default="all", help="all, or numbers: 0,10,29 (default: all)")
    parser.add_argument("--prompt", default="qa", help="qa, fewshot(k) or chat (default: qa)")
    args = parser.parse_args()
    model = al.load_model("smollm2-135m-instruct", device="cpu")
    every = range(model.cfg.n_layers)
    layers = list(every) if args.layers == "all" else [int(n) for n in args.layers.split(",")]
    worst = 0.0
    for name in args.sets.split(","):
        data = (
            al.load_qa(f"{name}-sample", limit=2 * args.questions)
            if args.data is None
            else al.load_qa(name, path=args.data / f"{name}.jsonl", limit=2 * args.questions)
        )
        options = {
            "prompt": args.prompt,
            "donors": "random",
            "align": "last",
            "n_donors": 1,
            "n_spot_checks": 0,
            "progress": sys.stderr.isatty(),
        }
        # A sweep of one layer shows which questions can be measured.
        able = al.swap_sweep(model, data, layers=[every[-1]], **options).example_ids[
            : args.questions
        ]
        data = replace(data, examples=tuple(e for e in data.examples if e.example_id in able))
        frames, seconds = [], []
        for engine in ("cone", "reference"):
            started = time.perf_counter()
            frames.append(
                al.swap_sweep(model, data, layers=layers, engine=engine, **options)
                .samples()
                .set_index(CELL)
            )
            seconds.append(time.perf_counter() - started)
        cone, reference = frames
        gap = (cone["effect"] - reference["effect"].reindex(cone.index)).abs()
        worst = max(worst, float(gap.fillna(float("inf")).max()))
        line = {
            "dataset": data.name,
            "questions": len(able),
            "cells": len(cone),
            "largest_difference_points": float(gap.max()),
            "largest_effect_points": round(float(reference["effect"].abs().max()), 2),
            "seconds_cone": round(seconds[0], 1),
            "seconds_reference": round(seconds[1], 1),
        }
        print(json.dumps(line), flush=True)
        if len(cone) != len(reference) or len(able) < args.questions:
            sys.exit(f"Only {len(able)} questions, {len(cone)} and {len(reference)} cells.")
    sys.exit(0 if worst <= ALLOWED else 1)


if __name__ == "__main__":
    main()
