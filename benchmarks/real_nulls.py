"""Count the claims of real sweeps in which there is nothing to find.

    python benchmarks/real_nulls.py runs/known --seeds 40

``runs/known`` is a swap of questions that the model knows (``--known-only --prompt "fewshot(2)"``).

- ``random words``: subject and property are two random words of the question, so that the anchor is
  no different from other words. Twenty questions, donors of any relation, layers 6, 14 and 22.
- ``labels exchanged``: in the saved sweep, curve and null of each question are exchanged at random.
"""

import argparse
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

import anchorlens as al
from anchorlens.constants import NULL_CONTROLS
from anchorlens.protocols.swap.analysis import ANALYSIS
from anchorlens.results.findings import CLAIMS

OPTIONS = {"donors": "random", "align": "last", "prompt": "fewshot(2)", "n_null_draws": 1}


def random_words(model: object, rows: pd.DataFrame, seed: int) -> al.SweepResult:
    """Swap two random words of twenty questions."""
    rng = np.random.default_rng(seed)
    made: list[dict[str, object]] = []
    for number in rng.permutation(len(rows)):
        question = str(rows["question"].iloc[number])
        words = re.findall(r"[A-Za-z][A-Za-z'\-]*", question)[1:]
        words = [word for word in words if question.count(word) == 1]
        if len(words) < 4:
            continue
        a, b = rng.choice(len(words), 2, replace=False)
        own = {"subject": words[a], "property": words[b]}
        made.append({"question": question, "answer": rows["answer"].iloc[number], **own})
    data = al.load_qa(pd.DataFrame(made), dataset_name=f"null {seed}", limit=22)
    return al.swap_sweep(
        model,
        data,
        anchors=("exact_question",),
        layers=(6, 14, 22),
        n_donors=1,
        seed=seed,
        progress=False,
        n_spot_checks=0,
        **OPTIONS,
    )


def exchanged(sweep: al.SweepResult, seed: int) -> al.SweepResult:
    """Exchange curve and nulls of each question at random."""
    rng = np.random.default_rng(seed)
    samples = sweep.samples(all_columns=True)
    samples = samples[samples["draw"] == 0].copy()
    questions = samples["question_id"].unique()
    turned = set(questions[rng.random(len(questions)) < 0.5])
    names = {"none": NULL_CONTROLS["norm_matched"], NULL_CONTROLS["norm_matched"]: "none"}
    here = samples["question_id"].isin(turned)
    samples.loc[here, "control"] = samples.loc[here, "control"].map(lambda one: names.get(one, one))
    kept = samples[samples["control"].isin(list(names))]
    record = {**sweep.record, "config": {**sweep.record["config"], "null": ["norm_matched"]}}
    examples = sweep.examples(all_columns=True)
    return ANALYSIS.result.make(ANALYSIS, kept, examples, record, f"{sweep.run_id}-{seed}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a swap of questions that the model knows")
    parser.add_argument("--seeds", type=int, default=40, help="sweeps of each kind (default: 40)")
    parser.add_argument("--kinds", default="exchanged,words", help="exchanged, words (both)")
    args = parser.parse_args()
    (sweep,) = al.load_run(args.run)
    examples = sweep.examples(all_columns=True)
    rows = examples[examples["role"] == "base"][["question", "answer"]]
    kinds = args.kinds.split(",")
    model = al.load_model("smollm2-135m-instruct") if "words" in kinds else None
    print("| null | sweeps | with a claim | statuses |\n| --- | --- | --- | --- |")
    for kind in kinds:
        found: list[set[str]] = []
        for seed in range(args.seeds):
            made = random_words(model, rows, seed) if kind == "words" else exchanged(sweep, seed)
            found.append({one.status for one in made.findings.claims if one.status in CLAIMS})
        counts = Counter(status for one in found for status in one)
        listed = ", ".join(f"{name} {n}" for name, n in counts.items())
        print(f"| {kind} | {len(found)} | {sum(map(bool, found))} | {listed} |", flush=True)


if __name__ == "__main__":
    main()
