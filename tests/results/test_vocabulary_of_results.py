"""What users hold speaks one way: a frame comes from a method, all else is an attribute
(docs/architecture.md).
"""

import dataclasses
import inspect

import pandas as pd
import pytest

import anchorlens as al
from anchorlens.protocols.registry import PROTOCOLS, analysis_of
from tests.protocols.sweeps import questions, swept

PAIRS = [{"clean": "ab is in", "corrupted": "cd is in", "answer": "e", "wrong": "f"}]
HELD = {
    "SweepResult": lambda model, _: swept(model, "swap"),
    "PathwayResult": lambda model, _: swept(model, "knockout"),
    "PatchResult": lambda model, _: al.patch_sweep(model, al.load_pairs(PAIRS), progress=False),
    "EdgeResult": lambda model, _: al.edge_sweep(
        model, al.load_pairs(PAIRS), receivers="logits", progress=False
    ),
    "QAData": lambda *_: questions(),
    "PairData": lambda *_: al.load_pairs(PAIRS),
    "Comparison": lambda model, _: al.compare(
        swept(model, "swap"), swept(model, "swap"), n_resamples=20
    ),
    "Verification": lambda model, path: al.verify_run(
        swept(model, "swap").save(path / "run"), model=model, cells=1, show_progress=False
    ),
}


def public(kind):
    """Return the public members of a class by name, and the fields of a dataclass."""
    members = {key: one for base in reversed(kind.__mro__) for key, one in vars(base).items()}
    if dataclasses.is_dataclass(kind):
        members |= {field.name: None for field in dataclasses.fields(kind)}
    return {key: one for key, one in members.items() if not key.startswith("_")}


def needs_nothing(method):
    """Return whether a method can be called without an argument."""
    _, *own = inspect.signature(method).parameters.values()
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(one.default is not one.empty or one.kind in free for one in own)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HELD)
def test_a_frame_comes_from_a_method_and_no_attribute_is_one(name, tiny_model, tmp_path):
    held = HELD[name](tiny_model("llama"), tmp_path)
    assert type(held).__name__ == name
    members = public(type(held))
    methods = {key: one for key, one in members.items() if inspect.isfunction(one)}
    attributes = {key: getattr(held, key) for key in members if key not in methods}
    assert {
        key for key, one in attributes.items() if isinstance(one, pd.DataFrame | pd.Series)
    } == set()
    promised = {
        key
        for key, one in methods.items()
        if "DataFrame" in str(inspect.signature(one).return_annotation) and needs_nothing(one)
    }
    assert promised
    for key in promised:
        frame = getattr(held, key)()
        assert isinstance(frame, pd.DataFrame), key
        assert len(frame.columns), key


def test_dropped_is_the_same_of_a_set_and_of_a_sweep(tiny_model):
    data, sweep = questions(), swept(tiny_model("llama"), "knockout")
    for held in (data, sweep):
        assert isinstance(held.dropped, tuple)
        assert sum(held.dropped_counts.values()) == len(held.dropped)
    assert {type(one) for one in (*data.dropped, *sweep.dropped)} <= {type(sweep.dropped[0])}


def test_results_of_every_protocol_are_among_them():
    assert {analysis_of(name).result.__name__ for name in PROTOCOLS} <= HELD.keys()
