"""Layers in any order are one sweep, under every protocol."""

import warnings

import pytest

import anchorlens as al
from anchorlens.protocols.driver import run
from anchorlens.protocols.registry import PROTOCOLS, protocol_of, specification_of


@pytest.mark.parametrize("name", PROTOCOLS)
def test_layers_are_sorted_by_every_protocol(tiny_model, name):
    model, data = tiny_model("llama"), al.load_qa("popqa-sample", limit=60)
    own = {"batch_size": 40, "n_resamples": 50, "check_cells": 0, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows
        one, two = (
            run(protocol_of(name), model, data, specification_of(name)(layers=layers, **own)) for layers in ([2, 0], [0, 2])
        )
    assert one.layers == two.layers == (0, 2)
    assert one.run_id == two.run_id
    assert list(dict.fromkeys(one.samples()["layer"])) == [0, 2]
    assert (one.delta_p == two.delta_p).logical_or(one.delta_p.isnan() & two.delta_p.isnan()).all()
