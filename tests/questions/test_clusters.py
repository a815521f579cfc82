"""The cluster of a question: the column ``cluster``, else the relation."""

import pandas as pd

import anchorlens as al
from anchorlens.questions.prompts import make_prompt
from anchorlens.questions.tokens import RowTokenizer

ROWS = {
    "question": [
        "What is the capital of Peru?",
        "What is the capital of Chile?",
        "Who wrote Emma?",
    ],
    "answer": ["Lima", "Santiago", "Jane Austen"],
    "relation": ["capital", "capital", None],
}


def clusters(frame, tiny_model):
    data = al.load_qa(frame)
    prompt = make_prompt("qa", data.examples, data.pool, seed=0)
    tokenizer = RowTokenizer(tiny_model("llama").tokenizer, prompt)
    return [tokenizer.row(example).cluster for example in data.examples]


def test_the_default_is_the_relation(tiny_model):
    assert clusters(pd.DataFrame(ROWS), tiny_model) == ["capital", "capital", ""]


def test_a_column_of_ones_own_comes_first(tiny_model):
    frame = pd.DataFrame(ROWS).assign(cluster=["north", "south", "north"])
    assert clusters(frame, tiny_model) == ["north", "south", "north"]
    assert al.load_qa(frame).to_frame()["cluster"].tolist() == ["north", "south", "north"]
    renamed = al.load_qa(
        frame.rename(columns={"cluster": "place"}),
        columns={"cluster": "place", "question": "question", "answer": "answer"},
    )
    assert [example.cluster for example in renamed.examples] == ["north", "south", "north"]
