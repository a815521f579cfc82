"""No test of this room reaches the network."""

import shutil
import socket
from pathlib import Path

import huggingface_hub
import pytest

from tests.models.hubs import COMMIT


@pytest.fixture
def no_sockets(monkeypatch):
    """Any attempt to connect is an error of its own."""

    def connect(self, address):
        raise AssertionError(f"a connection to {address} was tried")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr("anchorlens.models.hub._has_no_address", bool)
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_args, **_kwargs: pytest.fail("a host name was looked up")
    )


@pytest.fixture
def fake_hub(monkeypatch, tmp_path, no_sockets):
    """A hub that serves one local directory, in the layout of the hub's cache; records what was
    asked for.
    """
    asked: list[tuple[str, str | None, str | None]] = []

    def serve(source: Path):
        snapshot = tmp_path / "hub" / "snapshots" / COMMIT
        shutil.copytree(source, snapshot)

        def one(repo, filename, *, revision=None, token=None, local_files_only=False):
            asked.append((repo, revision, token))
            return str(snapshot / filename)

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", one)
        monkeypatch.setattr(
            huggingface_hub, "snapshot_download", lambda _repo, **_options: str(snapshot)
        )
        return asked

    return serve
