"""Prompt pairs: every source gives the same pairs, every bad row its reason, every bad argument its
error.
"""

import csv
import json
import re
import warnings

import datasets
import pandas as pd
import pytest

from anchorlens.errors import DataError, InputError
from anchorlens.prompts.dataset import PromptDataset
from anchorlens.prompts.load_pairs import load_pairs
from tests.questions.make import capitals, refused

ROW = {"clean": "The ab is", "corrupted": "The ae is", "answer": " a", "wrong": " b"}
# Text and token ids, with and without every optional column.
ROWS = [
    {**ROW, "id": "one", "group": "g", "segments": {"letter": ["ab", "ae"]}},
    {
        "id": "two",
        "clean": "One, two",
        "corrupted": 'Three "or" four',
        "alignment": [[0, 0], [1, 2]],
    },
    {
        "id": "3",
        "clean": [5, 6, 7],
        "corrupted": [5, 8],
        "answer": [9, 10],
        "segments": {"both": [6, 7], "each": [[6], [8, 8]]},
    },
]
EXPECTED = [
    ("one", "g", "The ab is", "The ae is", " a", " b", {"letter": ("ab", "ae")}, None),
    ("two", "two", "One, two", 'Three "or" four', None, None, {}, ((0, 0), (1, 2))),
    (
        "3",
        "3",
        (5, 6, 7),
        (5, 8),
        (9, 10),
        None,
        {"both": ((6, 7), (6, 7)), "each": ((6,), (8, 8))},
        None,
    ),
]
TEXT_ROWS = [
    {
        **dict.fromkeys(("answer", "wrong", "group", "alignment")),
        **row,
        "segments": json.dumps(row.get("segments", {})),
    }
    for row in ROWS[:2]
]


def cells(row):
    """A row as text cells; lists and objects are JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in row.items()
    }


def saved(kind, folder, rows):
    """The rows as a table or as the path of a file."""
    path = folder / f"sums.{kind}"
    if kind in ("csv", "tsv"):
        with path.open("w", newline="", encoding="utf8") as file:
            names = dict.fromkeys(name for row in rows for name in row)
            writer = csv.DictWriter(file, list(names), delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(map(cells, rows))
    elif kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf8")
    elif kind == "json":
        path.write_text(json.dumps({"data": rows}), encoding="utf8")
    return {"list": rows, "tuple": tuple(rows), "frame": pd.DataFrame(rows)}.get(kind, path)


@pytest.mark.parametrize("kind", ["list", "tuple", "frame", "csv", "tsv", "jsonl", "json"])
def test_every_source_gives_the_same_pairs(tmp_path, kind):
    data = load_pairs(saved(kind, tmp_path, ROWS))
    found = [dict(vars(pair)) for pair in data.pairs]
    assert {one.pop("template") for one in found} == {None}
    assert [tuple(one.values())[:-1] for one in found] == EXPECTED
    assert data.dropped == ()
    assert data.sha256 == load_pairs(ROWS).sha256
    assert (data.name, data.source) == (
        ("pairs", "frame" if kind == "frame" else "list")
        if kind in ("list", "tuple", "frame")
        else ("sums", f"file:sums.{kind}")
    )


@pytest.mark.parametrize("kind", ["parquet", "dataset"])
def test_tables_with_one_type_per_column_give_the_same_pairs(tmp_path, kind):
    """Segments as a struct have every name in every row; as a JSON text they have not."""
    for rows, n in (
        (TEXT_ROWS, 2),
        ([{**ROW, "segments": {"x": "ab"}}, {**ROW, "segments": {"y": "is"}}], 2),
    ):
        table = datasets.Dataset.from_list(rows)
        if kind == "parquet":
            pd.DataFrame(rows).to_parquet(tmp_path / "sums.parquet")
        data = load_pairs(tmp_path / "sums.parquet" if kind == "parquet" else table)
        assert data.pairs == load_pairs(rows).pairs and len(data) == n and not data.dropped
    ids = [{"clean": [1, 2], "corrupted": [1, 3]}]
    assert (
        load_pairs(datasets.Dataset.from_list(ids)).pairs
        == load_pairs(pd.DataFrame(ids)).pairs
        == load_pairs(ids).pairs
    )


def test_a_list_of_numbers_is_token_ids_in_a_cell_and_text_in_a_list(tmp_path):
    row = {"clean": "[1, 2]", "corrupted": "[1, 2, 3] is a list", "answer": "[4]"}
    (of_cells,), (of_list,) = (
        load_pairs(saved("csv", tmp_path, [row])).pairs,
        load_pairs([row]).pairs,
    )
    assert (of_cells.clean, of_cells.corrupted, of_cells.answer) == (
        (1, 2),
        "[1, 2, 3] is a list",
        (4,),
    )
    assert (of_list.clean, of_list.answer) == ("[1, 2]", "[4]")


def test_pairs_and_questions_are_data_sets():
    assert isinstance(load_pairs([ROW]), PromptDataset)
    assert isinstance(capitals(2), PromptDataset)


LONE = "half \ud800"
REASONS = [
    ({"clean": ""}, "empty_cell"),
    ({"clean": "  "}, "empty_cell"),
    ({"corrupted": None}, "empty_cell"),
    ({"clean": []}, "empty_cell"),
    ({"answer": "  "}, "empty_answer"),
    ({"wrong": []}, "empty_answer"),
    ({"answer": float("inf")}, "bad_cell"),
    ({"clean": [1, "2"]}, "bad_cell"),
    ({"clean": [1.5]}, "bad_cell"),
    ({"wrong": True}, "bad_cell"),
    ({"segments": ["ab"]}, "bad_segments"),
    ({"segments": "no JSON"}, "bad_segments"),
    ({"segments": {"x": ""}}, "bad_segments"),
    ({"segments": {"x": ["ab", ""]}}, "bad_segments"),
    ({"segments": {"last": "ab"}}, "bad_segments"),
    ({"segments": {"pos:1": "ab"}}, "bad_segments"),
    ({"segments": {" ": "ab"}}, "bad_segments"),
    ({"segments": {"x": 3}}, "bad_cell"),
    ({"alignment": [[0]]}, "bad_alignment"),
    ({"alignment": [[0, "1"]]}, "bad_alignment"),
    ({"alignment": "0:0"}, "bad_alignment"),
    ({"alignment": {"a": 1}}, "bad_alignment"),
    ({"clean": LONE}, "lone_surrogate"),
    ({"answer": " a\x00"}, "control_character"),
    ({"id": "\x07"}, "control_character"),
    ({"segments": {"x": LONE}}, "lone_surrogate"),
]


@pytest.mark.parametrize(("change", "reason"), REASONS)
def test_a_bad_row_is_dropped_with_its_reason(change, reason):
    data = load_pairs([ROW, {**ROW, **change}])
    assert len(data) == 1
    assert data.dropped_counts == {reason: 1}
    (row,) = data.dropped_frame().to_dict("records")
    assert row["dataset"] == "pairs" and row["detail"].startswith("row 2: ")
    json.dumps(row, ensure_ascii=False).encode("utf8")
    assert repr(data) == f"PairData('pairs': pairs 1 | dropped 1 ({reason} 1) | source list)"


@pytest.mark.parametrize("missing", [None, "", float("nan"), pd.NA])
def test_a_missing_answer_is_no_answer(missing):
    (pair,) = load_pairs([{**ROW, "answer": missing, "wrong": missing}]).pairs
    assert (pair.answer, pair.wrong) == (None, None)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ([{**ROW, "anwser": " a"}], "Unknown column 'anwser'. Did you mean 'answer'?"),
        ([{"clean": "a", "answer": "c"}], "'corrupted' is missing"),
        ([{**ROW, "id": "x"}, {**ROW, "id": "x"}], "2 rows have the id 'x'"),
        ([{**ROW, "id": [1]}], "must be text or a finite number"),
        ([], "no row"),
        ([("a", "b")], "row 1 is ('a', 'b')"),
        ({"clean": ["a"], "corrupted": ["b"]}, "Pass a list of rows"),
        (
            datasets.DatasetDict({"train": datasets.Dataset.from_list([ROW])}),
            "Pass one of its splits",
        ),
        ("missing.csv", "No such file"),
        ("fact-pairs", "Did you mean 'facts-pairs'"),
        (3, "no prompt pairs"),
        ("", "no prompt pairs"),
        ("clean,corrupted,answer,wrong\nA \xe9,A C,B,C\n".encode("latin1"), "UTF-8"),
        (b'clean,corrupted,answer,wrong\n"A B"x,A C,B,C\n', "cannot be read"),
        (
            b"clean,corrupted,answer,wrong\nA, B,A C,B,C\n",
            "line 2 has 5 cells, but the header has 4 columns",
        ),
        (b"clean,corrupted\n", "no row"),
        (b"clean,corrupted,clean\nA,B,C\n", "'clean' occurs 2 times"),
        (b"", "is empty"),
    ],
)
def test_unreadable_input_is_refused_by_name(tmp_path, source, said):
    if isinstance(source, bytes):
        (tmp_path / "pairs.csv").write_bytes(source)
        source = tmp_path / "pairs.csv"
    with refused(InputError, said, "source"):
        load_pairs(source)


@pytest.mark.parametrize("suffix", [".txt", ".parquet", ".json", ".jsonl"])
def test_a_file_of_another_format_is_refused(tmp_path, suffix):
    path = tmp_path / f"pairs{suffix}"
    path.write_text("clean,corrupted\nA,B\n")
    with refused(DataError, f"pairs{suffix}", "source"):
        load_pairs(str(path))


@pytest.mark.parametrize("limit", [0, -1, 1.5, "2", True])
def test_a_limit_is_a_number_of_rows(unchecked, limit):
    with refused(InputError, "limit=", "limit"):
        load_pairs([ROW], limit=limit)


@pytest.mark.parametrize("name", ["", " ", 3])
def test_a_name_is_a_text(unchecked, name):
    with refused(InputError, "dataset_name=", "dataset_name"):
        load_pairs([ROW], dataset_name=name)


def test_the_record_is_the_same_in_another_folder_and_holds_the_limit(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sums.csv").write_text(
            "clean,corrupted,answer,wrong\n" + "A B,A C,B,C\n" * 3
        )
    record = load_pairs(tmp_path / "a" / "sums.csv", limit=2).record()
    assert record == load_pairs(tmp_path / "b" / "sums.csv", limit=2).record()
    assert (record["source"], record["limit"], record["examples"]) == ("file:sums.csv", 2, 2)
    assert load_pairs([ROW]).record()["limit"] is None


def test_a_frame_of_pairs_can_be_loaded_again():
    data = load_pairs(ROWS)
    again = load_pairs(data.to_frame())
    assert again.pairs == data.pairs and again.sha256 == data.sha256


def test_a_template_is_read_from_files_and_frames(tmp_path):
    rows = [{**ROW, "id": "one", "template": "capital"}, {**ROW, "id": "two"}]
    file = tmp_path / "pairs.csv"
    pd.DataFrame(rows).to_csv(file, index=False)
    for source in (rows, pd.DataFrame(rows), file):
        assert [pair.template for pair in load_pairs(source).pairs] == ["capital", None]
    with pytest.raises(DataError, match="template="):
        load_pairs([{**ROW, "template": ["a"]}])


def test_the_same_two_prompts_are_one_group_in_either_order():
    """Copies of a pair, and a pair with its mirror, are one observation, unless ``group`` says
    otherwise.
    """
    other = {"clean": ROW["corrupted"], "corrupted": ROW["clean"], "answer": " b", "wrong": " a"}
    third = {**ROW, "clean": "The ac is"}
    groups = [pair.group for pair in load_pairs([ROW, other, third, ROW]).pairs]
    assert groups == ["000000", "000000", "000002", "000000"]
    named = [{**row, "group": f"g{i}"} for i, row in enumerate((ROW, other))]
    assert [pair.group for pair in load_pairs(named).pairs] == ["g0", "g1"]


PAIR = {"clean": "The capital of France is", "corrupted": "The capital of Italy is"}


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("answer", "#N/A", "the answer '#N/A' is read as text. Leave the cell empty"),
        ("wrong", " nan", "the wrong answer ' nan' is read as text"),
        ("answer", "#NV", "read as text"),
        ("answer", "=B7", "is a formula of a spreadsheet"),
        ("answer", "=SUM(A1:A3)", "is a formula of a spreadsheet"),
        ("clean", "#REF!", "the clean '#REF!' is read as text"),
        ("group", "nan", "the group 'nan' is read as text"),
        ("template", "#N/A", "the template '#N/A' is read as text"),
        ("answer", "S\ufffdo", "characters that were lost"),
        ("clean", "Q: capital?\r\nA:", "has line ends with \\r"),
        ("answer", " Paris\r", "has line ends with \\r"),
    ],
)
def test_a_cell_that_seems_to_have_no_value_gives_a_warning(column, cell, said):
    with pytest.warns(UserWarning, match=re.escape(said)):
        load_pairs([{**PAIR, "answer": " Paris", column: cell}])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_in_a_prompt_stay_and_those_with_a_return_are_named(tmp_path, end):
    """One warning for all cells of a file; the lines of the file itself may have any end."""
    rows = [f'"Q: {word}?{end}A:","Q: none?{end}A:", a, b' for word in ("who", "why")]
    text = "\r\n".join(["clean,corrupted,answer,wrong", *rows, ""])
    (tmp_path / "a.csv").write_bytes(text.encode())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = load_pairs(tmp_path / "a.csv")
    assert [pair.clean for pair in data.pairs] == [f"Q: who?{end}A:", f"Q: why?{end}A:"]
    assert len(caught) == (end != "\n")
    if caught:
        assert "row 1 (and 3 more): the clean " in str(caught[0].message)
        assert str(caught[0].message).isprintable()


@pytest.mark.parametrize("answer", [" ==", " = x", "-", "?", " NA", "#", "=", " nano", " 3.5"])
def test_an_unusual_answer_gives_no_warning(answer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (pair,) = load_pairs([{**PAIR, "answer": answer}]).pairs
    assert pair.answer == answer


@pytest.mark.parametrize("cell", ["1,234", "-3", "7042.0", "1e3", "7'042"])
def test_a_number_that_is_no_token_id_is_not_read_as_text(cell):
    rows = [{**PAIR, "answer": cell}, {**PAIR, "answer": "12"}]
    data = load_pairs(rows, numbers="ids")
    assert [pair.answer for pair in data.pairs] == [(12,)]
    assert [row.reason for row in data.dropped] == ["bad_cell"]


def test_the_same_prompts_in_several_groups_give_a_warning():
    rows = [{**PAIR, "answer": " Paris", "group": str(number)} for number in range(3)]
    with pytest.warns(UserWarning, match="one pair of prompts is in several groups, such as 0, 1"):
        load_pairs(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_pairs([{**row, "group": "one"} for row in rows])
