"""Files of pairs that do not fit: aliases in one cell, other layouts, no header, no usable row."""

import json
import re
import warnings

import pytest

from anchorlens.errors import DataError, EmptySweepError
from anchorlens.prompts.load_pairs import load_pairs

ROW = {"clean": "The capital of France is", "corrupted": "The capital of Peru is"}
REWRITES = [
    {
        "prompt": "The capital of {} is",
        "relation_id": "P36",
        "target_new": {"str": "Rome"},
        "target_true": {"str": city},
        "subject": country,
    }
    for country, city in (("France", "Paris"), ("Peru", "Lima"))
]
COUNTERFACT = [
    {"case_id": i, "pararel_idx": i, "requested_rewrite": one, "paraphrase_prompts": ["x"]}
    for i, one in enumerate(REWRITES)
]


@pytest.mark.parametrize(
    ("cell", "cure"),
    [
        (" Paris; Paris City", "Pass answers_sep=';' to split it."),
        (" Paris| Paris City", "Pass answers_sep='|' to split it."),
        (" Paris / Lutetia", "Pass answers_sep=' / ' to split it."),
        ("[Paris, Lutetia]", "Write several as JSON"),
    ],
)
@pytest.mark.parametrize(("field", "name"), [("answer", "answer"), ("wrong", "wrong answer")])
@pytest.mark.parametrize("form", ["list", "csv"])
def test_aliases_in_one_cell_are_noticed(cell, cure, field, name, form, tmp_path):
    rows = [{**ROW, field: cell}] * 2
    source = rows
    if form == "csv":
        source = tmp_path / "a.csv"
        source.write_text(
            f'clean,corrupted,{field}\n{ROW["clean"]},{ROW["corrupted"]},"{cell}"\n' * 1
        )
    said = rf"row 1.*: the {name} {re.escape(repr(cell))} is read as one alias\. {re.escape(cure)}"
    with pytest.warns(UserWarning, match=said) as caught:
        load_pairs(source)
    assert len(caught) == 1


@pytest.mark.parametrize("answer", [" Paris", " Paris, France", " x;", ";", "\n", " a.b", [" a;b"]])
def test_plain_answers_of_pairs_are_not_noticed(answer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_pairs([{**ROW, "answer": answer}, {**ROW, "answer": " Rome"}])


def test_aliases_that_are_split_are_not_noticed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (pair,) = load_pairs([{**ROW, "answer": " Paris; Lutetia"}], answers_sep=";").pairs
    assert len(pair.row()["answer"]) == 2


def test_the_recipe_for_counterfact_makes_pairs(tmp_path):
    path = tmp_path / "counterfact.json"
    path.write_text(json.dumps(COUNTERFACT))
    with pytest.raises(
        DataError, match="CounterFact: its rows have no corrupted prompt"
    ) as refused:
        load_pairs(path)
    message = str(refused.value)
    assert "columns=" not in message
    recipe = message[message.index("{'clean'") : message.rindex("}") + 1]
    row = eval(recipe, {"r": REWRITES[0], "s": REWRITES[1]})
    assert row == {**ROW, "answer": " Paris", "wrong": " Lima"}
    assert len(load_pairs([row])) == 1
    with pytest.raises(DataError, match="CounterFact"):
        load_pairs(path, columns={"clean": "requested_rewrite.prompt"})
    own = [{**one, **ROW} for one in COUNTERFACT]
    assert len(load_pairs(own, columns={"clean": "clean", "corrupted": "corrupted"})) == 2


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ("prompt", "corrupted_prompt"),
            "columns={'clean': 'prompt', 'corrupted': 'corrupted_prompt'}",
        ),
        (("clean_prompt", "corrupt"), "columns={'clean': 'clean_prompt', 'corrupted': 'corrupt'}"),
        (("clean", "corupted"), "columns={'corrupted': 'corupted'}"),
    ],
)
def test_columns_that_fit_by_name_are_suggested_and_can_be_used(names, said):
    rows = [dict(zip(names, ROW.values(), strict=True))]
    with pytest.raises(DataError, match=re.escape(said)) as refused:
        load_pairs(rows)
    message = str(refused.value)
    columns = eval(message[message.rindex("columns=") + len("columns=") :].rstrip("."))
    (pair,) = load_pairs(rows, columns=columns).pairs
    assert (pair.clean, pair.corrupted) == tuple(ROW.values())


@pytest.mark.parametrize("names", [("case_id", "text"), ("prompt", "noun"), ("x", "clean_id")])
def test_no_column_is_suggested_that_does_not_fit(names):
    with pytest.raises(DataError, match="Rows need clean and corrupted, and it has") as refused:
        load_pairs([dict.fromkeys(names, "a")])
    assert "columns={" not in str(refused.value)


def test_pairs_without_a_header_are_recognised(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "The capital of Peru is,The capital of Cuba is, Lima\nThe capital of Iran is,x, y\n"
    )
    with pytest.raises(
        DataError, match="first line looks like data.*such as clean,corrupted,answer"
    ):
        load_pairs(path)


def test_a_column_of_pairs_that_is_empty_is_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("clean,corrupted\na,\nb,\n")
    with pytest.raises(DataError, match="Column 'corrupted' is empty in all rows"):
        load_pairs(path)
    with pytest.raises(DataError, match="column 'corrupted' is empty in all rows. Fill in"):
        load_pairs(path, columns={"corrupted": "corrupted"})


def test_pairs_of_which_no_row_is_left_are_refused():
    rows = [{**ROW, "answer": True, "wrong": False}] * 8
    said = (
        r"No row is left to measure in list\. Dropped: bad_cell 8\. The first: row 1: answer=True"
    )
    with pytest.raises(EmptySweepError, match=rf"{said}.* Write prompts and answers as text"):
        load_pairs(rows)


def test_pairs_of_which_most_rows_are_dropped_are_noticed():
    bad = {**ROW, "answer": True}
    said = r"list: 2 of 3 rows are dropped \(bad_cell 2\)\. The first: row 2: answer=True.*as text"
    with pytest.warns(UserWarning, match=said):
        assert len(load_pairs([ROW, bad, bad])) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load_pairs([ROW, bad])) == 1
