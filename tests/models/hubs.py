"""Hubs that answer without a network, and the errors of names."""

import httpx
import huggingface_hub
import pytest

from anchorlens.errors import AnchorlensError
from anchorlens.models.load import load_model
from anchorlens.models.source import check_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def refused(status: int) -> httpx.Response:
    """An answer of the hub that refuses."""
    return httpx.Response(status, request=httpx.Request("GET", "https://hub.example/model"))


def failing_hub(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Every question to the hub ends with ``error``."""

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)


def refusal(name, **options) -> AnchorlensError:
    """Return the error of check_model; load_model must raise the same."""
    with pytest.raises(AnchorlensError) as of_check:
        check_model(name, **options)
    with pytest.raises(AnchorlensError) as of_load:
        load_model(name, **options)
    assert (type(of_check.value), str(of_check.value)) == (type(of_load.value), str(of_load.value))
    return of_check.value
