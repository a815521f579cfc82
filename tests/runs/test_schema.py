"""Columns that say with which settings a row was measured."""

from anchorlens.runs.schema import settings_of


def test_settings_that_a_protocol_does_not_have_are_empty():
    assert settings_of({"prompt": "qa", "known_only": False, "answers": "gold"}) == {
        "prompt": "qa",
        "answers": "gold",
        "distractor": "",
        "split": "",
        "known_only": "False",
    }
