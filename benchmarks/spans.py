"""Measure the accuracy of subject and property spans, of the rules and of spaCy pipelines, on 200
questions labelled by hand.

    python benchmarks/spans.py --spacy en_core_web_sm

reads ``tests/questions/labelled_spans.jsonl`` (50 questions in the form of each set, written for
this project) and prints a Markdown table. ``--wrong`` lists the questions that the rules get wrong.
``--rows DATA/nq.jsonl`` prints 60 real rows with their spans instead, for manual inspection.
"""

import argparse
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from anchorlens.questions.datasets import load_qa

ROOT = Path(__file__).resolve().parents[1]
LABELLED = ROOT / "tests" / "questions" / "labelled_spans.jsonl"
NAMES = {"popqa": "PopQA", "triviaqa": "TriviaQA", "hotpotqa": "HotpotQA", "nq": "NQ"}

# Draws (seed, rows) of each file that were inspected while the rules were written, and seeds of
# later draws of other rows. The rules were changed after each draw but the last.
WRITTEN_ON: dict[str, list[tuple[int, int]]] = {
    "popqa": [],
    "triviaqa": [(12345, 60), (777, 100), (31337, 70), (555, 60)],
    "hotpotqa": [(12345, 60), (777, 100), (31337, 70), (555, 60)],
    "nq": [(12345, 60), (777, 100), (4242, 100), (555, 120)],
}
READ = {
    "popqa": [2026, 991],
    "triviaqa": [2026, 991],
    "hotpotqa": [2026, 991],
    "nq": [2026, 991, 4321],
}

Label = dict[str, Any]


class Judged(NamedTuple):
    """A labelled question with the spans that were found, and whether each is right."""

    label: Label
    subject: str
    asked: str
    subject_right: bool
    property_right: bool


def labels() -> list[Label]:
    """Read the labelled questions: ``form``, ``question``, and the accepted readings of ``subject``
    and ``property``.
    """
    return [json.loads(line) for line in LABELLED.read_text(encoding="utf8").splitlines()]


def core(segment: str) -> str:
    """Return a segment without its leading article, in lower case."""
    return re.sub(r"^(?:the|an?)\s+", "", segment.casefold())


def judged(form: str, spans: str) -> list[Judged]:
    """Return each labelled question of a form with the spans of ``load_qa``, and whether they are
    right.

    A segment is right if it equals one of the accepted readings, apart from a leading article. A
    dropped row is wrong.
    """
    rows = [label for label in labels() if label["form"] == form]
    table = [
        {"id": i, "question": row["question"], "answer": "x", "possible_answers": '["x"]'}
        for i, row in enumerate(rows)
    ]
    answered = [
        {**row, "answer": {"value": "x", "aliases": ["x"]}, "question_id": row["id"]}
        for row in table
    ]
    data = load_qa(answered if form == "triviaqa" else table, dataset_name=form, spans=spans)
    found = {example.question: example for example in data.examples}
    out: list[Judged] = []
    for row in rows:
        example = found.get(row["question"])
        subject = "" if example is None else example.subject.of(example.question)
        asked = "" if example is None else example.property.of(example.question)
        right = [
            core(text) in map(core, row[role])
            for text, role in ((subject, "subject"), (asked, "property"))
        ]
        out.append(Judged(row, subject, asked, *right))
    return out


def table(ways: Sequence[str]) -> str:
    """Return a table of right subjects and properties in per cent, for each form and each value of
    ``spans=``.
    """
    lines = ["| form | spans | subject right | property right |", "|---|---|---:|---:|"]
    for form, name in NAMES.items():
        for way in ways:
            rows = judged(form, way)
            subjects = sum(row.subject_right for row in rows) / len(rows)
            properties = sum(row.property_right for row in rows) / len(rows)
            lines.append(f"| {name} | `{way}` | {subjects:.0%} | {properties:.0%} |")
    return "\n".join(lines)


def rows_to_read(name: str, n_rows: int) -> list[int]:
    """Return the rows of the last manual inspection: drawn from rows of no earlier draw."""
    used = {i for seed, n in WRITTEN_ON[name] for i in random.Random(seed).sample(range(n_rows), n)}
    drawn: list[int] = []
    for seed in READ[name]:
        used.update(drawn)
        drawn = sorted(random.Random(seed).sample([i for i in range(n_rows) if i not in used], 60))
    return drawn


def print_rows(path: Path) -> None:
    """Print the manually inspected rows of a real file with their spans."""
    lines = path.read_text(encoding="utf8").splitlines()
    questions = [json.loads(line)["question"].strip() for line in lines]
    found = {example.question: example for example in load_qa(path.stem, path=path).pool}
    for number, i in enumerate(rows_to_read(path.stem, len(lines)), start=1):
        example = found.get(questions[i])
        segments = (
            ("dropped",)
            if example is None
            else (s.of(questions[i]) for s in (example.subject, example.property))
        )
        print(f"{number:2} {questions[i]}\n      {' | '.join(segments)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--spacy",
        nargs="*",
        default=[],
        metavar="PIPELINE",
        help="spaCy pipelines to measure in addition to the rules",
    )
    parser.add_argument(
        "--wrong", action="store_true", help="list the questions that the rules get wrong"
    )
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="print the manually inspected rows of this file instead",
    )
    options = parser.parse_args()
    if options.rows is not None:
        print_rows(options.rows)
        return
    print(table(["rules", *(f"spacy:{name}" for name in options.spacy)]))
    if options.wrong:
        for form in NAMES:
            for row in judged(form, "rules"):
                if not (row.subject_right and row.property_right):
                    print(f"{form}: {row.label['question']}\n      {row.subject} | {row.asked}")


if __name__ == "__main__":
    main()
