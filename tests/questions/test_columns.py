"""Columns of the user's own: what is read from where, and what a slip of the pen is told."""

import json
import re
import warnings

import datasets
import pandas
import pytest

from anchorlens.errors import DataError, InputError
from anchorlens.questions.datasets import load_qa, parse_columns
from tests.questions.test_datasets import HUB_ROWS, OWN, write

MAPPED = {"question": "q", "answers": "gold", "relation": "kind", "id": "key", "subject": "entity", "subject_span": "where"}


def theirs(rows, columns):
    """The same rows under the user's own names."""
    return [{columns.get(field, field): value for field, value in row.items()} for row in rows]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "frame", "dataset", "list"])
def test_named_columns_give_what_a_renamed_table_gives(tmp_path, kind):
    ours = load_qa(OWN, dataset_name="mine")
    rows = theirs(OWN, MAPPED)
    if kind == "list":
        data = load_qa(rows, columns=MAPPED, dataset_name="mine")
    elif kind == "frame":
        data = load_qa(pandas.DataFrame(rows), columns=MAPPED, dataset_name="mine")
    elif kind == "dataset":
        data = load_qa(datasets.Dataset.from_pandas(pandas.DataFrame(rows)), columns=MAPPED, dataset_name="mine")
    else:
        data = load_qa(write(tmp_path / f"mine.{kind}", rows), columns=MAPPED)
    assert data.examples == ours.examples
    assert (data.name, len(data)) == ("mine", 3)
    if kind in ("jsonl", "list"):
        assert data.sha256 == ours.sha256


def test_columns_of_a_known_schema(tmp_path):
    rows = theirs(HUB_ROWS["popqa"], {"possible_answers": "gold", "subj": "who"})
    data = load_qa("popqa", path=write(tmp_path / "x.jsonl", rows), columns={"possible_answers": "gold", "subj": "who"})
    assert data.examples[0].answers == ("poet", "poetess")
    assert data.examples[0].span_source == "annotation"


def test_a_named_column_is_not_read_twice_nor_stood_in_for():
    """``subject`` is the user's word for the relation; ``answer`` is a model's answer, not the gold one."""
    rows = [
        {"q": "Who wrote Emma?", "gold": "Austen", "answer": "Bronte", "subject": "author"},
        {"q": "Who wrote Ada?", "gold": "", "answer": "Nabokov", "subject": "author"},
    ]
    data = load_qa(rows, columns={"question": "q", "answers": "gold", "relation": "subject"})
    assert [(e.answers, e.relation, e.span_source) for e in data.examples] == [(("Austen",), "author", "rules")]
    assert data.dropped_counts == {"no_answer": 1}
    both = load_qa(rows, columns={"question": "q", "answers": "gold", "answer": "answer", "relation": "subject"})
    assert [e.answers for e in both.examples] == [("Austen",), ("Nabokov",)]


def test_another_mapping_is_another_data_set():
    rows = [{"question": "Who wrote Emma?", "a": "Austen", "b": "Bronte"}]
    first, second = (load_qa(rows, columns={"answers": column}) for column in "ab")
    assert first.sha256 != second.sha256
    assert (first.examples[0].answers, second.examples[0].answers) == (("Austen",), ("Bronte",))


@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        ({"questions": "q"}, InputError, "columns: the schema 'own' has no field 'questions'. Did you mean 'question'?"),
        (
            {"q": "question"},
            InputError,
            "the schema 'own' has no field 'q'. Write {'question': 'q'}: our field first, then your column.",
        ),
        (
            {"q": "question", "gold": "answers"},
            InputError,
            "the schema 'own' has no field 'q'. Write {'question': 'q', 'answers': 'gold'}: our field first, then your column.",
        ),
        (
            {"question": "p"},
            DataError,
            "columns={'question': 'p'}: list has no column 'p', or nothing stands in it. It has q, gold, extra0",
        ),
        ({"question": "gld"}, DataError, "list has no column 'gld', or nothing stands in it. Did you mean 'gold'?"),
        (
            ["question"],
            InputError,
            "columns must be a dictionary from our field names to your column names, such as {'question': 'q',",
        ),
        ({"question": 0}, InputError, "to your column names, such as {'question': 'q', 'answers': 'gold'}; got a dict."),
        ("question=q", InputError, "such as {'question': 'q', 'answers': 'gold'}; got 'question=q'."),
    ],
)
def test_wrong_columns_are_one_clear_error(unchecked, columns, kind, message):
    rows = [{"q": "Who wrote Emma?", "gold": "Austen", **{f"extra{i}": "x" for i in range(30)}}]
    with pytest.raises(kind, match=re.escape(message)) as caught:
        load_qa(rows, columns=columns)
    assert "extra8" not in str(caught.value)


@pytest.mark.parametrize("name", ["nq", "nq-sample"])
def test_columns_are_for_files_and_tables(name):
    with pytest.raises(
        InputError, match=f"columns= names the columns of a file or table of your own; '{name}' has its fields"
    ):
        load_qa(name, columns={"question": "q"})


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("question=q,answers=gold", {"question": "q", "answers": "gold"}),
        (" question = the question , answers=a=b ", {"question": "the question", "answers": "a=b"}),
    ],
)
def test_columns_from_a_shell(text, columns):
    assert parse_columns(text) == columns


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "question",
            "columns: 'question' is not a field and its column; write FIELD=COLUMN, with commas between: question=q,answers=gold.",
        ),
        ("question=q,", "columns: '' is not a field and its column"),
        ("", "columns: '' is not a field and its column"),
        ("=q", "columns: '=q' is not a field and its column"),
        ("question=", "columns: 'question=' is not a field and its column"),
        ("question=a,question=b", "columns: 'question' stands twice; a field is read from one column."),
        (3, "columns is 3; write FIELD=COLUMN"),
    ],
)
def test_columns_from_a_shell_that_cannot_be(unchecked, text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse_columns(text)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"q": 1, "entity": 2}, "list is not of the schema 'own': it lacks question and answers (or answer). It has entity, q. "
         "Say which column is what: columns={'question': '...', 'answers': '...'}."),
        ({"Question": "q", "answers": "a"}, "it lacks question. It has 'Question': give columns={'question': 'Question'}."),
        ({"Question": "q", " Answer": "a"}, "it lacks question and answers (or answer). It has 'Question' and ' Answer': give "
         "columns={'question': 'Question', 'answer': ' Answer'}."),
        ({"question": "q", "Answers": "a"}, "it lacks answers (or answer). It has 'Answers': give columns={'answers': 'Answers'}."),
        ({"question": "q", "possible_answers": "a"}, "it lacks answers (or answer). It has possible_answers, question. Its "
         "fields fit: popqa."),
    ],
)  # fmt: skip
def test_a_needed_column_that_is_missing(row, message):
    with pytest.raises(DataError, match=re.escape(message)):
        load_qa([row])


@pytest.mark.parametrize("cure", [{"question": "Question", "answer": " Answer"}])
def test_the_cure_in_the_message_cures(cure):
    rows = [{"Question": "Who wrote Emma?", " Answer": "Austen"}]
    with pytest.raises(DataError, match=re.escape(f"give columns={cure}.")):
        load_qa(rows)
    assert load_qa(rows, columns=cure).examples[0].answers == ("Austen",)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("Relation",), "the column 'Relation' is not read. If it is relation, give columns={'relation': 'Relation'}."),
        (("relaton",), "the column 'relaton' is not read. If it is relation, give columns={'relation': 'relaton'}."),
        (("Answer Type",), "'Answer Type' is not read. If it is answer_type, give columns={'answer_type': 'Answer Type'}."),
        (("Relation", "subject-span"), "the columns 'Relation' and 'subject-span' are not read. If they are relation and "
         "subject_span, give columns={'relation': 'Relation', 'subject_span': 'subject-span'}."),
    ],
)  # fmt: skip
def test_a_misspelt_optional_column_is_warned_of_once(columns, message):
    rows = [{"question": f"Who wrote Book{i}?", "answers": "A", **dict.fromkeys(columns, "x")} for i in range(3)]
    with pytest.warns(UserWarning, match="^list: .*" + re.escape(message)) as caught:
        load_qa(rows)
    assert len(caught) == 1


@pytest.mark.parametrize(
    "row",
    [
        {"subject_id": 1, "relation_id": 2, "object": "x", "difficulty": "hard", "ID2": 4},
        {"relation": "author", "Relation": "x"},
        {"prop": "author", "Relation": "x"},
    ],
)
def test_other_columns_are_not_warned_of(row):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_qa([{"question": "Who wrote Emma?", "answers": "A", **row}])
    assert [example.answers for example in data.examples] == [("A",)]


@pytest.mark.parametrize("name", list(HUB_ROWS))
def test_the_columns_of_the_real_sets_are_not_warned_of(tmp_path, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load_qa(name, path=write(tmp_path / "x.jsonl", HUB_ROWS[name]))) == 1


@pytest.mark.parametrize(("extension", "mark"), [("csv", "|"), ("tsv", ";")])
def test_answers_that_look_packed_are_warned_of_once_a_file(tmp_path, extension, mark):
    rows = [{"question": f"Who wrote Book{i}?", "answers": f"Paris{mark}x"} for i in range(3)]
    rows.append({"question": "Who wrote Emma?", "answers": json.dumps([f"a{mark}b", "c"])})
    path = write(tmp_path / f"mine.{extension}", rows)
    message = f"file:mine.{extension}, row 1 (and so in 2 more): the answer 'Paris{mark}x' is taken as one alias. "
    with pytest.warns(
        UserWarning, match=re.escape(message + 'If it is several, write a JSON list in the cell: ["Paris", "x"].')
    ) as caught:
        data = load_qa(path)
    assert len(caught) == 1
    assert [e.answers for e in data.examples] == [(f"Paris{mark}x",)] * 3 + [(f"a{mark}b", "c")]


def test_answers_in_json_or_in_a_list_are_not_taken_for_packed(tmp_path):
    rows = [{"question": "Who wrote Emma?", "answers": "Steins;Gate"}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sets = [
            load_qa(rows),
            load_qa(write(tmp_path / "mine.jsonl", rows)),
            load_qa(write(tmp_path / "mine.csv", [{**rows[0], "answers": ["Steins;Gate"]}])),
        ]
    assert [example.answers for data in sets for example in data.examples] == [("Steins;Gate",)] * 3


@pytest.mark.parametrize("mark", ["nan", "NULL", "<NA>", "n/a"])
def test_a_mark_for_nothing_is_warned_of_where_it_stands_as_text(tmp_path, mark):
    """As a frame leaves it that was turned into text; in a frame itself nan is nothing."""
    rows = [{"question": "Who wrote Emma?", "answers": "Jane Austen"}, {"question": "Who wrote Ulysses?", "answers": mark}]
    said = f"file:mine.csv, row 2: the answer {mark!r} is taken as it stands. If it means that there is none, leave the cell empty."
    with pytest.warns(UserWarning, match=re.escape(said)) as caught:
        data = load_qa(write(tmp_path / "mine.csv", rows))
    assert len(caught) == 1
    assert data.examples[1].answers == (mark,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_qa(write(tmp_path / "none.csv", [rows[0], {**rows[1], "answers": ""}])).dropped_counts == {"no_answer": 1}
        assert len(load_qa(write(tmp_path / "banana.csv", [{**rows[0], "answers": "a Nan bread"}]))) == 1
