"""Attention edges as text."""

import pytest

from anchorlens.errors import InputError
from anchorlens.questions.edges import parse_edges
from tests.questions.make import refused


@pytest.mark.parametrize("edges", ["", "subject", "subject later", "-> later", "subject ->", "->", "subject > later"])
def test_edges_without_source_and_target_are_refused(edges):
    with refused(
        InputError, f"edges={edges!r} is not understood. Write 'source -> target', for example 'exact_question -> later'."
    ):
        parse_edges(edges)


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        ("question_rst -> later", "source 'question_rst' in edges='question_rst -> later'. Did you mean 'question_rest'"),
        ("subject->answr", "target 'answr' in edges='subject->answr'. Did you mean 'answer' or 'pre_answer'?"),
        # `later` is every token after the source: it can be a target alone.
        ("later -> answer", "source 'later' in edges='later -> answer'. "),
    ],
)
def test_edges_between_unknown_anchors_are_refused(edges, said):
    with refused(InputError, f"Unknown {said}"):
        parse_edges(edges)
    assert parse_edges(" subject_last->pre_answer ") == ("subject_last", "pre_answer")
