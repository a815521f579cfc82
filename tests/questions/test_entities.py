"""Which characters of a question name something."""

import pytest

from anchorlens.questions.entities import named_spans


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("Who founded the Bank of England in 1694?", ["Bank of England", "1694"]),
        ("Metz is the capital of which region of France?", ["Metz", "France"]),
        ("Which American-born Sinclair won the prize in 1930?", ["American-born Sinclair", "1930"]),
        ("The governor who praised 'the old lady' lived where?", ["the old lady"]),
        ("Is Bob Smith older than I am?", ["Bob Smith"]),
        ("Name the planet that Galle found.", ["Galle"]),
        ("What did Otis, a mechanic, patent in the 1850s?", ["Otis", "1850s"]),
        ("who sang the theme song of the big bang theory in 2007", ["2007"]),
        ("Who Wrote Emma And Persuasion In Bath?", []),
        ("what is the longest river", []),
    ],
)
def test_capitals_digits_and_quotations(question, names):
    assert [span.of(question) for span in named_spans(question)] == names
