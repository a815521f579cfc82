"""Scripts of ``benchmarks/`` as modules, for these tests alone."""

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


class Script(Protocol):
    """``script("compare")``, ``script("peers.jobs")``, ``script("worker_careful")``."""

    def __call__(self, name: str) -> ModuleType: ...


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    """Imports a script; their plain names (``protocol``, ``tensors``) and what they set in
    ``os.environ`` are gone afterwards.
    """
    before, path, environ = set(sys.modules), list(sys.path), dict(os.environ)
    sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "peers")]
    yield import_module
    sys.path[:] = path
    for name in {*os.environ, *environ} - {
        "PYTEST_CURRENT_TEST"
    }:  # pytest's own, which it removes itself
        if name not in environ:
            del os.environ[name]
        else:
            os.environ[name] = environ[name]
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
