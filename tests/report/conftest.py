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
    return al.knockout_sweep(tiny_model("llama"), data, layers=[0, 2], n_resamples=20, progress=False)


@pytest.fixture(scope="session")
def sweeps(swap, knockout):
    return swap, knockout
