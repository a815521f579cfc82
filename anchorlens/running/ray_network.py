"""Network and token of a Ray cluster that is started on this machine."""

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any


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
