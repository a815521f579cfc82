"""Compare the CPU seconds of a knockout sweep with those of its forward passes alone.

    python benchmarks/knockout.py --data-file popqa.jsonl --limit 300

One process alternates between the two. The sweep includes rows, passes, probes, placebos, samples,
curves and contrasts with their intervals. The forward passes run without hooks over the same
batches, one for each pass of the sweep.
"""

import argparse
import json
import time

import pandas as pd

import anchorlens as al
from anchorlens.engine.hooked_passes import last_stream
from anchorlens.engine.patches import pad_rows
from anchorlens.models.load import adapt


def passes(inputs: pd.DataFrame) -> int:
    """Count the rows of the reference engine: every input once, and a test row once more for each
    of its distinct cuts.
    """
    total = 0
    for role, written in inputs[["role", "positions"]].itertuples(index=False):
        if role == "dropped":
            continue
        cuts = (
            [where for name, where in json.loads(written).items() if name.startswith("cut:")]
            if role == "base"
            else []
        )
        total += 1 + len({tuple(where) for where in cuts})
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="popqa")
    parser.add_argument(
        "--data-file",
        default=None,
        help="a local file in the data set's schema (default: the embedded sample)",
    )
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    name = args.dataset if args.data_file else f"{args.dataset}-sample"
    data = al.load_qa(name, path=args.data_file, limit=args.limit)
    model = al.load_model("smollm2-135m-instruct")
    adapter = adapt(model)
    al.knockout_sweep(model, data, layers=[0], n_resamples=10, progress=False)  # warm up
    ratios: list[float] = []
    for _ in range(args.rounds):
        started = time.process_time()
        ko = al.knockout_sweep(model, data, progress=False)
        ko.curves(controls=True)
        ko.contrasts()
        whole = time.process_time() - started
        plan, inputs = ko.record["plan"], ko.examples()
        all_rows = passes(inputs)
        ids = {
            role: [list(r) for r in rows["token_ids"]]
            for role, rows in inputs.groupby("role")
            if role != "dropped"
        }
        base = sorted(ids["base"], key=len)
        other = sorted(ids.get("train", []) + ids.get("validation", []), key=len)
        size = max(plan["batches"])
        # The clean pass of every row, then the test rows again until the number of rows equals that
        # of the sweep.
        batches = [rows[i : i + size] for rows in (other, base) for i in range(0, len(rows), size)]
        again = [base[i : i + size] for i in range(0, len(base), size)]
        left = all_rows - sum(map(len, batches))
        while left > 0:
            for batch in again[: max(1, round(left / size))]:
                batches.append(batch)
                left -= len(batch)
        started = time.process_time()
        for batch in batches:
            last_stream(adapter, pad_rows(batch))
        forwards = time.process_time() - started
        rows = sum(map(len, batches))
        ratios.append(whole / forwards * rows / all_rows)
        print(
            f"sweep {whole:.1f} CPU s, {all_rows} rows; forwards alone {forwards:.1f} CPU s, {rows}"
            f" rows: ratio {ratios[-1]:.2f}"
        )
    print(
        f"{data.name}: median ratio {sorted(ratios)[len(ratios) // 2]:.2f}"
        f" ({min(ratios):.2f}–{max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
