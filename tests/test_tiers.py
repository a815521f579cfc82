"""Which cases of a test the slow tier runs."""

import pytest

from tests.tiers import mark_cases_beyond_samples


class Item:
    """A collected case with its marks."""

    def __init__(self, nodeid, *marks):
        self.nodeid, self.marks = nodeid, {mark.name: mark for mark in marks}

    def get_closest_marker(self, name):
        return self.marks.get(name)

    def add_marker(self, mark):
        self.marks[mark.name] = mark


def kept(n_cases, n, *more):
    marks = (pytest.mark.slow.mark, pytest.mark.sampled(n).mark, *more)
    items = [Item(f"tests/a.py::test_b[{i}]", *marks) for i in range(n_cases)]
    mark_cases_beyond_samples(items)
    return [i for i, item in enumerate(items) if "exhaustive" not in item.marks]


def test_a_sample_is_spread_over_the_cases():
    assert kept(10, 4) == [0, 3, 6, 9]
    assert kept(7, 2) == [0, 6]
    assert kept(5, 1) == [0]
    assert kept(3, 9) == [0, 1, 2]


def test_only_slow_cases_of_a_marked_test_are_left_out():
    slow, sampled = pytest.mark.slow.mark, pytest.mark.sampled(1).mark
    items = [Item("a::b[0]", slow), Item("a::b[1]", slow), Item("a::c[0]", sampled)]
    items += [Item("a::c[1]", sampled, slow), Item("a::c[2]", sampled)]
    mark_cases_beyond_samples(items)
    assert not any("exhaustive" in item.marks for item in items)
