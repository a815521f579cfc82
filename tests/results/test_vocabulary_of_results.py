"""What users hold speaks one way: a frame comes from a method, all else is an attribute (docs/architecture.md)."""

import dataclasses
import inspect

import pytest

import anchorlens as al
from anchorlens.protocols.registry import PROTOCOLS, analysis_of

HELD = sorted({name for name in al.__all__ if isinstance(getattr(al, name), type)} - {"AnchorlensError"})
FRAMES = {
    "SweepResult": {"curves", "contrasts", "examples", "samples", "samples_with_inputs", "summary"},
    "PathwayResult": {"curves", "contrasts", "examples", "samples", "samples_with_inputs", "summary"},
    "PatchResult": {"curves", "contrasts", "examples", "samples", "samples_with_inputs", "summary"},
    "QAData": {"dropped_frame", "to_frame"},
    "PairData": {"dropped_frame", "to_frame"},
    "Comparison": {"curves", "table"},
    "Verification": {"cells", "table"},
    "Diagnosis": {"to_frame"},
}


def returned(function):
    return str(inspect.signature(function).return_annotation)


@pytest.mark.parametrize("name", HELD)
def test_a_frame_comes_from_a_method_and_nothing_else_gives_one(name):
    held = getattr(al, name)
    members = {key: one for base in reversed(held.__mro__) for key, one in vars(base).items() if not key.startswith("_")}
    attributes = {key: returned(value.fget) for key, value in members.items() if isinstance(value, property)}
    if dataclasses.is_dataclass(held):
        attributes |= {field.name: str(field.type) for field in dataclasses.fields(held) if not field.name.startswith("_")}
    assert [key for key, kind in attributes.items() if "DataFrame" in kind or "Series" in kind] == []
    methods = {key: value for key, value in members.items() if inspect.isfunction(value)}
    assert {key for key, value in methods.items() if "DataFrame" in returned(value)} == FRAMES.get(name, set())


def test_dropped_is_the_same_of_a_set_and_of_a_sweep():
    (stored,) = [str(field.type) for field in dataclasses.fields(al.QAData) if field.name == "dropped"]
    assert stored == returned(al.SweepResult.dropped.fget)
    assert returned(al.QAData.dropped_counts.fget) == returned(al.SweepResult.dropped_counts.fget) == "dict[str, int]"


def test_results_of_every_protocol_are_among_them():
    assert {analysis_of(name).result.__name__ for name in PROTOCOLS} <= FRAMES.keys()
