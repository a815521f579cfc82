"""Question files in the layouts in which people publish and save them, with rows written here."""

import gzip
import json
import warnings

import datasets
import pytest

from anchorlens.errors import DataError, SpanError
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.questions.datasets import load_qa

QUESTION = "What is the capital of Peru?"
CHOICES = ["Quito", "Lima", "La Paz", "Bogota"]
TRIVIA = {
    "Question": QUESTION,
    "QuestionId": "tc_1",
    "Answer": {"Value": "Lima", "Aliases": ["Ciudad de los Reyes"]},
}
POPQA = f'id\tsubj\tprop\tobj\tsubj_id\ts_pop\tquestion\tpossible_answers\n1\tPeru\tcapital\tLima\t419\t9000\t{QUESTION}\t"[""Lima""]"\n'


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


# name -> file name, content, further arguments, answers
FILES = {
    "semicolons, as Excel writes in most of Europe": (
        "a.csv",
        f"question;answer\n{QUESTION};Lima\n",
        {},
        ("Lima",),
    ),
    "semicolons and a comma in a cell": (
        "a.csv",
        "question;answer\nIn Peru, what is the capital?;Lima\n",
        {},
        ("Lima",),
    ),
    "line sep=;": ("a.csv", f"sep=;\r\nquestion;answer\r\n{QUESTION};Lima\r\n", {}, ("Lima",)),
    "line sep=,": ("a.csv", f"sep=,\nquestion,answer\n{QUESTION},Lima\n", {}, ("Lima",)),
    "tabs in a csv": ("a.csv", f"question\tanswer\n{QUESTION}\tLima\n", {}, ("Lima",)),
    "commas in a tsv": ("a.tsv", f"question,answer\n{QUESTION},Lima\n", {}, ("Lima",)),
    "Unicode text of Excel": (
        "a.csv",
        f"question\tanswer\r\n{QUESTION}\tLima\r\n".encode("utf-16"),
        {},
        ("Lima",),
    ),
    "UTF-8 with a mark": (
        "a.csv",
        f"question,answer\n{QUESTION},Lima\n".encode("utf-8-sig"),
        {},
        ("Lima",),
    ),
    "capital letters in the header": (
        "a.csv",
        f"Question,Answer\n{QUESTION},Lima\n",
        {},
        ("Lima",),
    ),
    "characters of width zero": (
        "a.csv",
        f"question,answer\n\u200b{QUESTION},Lima\u200b\n",
        {},
        ("Lima",),
    ),
    "compressed csv": (
        "a.csv.gz",
        gzip.compress(f"question,answer\n{QUESTION},Lima\n".encode()),
        {},
        ("Lima",),
    ),
    "compressed jsonl": (
        "a.jsonl.gz",
        gzip.compress(lines({"question": QUESTION, "answer": "Lima"}).encode()),
        {},
        ("Lima",),
    ),
    "PopQA": ("popQA.tsv", POPQA, {}, ("Lima",)),
    "TriviaQA": ("a.json", json.dumps({"Data": [TRIVIA]}), {}, ("Lima", "Ciudad de los Reyes")),
    "TriviaQA by name": (
        "a.json",
        json.dumps({"Data": [TRIVIA]}),
        {"name": "triviaqa"},
        ("Lima", "Ciudad de los Reyes"),
    ),
    "SQuAD in datasets": (
        "a.jsonl",
        lines(
            {"question": QUESTION, "answers": {"text": ["Lima", "Lima"], "answer_start": [3, 9]}}
        ),
        {},
        ("Lima",),
    ),
    "MMLU": (
        "a.jsonl",
        lines({"question": QUESTION, "choices": CHOICES, "answer": 1}),
        {},
        ("Lima",),
    ),
    "MMLU-Pro": (
        "a.jsonl",
        lines({"question": QUESTION, "options": CHOICES, "answer": "B"}),
        {},
        ("Lima",),
    ),
    "ARC": (
        "a.jsonl",
        lines(
            {
                "question": QUESTION,
                "choices": {"text": CHOICES, "label": ["1", "2", "3", "4"]},
                "answerKey": "2",
            }
        ),
        {"columns": {"answers": "answerKey"}},
        ("Lima",),
    ),
    "text of a choice": (
        "a.jsonl",
        lines({"question": QUESTION, "choices": CHOICES, "answer": "Lima"}),
        {},
        ("Lima",),
    ),
    "choices that are numbers": (
        "a.jsonl",
        lines({"question": QUESTION, "choices": ["3", "1"], "answer": "1"}),
        {},
        ("1",),
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_published_layout_is_read(case, tmp_path):
    file_name, content, more, answers = FILES[case]
    path = tmp_path / file_name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    data = load_qa(path=path, **more) if "name" in more else load_qa(path, **more)
    (example,) = data.examples
    assert example.question.endswith("?")
    assert example.question == example.question.strip("\u200b")
    assert example.answers == answers
    assert data.name == more.get("name", path.name.partition(".")[0])


def test_the_topic_of_mmlu_is_no_segment(tmp_path):
    """The published set has a column ``subject``; every row of it was refused as an annotation."""
    row = {"question": QUESTION, "subject": "world_geography", "choices": CHOICES, "answer": 1}
    path = tmp_path / "mmlu.jsonl"
    path.write_text(lines(row))
    with pytest.warns(UserWarning, match=r"subject has topics \(world_geography\), no words"):
        (example,) = load_qa(path).examples
    assert example.answers == ("Lima",)
    assert example.subject.of(example.question) == "Peru"
    # Words of the question are a segment, and a topic without choices is an error as before.
    path.write_text(lines({**row, "subject": "Peru"}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_qa(path).examples[0].subject == example.subject
    path.write_text(lines({"question": QUESTION, "subject": "geography", "answer": "Lima"}))
    with pytest.raises(SpanError, match="occurs 0 times"):
        load_qa(path)


@pytest.mark.parametrize(
    ("choices", "answer", "found"),
    [
        (["1", "2", "3"], 1, "2"),
        (["0", "4", "2"], 2.0, "2"),
        (CHOICES, "AB", "AB"),
        (["3", "1", "x"], "x", "x"),
    ],
)
def test_a_number_is_never_the_text_of_a_choice(choices, answer, found):
    (example,) = load_qa([{"question": QUESTION, "choices": choices, "answer": answer}]).examples
    assert example.answers == (found,)


def test_a_text_that_is_one_choice_and_the_number_of_another_is_refused():
    with pytest.raises(DataError, match="answer=1"):
        load_qa([{"question": QUESTION, "choices": ["1", "2"], "answer": "1"}])


def test_a_number_without_a_choice_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(lines({"question": QUESTION, "choices": CHOICES, "answer": 4}))
    with pytest.raises(
        DataError,
        match=(
            "a.jsonl, row 1: answer=4: there are 4 choices, numbered from 0. Write the answer as"
            " text"
        ),
    ):
        load_qa(path)


def test_lines_of_a_file_with_a_line_for_excel_are_named_by_their_number(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("sep=;\nquestion;answer\nWho?;x;y\n")
    with pytest.raises(
        DataError,
        match="line 3",
    ):
        load_qa(path)


def test_names_of_classes_are_answers():
    kind = datasets.Features(
        {
            "question": datasets.Value("string"),
            "answer": datasets.ClassLabel(names=["Quito", "Lima"]),
        }
    )
    table = datasets.Dataset.from_list([{"question": QUESTION, "answer": 1}], features=kind)
    assert load_qa(table).examples[0].answers == ("Lima",)


@pytest.mark.parametrize("load", [load_qa, load_pairs])
def test_a_streamed_data_set_is_refused_with_the_cure(load):
    table = datasets.Dataset.from_list(
        [{"question": QUESTION, "answer": "Lima"}]
    ).to_iterable_dataset()
    for one in (table, table.take(1)):
        with pytest.raises(
            DataError,
            match="streamed",
        ):
            load(one)


def test_pairs_are_read_from_the_same_files(tmp_path):
    text = "clean;corrupted;answer\nThe capital of Peru is;The capital of Cuba is; Lima\n"
    for name, content in (
        ("a.csv", text.encode()),
        ("b.csv.gz", gzip.compress(text.encode())),
        ("c.csv", text.encode("utf-16")),
    ):
        (tmp_path / name).write_bytes(content)
        (pair,) = load_pairs(tmp_path / name).pairs
        assert pair.answer == " Lima"
