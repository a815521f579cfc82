"""Measure how well texts of questions and gold answers alone, without a model, predict which answer
is true (METHOD 3).

    python benchmarks/pairs.py --data DIR --limit 300

Prints one row per data set and distractor rule, for the four embedded sets and for the files of
four data sets in DIR. The columns are kept questions, dropped questions by reason, the shares of
true and of false answers that share a content word with their question, and both text baselines, as
a sweep with SmolLM2-135M-Instruct makes its rows and splits.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

import anchorlens as al
from anchorlens.constants import DISTRACTORS
from anchorlens.models.load import adapt
from anchorlens.probing.text_baseline import text_baselines
from anchorlens.probing.truth_rows import truth_rows
from anchorlens.questions.example import normalise
from anchorlens.questions.false_answers import content_words
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer, TokenRow

SETS = ("popqa", "triviaqa", "hotpotqa", "nq")
COLUMNS = (
    "data set",
    "distractor",
    "kept",
    "dropped",
    "shared word, true",
    "false",
    "answer_text_auc",
    "qa_text_auc",
)


def shares_word(row: TokenRow) -> bool:
    """Return whether a content word of the answer occurs in the question."""
    return not content_words(row.answer.text).isdisjoint(normalise(row.question).split())


def main() -> None:
    """Print one row per data set and distractor rule."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with popqa.jsonl, triviaqa.jsonl, hotpotqa.jsonl and nq.jsonl",
    )
    parser.add_argument("--limit", type=int, help="questions of each set (default: all)")
    parser.add_argument(
        "--n-splits", type=int, default=5, help="splits into training, validation and test"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of splits and false answers"
    )
    args = parser.parse_args()
    sets: list[tuple[str, Path | None]] = [(f"{name}-sample", None) for name in SETS]
    if args.data is not None:
        sets += [(name, args.data / f"{name}.jsonl") for name in SETS]
    model = al.load_model("smollm2-135m-instruct")
    adapter = adapt(model)
    assert model.tokenizer is not None
    tokenizer = RowTokenizer(model.tokenizer, QAPrompt())
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for name, path in sets:
        examples = al.load_qa(name, path=path, limit=args.limit).examples
        for distractor in DISTRACTORS:
            rows = truth_rows(
                adapter,
                examples,
                tokenizer,
                answers="gold",
                distractor=distractor,
                n_splits=args.n_splits,
                max_new_tokens=1,
                batch_size=None,
                seed=args.seed,
                progress=False,
            )
            reasons = ", ".join(
                f"{reason} {n}"
                for reason, n in sorted(Counter(gone.reason for gone in rows.dropped).items())
            )
            cells = [
                name,
                distractor,
                f"{len(rows.rows) // 2} of {len(examples)}",
                reasons or "none",
            ]
            bits = np.array([shares_word(row) for row in rows.rows])
            cells += [f"{bits[rows.labels == label].mean():.1%}" for label in (0, 1)]
            for baseline in text_baselines(rows, n_resamples=1000, seed=args.seed).values():
                cells.append(f"{baseline.auc:.3f} [{baseline.ci_low:.2f}, {baseline.ci_high:.2f}]")
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
