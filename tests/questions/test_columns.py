"""Columns of the user's tables: renaming, splitting of answers, and errors."""

import json
import re
import warnings
from collections import namedtuple

import datasets
import pandas
import pytest

from anchorlens.errors import DataError, InputError
from anchorlens.questions.columns import parse_columns
from anchorlens.questions.datasets import load_qa
from tests.questions.make import refused
from tests.questions.tables import HUB_ROWS, OWN, spans_of, write

MAPPED = {
    "question": "q",
    "answers": "gold",
    "relation": "kind",
    "id": "key",
    "subject": "entity",
    "subject_span": "where",
}


def theirs(rows, columns):
    """Return rows with renamed columns."""
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
        data = load_qa(
            datasets.Dataset.from_pandas(pandas.DataFrame(rows)),
            columns=MAPPED,
            dataset_name="mine",
        )
    else:
        data = load_qa(write(tmp_path / f"mine.{kind}", rows), columns=MAPPED)
    assert data.examples == ours.examples
    assert (data.name, len(data)) == ("mine", 3)
    if kind in ("jsonl", "list"):
        assert data.sha256 == ours.sha256


def test_columns_of_a_known_schema(tmp_path):
    rows = theirs(HUB_ROWS["popqa"], {"possible_answers": "gold", "subj": "who"})
    data = load_qa(
        "popqa",
        path=write(tmp_path / "x.jsonl", rows),
        columns={"possible_answers": "gold", "subj": "who"},
    )
    assert data.examples[0].answers == ("poet", "poetess")
    assert data.examples[0].span_source == "annotation"


SLIM = {
    **HUB_ROWS["popqa"][0],
    "subj": '"Slim" Gaillard',
    "question": 'What is "Slim" Gaillard\'s occupation?',
}
OF_POPQA = [(SLIM["subj"], "occupation", "annotation")]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet", "frame", "dataset", "list"])
@pytest.mark.parametrize("more", [{}, {"relation": "prop", "id": "subj_id"}])
def test_rows_of_popqa_keep_their_annotation_with_named_columns(tmp_path, kind, more):
    """The rules find "Slim" alone, without its quotation marks, as the subject."""
    table = {
        "list": [SLIM],
        "frame": pandas.DataFrame([SLIM]),
        "dataset": datasets.Dataset.from_list([SLIM]),
    }
    source = table[kind] if kind in table else write(tmp_path / f"mine.{kind}", [SLIM])
    data = load_qa(source, columns={"answers": "possible_answers", **more})
    own = load_qa([SLIM], dataset_name="popqa").examples[0]
    assert spans_of(data) == OF_POPQA
    assert (data.examples[0].subject, data.examples[0].property) == (own.subject, own.property)
    assert data.examples[0].relation == own.relation == "occupation"


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ({"q": SLIM["question"], "question": None}, {"question": "q", "answers": "obj"}),
        ({"answers": ["poet"]}, None),
        ({"answer": "poet", "prop": None}, None),
    ],
)
def test_rows_of_popqa_in_other_columns_keep_their_annotation(changes, columns):
    data = load_qa([SLIM | changes], columns=columns)
    assert spans_of(data) == OF_POPQA
    assert data.examples[0].relation == "occupation"
    only = load_qa([SLIM | changes], columns=columns, spans="annotation")
    assert spans_of(only) == OF_POPQA


@pytest.mark.parametrize("subj", ["History", 7, ["History"], {"name": "History"}, True, None, " "])
def test_a_column_subj_of_another_meaning_is_no_annotation(subj):
    row = {"question": "Who wrote Emma?", "answers": "Jane Austen"}
    assert load_qa([row | {"subj": subj}]).examples[0].span_source == "rules"


def test_a_mapped_column_is_read_once_and_not_replaced():
    """``subject`` is mapped to the relation; ``answer`` is a model's answer, not the gold one."""
    rows = [
        {"q": "Who wrote Emma?", "gold": "Austen", "answer": "Bronte", "subject": "author"},
        {"q": "Who wrote Ada?", "gold": "", "answer": "Nabokov", "subject": "author"},
    ]
    data = load_qa(rows, columns={"question": "q", "answers": "gold", "relation": "subject"})
    assert [(e.answers, e.relation, e.span_source) for e in data.examples] == [
        (("Austen",), "author", "rules")
    ]
    assert data.dropped_counts == {"no_answer": 1}
    both = load_qa(
        rows,
        columns={"question": "q", "answers": "gold", "answer": "answer", "relation": "subject"},
    )
    assert [e.answers for e in both.examples] == [("Austen",), ("Nabokov",)]


def test_another_mapping_is_another_data_set():
    rows = [{"question": "Who wrote Emma?", "a": "Austen", "b": "Bronte"}]
    first, second = (load_qa(rows, columns={"answers": column}) for column in "ab")
    assert first.sha256 != second.sha256
    assert (first.examples[0].answers, second.examples[0].answers) == (("Austen",), ("Bronte",))


@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        (
            {"questions": "q"},
            InputError,
            "the schema 'own' has no field 'questions'. Did you mean 'question'?",
        ),
        (
            {"q": "question", "gold": "answers"},
            InputError,
            "has no field 'q'. Write the field first",
        ),
        ({"question": "p"}, DataError, "list has no column 'p', or it is empty. Known: extra0, "),
        (
            {"question": "gld"},
            DataError,
            "list has no column 'gld', or it is empty. Did you mean 'gold'?",
        ),
        (["question"], InputError, "columns=['question']: must be a dictionary from field names"),
        ({"question": 0}, InputError, "columns=a dict: must be a dictionary"),
        ("question=q", InputError, "columns='question=q': must be a dictionary"),
    ],
)
def test_wrong_columns_are_one_clear_error(unchecked, columns, kind, message):
    rows = [{"q": "Who wrote Emma?", "gold": "Austen", **{f"extra{i}": "x" for i in range(30)}}]
    with refused(kind, message, "columns"):
        load_qa(rows, columns=columns)


@pytest.mark.parametrize("name", ["nq", "nq-sample"])
def test_columns_are_for_files_and_tables(name):
    for argument, value in {"columns": {"question": "q"}, "answers_sep": ";"}.items():
        with refused(InputError, "only for a file or table of your own", argument):
            load_qa(name, **{argument: value})


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
    "text", ["question", "question=q,", "", "=q", "question=", "question=a,question=b", 3]
)
def test_invalid_columns_from_a_shell_are_refused(unchecked, text):
    with pytest.raises(InputError, match="FIELD=COLUMN"):
        parse_columns(text)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"q": 1, "entity": 2},
            (
                "it lacks question and answers or answer. It has entity, q. Rename the columns that"
                " hold these, or name them in columns=."
            ),
        ),
        (
            {"question": "q", "Gold": "a"},
            "It has Gold, question. Pass columns={'answers': 'Gold'}.",
        ),
        (
            {"question": "q", "possible_answers": "a"},
            "It has possible_answers, question. Its fields fit: popqa. Pass dataset_name='popqa'.",
        ),
    ],
)
def test_a_needed_column_that_is_missing(row, message):
    with pytest.raises(DataError, match="list is not of the schema 'own': .*" + re.escape(message)):
        load_qa([row])


@pytest.mark.parametrize(
    ("extension", "answer"),
    [("csv", "Paris|x"), ("tsv", "Paris;x"), ("csv", "NULL"), ("csv", "n/a")],
)
def test_cells_with_several_answers_or_none_give_one_warning_per_file(tmp_path, extension, answer):
    rows = [{"question": f"Who wrote Book{i}?", "answers": answer} for i in range(3)]
    rows.append({"question": "Who wrote Emma?", "answers": json.dumps(["a|b", "c"])})
    doubt = "is read as text. Leave the cell empty"
    if "x" in answer:
        doubt = f"is read as one alias. Pass answers_sep={answer[5]!r} to split it."
    message = f"file:mine.{extension}, row 1 (and 2 more): the answer {answer!r} {doubt}"
    with pytest.warns(UserWarning, match=re.escape(message)) as caught:
        data = load_qa(write(tmp_path / f"mine.{extension}", rows))
    assert len(caught) == 1
    assert [e.answers for e in data.examples] == [(answer,)] * 3 + [("a|b", "c")]


@pytest.mark.parametrize("form", ["list", "frame", "jsonl"])
def test_several_answers_in_one_text_give_a_warning_in_every_form(tmp_path, form):
    rows = [{"question": "What is the capital of Peru?", "answers": "Lima; Ciudad de los Reyes"}]
    source = {
        "list": rows,
        "frame": pandas.DataFrame(rows),
        "jsonl": write(tmp_path / "a.jsonl", rows),
    }[form]
    with pytest.warns(
        UserWarning,
        match=(
            "row 1: the answer 'Lima; Ciudad de los Reyes' is read as one alias. Pass"
            " answers_sep=';'"
        ),
    ):
        load_qa(source)


def test_lists_of_answers_give_no_warning(tmp_path):
    rows = [{"question": "Who wrote Emma?", "answers": ["Steins;Gate"]}]
    plain = {"question": "Who wrote Ada?", "answers": "a Nan bread"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sets = [
            load_qa(rows),
            load_qa(write(tmp_path / "mine.jsonl", rows)),
            load_qa(write(tmp_path / "mine.csv", rows)),
        ]
        none = load_qa(write(tmp_path / "none.csv", [plain, {**rows[0], "answers": ""}]))
    assert (len(none), none.dropped_counts) == (1, {"no_answer": 1})
    assert [example.answers for data in sets for example in data.examples] == [("Steins;Gate",)] * 3


@pytest.mark.parametrize("kind", ["csv", "jsonl", "frame"])
def test_a_separator_splits_answers_in_one_text_and_no_list(tmp_path, kind):
    rows = [
        {"question": "What is the capital of France?", "answers": "Paris; Paname;;"},
        {"question": "Who wrote Emma?", "answers": '["Austen; J.", "Jane Austen"]'},
        {"question": "Who wrote Ada?", "answers": "Nabokov"},
    ]
    table = pandas.DataFrame(rows) if kind == "frame" else write(tmp_path / f"mine.{kind}", rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_qa(table, answers_sep=";")
    assert [row.answers for row in data.examples] == [
        ("Paris", "Paname"),
        ("Austen; J.", "Jane Austen"),
        ("Nabokov",),
    ]
    listed = [{**rows[0], "answers": ["Paris", " Paname", "", ""]}, *rows[1:]]
    assert data.sha256 == load_qa(listed).sha256 != load_qa(rows).sha256


@pytest.mark.parametrize("separator", ["", 3, [";"]])
def test_a_separator_that_is_no_text_is_refused(unchecked, separator):
    with refused(InputError, f"answers_sep={separator!r}: must be", "answers_sep"):
        load_qa(OWN, answers_sep=separator)


def test_named_tuples_are_read_by_their_names():
    """As ``frame.itertuples()`` gives them, in any order of columns."""
    row = {"answers": "Austen", "note": "x", "question": "Who wrote Emma?"}
    frame = pandas.DataFrame([row])
    (plain,) = load_qa([row]).examples
    for columns in (["answers", "question"], ["question", "answers"], [*row]):
        for index in (True, False):
            rows = list(frame[columns].itertuples(index=index))
            assert load_qa(rows).examples[0].answers == plain.answers == ("Austen",)
    Pair = namedtuple("Pair", ["answers", "question"])
    assert load_qa([Pair("Austen", "Who wrote Emma?")]).examples[0].question == plain.question
    with refused(DataError, "lacks question"):
        load_qa([namedtuple("Pair", ["text", "answers"])("Who wrote Emma?", "Austen")])
    with refused(DataError, "lacks question"):
        load_qa(list(frame.rename(columns={"question": "the question"}).itertuples()))


def test_two_columns_of_answers_that_differ_are_warned_of():
    row = {"question": "Who wrote Emma?", "answers": ["Austen", "Jane Austen"]}
    with pytest.warns(UserWarning, match="'answers' is read, but 'answer' has another answer"):
        data = load_qa([{**row, "answer": "Austen"}, {**row, "answer": "Charlotte Bronte"}])
    assert data.examples[0].answers == ("Austen", "Jane Austen")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_qa([{**row, "answer": "Austen"}, {**row, "answer": None}, row])
        load_qa([{**row, "answers": '["Austen", "Jane"]', "answer": '["Jane"]'}])


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("answers", "#BEZUG!", "Leave the cell empty"),
        ("answers", "#¿NOMBRE?", "Leave the cell empty"),
        ("answers", "#NV", "Leave the cell empty"),
        ("answers", "—", "Leave the cell empty"),
        ("answers", "S\ufffdo", "characters that were lost"),
        ("answers", "=Sheet1!B2", "formula"),
        ("relation", "#N/A", "the relation '#N/A' is read as text"),
        ("cluster", "nan", "the cluster 'nan' is read as text"),
    ],
)
def test_a_cell_that_seems_to_have_no_value_gives_a_warning(tmp_path, column, cell, said):
    row = {"question": "Who wrote Emma?", "answers": "Austen", "relation": "author", column: cell}
    with pytest.warns(UserWarning, match=re.escape(said)):
        load_qa(write(tmp_path / "mine.csv", [row]))


@pytest.mark.parametrize("answer", ["NA", "#1", "#metoo", "Not =", "none of these", "3/4", "a-ha"])
def test_an_unusual_answer_gives_no_warning(tmp_path, answer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_qa(
            write(tmp_path / "mine.csv", [{"question": "Who wrote Emma?", "answers": answer}])
        )
    assert data.examples[0].answers == (answer,)


def test_a_column_beside_one_of_the_same_name_in_capitals_gives_a_warning(tmp_path):
    row = {"question": "Who wrote Emma?", "answers": "Austen", "Answers": "Bronte"}
    with pytest.warns(UserWarning, match="'answers' is read, but there is a column 'Answers' too"):
        data = load_qa(write(tmp_path / "mine.csv", [row]))
    assert data.examples[0].answers == ("Austen",)


def test_all_fields_are_read_by_names_in_any_case_and_with_blanks(tmp_path):
    row = {
        "question": "Who wrote Emma?",
        "answer": "Austen",
        "id": "e1",
        "relation": "author",
        "cluster": "books",
        "answer_type": "person",
        "popularity": "7",
        "subject": "Emma",
        "property": "Who",
    }
    wanted = load_qa(write(tmp_path / "lower.csv", [row]), dataset_name="own").examples
    for rename in (str.capitalize, str.upper, " {} ".format):
        rows = [{rename(name): cell for name, cell in row.items()}]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            data = load_qa(write(tmp_path / "other.csv", rows), dataset_name="own")
        assert data.examples == wanted
        assert data.examples[0].relation == "author"


def test_optional_columns_that_differ_only_by_case_give_a_warning(tmp_path):
    row = {"question": "Who wrote Emma?", "answers": "Austen", "Relation": "a", "RELATION": "b"}
    said = "columns Relation, RELATION are not read, because both have the name 'relation'"
    with pytest.warns(UserWarning, match=said):
        data = load_qa(write(tmp_path / "mine.csv", [row]))
    assert data.examples[0].relation is None


def test_a_mapped_column_replaces_one_of_the_fields_name_in_any_case(tmp_path):
    row = {"question": "Who wrote Emma?", "answers": "Austen", "Relation": "a", "kind": "b"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_qa(write(tmp_path / "mine.csv", [row]), columns={"relation": "kind"})
    assert data.examples[0].relation == "b"
