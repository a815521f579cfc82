"""Hubs that answer without a network."""

import httpx
import huggingface_hub
import pytest

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
