"""Kinds of arguments: the values that each accepts, as a specification stores them, and the values
that it refuses.
"""

import numpy as np
import pytest
import torch

from anchorlens.errors import DonorError, InputError
from anchorlens.protocols.arguments import Choice, Choices, Indices, Int, PythonOnly

DIRECTION = Choice(("noising", "denoising"))
DONORS = Choice(("same", "random"), "a function of a row", 1, DonorError)
ANCHORS = Choices(("exact_question", "pre_answer", "answer"), "anchor")
INT, MAYBE_INT, WINDOW = Int(1), Int(1, none="what fits"), Int(1, word="cumulative")
INDICES, BOUNDS = Indices(), Indices(bounds=True)
PLAN = PythonOnly("a function that takes the plan")


@pytest.mark.parametrize(
    ("kind", "given", "stored"),
    [
        (DIRECTION, "noising", "noising"),
        (DONORS, len, len),
        *(
            (ANCHORS, given, ("exact_question", "answer"))
            for given in ("exact_question, answer", ["exact_question", "answer"])
        ),
        (ANCHORS, "exact_question", ("exact_question",)),
        *((INT, given, 5) for given in (5, np.int64(5), torch.tensor(5), np.uint8(5))),
        (MAYBE_INT, None, None),
        (WINDOW, "cumulative", "cumulative"),
        (WINDOW, "3", 3),
        (WINDOW, 3, 3),
        *((INDICES, given, None) for given in (None, "all", " ALL ")),
        *(
            (INDICES, given, (0, 2))
            for given in ([2, 0], np.array([2, 0]), torch.tensor([2, 0]), {2, 0}, "2, 0", "0-2:2")
        ),
        (INDICES, np.int32(3), (3,)),
        (INDICES, range(3), (0, 1, 2)),
        (INDICES, "7", (7,)),
        (INDICES, -1, (-1,)),
        (INDICES, [0, -1], (-1, 0)),
        (INDICES, "-1", (-1,)),
        (INDICES, "-3:", (-3, -2, -1)),
        (INDICES, "0,-2:", (-2, -1, 0)),
        (INDICES, "9, 0-2", (0, 1, 2, 9)),
        *((BOUNDS, given, (2, 5)) for given in ((2, 5), [2, 5], "2-5", np.array([2, 5]))),
        (BOUNDS, (3, 3), (3, 3)),
        (BOUNDS, 3, (3, 3)),
        (BOUNDS, [-1], (-1, -1)),
        (BOUNDS, "-4:", (-4, -1)),
        (BOUNDS, (1, -1), (1, -1)),
        (BOUNDS, "3", (3, 3)),
        (BOUNDS, None, None),
        (PLAN, None, None),
        (PLAN, print, print),
    ],
)
def test_accepted_values(kind, given, stored):
    found = kind.check("it", given)
    assert found == stored
    assert type(found) is type(stored)


MANY = [0, *range(100_000)]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *((DIRECTION, given) for given in (3, len, None, ["noising"], "")),
        *((DONORS, given) for given in (int, lambda: 0, isinstance, "sane")),
        *(
            (ANCHORS, given)
            for given in (
                ["exact_questoin"],
                [],
                ["answer", "answer"],
                "",
                3,
                None,
                ["answer", 3],
                {"a": 1}.values(),
            )
        ),
        *((INT, given) for given in (2.0, "2", True, None, [2], len, 0)),
        *((MAYBE_INT, given) for given in ("x", 0)),
        *((WINDOW, given) for given in ("all", "0", 0, None)),
        *(
            (INDICES, given)
            for given in (1.5, True, [0, 1.5], [], [None], [[0]], ["0"], len, [0, 0], [-1, -1])
        ),
        *((INDICES, given) for given in ("3,3", "0-3,2", "11-0", "-1-2", "-0:", "28:4")),
        *(
            (INDICES, given)
            for given in ("a", "0-", "1..3", "0-4:0", "1;2", "0-4:x", "0-999999999", "0,,1", "1.5")
        ),
        *((BOUNDS, given) for given in ((5, 2), (0, 1, 2), (-1, -2), [], 1.5, "0,4,8", "0-8:2")),
        (PLAN, "x"),
        *(
            (kind, given)
            for kind in (DIRECTION, ANCHORS, INT, INDICES, BOUNDS)
            for given in (MANY, np.array(MANY))
        ),
    ],
)
def test_refused_values(kind, given):
    with pytest.raises(kind.error if isinstance(kind, Choice) else InputError) as refused:
        kind.check("it", given)
    assert "it" in str(refused.value) or "anchor" in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (DIRECTION, "noise", "Unknown it='noise'. Did you mean 'noising'?"),
        (DIRECTION, 3, "it=3 must be one of noising, denoising."),
        (DONORS, 3, "it=3 must be one of same, random, or a function of a row."),
        (
            ANCHORS,
            ["exact_questoin"],
            "Unknown anchor 'exact_questoin'. Did you mean 'exact_question'?",
        ),
        (INT, "2", "it='2' must be a whole number."),
        (MAYBE_INT, 0, "it=0 must be at least 1, or None for what fits."),
        (
            INDICES,
            "",
            "it='' is invalid. Write 0-11, or 0,4,8, or 0-28:4, or -4: (the last 4).",
        ),
        (
            INDICES,
            "11-0",
            "it='11-0' is invalid. Write 0-11, or 0,4,8, or 0-28:4, or -4: (the last 4).",
        ),
        (BOUNDS, (5, 2), "it=(5, 2) must be first and last, such as (0, 11) or (-4, -1)."),
    ],
)
def test_messages_name_the_argument_its_value_and_the_fix(kind, given, message):
    with pytest.raises(InputError) as refused:
        kind.check("it", given)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("kind", "stored", "resolved"),
    [
        (INDICES, (-1,), (11,)),
        (INDICES, (-12, 3), (0, 3)),
        (INDICES, (-1, 0), (0, 11)),
        (BOUNDS, (1, -1), (1, 11)),
        (BOUNDS, (-4, -1), (8, 11)),
        # The model lacks it, or it stands there twice.
        (INDICES, (12,), None),
        (INDICES, (-13,), None),
        (INDICES, (-1, 11), None),
        (BOUNDS, (-1, 10), None),
        (BOUNDS, (0, 12), None),
    ],
)
def test_negative_indices_count_from_the_end_and_others_are_refused_with_the_range(
    kind, stored, resolved
):
    if resolved:
        assert kind.resolve("it", stored, 12) == resolved
    else:
        with pytest.raises(InputError, match="from -12 to 11") as refused:
            kind.resolve("it", stored, 12)
        assert refused.value.arguments == ("it",)
