"""Files that are no files, that unpack to more than fits into memory, or that hide text: one clear
error, or a dropped row.
"""

import gzip
import os
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy
import pyarrow
import pyarrow.parquet
import pytest

import anchorlens as al
from anchorlens.errors import DataError, InputError
from anchorlens.prompts import arrow_columns, decode_file
from tests.questions.make import refused

MEGABYTE = 1 << 20
QUESTIONS = {"question": [f"Who wrote book {i}?" for i in range(20)], "answers": ["a"] * 20}
PAIRS = {"clean": ["The sky is"] * 20, "corrupted": ["The sea is"] * 20}


@pytest.fixture
def little_memory(monkeypatch):
    """Free memory for 8 MB of data."""
    for module in (decode_file, arrow_columns):
        monkeypatch.setattr(module, "most_bytes", lambda: 8 * MEGABYTE)


def test_what_is_no_regular_file_is_refused_without_reading_it(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    (tmp_path / "linked.parquet").symlink_to(tmp_path / "pipe.csv")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket.jsonl"))
    cases: dict[str | Path, str] = {
        tmp_path / "pipe.csv": "pipe.csv is a pipe. Write its content to a file",
        tmp_path / "linked.parquet": "is a pipe",
        tmp_path / "zero.csv": "zero.csv is a device",
        tmp_path / "socket.jsonl": "is a socket",
        "/dev/zero": "/dev/zero is a device",
        "/proc/self/status": "the extension '' is not supported",
    }
    for path, message in cases.items():
        for load in (al.load_qa, al.load_pairs):
            with refused(InputError, message, *(["source"] if load is al.load_pairs else [])):
                load(path=path)
    file = tmp_path / "replaced.csv"
    file.write_text("question,answers\nWho wrote Emma?,Austen\n")
    assert len(al.load_qa(file)) == 1


def test_a_file_larger_than_memory_is_refused_before_it_is_read(tmp_path, little_memory):
    with (tmp_path / "sparse.csv").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"\0" * (20 * MEGABYTE)))
    for name, message in (("sparse.csv", "1,099.51 GB of data"), ("bomb.csv.gz", "more than")):
        with refused(DataError, message):
            al.load_qa(tmp_path / name)


def parquet(path: Path, **columns: Any) -> Path:
    """Write a parquet file whose repeated texts are stored once."""
    pyarrow.parquet.write_table(
        pyarrow.table(columns), path, compression="zstd", dictionary_pagesize_limit=1 << 30
    )
    return path


@pytest.mark.slow
def test_a_small_parquet_file_cannot_fill_the_memory(tmp_path, little_memory):
    """A text of 1 MB is stored once and stands in 20 rows: 20 MB."""
    big = "x" * MEGABYTE
    plain = parquet(tmp_path / "questions.parquet", **QUESTIONS)
    bombs: dict[str, Any] = {
        "text": [big] * 20,
        "list": [[big]] * 20,
        "struct": pyarrow.array([{"value": big}] * 20),
        "lists": [[[big]]] * 20,
        "dictionary": pyarrow.array([big] * 20).dictionary_encode(),
        "binary": [big.encode()] * 20,
        "map": pyarrow.array(
            [[("value", big)]] * 20, pyarrow.map_(pyarrow.string(), pyarrow.string())
        ),
    }
    for name, column in bombs.items():
        read = parquet(tmp_path / f"{name}.parquet", **{**QUESTIONS, "relation": column})
        assert read.stat().st_size < MEGABYTE
        with refused(DataError, "GB of data, but at most"):
            al.load_qa(read)
        unread = parquet(tmp_path / f"un{name}.parquet", **QUESTIONS, note=column)
        data = al.load_qa(unread)
        assert len(data) == 20 and data.sha256 == al.load_qa(plain).sha256
        pairs = parquet(tmp_path / f"pairs-{name}.parquet", **PAIRS, note=column)
        assert len(al.load_pairs(pairs, columns={"clean": "clean"})) == 20
        with refused(DataError, "Unknown column 'note'", "source"):
            al.load_pairs(pairs)
    rows = parquet(tmp_path / "rows.parquet", question=pyarrow.nulls(10**7, pyarrow.string()))
    with refused(DataError, "GB of data, but at most"):
        al.load_qa(rows)


def lists_of(values: Any, n_rows: int = 20) -> pyarrow.Array:
    """Return rows of lists of equally many of the values."""
    ends = [len(values) // n_rows * row for row in range(n_rows + 1)]
    return pyarrow.ListArray.from_arrays(pyarrow.array(ends, pyarrow.int32()), values)


N_NUMBERS = 10**7
REPEATED: dict[str, Callable[[], Any]] = {
    "integers": lambda: lists_of(pyarrow.array(numpy.zeros(N_NUMBERS, numpy.int64))),
    "booleans": lambda: lists_of(pyarrow.array(numpy.zeros(4 * N_NUMBERS, bool))),
    "nulls": lambda: lists_of(pyarrow.nulls(N_NUMBERS, pyarrow.int32())),
    "texts": lambda: lists_of(
        pyarrow.DictionaryArray.from_arrays(numpy.zeros(N_NUMBERS, numpy.int8), ["x"])
    ),
    "lists": lambda: lists_of(lists_of(pyarrow.array(numpy.zeros(N_NUMBERS, numpy.int8)), 200)),
    "objects": lambda: pyarrow.StructArray.from_arrays(
        [lists_of(pyarrow.array(numpy.zeros(N_NUMBERS, numpy.float64)))], ["value"]
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [one if one == "integers" else pytest.param(one, marks=pytest.mark.slow) for one in REPEATED],
)
def test_repeated_numbers_cannot_fill_the_memory(tmp_path, little_memory, monkeypatch, name):
    """Numbers that repeat are stored as one run: 20 lists of half a million of them in 3 kB. They
    are decoded with bounded memory first.
    """
    monkeypatch.setattr(arrow_columns, "_REHEARSAL_BYTES", 1 << 26)
    table = {"question": QUESTIONS["question"], "answers": REPEATED[name]()}
    path = parquet(tmp_path / f"{name}.parquet", **table)
    assert path.stat().st_size < 10**5
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with refused(DataError, "GB of data"):
        al.load_qa(path)
    with refused(DataError, "GB of data"):
        al.load_pairs(path, columns={"clean": "answers", "corrupted": "answers"})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


@pytest.mark.slow
def test_rows_of_equal_numbers_cannot_fill_the_memory(tmp_path, little_memory):
    zeros = pyarrow.array(numpy.zeros(N_NUMBERS, numpy.int8))
    with refused(DataError, "GB of data, but at most"):
        al.load_qa(parquet(tmp_path / "rows.parquet", question=zeros, answers=zeros))
    token_ids = {"clean": [[1, 2, 3]] * 20, "corrupted": [[1, 5, 3]] * 20}
    assert len(al.load_pairs(parquet(tmp_path / "ids.parquet", **token_ids))) == 20


def test_a_row_count_that_is_too_small_is_not_believed(tmp_path, little_memory):
    """The row groups count their own rows."""
    path = parquet(tmp_path / "rows.parquet", question=pyarrow.nulls(10**7, pyarrow.string()))
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    count = b"\x80\xda\xc4\x09"  # 10**7 as zigzag varint
    assert pyarrow.parquet.read_metadata(path).num_rows == 10**7
    for n_replaced in (1, 2, 3):
        false = content[footer:].replace(count, b"\xa8\x80\x80\x00", n_replaced)
        path.write_bytes(content[:footer] + false)
        with refused(DataError, "rows.parquet"):
            al.load_qa(path)


OTHER_FILES: dict[str, tuple[str | bytes, str]] = {
    "deep.json": ('[{"question": "Who?", "answers": ' + "[" * 10**6, "nested too deeply"),
    "deep.jsonl": ('{"question": "Who?", "answers": ' + '{"a":' * 10**5, "nested too deeply"),
    "digits.json": ('[{"question": "Who?", "answers": ' + "9" * 10**6 + "}]", "too long"),
    "exponent.json": ('[{"question": "Who?", "answers": 1e999999999}]', "finite number"),
    "fraction.json": ('[{"question": "W?", "answers": -0.' + "9" * 10**6 + "e999999}]", "finite"),
    "digits.csv": ("question,answers,popularity\nW?,x," + "9" * 10**5, "must be a number"),
    "zip.csv": (b"PK\x03\x04" + b"\0" * 100, "is a zip archive or a workbook. Unpack it"),
    "book.xlsx": (b"PK\x03\x04" + b"\0" * 100, "Save the sheet as csv"),
    "table.feather": (b"ARROW1\0\0", "'.feather' is not supported"),
    "long.csv": ("question,answers\nWho?," + "x" * 140_000, "longer than 131,072 characters"),
    "quoted.csv": ('question,answers\nWho?,"' + "x" * 140_000, "longer than 131,072 characters"),
}


@pytest.mark.parametrize("name", OTHER_FILES)
def test_deep_and_long_values_are_one_error(tmp_path, name):
    content, message = OTHER_FILES[name]
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    start = time.process_time()
    with refused(DataError, message):
        al.load_qa(tmp_path / name)
    assert time.process_time() - start < 5


def test_columns_that_no_schema_names_are_not_decoded(tmp_path):
    """They are listed in the error of a missing column, and an empty one is no unknown column."""
    late = pyarrow.array([2**60] * 20, pyarrow.timestamp("us"))
    table = {**QUESTIONS, "image": late}
    assert len(al.load_qa(parquet(tmp_path / "a.parquet", **table))) == 20
    assert len(al.load_qa(datasets.Dataset(pyarrow.table(table)))) == 20
    only = parquet(tmp_path / "b.parquet", q=QUESTIONS["question"], image=late)
    with refused(DataError, "it lacks question and answers or answer. It has image, q."):
        al.load_qa(only)
    with refused(DataError, "Did you mean 'image'?", "columns"):
        al.load_qa(only, columns={"question": "imag"})
    renamed = {"gold": QUESTIONS["answers"], "q": QUESTIONS["question"], "image": late}
    named = parquet(tmp_path / "c.parquet", **renamed)
    assert len(al.load_qa(named, columns={"question": "q", "answers": "gold"})) == 20
    empty = parquet(tmp_path / "d.parquet", **PAIRS, note=pyarrow.nulls(20))
    assert len(al.load_pairs(empty)) == 20
    choices = {"question": ["Which?"], "A": ["x"], "B": ["y"], "Answer": ["B"], "image": [b"\0"]}
    (row,) = al.load_qa(
        parquet(tmp_path / "e.parquet", **choices), spans=lambda _: ((0, 1), (2, 3))
    ).examples
    assert row.answers == ("y",)


HIDDEN = {
    "direction_override": ("\u202e", "\u202a", "\u2066", "\u2069"),
    "hidden_character": (
        "\U000e0041",
        "\U000e0001",
        "\ufffa",
        "\ufe01\U000e0101",
        "\U0001f3f4\U000e0078\U000e0079\U000e007f",
    ),
}
SEEN = (
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "\u2764\ufe0f",
    "\u200f\u05d0",
    "\u845b\U000e0100",
)


def test_hidden_text_drops_its_row():
    good = {"question": "Who wrote Emma?", "answers": ["Austen"], "id": "a"}
    for reason, texts in HIDDEN.items():
        for text in texts:
            for field in ("question", "answers", "relation", "id"):
                value = ["Aus" + text + "ten"] if field == "answers" else f"Who wrote {text}Emma?"
                data = al.load_qa([good, {**good, "id": "b", field: value}])
                assert data.pool_dropped == {reason: 1}, (text, field)
                assert text not in data.dropped[0].question
            pair = {"clean": f"The {text}sky", "corrupted": "The sea"}
            dropped = al.load_pairs([pair, {"clean": "a b", "corrupted": "a c"}]).dropped
            assert [row.reason for row in dropped] == [reason]
    for text in SEEN:
        data = al.load_qa([{**good, "answers": [f"Austen {text}"]}])
        assert data.pool_dropped == {}, text


def test_a_question_longer_than_any_context_is_dropped():
    data = al.load_qa([{"question": "Who is " + "x" * 10**6 + "?", "answers": "y"}])
    assert data.pool_dropped == {"question_too_long": 1}


def test_deeply_nested_cells_of_pairs_are_one_error_or_text(tmp_path):
    (tmp_path / "p.csv").write_text(
        f'clean,corrupted,answer\na b,a c,"{"[" * 5000 + "]" * 5000}"\n'
    )
    data = al.load_pairs(tmp_path / "p.csv")
    assert len(data) + len(data.dropped) == 1


@pytest.mark.slow
@pytest.mark.exhaustive
def test_large_tables_are_read_in_linear_time(tmp_path):
    """A million rows without spans take 76 s of CPU on a slow machine, and rows with spans as many
    times longer as there are more of them.
    """

    def seconds(n: int, **options: Any) -> float:
        path = tmp_path / f"{n}.csv"
        lines = (f"q{i},What is the capital of land {i}?,City {i}\n" for i in range(n))
        path.write_text("id,question,answers\n" + "".join(lines))
        start = time.process_time()
        assert len(al.load_qa(path, **options).pool) == n
        return time.process_time() - start

    assert seconds(30_000, spans=lambda _: ((0, 4), (5, 7))) < 12  # of CPU, on a slow machine
    assert seconds(20_000) < 5 * seconds(5_000) + 1
