"""The message of an empty sweep has the reasons and a fix."""

import re
from pathlib import Path

import pytest

from anchorlens.errors import EmptySweepError
from anchorlens.prompts.dataset import Dropped
from anchorlens.questions.build_rows import FIXES, check_not_empty

ERRORS = Path(__file__).resolve().parents[2] / "docs" / "errors.md"


def reasons():
    """Return the reasons in the docs."""
    table = ERRORS.read_text(encoding="utf8").partition("| `drop_reason` |")[2]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [reason for cell in cells for reason in re.findall(r"`(\w+)`", cell)]


def dropped(reason, n=1):
    return [Dropped(str(i), "made", "Who?", "Me", reason) for i in range(n)]


def test_the_docs_list_every_reason_with_a_fix():
    assert len(reasons()) > 20
    assert set(FIXES) <= set(reasons())


@pytest.mark.parametrize("reason", reasons())
def test_every_reason_has_a_fix(reason):
    said = rf"^No row is left to measure in mine\. Dropped: {reason} 3, other 1\. [A-Z].{{20,}}\.$"
    with pytest.raises(EmptySweepError, match=said):
        check_not_empty([], [*dropped("other"), *dropped(reason, 3)], "in mine")


def test_an_empty_set_has_its_own_message():
    with pytest.raises(EmptySweepError, match=r"^No row is left to measure in mine\. Dropped: the data set is empty\.$"):
        check_not_empty([], [], "in mine")
    check_not_empty([1], dropped("no_donor"), "in mine")
