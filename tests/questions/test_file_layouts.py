"""Files in the layouts in which people have them: each is read, or one sentence names the cure.

The rows are written here. ``python -m tests.questions.test_file_layouts`` prints the table.
"""

import gzip
import json
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

from anchorlens.errors import AnchorlensError
from anchorlens.questions.datasets import load_qa

Q = "What is the capital of Peru?"
CHOICES = ["Quito", "Lima", "La Paz", "Bogota"]
TRIVIA = {"Question": Q, "QuestionId": "tc_1", "Answer": {"Value": "Lima", "Aliases": ["Ciudad"]}}
QUESTION = {"id": "1", "question": Q, "answers": [{"text": "Lima", "answer_start": 0}]}
HIDDEN = {"id": "2", "question": "Who wrote Emma?", "answers": [], "is_impossible": True}
SQUAD = {"title": "Peru", "paragraphs": [{"context": "Lima.", "qas": [QUESTION, HIDDEN]}]}
ARC = [{"text": text, "label": label} for text, label in zip(CHOICES, "ABCD", strict=True)]
CSV = f"question,answer\n{Q},Lima\n"
TABS = CSV.replace(",", "\t")
COLUMNS = {"question": datasets.Value("string"), "answer": datasets.ClassLabel(names=CHOICES)}
LISTED = {**COLUMNS, "answer": [datasets.ClassLabel(names=CHOICES)]}


def lines(*rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def typed(answer, features):
    rows = [{"question": Q, "answer": answer}] * 3
    return datasets.Dataset.from_list(rows, features=datasets.Features(features))


@dataclass
class Layout:
    """A file (name and content) or a table, and what is expected of it.

    ``answers`` are the answers of each row; ``said`` is part of the error, or of the warning if
    rows are read.
    """

    source: Any
    content: Any = None
    answers: list[tuple[str, ...]] | None = None
    said: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    reading: dict[str, Any] = field(default_factory=dict)

    def load(self, folder):
        if self.content is None:
            return load_qa(self.source, **self.more)
        path = folder / self.source
        content = self.content
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_qa(path, **self.more)


LIMA = [("Lima",)]
POPQA = f'id\tsubj\tprop\ts_pop\tquestion\tpossible_answers\n1\tPeru\tcapital\t9\t{Q}\t["Lima"]\n'
LAYOUTS = {
    "PopQA": Layout("popQA.tsv", POPQA, LIMA),
    "PopQA under another name": Layout(
        "mine.tsv", POPQA, said="Its fields fit: popqa. Pass dataset_name='popqa'"
    ),
    "PopQA by name": Layout("mine.tsv", POPQA, LIMA, more={"dataset_name": "PopQA"}),
    "TriviaQA": Layout("wikipedia-dev.json", json.dumps({"Data": [TRIVIA]}), [("Lima", "Ciudad")]),
    "TriviaQA, one row a line": Layout("t.jsonl", lines(TRIVIA), [("Lima", "Ciudad")]),
    "SQuAD 2": Layout("dev-v2.0.json", json.dumps({"version": "2", "data": [SQUAD]}), LIMA),
    "MRQA": Layout("mrqa.jsonl.gz", gzip.compress(lines({"qas": [QUESTION]}).encode()), LIMA),
    "SQuAD in datasets": Layout(
        "s.jsonl", lines({"question": Q, "answers": {"text": ["Lima"], "answer_start": [0]}}), LIMA
    ),
    "answers as objects": Layout("s.jsonl", lines(QUESTION), LIMA),
    "MMLU": Layout("m.jsonl", lines({"question": Q, "choices": CHOICES, "answer": 1}), LIMA),
    "MMLU with columns A to D": Layout(
        "m.csv", f"question,A,B,C,D,answer\n{Q},{','.join(CHOICES)},B\n", LIMA
    ),
    "MMLU without a header": Layout(
        "m.csv",
        f"{Q},{','.join(CHOICES)},B\nWho wrote Emma?,a,b,c,d,A\n",
        said="The first line of the file has the names of the columns",
    ),
    "MedMCQA": Layout(
        "m.jsonl",
        lines({"question": Q, "opa": "Quito", "opb": "Lima", "cop": 1}),
        LIMA,
        more={"columns": {"answers": "cop"}},
        reading={"columns": {"answers": "cop"}},
    ),
    "MedQA": Layout(
        "m.jsonl",
        lines({"question": Q, "options": {"A": "Quito", "B": "Lima"}, "answer": "B"}),
        LIMA,
    ),
    "a small letter in brackets": Layout(
        "m.jsonl", lines({"question": Q, "options": CHOICES, "answer": "(b)"}), LIMA
    ),
    "a list of numbers of choices": Layout(
        "m.jsonl",
        lines({"question": Q, "options": CHOICES, "answers": [1, 2]}),
        [("Lima", "La Paz")],
    ),
    "ARC in datasets": Layout(
        "a.jsonl",
        lines(
            {
                "question": Q,
                "choices": {"text": CHOICES, "label": ["1", "2", "3", "4"]},
                "answerKey": "2",
            }
        ),
        LIMA,
    ),
    "ARC as published": Layout(
        "ARC.jsonl", lines({"question": {"stem": Q, "choices": ARC}, "answerKey": "B"}), LIMA
    ),
    "an answer that is no choice": Layout(
        "m.jsonl",
        lines({"question": Q, "choices": CHOICES, "answer": "Cusco"}),
        [("Cusco",)],
        "'Cusco' is none of the row's choices",
    ),
    "letters without choices": Layout(
        "m.csv", f"question,answer\n{Q},B\n", [("B",)], "all answers are one of B"
    ),
    "numbers without choices": Layout(
        "m.csv", "question,answer\n" + f"{Q},1\n" * 4, [("1",)] * 4, "all answers are one of 1"
    ),
    "a hidden label": Layout(
        "m.jsonl",
        lines(QUESTION, {"question": Q, "choices": CHOICES, "answers": -1}),
        LIMA,
    ),
    "class labels": Layout(typed(1, COLUMNS), answers=LIMA * 3),
    "class labels in a list": Layout(typed([1, 1], LISTED), answers=LIMA * 3),
    "pandas categories": Layout(
        pd.DataFrame({"question": [Q], "answer": pd.Categorical(["Lima"], categories=CHOICES)}),
        answers=LIMA,
    ),
    "stream": Layout(typed(1, COLUMNS).to_iterable_dataset(), said="Pass limit="),
    "stream with a limit": Layout(
        typed(1, COLUMNS).to_iterable_dataset(),
        answers=LIMA * 2,
        more={"limit": 2},
        reading={"stream": "first 2 rows"},
    ),
    "semicolons": Layout("a.csv", CSV.replace(",", ";"), LIMA, reading={"delimiter": ";"}),
    "semicolons, and commas in the header": Layout(
        "a.csv",
        f"question;answer;note, free\n{Q};Lima;x, y\n",
        LIMA,
        reading={"delimiter": ";"},
    ),
    "tabs in a csv": Layout("a.csv", TABS, LIMA, reading={"delimiter": "\t"}),
    "tabs, and your own names": Layout(
        "a.csv",
        f"q\tgold, all\n{Q}\tLima\n",
        LIMA,
        more={"columns": {"question": "q", "answers": "gold, all"}},
        reading={"delimiter": "\t", "columns": {"question": "q", "answers": "gold, all"}},
    ),
    "a semicolon in a name": Layout(
        "a.csv", f"question;x,answer\n{Q},Lima\n", said="It has answer, question;x"
    ),
    "colons": Layout(
        "a.csv", CSV.replace(",", ":"), said="If another character than a comma, semicolon"
    ),
    "Unicode text": Layout(
        "a.csv", TABS.encode("utf-16"), LIMA, reading={"delimiter": "\t", "encoding": "utf-16"}
    ),
    "Unicode text named txt": Layout("a.txt", TABS.encode("utf-16"), said="name it .tsv"),
    "UTF-16 without a mark": Layout(
        "a.csv", CSV.encode("utf-16-be"), said="as UTF-16 without a byte order mark. Save it as"
    ),
    "UTF-32": Layout("a.csv", CSV.encode("utf-32"), LIMA, reading={"encoding": "utf-32"}),
    "Latin-1": Layout(
        "a.csv", CSV.replace("Lima", "Límã").encode("latin-1"), said="Save it as UTF-8"
    ),
    "line sep=;": Layout(
        "a.csv", "sep=;\r\n" + CSV.replace(",", ";"), LIMA, reading={"delimiter": ";"}
    ),
    "line sep= with a tab": Layout("a.csv", "sep=\t\n" + TABS, LIMA, reading={"delimiter": "\t"}),
    "quoted line sep=;": Layout(
        "a.csv", '"sep=;"\n' + CSV.replace(",", ";"), LIMA, reading={"delimiter": ";"}
    ),
    "characters of width zero in a word": Layout("a.csv", CSV.replace("Lima", "Li\u200bma"), LIMA),
    "a soft hyphen in a list": Layout(
        "a.jsonl", lines({"question": Q, "answers": ["Li\u00adma\ufeff"]}), LIMA
    ),
    "characters of width zero in the header": Layout(
        "a.csv", CSV.replace("answer", "answer\u200b"), LIMA
    ),
    "compressed tsv": Layout("a.tsv.gz", gzip.compress(TABS.encode()), LIMA),
    "compressed json": Layout(
        "a.json.gz", gzip.compress(json.dumps({"Data": [TRIVIA]}).encode()), [("Lima", "Ciudad")]
    ),
    "compressed, but named csv": Layout(
        "a.csv", gzip.compress(CSV.encode()), said="compressed by gzip. Name it a.csv.gz"
    ),
    "a workbook named csv": Layout("a.csv", b"PK\x03\x04" + bytes(9), said="save its sheet as csv"),
    "a workbook": Layout("a.xlsx", b"PK\x03\x04" + bytes(9), said="Save the sheet as csv"),
    "a list named jsonl": Layout("a.jsonl", json.dumps([QUESTION]), said="one list .json"),
    "lines named json": Layout("a.json", lines(QUESTION, QUESTION), said="name the file .jsonl"),
    "a question in German": Layout([("Was ist die Hauptstadt von Peru?", "Lima")], answers=[]),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_file_is_read_or_one_sentence_names_the_cure(case, tmp_path):
    layout = LAYOUTS[case]
    if layout.answers is None:
        with pytest.raises(AnchorlensError) as refused:
            layout.load(tmp_path)
        assert layout.said in str(refused.value)
        assert "\n" not in str(refused.value)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = layout.load(tmp_path)
    assert [example.answers for example in data.pool] == layout.answers
    messages = [str(one.message) for one in caught]
    assert len(messages) == bool(layout.said), messages
    assert layout.said in "".join(messages)
    assert data.record().get("reading", {}) == layout.reading


ALIASES = ["Lima; Ciudad", "Lima|Ciudad", "Lima\nCiudad", "Lima / Ciudad"]
FORMS = ["list", "tuples", "frame", "dataset", "jsonl", "json", "csv", "tsv", "parquet"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", ALIASES)
def test_several_answers_in_one_text_are_noticed_in_every_form(cell, form, tmp_path):
    frame = pd.DataFrame([{"question": Q, "answer": cell}])
    path = tmp_path / f"a.{form}"
    if form in ("csv", "tsv"):
        frame.to_csv(path, index=False, sep="," if form == "csv" else "\t")
    elif form in ("jsonl", "json"):
        frame.to_json(path, orient="records", lines=form == "jsonl")
    elif form == "parquet":
        frame.to_parquet(path)
    tables = {
        "list": frame.to_dict("records"),
        "tuples": [(Q, cell)],
        "frame": frame,
        "dataset": datasets.Dataset.from_pandas(frame),
    }
    source = tables.get(form, path)
    with pytest.warns(UserWarning, match=r"is read as one alias. Pass answers_sep=") as caught:
        load_qa(source)
    assert len(caught) == 1
    separator = str(caught[0].message).partition("answers_sep=")[2].split(" to split")[0]
    (example,) = load_qa(source, answers_sep=separator.strip("'").replace("\\n", "\n")).pool
    assert example.answers == ("Lima", "Ciudad")


def test_class_names_are_read_from_a_parquet_file_of_datasets(tmp_path):
    path = tmp_path / "a.parquet"
    typed(1, COLUMNS).to_parquet(path)
    assert load_qa(path).pool[0].answers == ("Lima",)
    damaged = pyarrow.parquet.read_table(path).replace_schema_metadata({b"huggingface": b"{"})
    pyarrow.parquet.write_table(damaged, path)
    assert load_qa(path).pool[0].answers == ("1",)


def test_annotated_characters_count_from_the_question_as_it_is_written():
    question = "\u200b Who wro\u00adte Emma?"
    start = question.index("Emma")
    (example,) = load_qa(
        [{"question": question, "answer": "Jane Austen", "subject_span": [start, start + 4]}]
    ).pool
    assert example.question == "Who wrote Emma?"
    assert example.subject.of(example.question) == "Emma"


def describe(layout, folder):
    """Return what is read of a layout, and what is said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = [" / ".join(example.answers) for example in layout.load(folder).pool]
            said = [str(one.message) for one in caught]
            return ", ".join(found) or "dropped", "; ".join(said)
        except AnchorlensError as why:
            return "-", f"{type(why).__name__}: {why}"
        except Exception as why:  # noqa: BLE001 - an older version
            return "-", f"raw {type(why).__name__}: {why}"


if __name__ == "__main__":
    for name, one in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as home:
            print(json.dumps([name, *describe(one, Path(home))], ensure_ascii=False))
