"""Each cell of a question file has one meaning or is refused (docs/errors.md, "Question files")."""

import math
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy
import pandas
import pyarrow
import pyarrow.parquet
import pytest
import torch

from anchorlens.errors import DataError, InputError
from anchorlens.prompts.cells import plain
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.questions.datasets import load_qa
from tests.fuzz_questions import COLUMNS, DIGITS, fuzz, nest
from tests.questions.make import refused

EMMA = {"question": "Who wrote Emma?", "answers": "Austen"}
CSV = "question,answers\n"
TWICE, OBJECT = '"x", "answers": "y"', '{"value": "x", "value": "y"}'
NO_TEXT = "must be text or a finite number. Write it as text"
TRUTH = "must be text or a finite number. Write yes and no, or leave the cell empty."


def parquet(**columns: Any) -> bytes:
    """Return a parquet file of one row; a value is a cell or an array."""
    arrays = {
        name: value if isinstance(value, pyarrow.Array) else pyarrow.array([value])
        for name, value in columns.items()
    }
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(
        pyarrow.table(list(arrays.values()), [name.rstrip("_") for name in arrays]), sink
    )
    return sink.getvalue().to_pybytes()


def cell(value: object, field: str = "question") -> list[dict]:
    return [EMMA, {**EMMA, field: value}]


def line(text: str) -> str:
    """Return a jsonl line whose answers are a JSON text."""
    return f'{{"question": "Who wrote Emma?", "answers": {text}}}'


UTF8 = COLUMNS[-1].slice(0, 1)
TIME = pyarrow.array([2**60], pyarrow.timestamp("us"))
MAP = pyarrow.array([[("value", "Paris")]], pyarrow.map_(pyarrow.string(), pyarrow.string()))
FIELDS = pyarrow.StructArray.from_arrays([["a"], ["b"]], ["value"] * 2)
DEEP = "[" * 200_000 + "]" * 200_000
TWO_COLUMNS = pandas.DataFrame([["Who?", "x", "y"]], columns=["question", "answers", "answers"])
REFUSED = {
    # Cells that are no text.
    "binary parquet column": (
        ("a.parquet", parquet(question=b"Who", answers="x")),
        f"parquet, row 1: question=b'Who': {NO_TEXT}",
    ),
    "binary in a list": (
        cell([b"Austen"], "answers"),
        f"list, row 2: answers=b'Austen': {NO_TEXT}",
    ),
    "memoryview": (cell(memoryview(b"Who")), f"question=a memoryview: {NO_TEXT}"),
    "list as question": (
        ("a.jsonl", '{"question": ["Who"], "answers": "x"}'),
        f"row 1: question=['Who']: {NO_TEXT}",
    ),
    "object as question": (
        ("a.json", '[{"question": {"text": "Who"}, "answers": "x"}]'),
        f"row 1: question=a dict: {NO_TEXT}",
    ),
    "struct as question": (
        ("a.parquet", parquet(question={"text": "Who"}, answers="x")),
        f"question=a dict: {NO_TEXT}",
    ),
    "nested alias": (("a.jsonl", line('[["Paris"]]')), f"answers=['Paris']: {NO_TEXT}"),
    "nested alias as text": (
        ("a.csv", f'{CSV}Who?,"[[""Paris""]]"'),
        f"answers=['Paris']: {NO_TEXT}",
    ),
    "object without value": (cell({"label": "Austen"}, "answers"), f"answers=a dict: {NO_TEXT}"),
    "map": (
        ("a.parquet", parquet(question="Who?", answers=MAP)),
        f"answers=['value', 'Paris']: {NO_TEXT}",
    ),
    "true": (("a.jsonl", line("true")), f"answers=True: {TRUTH}"),
    "true in a list as text": (("a.csv", f'{CSV}Who?,"[True]"'), f"answers=True: {TRUTH}"),
    "ellipsis": (("a.csv", f"{CSV}Who?,[...]"), f"answers=an ellipsis: {NO_TEXT}"),
    "set, which has no first alias": (
        cell({"Rome", "Roma"}, "answers"),
        f"answers=a set: {NO_TEXT}",
    ),
    "set as text": (("a.csv", f"{CSV}Who?,\"{{'Rome', 'Roma'}}\""), f"answers=a set: {NO_TEXT}"),
    "date": (
        pandas.DataFrame(cell(date(1815, 12, 23), "answers")),
        f"frame, row 2: answers=a date: {NO_TEXT}",
    ),
    "date of numpy": (
        cell(numpy.datetime64("2020", "ns"), "answers"),
        f"answers=a datetime64: {NO_TEXT}",
    ),
    "date of numpy as span": (
        [{**EMMA, "subject_span": numpy.datetime64("2020", "ns")}],
        "subject_span must be [first character",
    ),
    "not finite": (("a.jsonl", line("1e400")), f"answers=inf: {NO_TEXT}"),
    "huge integer": (("a.jsonl", line("1" + "0" * 400)), f"answers=inf: {NO_TEXT}"),
    "popularity not finite": (cell(math.inf, "popularity"), f"popularity=inf: {NO_TEXT}"),
    "popularity nan as text": (
        cell("nan", "popularity"),
        "popularity or s_pop must be a number, got 'nan'",
    ),
    "popularity beyond doubles": (cell("1e400", "popularity"), "must be a number, got '1e400'"),
    # Names that repeat.
    "csv columns": (
        ("a.csv", "question,answers,answers\nWho?,x,y"),
        "a.csv: the name 'answers' occurs 2 times. Rename or remove",
    ),
    "jsonl keys": (
        ("a.jsonl", f"{line('1')}\n{line(TWICE)}"),
        "a.jsonl, line 2: the name 'answers' occurs 2 times",
    ),
    "json keys of an object": (
        ("a.json", f"[{line(OBJECT)}]"),
        "a.json: the name 'value' occurs 2 times",
    ),
    "keys in a cell": (
        ("a.tsv", f"question\tanswers\nWho?\t{OBJECT}"),
        "row 1: the name 'value' occurs 2 times",
    ),
    "parquet columns": (
        ("a.parquet", parquet(question="Who?", answers="x", answers_="y")),
        "the name 'answers' occurs 2 times",
    ),
    "frame columns": (TWO_COLUMNS, "frame: the name 'answers' occurs 2 times"),
    "a number and its text": (
        [{**EMMA, 1: "a", "1": "b"}],
        "list, row 1: the name '1' occurs 2 times",
    ),
    # Damaged lists, rows and values.
    "list without commas": (
        ("a.csv", f"{CSV}Who?,['Rome' 'Roma']"),
        "\"['Rome' 'Roma']\" is not a valid list (Expecting value, c",
    ),
    "damaged list": (("a.csv", f'{CSV}Who?,"[""Rome"", ""Ro"'), 'Write JSON: ["Rome", "Roma"].'),
    "nested text": (("a.csv", f"{CSV}Who?,{'[' * 2000}"), "file:a.csv, row 1: "),
    "nested jsonl": (("a.jsonl", line(DEEP)), "a.jsonl, line 1: JSON is nested too deeply."),
    "nested json": (("a.json", f"[{line(DEEP)}]"), "a.json: JSON is nested too deeply."),
    "nested list, not read": (
        cell(nest("x", 2000), "note"),
        "list, row 2: a value is nested too deeply.",
    ),
    "digits as text": (
        ("a.csv", f"{CSV}Who?,[{DIGITS}]"),
        "row 1: JSON has an integer that is too long.",
    ),
    "digits in jsonl": (
        ("a.jsonl", line(DIGITS)),
        "a.jsonl, line 1: JSON has an integer that is too long.",
    ),
    "digits in json": (
        ("a.json", f"[{line(DIGITS)}]"),
        "a.json: JSON has an integer that is too long.",
    ),
    "short row": (
        ("a.csv", f"{CSV}Who wrote\nEmma?,Austen"),
        "a.csv: line 2 has 1 cells, but the header has 2 columns.",
    ),
    "open quotation": (
        ("a.csv", f'{CSV}Who?,"Austen\n'),
        "a.csv: line 2 cannot be read (unexpected end of data). Quote the cell",
    ),
    "text after a quotation": (
        ("a.csv", f'{CSV}"Emma" is by whom?,Austen'),
        "a.csv: line 2 cannot be read (",
    ),
    "time beyond Python's": (
        ("a.parquet", parquet(question="Who?", answers="x", relation=TIME)),
        "column 'relation' cannot be read (date",
    ),
    "parquet text not UTF-8": (
        ("a.parquet", parquet(question=UTF8, answers="x")),
        "column 'question' cannot be read (In chunk 0",
    ),
    "parquet fields": (
        ("a.parquet", parquet(question="Who?", answers=FIELDS)),
        "a.parquet: column 'answers' cannot be read (",
    ),
    "column name of two lines": (("a.csv", '"x\ny",answers\nWho?,x'), "It has answers, 'x\\ny'."),
    "half of UTF-16": (
        ("a.csv", f"{CSV}Who?,x".encode("utf-16")[:-1]),
        "a.csv is not UTF-16 (byte ",
    ),
    "UTF-16 without a mark": (
        ("a.csv", f"{CSV}Who?,x".encode("utf-16-le")),
        "a.csv has null characters, as UTF-16 without a byte",
    ),
    "damaged gzip": (("a.csv.gz", b"\x1f\x8b\x08"), "a.csv.gz is not a readable gzip file ("),
}


@pytest.mark.parametrize("name", REFUSED)
def test_input_without_one_meaning_is_refused_in_one_line(tmp_path, unchecked, name):
    source, message = REFUSED[name]
    if isinstance(source, tuple):
        file, content = tmp_path / source[0], source[1]
        file.write_bytes(content if isinstance(content, bytes) else content.encode("utf8"))
        source = file
    with refused(InputError, message) as caught:
        load_qa(source)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "name", ["x" * 100_000 + ".csv", "nul\0.csv", "half\ud800.csv", "line\nend.csv"]
)
def test_a_file_that_no_system_can_open_is_one_error(name):
    for path in (Path(name), Path(name[0]) / name):
        with pytest.raises(DataError, match=r"cannot be read|No such file") as caught:
            load_qa("mine", path=path)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500


@pytest.mark.slow
def test_a_flipped_bit_of_a_parquet_file_is_an_error_or_a_reading(tmp_path):
    content = parquet(question="Who wrote Emma?", answers=pyarrow.array([["Austen"]]))
    for i in range(0, 8 * len(content), 997):
        damaged = bytearray(content)
        damaged[i // 8] ^= 1 << i % 8
        (tmp_path / "a.parquet").write_bytes(damaged)
        try:
            load_qa(tmp_path / "a.parquet")
        except DataError as error:
            assert str(error).isprintable()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (5.0, "5"),
        (0.5, "0.5"),
        (-0.0, "0"),
        (Decimal("1.50"), "1.50"),
        (numpy.float32(2.5), "2.5"),
        (numpy.float32(0.1), "0.1"),
        (numpy.float16(0.1), "0.1"),
        (numpy.float64(0.1), "0.1"),
        (numpy.array([0.1], numpy.float32), "0.1"),
        (torch.tensor(0.1), "0.1"),
        (torch.tensor(2.0), "2"),
        (torch.tensor(0.1, requires_grad=True), "0.1"),
        (torch.tensor([0.1]), "0.1"),
        ([torch.tensor(0.1)], "0.1"),
        (torch.tensor(0.1, dtype=torch.float16), "0.1"),
        (torch.tensor(0.1, dtype=torch.bfloat16), "0.1"),
        (torch.tensor(0.1, dtype=torch.float64), "0.1"),
        (torch.tensor(5), "5"),
        (" 5 ", "5"),
        ("b'Who'", "b'Who'"),
        ("[sic] Rome", "[sic] Rome"),
        ("+AD4-", "+AD4-"),
        ("a\u2028b\x85c", "a\u2028b\x85c"),
    ],
)
def test_a_text_or_number_is_its_text(value, text):
    assert load_qa(cell(value, "answers")).examples[1].answers[0] == text


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_tensor_has_the_digits_that_numpy_writes(dtype):
    given = numpy.random.default_rng(0).standard_normal(300) * numpy.logspace(-4, 4, 300)
    given = numpy.array([*given, 0.0, -0.0, 1e-7, 65504, 16777216, numpy.inf]).astype(dtype)
    assert plain(torch.from_numpy(given)) == plain(given)
    assert plain(torch.tensor(numpy.nan)) is None


@pytest.mark.parametrize(
    "dtype",
    ["float16", "float32", "Float32", "float[pyarrow]", "halffloat[pyarrow]", "float64", "object"],
)
def test_a_number_has_the_digits_of_its_own_type(tmp_path, dtype):
    """Not 0.10000000149011612, which is the next number of 64 bits."""
    texts = ["0.1", None, "2", "3.14"]
    own = numpy.float32 if dtype == "object" else float
    frame = pandas.DataFrame({"clean": [f"{n} and" for n in range(4)], "corrupted": "x and"})
    cells = [text and own(text) for text in texts]
    frame["answer"] = pandas.Series(cells, dtype=dtype)
    assert [pair.answer for pair in load_pairs(frame).pairs] == texts
    questions = frame.rename(columns={"clean": "question"}).drop(columns="corrupted").dropna()
    questions["question"] = [f"How far is it to town {n}?" for n in range(3)]
    found = load_qa(questions).examples
    assert [row.answers[0] for row in found] == list(filter(None, texts))
    if dtype != "object":  # of which a file has doubles
        frame.to_parquet(tmp_path / "a.parquet")
        assert [pair.answer for pair in load_pairs(tmp_path / "a.parquet").pairs] == texts


def test_numbers_of_a_data_set_have_the_digits_of_their_own_type(tmp_path):
    """In lists too, and where rows are streamed."""
    text = datasets.Value("string")
    kinds = {"clean": text, "corrupted": text, "answer": [datasets.Value("float32")]}
    rows = {"clean": ["a b"], "corrupted": ["a c"], "answer": [[0.1, 0.2]]}
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    table.to_parquet(str(tmp_path / "a.parquet"))
    for source in (table, table.to_iterable_dataset(), str(tmp_path / "a.parquet")):
        (pair,) = load_pairs(source, limit=1).pairs
        assert pair.answer.answers == ("0.1", "0.2")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pyarrow.large_list(pyarrow.float16()), [0.1, None]),
        (pyarrow.list_(pyarrow.float32(), 2), [0.1, 0.3]),
        (pyarrow.struct([("a", pyarrow.list_(pyarrow.float32())), ("b", pyarrow.string())]), None),
        (pyarrow.struct([("a", pyarrow.float32()), ("b", pyarrow.string())]), {"a": 0.1, "b": "c"}),
        (pyarrow.map_(pyarrow.string(), pyarrow.float32()), [("a", 0.1)]),
        (pyarrow.list_(pyarrow.float64()), [0.1]),
        (pyarrow.list_(pyarrow.string()), ["0.1"]),
        (None, 0.1),
    ],
)
def test_digits_are_restored_in_nested_types(kind, value):
    from anchorlens.prompts.arrow_columns import restore_digits

    given = value
    if kind is not None:
        (given,) = pyarrow.array([value], kind).to_pylist()
    assert restore_digits(given, kind) == value


@pytest.mark.parametrize(
    "value", [None, math.nan, pandas.NA, pandas.NaT, Decimal("NaN"), "", " \t", [], [None, ""]]
)
def test_a_missing_value_is_no_answer(unchecked, value):
    assert load_qa([EMMA, {"question": "Who wrote Ada?", "answers": value}]).dropped_counts == {
        "no_answer": 1
    }


@pytest.mark.parametrize("field", ["question", "answers", "id", "relation"])
@pytest.mark.parametrize("character", ["\0", "\x07", "\x0b", "\x1f", "\x7f", "\x92", "\x9b"])
def test_a_control_character_drops_its_row(field, character):
    rows = [
        {"id": "a", "relation": "r", **EMMA},
        {"id": "b", "question": "Who wrote Ada?", "answers": "N"},
    ]
    rows[1][field] = f"Who wrote{character} Ada?"
    data = load_qa(rows)
    assert [e.example_id for e in data.examples] == ["a"]
    assert [(row.reason, row.detail) for row in data.dropped] == [
        ("control_character", f"list, row 2: {field} contains a control character. Remove it.")
    ]


def test_line_separators_end_no_row_of_a_csv_file(tmp_path):
    """``str.splitlines`` would end a row at each of them."""
    path = tmp_path / "a.csv"
    path.write_text(
        f'{CSV}Who wrote\u2028Emma\x85?,Austen\r\nWho wrote Ada?,"N.\nN."\r\n',
        encoding="utf8",
        newline="",
    )
    assert [
        (e.question, e.answers) for e in load_qa(path, spans=lambda q: ([0, 1], [2, 3])).examples
    ] == [("Who wrote\u2028Emma\x85?", ("Austen",)), ("Who wrote Ada?", ("N.\nN.",))]


def test_columns_that_are_not_read_may_have_any_type(tmp_path):
    row = {
        **EMMA,
        "image": b"\xff",
        "when": date(2020, 1, 2),
        "nested": [[{"a": [True]}]],
        "share": math.inf,
    }
    (tmp_path / "a.parquet").write_bytes(parquet(**row))
    for source in (
        [row],
        pandas.DataFrame([row]),
        datasets.Dataset.from_list([row]),
        tmp_path / "a.parquet",
    ):
        assert load_qa(source).examples[0].answers == ("Austen",)


def test_directories_add_no_column_to_a_parquet_file(tmp_path):
    """pyarrow would read ``relation=author`` of the path as a column."""
    folder = tmp_path / "relation=author"
    folder.mkdir()
    (folder / "a.parquet").write_bytes(parquet(**EMMA))
    assert load_qa(folder / "a.parquet").examples[0].relation is None


@pytest.mark.slow
def test_mutated_files_give_the_independent_reading_or_one_clear_error():
    bad = {
        n: outcome
        for n, outcome in fuzz(0, range(200)).items()
        if outcome.kind not in {"right", "clear error"}
    }
    assert bad == {}
