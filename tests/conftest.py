"""Shapes are checked at run time in every test; the real model is loaded once."""

import os
import sys

from tests.checking import check_package

# Compiling the checked package takes 18 s of CPU: once, not in every worker and command of the tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Ray gives its workers a niceness of 15: beside other tests they would have 3 % of a core.
os.environ.setdefault("RAY_worker_niceness", "0")
check_package()

from collections.abc import Callable, Iterator  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

import jaxtyping  # noqa: E402
import pytest  # noqa: E402

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

from tests.tiers import mark_cases_beyond_samples  # noqa: E402

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.hookimpl(tryfirst=True)  # before cases are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave a sample of the cases of some tests in the slow tier."""
    mark_cases_beyond_samples(items)


@pytest.fixture(scope="session")
def smollm2():
    """The packaged model, converted once in the user's cache."""
    from anchorlens.models.load import load_model

    return load_model("smollm2-135m-instruct", device="cpu")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real rows of the four data sets, where they lie beside the project."""
    if not (SHARED / "popqa.jsonl").is_file():
        pytest.skip("the real rows in ../shared/data are not here")
    return SHARED


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``tiny("llama")`` -> directory of that small checkpoint; ``tiny("llama", bos=True)`` with a
    tokenizer that adds BOS.
    """
    from tests.models.tiny import save_tiny

    root = tmp_path_factory.mktemp("tiny")

    @cache
    def make(family: str, bos: bool = False) -> Path:
        return save_tiny(family, root / f"{family}{'-bos' if bos else ''}", bos=bos)

    return make


@pytest.fixture(scope="session")
def tiny_model(tiny: Callable[..., Path]) -> Callable[..., "HookedTransformer"]:
    """``tiny_model("llama")`` -> the small random model, loaded."""
    from anchorlens.models.load import load_model

    @cache
    def make(family: str, bos: bool = False) -> "HookedTransformer":
        return load_model(str(tiny(family, bos)), device="cpu")

    return make


@pytest.fixture(scope="module")
def small_shards() -> Iterator[None]:
    """A shard for every unit; and one thread, because processes are forked."""
    import torch

    from anchorlens.protocols import base

    before, threads, base.SHARD_FLOPS = base.SHARD_FLOPS, torch.get_num_threads(), 1.0
    torch.set_num_threads(1)
    yield
    base.SHARD_FLOPS = before
    torch.set_num_threads(threads)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As users run it: types are not checked at run time, so that a wrong kind of object meets the
    package's own errors.
    """
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def plain_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are saved with an empty figure: drawing one takes longer than a small sweep."""
    from plotly.graph_objects import Figure

    for module in ("anchorlens.running.saving", "anchorlens.running.recompute"):
        monkeypatch.setattr(f"{module}.main_figure", lambda *_, **__: Figure())


@pytest.fixture
def layers_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Layers of streamed models as they are read from their files, in order."""
    from anchorlens.models.hooked.layer_loader import LayerLoader

    right, seen = LayerLoader.read_layer, list[int]()

    def read(self: LayerLoader, layer: int):
        seen.append(layer)
        return right(self, layer)

    monkeypatch.setattr(LayerLoader, "read_layer", read)
    return seen


@pytest.fixture(scope="session")
def plain(tiny_model):
    """A small sweep with enough memory, to compare with."""
    from tests.running.small_sweeps import sweep

    return sweep(tiny_model("llama"))
