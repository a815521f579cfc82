"""Attention edges as text."""

import pytest

from anchorlens.errors import InputError
from anchorlens.questions.edges import parse_edges


def refused(edges):
    with pytest.raises(InputError) as caught:
        parse_edges(edges)
    return str(caught.value)


@pytest.mark.parametrize("edges", ["", "question", "question later", "-> later", "question ->", "->", "question > later"])
def test_edges_without_source_and_target_are_refused(edges):
    assert refused(edges) == f"edges={edges!r} is not understood. Write 'source -> target', for example 'question -> later'."


def test_edges_between_unknown_anchors_are_refused():
    assert refused("questoin -> later") == (
        "Unknown source 'questoin' in edges='questoin -> later'. Did you mean 'question' or 'question_rest'?"
    )
    assert (
        refused("subject->answr")
        == "Unknown target 'answr' in edges='subject->answr'. Did you mean 'answer' or 'answer_site'?"
    )
    # `later` is every token after the source: it can be a target alone.
    assert refused("later -> answer").startswith("Unknown source 'later' in edges='later -> answer'. ")
    assert parse_edges(" subject_last->answer_site ") == ("subject_last", "answer_site")
