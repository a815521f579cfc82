"""Every invalid input of ``load_qa`` is one error with its fix."""

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
        "empty": ("empty.jsonl", "", "empty.jsonl is empty."),
        "blank": ("blank.jsonl", "\n\n", "file:blank.jsonl has no rows"),
        "json line": (
            "a.jsonl",
            '{"question": "q", "answer": "a"}\n\n{"question": \n',
            "a.jsonl: bad JSON at line 3, column",
        ),
        "not an object": ("b.jsonl", '["q", "a"]', "b.jsonl: line 1 is a list, not an object."),
        "json": ("c.json", '[{"question": }]', "c.json: bad JSON at line 1, column 15"),
        "jsonl as json": ("d.json", '{"a": 1}\n{"a": 2}', "name the file .jsonl."),
        "json shape": ("e.json", '{"rows": []}', "e.json must contain a list of objects"),
        "extension": ("f.xlsx", "x", "f.xlsx: the extension '.xlsx' is not supported."),
        "cells": (
            "g.csv",
            "question,answer\nWho wrote Emma,A,B\n",
            "g.csv: line 2 has 3 cells, but the header has 2 col",
        ),
        "fields": (
            "h.csv",
            "query,answer\nWho,Me\n",
            "is not of the schema 'own': it lacks question. It has answer, query.",
        ),
        "parquet": ("i.parquet", "no parquet at all", "i.parquet is not a readable parquet file"),
        "number": (
            "j.csv",
            "question,answer,popularity\nWho is Ed?,A,many\n",
            "popularity or s_pop must be a number, got 'many'.",
        ),
        "type": (
            "l.csv",
            "question,answer,answer_type\nWho is Ed?,A,animal\n",
            "answer_type='animal' is unknown.",
        ),
        "ids": (
            "m.csv",
            "id,question,answer\n1,Who wrote Emma?,A\n1,Who wrote Ada?,A\n",
            "1 ids repeat, for example '1' (2 rows)",
        ),
    }
    out = {}
    for key, (name, text, message) in texts.items():
        (folder / name).write_text(text, encoding="utf8")
        out[key] = (folder / name, message)
    (folder / "n.csv").write_bytes("question,answer\nWho wrote Émile?,R\n".encode("latin-1"))
    out["encoding"] = (folder / "n.csv", "n.csv is not UTF-8 (byte 26)")
    out["missing"] = (folder / "emty.jsonl", "emty.jsonl. Did you mean 'empty.jsonl' or ")
    out["folder"] = (folder, "is a directory.")
    return out


def test_bad_files_are_one_clear_error(tmp_path):
    for path, message in bad_files(tmp_path).values():
        with refused(DataError, message):
            load_qa("mine", path=path)


def test_a_file_of_another_schema_names_what_is_missing(tmp_path):
    (tmp_path / "x.jsonl").write_text(
        '{"question": "when did it sink", "answer": ["1912"]}', encoding="utf8"
    )
    message = (
        "not of the schema 'popqa': it lacks possible_answers or obj. It has answer, question. Its"
        " fields fit: triviaqa"
    )
    with pytest.raises(DataError, match=message):
        load_qa("popqa", path=tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "popqq"}, "name='popqq': unknown data set. Did you mean 'popqa'"),
        ({"name": "mine"}, "For a file of your own pass path=."),
        ({"name": "popqa.jsonl"}, "No such file: popqa.jsonl. Check the path."),
        ({"name": Path("popqa")}, "No such file: popqa. Check the path."),
        (
            {"name": "mine.csv", "columns": {"qestion": "q"}},
            "has no field 'qestion'. Did you mean 'question' or 'relation'?",
        ),
        ({"name": "x" * 5000}, "name='xxx"),
        ({"name": "null\0character"}, "name='null\\x00character'"),
        ({"name": Path("a.csv"), "path": "b.csv"}, "path='b.csv': name is a file already."),
        ({"name": " ", "path": "b.csv"}, "must not be empty."),
        ({"name": OWN, "path": "x.jsonl"}, "path='x.jsonl': not allowed with a table."),
        ({"name": OWN, "split": "test"}, "split='test': config, split and revision select"),
        ({"name": "popqa-sample", "path": "x.jsonl"}, "use load_qa('popqa', path="),
        (
            {"name": "popqa", "path": "x.jsonl", "split": "test"},
            "split='test': config, split and revision select",
        ),
        (
            {"name": pandas.DataFrame(OWN), "path": "x.jsonl"},
            "path='x.jsonl': not allowed with a table.",
        ),
    ],
)
def test_invalid_arguments_are_errors(arguments, message):
    with refused(InputError, message) as caught:
        load_qa(**arguments)
    assert caught.value.arguments in {(name,) for name in arguments} or isinstance(
        caught.value, DataError
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "list has no rows."),
        ([OWN[0], "popqa"], "list, row 2 is 'popqa'."),
        (
            {"question": ["q"], "answers": ["a"]},
            "with the keys question, answers. Pass a list of rows",
        ),
        (
            {f"split{i}": OWN for i in range(20)},
            "split6, split7 and 12 more. Pass one of its splits",
        ),
        (
            datasets.DatasetDict({"train": datasets.Dataset.from_list(OWN)}),
            "with the keys train. Pass one of its splits.",
        ),
    ],
    ids=range(5),
)
def test_wrong_tables_are_one_clear_error(unchecked, table, message):
    with refused(DataError, message):
        load_qa(table)


def test_a_frame_of_another_library_is_an_error_with_the_fix(unchecked):
    class DataFrame:
        columns = ("question", "answers")

        def to_dict(self, *, as_series=True):
            raise AssertionError("not asked for")

        def to_dicts(self):
            return OWN

    with refused(
        DataError, "Cannot read rows from a DataFrame of this library. Pass frame.to_dicts()"
    ):
        load_qa(DataFrame())
    assert len(load_qa(DataFrame().to_dicts())) == 1


def test_a_long_row_of_columns_is_cut_short():
    row = {f"column{i:02}": "x" for i in range(40)}
    with refused(DataError, "It has column00, column01, ") as caught:
        load_qa([row])
    assert "column07 and 32 more." in str(caught.value)
    assert "column08" not in str(caught.value)
