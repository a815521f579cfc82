"""Question files that do not fit: one sentence names the layout or column, and the cure works."""

import json
import re
import warnings
from itertools import product

import datasets
import pandas as pd
import pytest

from anchorlens.errors import DataError
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.questions.datasets import load_qa

Q = "What is the capital of Peru?"
SIMPLIFIED = {
    "example_id": 1,
    "question_text": "what is the capital of peru",
    "document_text": "Lima is",
    "annotations": [{"short_answers": [{"start_token": 0, "end_token": 1}]}],
}
DEFAULT = {
    "id": "1",
    "document": {"title": "Peru"},
    "question": {"text": "what is the capital of peru", "tokens": ["what"]},
    "annotations": {"short_answers": [{"text": ["Lima"]}], "yes_no_answer": [-1]},
}
NQ = r"Natural Questions with documents: .*Use NQ-open, with the columns question and answer"


def refusal(source, **more):
    with pytest.raises(DataError) as refused:
        load_qa(source, **more)
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("row", [SIMPLIFIED, DEFAULT], ids=["simplified", "default"])
@pytest.mark.parametrize("form", ["jsonl", "parquet", "list"])
def test_natural_questions_with_documents_are_named(row, form, tmp_path):
    path = tmp_path / f"a.{form}"
    if form == "jsonl":
        path.write_text(json.dumps(row))
    elif form == "parquet":
        pd.DataFrame([row]).to_parquet(path)
    source = [row] if form == "list" else path
    for more in ({}, {"columns": {"answers": "annotations"}}, {"dataset_name": "nq"}):
        assert re.search(NQ, refusal(source, **more))
    (example,) = load_qa([{**row, "question": Q, "answer": "Lima"}]).examples
    assert example.answers == ("Lima",)


def test_counterfact_is_named():
    row = {"case_id": 1, "requested_rewrite": {"prompt": "{} is"}, "paraphrase_prompts": []}
    for more in ({}, {"columns": {"question": "requested_rewrite.prompt"}}):
        message = refusal([row], **more)
        assert "CounterFact: its rows have no corrupted prompt" in message
        assert "columns=" not in message


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (("q", "gold"), {"question": "q", "answers": "gold"}),
        (("the question", "best answer"), {"question": "the question", "answers": "best answer"}),
        (("question", "label"), {"answers": "label"}),
        (("question_id", "query", "answer"), {"question": "query"}),
    ],
)
def test_columns_that_fit_by_name_are_suggested(names, columns):
    row = {name: "Lima" if name == names[-1] else Q for name in names}
    assert refusal([row]).endswith(f"Pass columns={columns}.")
    assert load_qa([row], columns=columns).examples[0].answers == ("Lima",)


@pytest.mark.parametrize("names", [("Frage", "Antwort"), ("q", "entity"), ("question_id", "x")])
def test_no_columns_are_suggested_that_do_not_fit(names):
    message = refusal([dict(zip(names, (Q, "Lima"), strict=True))])
    assert "columns={" not in message
    assert "Rename the columns that hold these, or name them in columns=." in message


def table_of(rows, form, folder):
    if form == "list":
        return rows
    if form == "frame":
        return pd.DataFrame(rows)
    if form == "dataset":
        return datasets.Dataset.from_list(rows)
    path = folder / f"a.{form}"
    if form == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("form", "label"),
    [
        *product(["list", "frame", "jsonl", "csv"], [1, 0.0, True, "True"]),
        # Cells of a column that no schema names are not read; the type of the column is known.
        *product(["parquet", "dataset"], [1, 0.0, True]),
    ],
)
def test_a_label_beside_a_list_is_not_suggested_as_the_answer(form, label, tmp_path):
    """BoolQ and sets of statements: the label says whether the passage agrees."""
    rows = [{"question": Q, "passages": ["Lima is large.", "Peru"], "label": label}] * 2
    message = refusal(table_of(rows, form, tmp_path))
    assert "It has label, passages, question. Rename the columns that hold these" in message
    assert "columns={" not in message


@pytest.mark.parametrize("form", ["list", "csv"])
def test_three_texts_in_many_rows_are_labels(form, tmp_path):
    def message(texts, n=30):
        rows = [{"question": Q, "notes": "x", "label": texts[i % len(texts)]} for i in range(n)]
        return refusal(table_of(rows, form, tmp_path))

    answer = "Pass columns={'answers': 'label'}."
    assert answer not in message(["entailment", "neutral", "contradiction"])
    assert message(["entailment", "neutral", "contradiction"], n=6).endswith(answer)
    assert message(["Lima", "Quito", "Bogota", "La Paz"]).endswith(answer)
    assert message(["yes", "no"]).endswith(answer)
    assert message([1532, 1535, 1821, 1824]).endswith(answer)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"aliases": ["Lima", "Ciudad"], "label": 1}, "aliases"),
        ({"answer_texts": ["Lima"], "label": False}, "answer_texts"),
        (
            {"correct_answers": ["Lima"], "incorrect_answers": ["Quito"], "label": 0},
            "correct_answers",
        ),
        ({"right answer": "Lima", "wrong answer": "Quito", "label": 0}, "right answer"),
        ({"incorrect_answer": "Quito", "target": "1"}, None),
    ],
)
def test_the_column_of_answers_is_suggested_beside_a_label(row, column):
    if column is None:
        assert "columns={" not in refusal([{"question": Q, **row}])
        return
    assert refusal([{"question": Q, **row}]).endswith(f"Pass columns={{'answers': {column!r}}}.")
    (example,) = load_qa([{"question": Q, **row}], columns={"answers": column}).examples
    assert example.answers[0] == "Lima"


def test_the_number_of_a_choice_is_suggested_as_the_answer():
    row = {"question": Q, "choices": ["Quito", "Lima"], "label": 1}
    assert refusal([row]).endswith("Pass columns={'answers': 'label'}.")
    assert load_qa([row], columns={"answers": "label"}).examples[0].answers == ("Lima",)


@pytest.mark.parametrize("form", ["list", "jsonl", "parquet"])
def test_a_label_of_pairs_is_not_suggested_as_their_answer(form, tmp_path):
    row = {"clean_prompt": "Paris is in", "corrupted_prompt": "Rome is in", "target": 1}
    with pytest.raises(DataError) as refused:
        load_pairs(table_of([row], form, tmp_path))
    assert str(refused.value).endswith(
        "pass columns={'clean': 'clean_prompt', 'corrupted': 'corrupted_prompt'}."
    )
    with pytest.raises(DataError, match="'answer': 'target'}"):
        load_pairs(table_of([row | {"target": " France"}], form, tmp_path))


HEADERLESS = {
    "MMLU": (f"{Q},Quito,Lima,La Paz,Bogota,B\n", "question,A,B,C,D,answer"),
    "MMLU with a repeated choice": (f"{Q},Lima,Lima,La Paz,Bogota,B\n", ""),
    "question and answer": (f"{Q},Lima\n", "question,answer"),
    "cells that occur again": ("Lima?,yes\nQuito?,yes\n", "question,answer"),
    "semicolons": (f"{Q};Lima\n", "question;answer"),
}


@pytest.mark.parametrize("case", HEADERLESS)
def test_a_table_without_a_header_is_recognised(case, tmp_path):
    first, shown = HEADERLESS[case]
    path = tmp_path / "a.csv"
    text = first if case.startswith("cells") else first + first.replace("Peru", "Chile")
    path.write_text(text)
    message = refusal(path)
    assert "first line looks like data. Add a line with the names of the columns" in message
    assert "columns={" not in message
    assert not shown or message.endswith(f"such as {shown}.")
    if shown:
        path.write_text(f"{shown}\n{text}")
        assert load_qa(path).pool_dropped.get("no_answer", 0) == 0


@pytest.mark.parametrize("header", ["frage,antwort", "correct?,text", "id,my own name"])
def test_a_header_of_other_names_is_no_data(header, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n{Q},Lima\n{header}\n")  # a joined file repeats its header
    assert "looks like data" not in refusal(path)


@pytest.mark.parametrize("form", ["csv", "jsonl", "frame", "parquet"])
def test_an_empty_column_is_named(form, tmp_path):
    frame = pd.DataFrame({"question": [Q, Q], "answer": [None, None], "relation": ["a", "b"]})
    path = tmp_path / f"a.{form}"
    if form == "csv":
        frame.to_csv(path, index=False, sep=";")
    elif form == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif form == "parquet":
        frame.to_parquet(path)
    source = frame if form == "frame" else path
    assert "column 'answer' is empty in all rows. Fill in the cells." in refusal(source)
    mapped = refusal(source, columns={"answers": "answer"})
    assert re.search(r"column 'answer' of .* is empty in all rows\. Fill in its cells", mapped)


@pytest.mark.parametrize("form", ["csv", "list"])
def test_true_and_false_in_all_answers_are_noticed(form, tmp_path):
    rows = [{"question": Q, "answer": "True"}, {"question": "Is Rome in Peru?", "answer": "False"}]
    path = tmp_path / "a.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    with pytest.warns(UserWarning, match="all answers are True, False. Write yes and no") as caught:
        load_qa(path if form == "csv" else rows)
    assert len(caught) == 1
    assert "answer=True: must be text or a finite number. Write yes and no" in refusal(
        [{"question": Q, "answer": True}]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_qa([*rows, {"question": "Who wrote Emma?", "answer": "Jane Austen"}])
        load_qa([{**rows[0], "choices": ["True", "False"]}])


def test_rows_that_a_wrong_column_drops_are_noticed():
    rows = [
        {"question": f"What is the capital of {c}?", "answer": c, "entity": "Peru"} for c in "ABCD"
    ]
    rows += [{"question": Q, "answer": "Lima", "entity": "Peru"}]
    said = r"list: 4 of 5 rows are dropped as bad_annotation: list, row 1: .*subject"
    with pytest.warns(UserWarning, match=said):
        load_qa(rows, columns={"subject": "entity"})


@pytest.mark.parametrize("load", [load_qa, load_pairs])
def test_a_table_of_datasets_with_other_columns_is_not_called_empty(load):
    """It has as many rows as before, although none of its columns is read."""
    table = datasets.Dataset.from_dict({"problem": [Q], "solution": ["Lima"]})
    with pytest.raises(DataError, match=r"It has problem, solution|it has problem, solution"):
        load(table)


@pytest.mark.parametrize(
    ("table", "cure"),
    [
        ({Q: "Lima"}, "list of rows"),
        ({"question": [Q], "answer": ["Lima"]}, "list of rows"),
        ({"train": [{"question": Q, "answer": "Lima"}]}, "one of its splits"),
        (datasets.DatasetDict({"test": datasets.Dataset.from_dict({"a": [1]})}), "of its splits"),
    ],
)
def test_a_dictionary_is_refused_with_the_cure_that_fits(table, cure):
    assert cure in refusal(table)


@pytest.mark.parametrize("name", ["QuestionId", "_id", "qid"])
def test_published_ids_are_kept_and_may_repeat(name):
    rows = [
        {"question": question, "answer": "Lima", name: f"tc_{question[-2]}"}
        for question in (Q, Q[:-1] + "2?")
    ]
    assert [one.example_id for one in load_qa(rows).pool] == ["tc_u", "tc_2"]
    repeated = load_qa([{**row, name: "tc_1"} for row in rows])
    assert [one.example_id[:7] for one in repeated.pool] == ["000000-", "000001-"]
    assert "ids repeat" in refusal([{**row, "id": "1"} for row in rows])


def test_a_comma_in_a_number_is_refused_with_the_cure():
    assert "Write it as 3.5" in refusal([{"question": Q, "answer": "Lima", "popularity": "3,5"}])
