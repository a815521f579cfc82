"""Accepted and refused values of the first argument of ``load_qa``."""

from pathlib import Path

import numpy
import pandas
import pytest
import torch

from anchorlens.errors import DataError, InputError
from anchorlens.questions.datasets import load_qa
from tests.questions.make import refused
from tests.questions.tables import HUB_ROWS, OWN, spans_of, write


def test_a_file_can_be_passed_as_name(tmp_path, monkeypatch):
    path = write(tmp_path / "good.csv", OWN)
    monkeypatch.chdir(tmp_path)
    wanted = load_qa("good", path=path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for data in (
        load_qa(path),
        load_qa(str(path)),
        load_qa("good.csv"),
        load_qa(path=path),
        load_qa(None, "good.csv"),
        load_qa("~/good.csv"),
    ):
        assert data == wanted
        assert (data.name, data.source) == ("good", "file:good.csv")
    assert load_qa(path, dataset_name="mine").name == "mine"


def test_a_file_named_like_a_set_has_its_schema(tmp_path):
    path = write(tmp_path / "popqa.jsonl", HUB_ROWS["popqa"])
    assert load_qa(path) == load_qa(path=path) == load_qa("popqa", path=path)
    assert spans_of(load_qa(path, dataset_name="mine")) == [
        ("Ada Lovelace", "occupation", "annotation")
    ]
    other = path.rename(tmp_path / "x.jsonl")
    assert load_qa(other, dataset_name="popqa").examples == load_qa("popqa", path=other).examples
    with pytest.raises(DataError, match="Its fields fit: popqa"):
        load_qa(other)


def test_a_known_name_comes_before_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("nq-sample").write_text("no data", encoding="utf8")
    assert load_qa("nq-sample", limit=2).source == "sample:nq"


def test_a_directory_is_refused_and_a_missing_file_suggests_similar_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    with refused(DataError, "mine is a directory."):
        load_qa("mine")
    write(tmp_path / "good.csv", OWN)
    with refused(DataError, "goood.csv. Did you mean 'good.csv'?"):
        load_qa(tmp_path / "goood.csv")


def test_a_list_of_dictionaries_is_a_table():
    frame = load_qa(pandas.DataFrame(OWN), dataset_name="mine")
    for rows in (OWN, tuple(OWN)):
        data = load_qa(rows)
        assert (data.name, data.source, len(data)) == ("list", "list", 3)
        assert load_qa(rows, dataset_name="mine").examples == frame.examples
    assert load_qa(HUB_ROWS["popqa"], dataset_name="popqa").examples[0].relation == "occupation"


def test_pairs_of_question_and_answer_are_the_rows_of_a_list():
    pairs = [
        ("Who wrote Emma?", "Jane Austen"),
        ["What is the capital of Peru?", ["Lima", "Ciudad de los Reyes"]],
    ]
    rows = [{"question": question, "answers": answers} for question, answers in pairs]
    assert load_qa(pairs) == load_qa(tuple(pairs)) == load_qa([pairs[0], rows[1]]) == load_qa(rows)
    assert load_qa([("What is the capital of Peru?", "Lima|Ciudad")], answers_sep="|").examples[
        0
    ].answers == ("Lima", "Ciudad")


@pytest.mark.parametrize(
    "row", [("Who?",), ("Who?", "me", "you"), ("Who?", 3), (3, "me"), ("Who?", None)]
)
def test_a_row_that_is_no_pair_is_refused(unchecked, row):
    with refused(DataError, "list, row 2 is ("):
        load_qa([("Who wrote Emma?", "Jane Austen"), row])


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ((), "None"),
        ((5,), "5"),
        ((b"popqa",), "b'popqa'"),
        ((torch.nn.Linear(1, 1),), "a Linear"),
        ((load_qa,), "a function"),
        ((pandas.DataFrame,), "the class DataFrame"),
        ((numpy.zeros(3),), "a ndarray"),
        ((x for x in OWN), "a generator"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_source_of_another_type_is_refused(unchecked, given, shown):
    arguments = given if isinstance(given, tuple) else (given,)
    with refused(InputError, f"name={shown}: must be the name of a set", "name"):
        load_qa(*arguments)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("limit", (3.0, "3", True, 0, -2), "must be an integer >= 1"),
        ("seed", (-1, 1.5, "x", None), "must be an integer >= 0"),
        ("path", (3, ""), "must be a string or a Path"),
        ("split", (3, ""), "must be a non-empty string"),
        ("revision", (b"x",), "must be a non-empty string"),
        ("dataset_name", (3,), "must be a non-empty string"),
    ],
)
def test_arguments_of_another_kind_are_refused(unchecked, name, values, message):
    for value in values:
        with refused(InputError, f"{name}={value!r}: {message}", name):
            load_qa("nq", **{name: value})


def test_numpy_integers_are_accepted(unchecked):
    frame = pandas.DataFrame(OWN)
    data = load_qa(frame, limit=numpy.int64(2), seed=numpy.int32(1))
    assert data == load_qa(frame, limit=2, seed=1)
    assert (type(data.limit), type(data.seed)) == (int, int)
