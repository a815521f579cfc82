"""Options of load_model are checked before the model is looked up."""

import pytest
import torch
import transformers

from anchorlens.errors import InputError
from anchorlens.models.load import load_model
from tests.models.hubs import refusal

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "device='gpu': no such device"),
        ({"device": 3.5}, r"device=3\.5: no such device\. Give 'cuda'"),
        ({"device": ""}, "device=''"),
        ({"device": "xpu"}, r"device='xpu': .*Use device='cpu'"),
        ({"device": "cuda:99"}, r"device='cuda:99': .*CUDA devices"),
        ({"dtype": "float23"}, r"dtype='float23': unknown\. Did you mean 'float32'"),
        ({"dtype": "atuo"}, "Did you mean 'auto'"),
        ({"dtype": 5}, "dtype='5': unknown"),
        ({"dtype": torch.int8}, "dtype='int8': unknown"),
        ({"revision": 5}, r"revision=5: not a revision\."),
        ({"revision": " "}, "revision=' ': not a revision"),
        ({"token": 17}, "token: not the text of an access token"),
        ({"token": ""}, "token: not the text of an access token"),
        ({"tokenizer": 5}, "tokenizer=5: neither a tokenizer"),
        ({"tokenizer": ""}, "tokenizer='': neither a tokenizer"),
        ({"tokenizer": "nowhere"}, "tokenizer='nowhere': neither"),
        ({"tokenizer": transformers.AutoTokenizer}, "tokenizer=the class AutoTokenizer: neither"),
    ],
)
def test_an_option_that_cannot_be_is_refused_before_the_model_is_looked_up(options, message):
    error = refusal("./no/such/model", **options)
    assert type(error) is InputError
    assert "17" not in str(error), "a token is not quoted"
    with pytest.raises(InputError, match=message):
        raise error


@pytest.mark.parametrize("bound", [0, float("nan"), "1"])
def test_a_parity_tolerance_is_a_number_above_zero(bound):
    with pytest.raises(InputError, match=f"parity_tolerance={bound!r}: give a number above 0"):
        load_model("./no/such/model", parity_tolerance=bound)


def test_devices_that_this_machine_lacks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert "device='cuda:2': this machine has a CPU, 2 CUDA devices" in str(
        refusal("./no/such/model", device="cuda:2")
    )
    assert "Apple's GPUs have no float64" in str(
        refusal("./no/such/model", device="mps", dtype="float64")
    )
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert "device='mps': this machine has a CPU, 2 CUDA devices and 0 Apple GPUs" in str(
        refusal("./no", device="mps")
    )
