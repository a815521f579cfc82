"""Whose attention is cut: the source's tokens, and as many others for the placebo."""

import anchorlens as al
from anchorlens.protocols.knockout.cut_tokens import row_cuts
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokenised import make_rows
from anchorlens.questions.tokens import RowTokenizer


def test_placebo_positions_are_other_question_tokens_and_matched_in_number(tiny_model):
    data = al.load_qa("popqa-sample", limit=90)
    rows = make_rows(data.examples, RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())).rows
    fewer = 0
    for row in rows:
        cuts = row_cuts(row, "question -> later", 0, placebos=True).sources
        own, other, matched = set(cuts["none"]), set(cuts["random_tokens"]), set(cuts["matched"])
        assert own == set(row.positions["question"])
        assert not other & own
        assert other <= set(row.positions["question_rest"])
        assert 0 not in other
        assert len(other) == len(matched) == min(len(own), len(row.positions["question_rest"]))
        assert matched <= own
        fewer += len(matched) < len(own)
    assert fewer
    only = row_cuts(rows[0], "question -> later", 0, placebos=False).sources
    assert set(only) == {"none"}
