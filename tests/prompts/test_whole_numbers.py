"""Numbers that pandas wrote with .0 because their column has a gap."""

import warnings

import pandas as pd
import pytest

from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.questions.datasets import load_qa

QUESTIONS = ["How many legs has a spider?", "How many days has a week?", "When did Rome fall?"]
PROMPTS = {"clean": "2+2=", "corrupted": "2+3="}
NOTICE = r"column '{}' are read without \.0, such as {}"


def answers_of(data):
    return [example.answers for example in data.examples]


@pytest.mark.parametrize("form", ["csv", "tsv", "csv.gz"])
@pytest.mark.parametrize("column", ["answer", "answers"])
def test_numbers_of_a_column_with_a_gap_are_those_of_the_frame(form, column, tmp_path):
    frame = pd.DataFrame({"question": QUESTIONS, column: [8, None, 476]})
    path = tmp_path / f"a.{form}"
    frame.to_csv(path, index=False, sep="\t" if form == "tsv" else ",")
    with pytest.warns(UserWarning, match=NOTICE.format(column, "8.0 as 8")) as caught:
        data = load_qa(path)
    assert len(caught) == 1
    assert answers_of(data) == answers_of(load_qa(frame)) == [("8",), ("476",)]
    named = load_qa(path, columns={"answers": column})
    assert answers_of(named) == answers_of(data)


@pytest.mark.parametrize(
    "cells", [["8.0", "8.5"], ["8.0", "x"], ["8.0", "7"], ["007.0", "1.0"], ["1e3", "1.0"]]
)
def test_a_mixed_column_stays_text(cells, tmp_path):
    path = tmp_path / "a.csv"
    pd.DataFrame({"question": QUESTIONS[:2], "answer": cells}).to_csv(path, index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_qa(path)
    assert answers_of(data) == [(cell,) for cell in cells]


def test_texts_of_other_sources_stay_as_they_are():
    rows = [{"question": QUESTIONS[0], "answer": "8.0"}]
    assert answers_of(load_qa(rows)) == [("8.0",)]
    assert load_pairs([{**PROMPTS, "answer": "4.0"}]).pairs[0].answer == "4.0"


def test_the_number_of_a_choice_may_have_a_gap(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"question,A,B,answer\n{QUESTIONS[0]},six,eight,1.0\n{QUESTIONS[1]},7,8,\n")
    with pytest.warns(UserWarning, match="read without"):
        data = load_qa(path)
    assert answers_of(data) == [("eight",)]


@pytest.mark.parametrize("field", ["answer", "wrong"])
def test_pairs_of_a_file_have_the_numbers_of_the_frame(field, tmp_path):
    frame = pd.DataFrame([{**PROMPTS, field: 4}, {**PROMPTS, field: None}, {**PROMPTS, field: -1}])
    path = tmp_path / "a.csv"
    frame.to_csv(path, index=False)
    with pytest.warns(UserWarning, match=NOTICE.format(field, "4.0 as 4")) as caught:
        data = load_pairs(path)
    assert len(caught) == 1
    assert [getattr(pair, field) for pair in data.pairs] == ["4", None, "-1"]
    assert data.sha256 == load_pairs(frame).sha256


def test_token_ids_may_have_a_gap(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("clean,corrupted,answer\na,b,7.0\na,c,\n")
    with pytest.warns(UserWarning, match="read without"):
        data = load_pairs(path, numbers="ids")
    assert [pair.answer for pair in data.pairs] == [(7,), None]
