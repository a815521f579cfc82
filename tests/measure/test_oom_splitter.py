"""Units that do not fit into memory are measured in parts, in order."""

import weakref
from dataclasses import dataclass

import pytest
import torch

from anchorlens.measure.budget import OomSplitter


@dataclass(frozen=True)
class Numbers:
    values: tuple[int, ...]

    @property
    def work(self):
        return len(self.values)

    def split(self):
        n = len(self.values) // 2
        return (Numbers(self.values[:n]), Numbers(self.values[n:])) if n else ()


class Activations:
    pass


def measure(splitter, unit, fits):
    found = []
    for attempt in splitter.attempts(unit):
        with attempt as part:
            if len(part.values) > fits:
                raise torch.OutOfMemoryError("CUDA out of memory")
            found.append(part.values)
    return found


def test_a_unit_that_fits_is_measured_once():
    splitter = OomSplitter(torch.device("cpu"))
    assert measure(splitter, Numbers((1, 2, 3)), 3) == [(1, 2, 3)]
    assert splitter.splits == 0


def test_parts_are_measured_in_their_order_and_split_again():
    splitter = OomSplitter(torch.device("cpu"))
    with pytest.warns(UserWarning, match="max_memory"):
        found = measure(splitter, Numbers(tuple(range(7))), 2)
    assert found == [(0,), (1, 2), (3, 4), (5, 6)]
    assert splitter.splits == 3


def test_a_unit_that_cannot_be_split_ends_with_the_error():
    splitter = OomSplitter(torch.device("cpu"))
    with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="out of memory"):
        measure(splitter, Numbers((1, 2)), 0)


def test_other_errors_are_not_caught():
    splitter = OomSplitter(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="shape"):
        for attempt in splitter.attempts(Numbers((1, 2))):
            with attempt:
                raise RuntimeError("wrong shape")
    assert splitter.splits == 0


def test_memory_of_the_failed_pass_is_freed_before_its_parts_start():
    held = []

    def run(part):
        assert not any(one() for one in held)
        activations = Activations()
        held.append(weakref.ref(activations))
        if len(part.values) > 1:
            raise MemoryError

    with pytest.warns(UserWarning):
        for attempt in OomSplitter(torch.device("cpu")).attempts(Numbers((1, 2))):
            with attempt as part:
                run(part)
    assert len(held) == 3
