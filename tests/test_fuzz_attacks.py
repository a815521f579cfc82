"""Edited runs with new checksums: no raw error, and no change that ``verify`` does not find
(``python -m tests.fuzz_attacks``).
"""

import pytest

from tests.fuzz_attacks import OUTCOMES, Attacked, run_attack, without_drawing

UNFOUND = OUTCOMES[4:]
LIMITS = ("consistent", "provenance")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    first, second = without_drawing()
    with first, second:
        yield Attacked(tmp_path_factory.mktemp("attacks"))


@pytest.fixture(scope="module")
def few_attacked(tmp_path_factory):
    first, second = without_drawing()
    with first, second:
        yield Attacked(tmp_path_factory.mktemp("attacks"), ("swap", "knockout", "patch"))


def unfound(attacked, numbers, seed):
    """Cases that ``verify`` does not find, or that end in an error of another package."""
    cases = [(number, *run_attack(attacked, number, seed)) for number in numbers]
    return [
        one
        for one in cases
        if one[2] in UNFOUND and not (one[1] in LIMITS and one[2] == "silently other")
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_edit_with_new_checksums_is_found(few_attacked):
    bad = unfound(few_attacked, range(4), 0)
    assert not bad, bad[:3]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_edits_with_new_checksums_are_found_in_many_cases(attacked):
    bad = unfound(attacked, range(25), 1)
    assert not bad, bad[:3]
