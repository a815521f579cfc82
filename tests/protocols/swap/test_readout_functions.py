"""Functions of the user as readouts: what their values may not depend on."""

import warnings

import pytest
import torch

from anchorlens.errors import InputError
from anchorlens.running.sweeps import swap_sweep
from tests.questions.make import capitals
from tests.raised import raises

OPTIONS = {"layers": (0, 1), "n_donors": 1, "align": "last", "progress": False}


def random(log_probs, mask):
    return (log_probs * mask).sum(-1) - torch.rand(len(mask))


def centred(log_probs, mask):
    own = (log_probs * mask).sum(-1)
    return own + 0.1 * own.mean()


@pytest.mark.parametrize("engine", ["cone", "reference"])
def test_a_readout_that_draws_at_random_is_refused(tiny_model, engine):
    with raises(InputError, "readout", word="for the same log-probabilities"):
        swap_sweep(tiny_model("llama"), capitals(3), readout=random, engine=engine, **OPTIONS)


def test_a_readout_that_depends_on_other_rows_is_refused(tiny_model):
    with raises(InputError, "readout", word="other rows"):
        swap_sweep(tiny_model("llama"), capitals(3), readout=centred, **OPTIONS)


def test_a_readout_that_counts_its_calls_is_warned_of(tiny_model, tmp_path):
    calls = []

    def late(log_probs, mask):
        calls.append(1)
        return log_probs[:, 0] - 0.5 * (len(calls) > 1e6)

    with pytest.warns(UserWarning, match="readout=callable:late.*keeps between calls"):
        swap_sweep(tiny_model("llama"), capitals(3), readout=late, out=tmp_path / "run", **OPTIONS)


def test_a_value_that_is_computed_once_is_no_state(tiny_model):
    known = {}

    def lazy(log_probs, mask):
        slot = known.setdefault("slot", 0)
        return log_probs[:, slot]

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*keeps between calls")
        swap_sweep(tiny_model("llama"), capitals(3), readout=lazy, **OPTIONS)


def test_a_readout_may_write_into_its_arguments(tiny_model):
    def plain(log_probs, mask):
        return log_probs.gather(-1, mask.sum(-1, keepdim=True) - 1)[:, 0]

    def writing(log_probs, mask):
        last = mask.sum(-1, keepdim=True) - 1
        value = log_probs.gather(-1, last)[:, 0]
        log_probs.zero_()
        mask.scatter_(-1, last, value=False)
        mask[:, 0] = True
        return value

    model = tiny_model("llama")
    wanted = swap_sweep(model, capitals(3), readout=plain, **OPTIONS)
    found = swap_sweep(model, capitals(3), readout=writing, **OPTIONS)
    assert (found.samples()["effect"] == wanted.samples()["effect"]).all()
