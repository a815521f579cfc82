"""Names, numbers and quotations of a question."""

import pytest

from anchorlens.questions.spans.entities import find_names


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("Who founded the Bank of England in 1694?", ["Bank of England", "1694"]),
        ("what is the longest river", []),
        ("Metz is the capital of which region of France?", ["Metz", "France"]),
        ("Is Bob Smith older than I am?", ["Bob Smith"]),
        ("Which American-born Sinclair won the prize in 1930?", ["American-born Sinclair", "1930"]),
        ("The governor who praised 'the old lady' lived where?", ["the old lady"]),
        ("Name the planet that Galle found.", ["Galle"]),
        ("Who Wrote Emma And Persuasion In Bath?", []),
        ("What did Otis, a mechanic, patent in the 1850s?", ["Otis", "1850s"]),
        ("who sang the theme song of the big bang theory in 2007", ["2007"]),
    ],
)
def test_capitals_digits_and_quotations(question, names):
    assert [span.of(question) for span in find_names(question)] == names
