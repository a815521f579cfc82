"""Measure how well texts of questions and given answers alone, without a model, predict which answer is true (METHOD 3).

    python benchmarks/pairs.py --data DIR --limit 300

Prints one row per data set and distractor rule, for the four embedded sets and for the files of four data sets in DIR. The columns
are kept rows, dropped rows by reason, the shares of true and of false answers that occur in their question and that share a content
word with it, and the AUCs of both text baselines on the test split.
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import anchorlens as al
from anchorlens.constants import DISTRACTORS
from anchorlens.probing.text_baseline import answer_text_scores, qa_text_scores
from anchorlens.questions.example import Example, normalise
from anchorlens.questions.false_answers import assign_false_answers, content_words, split_questions
from anchorlens.statistics.bands import auc_band
from anchorlens.statistics.resamples import Resamples

SETS = ("popqa", "triviaqa", "hotpotqa", "nq")
COLUMNS = (
    "data set", "distractor", "kept", "dropped", "true answer in question", "false answer", "word of true answer in question",
    "of false answer", "answer_text_auc", "qa_text_auc",
)  # fmt: skip


def stands(answer: str, question: str) -> bool:
    """Return whether an answer occurs in a question as whole words."""
    return f" {normalise(answer)} " in f" {normalise(question)} "


def shares_word(answer: str, question: str) -> bool:
    """Return whether a content word of an answer occurs in a question."""
    return not content_words(answer).isdisjoint(normalise(question).split())


def told(scores: npt.NDArray[np.float64], labels: npt.NDArray[np.float64], questions: Sequence[str]) -> str:
    """Format an AUC with its interval over questions."""
    draws = Resamples.of(questions)
    band = auc_band(draws.aucs(scores[None], labels))
    return f"{band.value[0]:.3f} [{band.low[0]:.2f}, {band.high[0]:.2f}]"


def measured(examples: Sequence[Example], split: Mapping[str, str], false: Mapping[str, str]) -> list[str]:
    """Return the four shares over all rows, and both baselines on the test split."""
    kept = [example for example in examples if example.example_id in false]
    rows = [
        (example, answer, label) for example in kept for answer, label in ((example.answers[0], 0), (false[example.example_id], 1))
    ]
    labels = np.array([label for _, _, label in rows], float)
    bits = ([bit(answer, example.question) for example, answer, _ in rows] for bit in (stands, shares_word))
    out = [f"{np.mean(bit, where=labels == label):.1%}" for bit in bits for label in (0, 1)]
    test = np.array([split[example.question_id] == "test" for example, _, _ in rows])
    pairs = [(example.question, answer) for example, answer, _ in rows]
    questions = [example.question_id for (example, _, _), there in zip(rows, test, strict=True) if there]
    for name in ("answer_text_auc", "qa_text_auc"):
        fitted, scored = ([pair for pair, there in zip(pairs, part, strict=True) if there] for part in (~test, test))
        if name == "answer_text_auc":
            scores = answer_text_scores([answer for _, answer in fitted], labels[~test], [answer for _, answer in scored])
        else:
            scores = qa_text_scores(fitted, labels[~test], scored)
        out.append(told(scores, labels[test], questions))
    return out


def main() -> None:
    """Print one row per data set and distractor rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with popqa.jsonl, triviaqa.jsonl, hotpotqa.jsonl and nq.jsonl")
    parser.add_argument("--seed", type=int, default=0, help="random seed of splits and false answers")
    parser.add_argument("--limit", type=int, help="questions of each set (default: all)")
    args = parser.parse_args()
    sets: list[tuple[str, Path | None]] = [(f"{name}-sample", None) for name in SETS]
    if args.data is not None:
        sets += [(name, args.data / f"{name}.jsonl") for name in SETS]
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for name, path in sets:
        examples = al.load_qa(name, path=path, limit=args.limit).examples
        split = split_questions(examples, seed=args.seed)
        for distractor in DISTRACTORS:
            given = assign_false_answers(examples, split, distractor=distractor, seed=args.seed)
            reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(Counter(gone.reason for gone in given.dropped).items()))
            cells = [name, distractor, f"{len(given.false)} of {len(examples)}", reasons or "none"]
            print("| " + " | ".join(cells + measured(examples, split, given.false)) + " |", flush=True)


if __name__ == "__main__":
    main()
