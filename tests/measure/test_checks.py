"""A value is right if it is close, or if rounding of the logits explains it."""

import torch

from anchorlens.measure.checks import ComparedCell


def is_close(found, exact):
    return bool(((found - exact).abs() <= 0.1).all())


def cell(name, found, exact, rounding=None):
    return ComparedCell(
        cell=name,
        found=torch.tensor([found]),
        exact=torch.tensor([exact]),
        is_rounding=None if rounding is None else lambda: rounding,
    )


def test_differences_are_found_unless_rounding_explains_them():
    cells = [
        cell("close", 1.0, 1.05),
        cell("off", 1.0, 2.0),
        cell("nan", float("nan"), 2.0),
        cell("step", 0.0, 1.0, rounding=True),
        cell("wrong step", 0.0, 1.0, rounding=False),
    ]
    assert {one.cell: one.classify(is_close) for one in cells} == {
        "close": "equal",
        "off": "differs",
        "nan": "differs",
        "step": "rounding",
        "wrong step": "differs",
    }


def test_logits_are_not_compared_for_close_values():
    def never():
        raise AssertionError("compared")

    one = ComparedCell(cell="a", found=torch.ones(1), exact=torch.ones(1), is_rounding=never)
    assert one.classify(is_close) == "equal"
