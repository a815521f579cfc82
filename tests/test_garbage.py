"""The search for cyclic garbage is paused, and goes on afterwards."""

import gc

import pytest

import anchorlens as al
from anchorlens.garbage import pause_collection


def test_it_is_paused_in_the_block_and_goes_on_afterwards_also_after_an_error():
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), pause_collection():
        assert not gc.isenabled()
        with pause_collection():
            pass
        assert not gc.isenabled()
        _ = 1 / 0
    assert gc.isenabled()


def test_questions_are_read_while_it_is_paused():
    seen = []

    def spans(question):
        seen.append(gc.isenabled())
        return (0, 3), (4, 9)

    assert len(al.load_qa([("Who wrote Emma?", "Jane Austen")], spans=spans)) == 1
    assert seen == [False]
    assert gc.isenabled()
