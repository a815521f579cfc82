"""Attention edges as text."""

import pytest

from anchorlens.errors import InputError
from anchorlens.questions.edges import parse_edges
from tests.questions.make import refused


@pytest.mark.parametrize(
    "edges", ["", "subject", "subject later", "-> later", "subject ->", "->", "subject > later"]
)
def test_edges_without_source_and_target_are_refused(edges):
    with refused(InputError, f"edges={edges!r}: must be 'source -> target'", "edges"):
        parse_edges(edges)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ("question_rst -> later", "source 'question_rst'. Did you mean 'question_rest'"),
        ("subject->answr", "target 'answr'. Did you mean 'answer' or 'pre_answer'?"),
        # `later` is every token after the source: it can be a target alone.
        ("later -> answer", "source 'later'. "),
    ],
)
def test_edges_between_unknown_anchors_are_refused(edges, message):
    with refused(InputError, f"edges={edges!r}: unknown {message}", "edges"):
        parse_edges(edges)
    assert parse_edges(" subject_last->pre_answer ") == ("subject_last", "pre_answer")
