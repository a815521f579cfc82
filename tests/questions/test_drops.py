"""The message of an empty sweep has the reasons and a fix."""

import ast
import re
from pathlib import Path

import pytest

from anchorlens.errors import EmptySweepError
from anchorlens.prompts.dataset import Dropped
from anchorlens.questions.datasets import load_qa
from anchorlens.questions.drops import FIXES, no_rows_left

PACKAGE = Path(__file__).resolve().parents[2] / "anchorlens"
ERRORS = Path(__file__).resolve().parents[2] / "docs" / "errors.md"


def reasons():
    """Return the reasons in the docs."""
    table = ERRORS.read_text(encoding="utf8").partition("| `drop_reason` |")[2]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [reason for cell in cells for reason in re.findall(r"`(\w+)`", cell)]


def dropped(reason, n=1):
    return [
        Dropped(example_id=str(i), dataset="made", question="Who?", answer="Me", reason=reason)
        for i in range(n)
    ]


def raised():
    """Return the reasons that the package raises with, where they are written as text."""
    calls = (
        node
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RowDropped"
    )
    first = (call.args[0] for call in calls if call.args)
    return {one.value for one in first if isinstance(one, ast.Constant)}


@pytest.mark.slow
def test_the_docs_list_the_reasons_of_the_package():
    # A donor that does not fit is left out; a row without any has no_donor.
    of_donors = {"same_answer", "same_tokens", "changed_outside", "corrupt_length"}
    assert raised() - of_donors <= set(reasons())
    assert set(FIXES) <= set(reasons())
    source = "".join(path.read_text(encoding="utf8") for path in PACKAGE.rglob("*.py"))
    tokens = {"no_subject_token", "no_property_token", "no_answer_token"}  # made of their anchor
    assert {name for name in reasons() if f'"{name}"' not in source} <= tokens


@pytest.mark.parametrize("reason", [*FIXES, "no_edge_of_mine"])
def test_the_reason_that_dropped_most_rows_has_its_fix(reason):
    error = no_rows_left([*dropped("other"), *dropped(reason, 3)], "in mine")
    assert isinstance(error, EmptySweepError)
    assert f"{reason} 3, other 1" in str(error)
    named = [name for name, fix in FIXES.items() if fix in str(error)]
    assert reason in named or (not named and reason not in FIXES)
    assert {FIXES[name] for name in named} <= {FIXES.get(reason)}


def test_an_empty_set_has_its_own_message():
    assert "data set is empty" in str(no_rows_left([], "in mine"))


def test_a_dropped_example_has_its_canonical_answer_and_the_reason():
    (example,) = load_qa([("Who wrote Emma?", ["Jane Austen", "Austen"])]).examples
    assert example.drop("no_donor", "too long") == Dropped(
        example_id=example.example_id,
        dataset=example.dataset,
        question="Who wrote Emma?",
        answer="Jane Austen",
        reason="no_donor",
        detail="too long",
    )
    assert example.drop("no_donor").detail == ""
