"""Count the claims of real sweeps in which there is nothing to find.

    python benchmarks/real_nulls.py --out runs/real-nulls

Questions of the four embedded samples that SmolLM2 knows, two shots, donors of any relation, layers
6, 14 and 22: measured once, into ``--out``, which is read if it is there. Each of ``--seeds``
sweeps has twenty questions:

- ``random words``: subject and property are two random words of the question, so that the anchor is
  no different from other words. Measured anew for each seed.
- ``exchanged, same_role`` and ``exchanged, norm_matched``: curve and that null of each question are
  exchanged at random.
- ``same answer``: the curve is the swap with another question that has the same answer; its nulls
  are those of the donor with another answer. No status is right but for *beyond other positions*,
  if the other question changes anything.

Prints the sweeps with a claim and how many claim each status. At most 5 of 40 are allowed.
"""

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import anchorlens as al
from anchorlens.constants import NULL_CONTROLS
from anchorlens.protocols.swap.analysis import ANALYSIS
from anchorlens.results.findings import CLAIMS

SAMPLES = ("popqa-sample", "triviaqa-sample", "hotpotqa-sample", "nq-sample")
MEASURED = ("same_role", "norm_matched")
KINDS = ("words", *(f"exchanged {null}" for null in MEASURED), "same_answer")
OPTIONS: dict[str, Any] = {
    "anchors": ("exact_question",),
    "layers": (6, 14, 22),
    "donors": "random",
    "align": "last",
    "n_donors": 1,
    "n_null_draws": 1,
    "n_spot_checks": 0,
}
PROMPT = "fewshot(2)"
N_QUESTIONS = 20


def known_questions(model: Any, out: Path) -> al.SweepResult:
    """Measure the questions of all samples that the model knows, or read what was measured."""
    if not out.exists():
        tables = [al.load_qa(name).to_frame() for name in SAMPLES]
        rows = pd.concat(tables)[["question", "answers", "subject", "property", "relation"]]
        data = al.load_qa(rows.reset_index(drop=True), dataset_name="four samples")
        al.swap_sweep(
            model,
            data,
            prompt=PROMPT,
            known_only=True,
            null=(*MEASURED, "same_answer"),
            out=out,
            **OPTIONS,
        )
    (sweep,) = al.load_run(out)
    assert isinstance(sweep, al.SweepResult)
    return sweep


def random_words(model: Any, rows: pd.DataFrame, seed: int) -> al.SweepResult:
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
    limit = N_QUESTIONS + 2  # some rows have no donor
    data = al.load_qa(pd.DataFrame(made), dataset_name=f"null {seed}", limit=limit)
    return al.swap_sweep(model, data, prompt=PROMPT, seed=seed, progress=False, **OPTIONS)


def renamed(sweep: al.SweepResult, seed: int, kind: str) -> al.SweepResult:
    """Return the sweep of twenty questions in which arms of the measured one have other names."""
    rng = np.random.default_rng(seed)
    samples = sweep.samples(all_columns=True)
    samples = samples[samples["draw"] == 0].copy()
    same_answer = NULL_CONTROLS["same_answer"]
    if kind == "same_answer":
        names = {same_answer: "none", "none": "left out"}
        with_one = samples.loc[samples["control"] == same_answer, "question_id"].unique()
        questions = turned = set(rng.choice(with_one, N_QUESTIONS, replace=False))
        nulls = MEASURED
    else:
        null = kind.removeprefix("exchanged ")
        names = {"none": NULL_CONTROLS[null], NULL_CONTROLS[null]: "none"}
        questions = set(rng.choice(samples["question_id"].unique(), N_QUESTIONS, replace=False))
        turned = {one for one in sorted(questions) if rng.random() < 0.5}
        nulls = (null,)
    here = samples["question_id"].isin(turned)
    samples.loc[here, "control"] = samples.loc[here, "control"].map(lambda one: names.get(one, one))
    kept = {"none", *(NULL_CONTROLS[null] for null in nulls)}
    own = samples[samples["control"].isin(kept) & samples["question_id"].isin(questions)]
    record = {**sweep.record, "config": {**sweep.record["config"], "null": list(nulls)}}
    examples = sweep.examples(all_columns=True)
    return ANALYSIS.result.make(ANALYSIS, own, examples, record, f"{sweep.run_id}-{seed}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/real-nulls"), help="measured sweep")
    parser.add_argument("--seeds", type=int, default=40, help="sweeps of each kind (default: 40)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="default: all")
    args = parser.parse_args()
    model = al.load_model("smollm2-135m-instruct")
    sweep = known_questions(model, args.out)
    examples = sweep.examples(all_columns=True)
    rows = examples[examples["role"] == "base"][["question", "answer"]]
    print(f"{len(rows)} questions are known")
    print("| null | sweeps | with a claim | statuses |\n| --- | --- | --- | --- |")
    for kind in args.kinds.split(","):
        found: list[set[str]] = []
        for seed in range(args.seeds):
            is_measured = kind == "words"
            made = random_words(model, rows, seed) if is_measured else renamed(sweep, seed, kind)
            found.append({one.status for one in made.findings.claims if one.status in CLAIMS})
        counts = Counter(status for one in found for status in one)
        listed = ", ".join(f"{name} {n}" for name, n in counts.items())
        print(f"| {kind} | {len(found)} | {sum(map(bool, found))} | {listed} |", flush=True)


if __name__ == "__main__":
    main()
