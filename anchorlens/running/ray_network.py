"""Connect to a Ray cluster, or start one on this machine, with its network and token."""

import os
import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from anchorlens.display import warn
from anchorlens.errors import InputError


def connect(address: str | None, workers: int, threads: int) -> None:
    """Connect to a Ray cluster; if ``address`` is None, start one on this machine with one CPU per
    thread.

    Raises:
        InputError: If no cluster answers.
    """
    options: dict[str, Any] = {
        "address": address,
        "log_to_driver": False,
        "logging_level": "ERROR",
    }
    if address is None:
        cores = os.cpu_count() or 1
        wanted = threads * workers
        if wanted > cores:
            warn(
                f"All workers together have {wanted} threads for {cores} cores. Set OMP_NUM_THREADS"
                " to cores / workers."
            )
        options |= {"address": "local", "num_cpus": max(cores, wanted), "include_dashboard": False}
    before = signal.getsignal(signal.SIGTERM)
    try:
        host, _, port = (address or "").rpartition(":")
        if host and port.isdigit() and "/" not in host:  # Ray waits for minutes if nothing listens
            socket.create_connection((host.strip("[]"), int(port)), timeout=20).close()
        with local_cluster() if address is None else nullcontext():
            import_module("ray").init(**options)
    except (OSError, ValueError, RuntimeError) as why:
        raise InputError(
            f"address={address!r}: no Ray cluster answers ({str(why).splitlines()[0]})."
            " Start one with `ray start --head`, or leave address out to start one on this"
            " machine.",
            argument="address",
        ) from why
    # Ray replaces the SIGTERM handler; restore that of the command line, which stops as Ctrl-C
    # does.
    if callable(before) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


@contextmanager
def local_cluster() -> Iterator[None]:
    """Let a cluster that is started in the block listen on 127.0.0.1 only, and its token be
    readable by this user only.
    """
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        _create_token(Path.home() / ".ray" / "auth_token")
    constants: Any = import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False  # Ray's default on macOS and Windows
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _create_token(file: Path) -> None:
    """Create the file of Ray's token with mode 0600; Ray itself creates it with 0644."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    if not file.exists():
        with tempfile.NamedTemporaryFile("w", dir=file.parent) as made:  # has mode 0600
            made.write(secrets.token_hex(32))
            made.flush()
            with suppress(FileExistsError):  # another process was faster
                os.link(made.name, file)
    file.chmod(0o600)
