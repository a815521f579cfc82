"""Files in the layouts in which people have them: each is read, or one sentence names the cure.

The rows are written here. ``python -m tests.questions.test_file_layouts`` prints the table of
docs/errors.md.
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
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.questions.datasets import load_qa

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
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
        said="The first line looks like data. Add a line with the names of the columns, such as"
        " question,A,B,C,D,answer.",
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
    "codes without choices": Layout(
        "m.csv",
        "question,answer\n" + "".join(f"Who wrote book {code}?,{code}\n" for code in range(12)),
        [(str(code),) for code in range(12)],
        "all answers are one of 0, 1, 2",
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
    "questions in German": Layout(
        "a.csv",
        "question,answer\nWas ist die Hauptstadt von Peru?,Lima\nWer schrieb Emma?,Jane Austen\n",
        [],
        "2 of 2 rows are dropped (not_english 2). The rules support English only.",
    ),
    "one question of three in Dutch": Layout(
        [("Is Lima de hoofdstad van Peru?", "Lima"), (Q, "Lima"), (Q, "Lima")], answers=LIMA * 2
    ),
    "UTF-8 with a mark and CRLF": Layout(
        "a.csv", CSV.replace("\n", "\r\n").encode("utf-8-sig"), LIMA
    ),
    "characters of width zero and no-break spaces": Layout(
        "a.csv", f"question,answer\n\u200b{Q},La\u00a0Pa\u200bz\u200b\n", [("La Paz",)]
    ),
    "blanks before quotation marks": Layout(
        "a.csv",
        f'question, answer\n"{Q}", "Lima, Peru"\n',
        [("Lima, Peru",)],
        reading={"delimiter": ", "},
    ),
    "a blank and a quotation mark inside of a cell": Layout(
        "a.csv",
        f'question,answer\n"{Q}","Lima, ""Peru"""\n"In ""it"", ""Emma"" is whose?",x\n',
        [('Lima, "Peru"',), ("x",)],
    ),
    "empty lines and a row of commas": Layout("a.csv", f"\n{CSV}\n,\n{Q},Lima\n", LIMA * 2),
    "quoted line breaks": Layout(
        "a.csv",
        'question,answer\r\n"What is the capital\r\nof Peru?",Lima\r\n',
        LIMA,
        "has line ends with \\r",
    ),
    "old Mac line ends": Layout("a.csv", CSV.replace("\n", "\r"), LIMA),
    "row names of R": Layout("a.csv", f'"","question","answer"\n"1","{Q}","Lima"\n', LIMA),
    "row names of R without a column": Layout(
        "a.csv", f"question,answer\n1,{Q},Lima\n", said="name the first column if the rows have"
    ),
    "each line quoted as one cell": Layout(
        "a.csv", f'"question,answer"\n"{Q},Lima"\n', said="Each line is quoted as one cell"
    ),
    "a title above the header": Layout(
        "a.csv", f"My questions\n{CSV}", said="Write the names of the columns in the first line"
    ),
    "a title with empty cells above the header": Layout(
        "a.csv", f"My questions,\n{CSV}", said="The first line of the file has the names"
    ),
    "names with spaces": Layout(
        "a.csv",
        f"the question,best answer\n{Q},Lima\n",
        said="It has best answer, the question. Pass columns=",
    ),
    "names with spaces, given": Layout(
        "a.csv",
        f"the question,best answer\n{Q},Lima\n",
        LIMA,
        more={"columns": {"question": "the question", "answers": "best answer"}},
        reading={"columns": {"question": "the question", "answers": "best answer"}},
    ),
    "names with spaces around": Layout("a.csv", f" Question ,  Answers\n{Q},Lima\n", LIMA),
    "AQuA, choices with labels": Layout(
        "a.jsonl",
        lines({"question": Q, "options": ["A)Quito", "B)Lima", "C)La Paz"], "answer": "B"}),
        LIMA,
    ),
    "choices with labels, answer with its label": Layout(
        "a.jsonl",
        lines({"question": Q, "options": ["(A) Quito", "(B) Lima"], "answer": "B. Lima"}),
        LIMA,
    ),
    "choices of which one begins as a label": Layout(
        "a.jsonl",
        lines({"question": Q, "options": ["Quito", "B. Traven"], "answer": "B"}),
        [("B. Traven",)],
    ),
    "an answer beside its aliases": Layout(
        "a.json",
        json.dumps([{"question": Q, "answers": [{"answer": "Lima", "aliases": ["Ciudad"]}]}]),
        [("Lima", "Ciudad")],
    ),
    "a name without aliases": Layout(
        "a.jsonl", lines({"question": Q, "answer": {"name": "Lima", "aliases": []}}), LIMA
    ),
    "true or false": Layout(
        "a.jsonl", lines({"question": Q, "answer": True}), said="answer=True: must be text"
    ),
    "true or false as text": Layout(
        "a.csv", f"question,answer\n{Q},True\n", [("True",)], "Write yes and no"
    ),
    "whole numbers of a column with a gap": Layout(
        "a.csv",
        f"question,answer\nHow many legs has a spider?,8.0\n{Q},\n",
        [("8",)],
        "such as 8.0 as 8",
    ),
    "joiners at the ends": Layout("a.csv", CSV.replace("Lima", "\u200cLima\u200d"), LIMA),
    "a column of empty cells": Layout(
        "a.csv", f"question;answer;relation\n{Q};;x\n", said="column 'answer' is empty in all rows"
    ),
    "Natural Questions with documents": Layout(
        "n.jsonl",
        lines({"question_text": Q, "document_text": "Lima", "annotations": []}),
        said="Use NQ-open, with the columns question and answer",
    ),
    "CounterFact": Layout(
        "counterfact.json",
        json.dumps([{"case_id": 1, "requested_rewrite": {"prompt": "{} is"}}]),
        said="CounterFact: its rows have no corrupted prompt.",
    ),
    "an object under another key": Layout(
        "a.json", json.dumps({"Questions": [QUESTION]}), said="It has the keys Questions."
    ),
    "a frame as json": Layout(
        "a.json",
        pd.DataFrame([{"question": Q, "answer": "Lima"}]).to_json(),
        said="It has the keys question, answer.",
    ),
    "ndjson": Layout("a.ndjson", lines(QUESTION), said="Name it .jsonl."),
    "aliases with semicolons": Layout(
        "a.csv",
        f"question,answer\n{Q},Lima; Ciudad\n",
        [("Lima; Ciudad",)],
        "Pass answers_sep=';' to split it.",
    ),
    "aliases with semicolons, split": Layout(
        "a.csv",
        f"question,answer\n{Q},Lima; Ciudad\n",
        [("Lima", "Ciudad")],
        more={"answers_sep": ";"},
        reading={"answers_sep": ";"},
    ),
    "aliases in lines": Layout(
        "a.csv",
        f'question,answer\n{Q},"Lima\nCiudad"\n',
        [("Lima\nCiudad",)],
        "Pass answers_sep='\\n' to split it.",
    ),
    "aliases of HTML": Layout(
        "a.csv",
        f"question,answer\n{Q},Lima<br>Ciudad\n",
        [("Lima<br>Ciudad",)],
        "answers_sep='<br>'",
    ),
    "aliases with commas in most rows": Layout(
        "a.csv",
        f'question,answer\n{Q},"Lima, Ciudad"\nWho wrote Emma?,"Austen,Jane"\nWho wrote It?,King\n',
        [("Lima, Ciudad",), ("Austen,Jane",), ("King",)],
        "Pass answers_sep=',' if it lists several.",
    ),
    "places with commas in one row": Layout(
        "a.csv", f'question,answer\n{Q},"Lima, Peru"\n', [("Lima, Peru",)]
    ),
    "dates and numbers with commas": Layout(
        "a.csv",
        'question,answer\nWhen was Lima founded?,"January 18, 1535"\nHow many people live in Lima?,"10,092,000"\n',
        [("January 18, 1535",), ("10,092,000",)],
    ),
    "aliases with or": Layout(
        [(Q, "Lima or Ciudad"), ("Who wrote Emma?", "Jane Austen or Austen")],
        answers=[("Lima or Ciudad",), ("Jane Austen or Austen",)],
        said="Pass answers_sep=' or ' if it lists several.",
    ),
    "JSON in a cell": Layout(
        "a.csv", f'question,answers\n{Q},"[""Lima"", ""Ciudad""]"\n', [("Lima", "Ciudad")]
    ),
    "a list without quotation marks in a cell": Layout(
        "a.csv",
        f'question,answers\n{Q},"[Lima, Ciudad]"\n',
        [("[Lima, Ciudad]",)],
        'Write several as JSON: ["Rome", "Roma"].',
    ),
    "a tuple of Python in a cell": Layout(
        "a.csv",
        f"question,answers\n{Q},\"('Lima', 'Ciudad')\"\n",
        [("('Lima', 'Ciudad')",)],
        "Write several as JSON",
    ),
    "an error of a spreadsheet": Layout(
        "a.csv", f"question,answer\n{Q},#N/A\n", [("#N/A",)], "Leave the cell empty"
    ),
    "a formula of a spreadsheet": Layout(
        "a.csv", f'question,answer\n{Q},="007"\n', [('="007"',)], "Save the sheet with its values."
    ),
    "characters of HTML": Layout(
        "a.csv",
        "question,answer\nWho founded AT&amp;T?,Bell &amp; Co\n",
        [("Bell &amp; Co",)],
        "Replace them (html.unescape).",
    ),
    "UTF-8 that was read as Latin-1": Layout(
        "a.jsonl",
        lines({"question": Q, "answers": ["Lima", "Bogot\u00c3\u00a1"]}),
        [("Lima", "Bogot\u00c3\u00a1")],
        "is UTF-8 that was read as Latin-1. Read its source as UTF-8.",
    ),
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


def test_a_pair_keeps_the_space_of_a_quoted_cell_after_a_blank(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        'clean, corrupted, answer\n"The capital of Peru, Lima", "The capital of Cuba", " Lima"\n'
    )
    (pair,) = load_pairs(path).pairs
    assert (pair.clean, pair.answer) == ("The capital of Peru, Lima", " Lima")


# Layouts of the table in docs/errors.md.
SHOWN = [
    *(
        "PopQA",
        "PopQA under another name",
        "TriviaQA",
        "SQuAD 2",
        "MRQA",
        "MMLU",
        "MMLU without a header",
        "ARC as published",
        "Natural Questions with documents",
        "CounterFact",
    ),
    *("AQuA, choices with labels", "letters without choices", "class labels", "stream"),
    *("stream with a limit", "semicolons", "tabs in a csv", "line sep=;", "colons", "Unicode text"),
    *("UTF-8 with a mark and CRLF", "Latin-1", "characters of width zero and no-break spaces"),
    *("blanks before quotation marks", "empty lines and a row of commas", "quoted line breaks"),
    *("names with spaces", "names with spaces, given", "aliases with semicolons"),
    *("aliases with semicolons, split", "aliases in lines", "aliases with commas in most rows"),
    *("JSON in a cell", "a list without quotation marks in a cell", "an error of a spreadsheet"),
    *("UTF-8 that was read as Latin-1", "questions in German", "a column of empty cells"),
    *("whole numbers of a column with a gap", "true or false as text"),
]


def describe(layout, folder):
    """Return what is read of a layout (number of rows, answers, what is recorded) and said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            data = layout.load(folder)
        except AnchorlensError as error:
            return "", f"{type(error).__name__}: {error}"
    answers = [" / ".join(map(repr, example.answers)) for example in data.pool]
    read = f"{len(answers)}: {', '.join(answers)}" if answers else "0"
    recorded = "".join(f"; {name} {value!r}" for name, value in data.reading.items())
    return f"{read}{recorded}", " ".join(str(one.message) for one in caught)


def make_table(folder):
    """Return the table of docs/errors.md: file, what is read, what is said."""
    table = ["| layout | file | rows, answers, record | message |", "| --- | --- | --- | --- |"]
    for name in SHOWN:
        layout = LAYOUTS[name]
        file = layout.source if isinstance(layout.source, str) else "`datasets`"
        cells = [name, file, *describe(layout, folder)]
        table.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(table)


def test_the_page_of_errors_shows_what_is_read_and_said_of_these_files(tmp_path):
    page = PAGE.read_text(encoding="utf8")
    assert len(SHOWN) == len(set(SHOWN)) >= 20
    assert f"\n{make_table(tmp_path)}\n" in page, (
        "run `python -m tests.questions.test_file_layouts`"
    )
    assert f"reads files in {len(LAYOUTS)} layouts" in page


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        print(make_table(Path(home)))
