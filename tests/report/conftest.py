"""Two sweeps, computed once."""

import pytest

import anchorlens as al
from tests.questions.make import capitals

SMALL = {"align": "last", "n_donors": 2, "n_resamples": 20, "progress": False}


@pytest.fixture(scope="session")
def swap(tiny_model):
    return al.swap_sweep(tiny_model("llama"), capitals(), **SMALL)


@pytest.fixture(scope="session")
def knockout(tiny_model):
    data = al.load_qa("popqa-sample", limit=90)
    return al.knockout_sweep(
        tiny_model("llama"), data, layers=[0, 2], n_splits=1, n_resamples=20, progress=False
    )


@pytest.fixture(scope="session")
def patch(tiny_model):
    """Two pairs; one has more than ten tokens, so that positions sorted as text would differ from
    positions in order.
    """
    rows = [
        {
            "clean": "The bag of ab is in a bag of",
            "corrupted": "The bog of ef is in a bag of",
            "answer": "c",
            "wrong": "d",
        },
        {"clean": "ab is in", "corrupted": "cd is in", "answer": "e", "wrong": "f"},
    ]
    return al.patch_sweep(tiny_model("gpt2"), al.load_pairs(rows), progress=False)


@pytest.fixture(scope="session")
def sweeps(swap, knockout):
    return swap, knockout
