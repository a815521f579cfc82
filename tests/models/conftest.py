"""Small checkpoints are written once for all tests of the models room."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.models.tiny import save_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``tiny("llama")`` -> directory of that small checkpoint; ``tiny("llama", bos=True)`` with a tokenizer that adds BOS."""
    root = tmp_path_factory.mktemp("tiny")

    @cache
    def make(family: str, bos: bool = False) -> Path:
        return save_tiny(family, root / f"{family}{'-bos' if bos else ''}", bos=bos)

    return make
