"""Every wrong input of ``load_qa`` is one clear error with the cure in it."""

from pathlib import Path

import datasets
import pandas
import pytest

from anchorlens.errors import DataError, InputError
from anchorlens.questions.datasets import load_qa
from tests.questions.make import refused

OWN = [{"question": "Who wrote Emma?", "answers": ["Jane Austen"]}]


def bad_files(folder: Path) -> dict[str, tuple[Path, str]]:
    texts = {
        "empty": ("empty.jsonl", "", "empty.jsonl is empty; it needs one row a question."),
        "blank": ("blank.jsonl", "\n\n", "file:blank.jsonl has no rows"),
        "json line": ("a.jsonl", '{"question": "q", "answer": "a"}\n\n{"question": \n', "a.jsonl: bad JSON at line 3, column"),
        "not an object": ("b.jsonl", '["q", "a"]', "b.jsonl: line 1 holds a list, not an object."),
        "json": ("c.json", '[{"question": }]', "c.json: bad JSON at line 1, column 15"),
        "jsonl as json": ("d.json", '{"a": 1}\n{"a": 2}', "One object a line is the jsonl format: name the file .jsonl."),
        "json shape": ("e.json", '{"rows": []}', "e.json must hold a list of objects, or an object with such a list under 'data'."),
        "extension": ("f.xlsx", "x", "Cannot read f.xlsx: the extension '.xlsx' is none of .jsonl, .json, .csv, .tsv, .parquet."),
        "cells": ("g.csv", "question,answer\nWho wrote Emma,A,B\n", "g.csv: line 2 has more cells than the header has columns"),
        "fields": ("h.csv", "query,answer\nWho,Me\n", "is not of the schema 'own': it lacks question. It has answer, query."),
        "parquet": ("i.parquet", "no parquet at all", "i.parquet is not a readable parquet file"),
        "number": ("j.csv", "question,answer,popularity\nWho is Ed?,A,many\n", "popularity or s_pop must be a number, got 'many'."),
        "type": ("l.csv", "question,answer,answer_type\nWho is Ed?,A,animal\n", "answer_type must be one of year"),
        "ids": ("m.csv", "id,question,answer\n1,Who wrote Emma?,A\n1,Who wrote Ada?,A\n", "1 ids repeat, for example '1' (2 rows)"),
    }  # fmt: skip
    out = {}
    for key, (name, text, message) in texts.items():
        (folder / name).write_text(text, encoding="utf8")
        out[key] = (folder / name, message)
    (folder / "n.csv").write_bytes("question,answer\nWho wrote Émile?,R\n".encode("latin-1"))
    out["encoding"] = (folder / "n.csv", "n.csv is not UTF-8 (byte 26); save it as UTF-8.")
    out["missing"] = (folder / "emty.jsonl", "emty.jsonl. Did you mean 'empty.jsonl' or ")
    out["folder"] = (folder, "is a directory; give one file")
    return out


def test_bad_files_are_one_clear_error(tmp_path):
    for path, message in bad_files(tmp_path).values():
        with refused(DataError, message):
            load_qa("mine", path=path)


def test_a_file_of_another_schema_names_what_is_missing(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"question": "when did it sink", "answer": ["1912"]}', encoding="utf8")
    message = "not of the schema 'popqa': it lacks possible_answers or obj. It has answer, question. Its fields fit: triviaqa"
    with pytest.raises(DataError, match=message):
        load_qa("popqa", path=tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "popqq"}, "No data set goes by the name 'popqq'. Did you mean 'popqa'"),
        ({"name": "mine"}, "To read a file of your own give path=, or the file in place of the name."),
        ({"name": "popqa.jsonl"}, "There is no file popqa.jsonl. Check the path."),
        ({"name": Path("popqa")}, "There is no file popqa. Check the path."),
        ({"name": "mine.csv", "columns": {"qestion": "q"}}, "has no field 'qestion'. Did you mean 'question' or 'relation'?"),
        ({"name": "x" * 5000}, "No data set goes by the name 'xxx"),
        ({"name": "null\0character"}, "No data set goes by the name 'null\\x00character'"),
        ({"name": Path("a.csv"), "path": "b.csv"}, "Give the file once: as the first argument or as path=."),
        ({"name": " ", "path": "b.csv"}, "The name of the data set is empty; leave it out, and it is the file's."),
        ({"name": OWN, "path": "x.jsonl"}, "Give a table or path=, not both."),
        ({"name": OWN, "split": "test"}, "config=, split= and revision= choose a part of a hub data set"),
        ({"name": "popqa-sample", "path": "x.jsonl"}, "to read a file of its schema use load_qa('popqa', path="),
        ({"name": "popqa", "path": "x.jsonl", "split": "test"}, "config=, split= and revision= choose a part of a hub"),
        ({"name": pandas.DataFrame(OWN), "path": "x.jsonl"}, "Give a table or path=, not both."),
    ],
)
def test_arguments_that_cannot_be_are_errors(arguments, message):
    with refused(InputError, message):
        load_qa(**arguments)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "list has no rows; it needs one row a question."),
        ([OWN[0], "popqa"], "list, row 2 is 'popqa'; each row is a dictionary"),
        ({"question": ["q"], "answers": ["a"]}, "with the keys question, answers; give a list of rows"),
        ({f"split{i}": 0 for i in range(20)}, "split6, split7 and 12 more; give one split of it"),
        (datasets.DatasetDict({"train": datasets.Dataset.from_list(OWN)}), "with the keys train; give one split of it."),
    ],
    ids=range(5),
)
def test_wrong_tables_are_one_clear_error(unchecked, table, message):
    with refused(DataError, message):
        load_qa(table)


def test_a_frame_of_another_library_is_told_how_to_be_given(unchecked):
    class DataFrame:
        columns = ("question", "answers")

        def to_dict(self, *, as_series=True):
            raise AssertionError("not asked for")

        def to_dicts(self):
            return OWN

    with refused(DataError, "Cannot read questions from a DataFrame of this library; give frame.to_dicts()"):
        load_qa(DataFrame())
    assert len(load_qa(DataFrame().to_dicts())) == 1


def test_a_long_row_of_columns_is_cut_short():
    row = {f"column{i:02}": "x" for i in range(40)}
    with refused(DataError, "It has column00, column01, ") as caught:
        load_qa([row])
    assert "column07 and 32 more." in str(caught.value)
    assert "column08" not in str(caught.value)
