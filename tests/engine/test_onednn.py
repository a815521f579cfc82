"""Float32 products by oneDNN, which is faster than torch's default on some CPUs; here on any CPU
that has it.
"""

from dataclasses import replace
from unittest import mock

import pytest
import torch

from anchorlens.engine import cost
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cost import kernel_bytes
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.models import blocks, devices
from anchorlens.models.blocks import MLP_SLICE, ONEDNN_TOKENS
from tests.engine.configurations import adapter_of
from tests.engine.make import case, swaps_off

CPU, SLICE = torch.device("cpu"), MLP_SLICE["cpu"]
PRODUCT = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
pytestmark = pytest.mark.skipif(PRODUCT is None, reason="this torch is built without oneDNN")


@pytest.fixture
def products(monkeypatch):
    """Numbers of tokens of all products by oneDNN, which is used everywhere."""
    sizes = []
    for module in (blocks, cost):
        monkeypatch.setattr(module, "is_onednn_faster", lambda: True)

    def product(x, *more):
        sizes.append(len(x))
        return PRODUCT(x, *more)

    with mock.patch.object(torch.ops.mkldnn, "_linear_pointwise", product):
        yield sizes


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_that_of_float64(products, transposed, biased):
    draw = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(*size, generator=draw) for size in ((2 * ONEDNN_TOKENS, 48), (48, 17), (17,))
    )
    weight = weight.T.contiguous().T if transposed else weight
    wanted = x.double() @ weight.double() + (bias.double() if biased else 0.0)
    with torch.no_grad():
        found = blocks.times(x, weight, bias if biased else None)
    assert products == [len(x)]
    assert (found - wanted).abs().max() < 1e-5 < wanted.abs().max()


def test_only_whole_multiples_without_gradients_are_computed(products):
    weight = torch.ones(4, 3, requires_grad=True)
    with torch.no_grad():
        blocks.times(torch.ones(ONEDNN_TOKENS + 1, 4), weight)
        blocks.times(torch.ones(ONEDNN_TOKENS, 4, dtype=torch.float64), weight.double())
    assert blocks.times(torch.ones(ONEDNN_TOKENS, 4), weight).requires_grad
    assert not products


@pytest.mark.parametrize(
    "n", [1, ONEDNN_TOKENS - 1, 3 * ONEDNN_TOKENS + 5, SLICE, 2 * SLICE + ONEDNN_TOKENS + 1]
)
def test_products_of_any_number_of_tokens_have_few_sizes(products, n):
    """Each size has its own kernel, which oneDNN keeps."""
    x, weight = torch.randn(n, 8), torch.randn(8, 5)
    with torch.no_grad():
        found = blocks.product(x, weight)
    assert (found - x @ weight).abs().max() < 1e-5
    assert sum(products) == n - n % ONEDNN_TOKENS
    assert set(products) <= set(range(ONEDNN_TOKENS, SLICE + 1, ONEDNN_TOKENS))


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "olmo2", "gptj"])
def test_a_sweep_equals_the_reference_engine(products, name, monkeypatch):
    adapter, batch = case(adapter_of(name).model)
    way = {"site": "resid_pre", "layers": range(adapter.n_layers), "window": 1}
    wanted = ReferenceEngine(adapter).run_swaps(batch, **way)
    monkeypatch.setattr(blocks, "ONEDNN_TOKENS", 4)
    assert swaps_off(ConeEngine(adapter).run_swaps(batch, **way), wanted, torch.float32) <= 1
    assert len(products) > adapter.n_layers


@pytest.mark.parametrize(
    ("vendor", "capability", "faster"),
    [
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
    ],
)
def test_onednn_is_chosen_where_it_was_measured_to_be_faster(
    vendor, capability, faster, monkeypatch
):
    monkeypatch.setattr(devices.Path, "exists", lambda self: False)
    monkeypatch.setattr(devices.platform, "processor", lambda: f"AMD64 Family 25, {vendor}")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert devices.is_onednn_faster.__wrapped__() is faster


def test_its_kernels_are_counted(products):
    """Those of sizes that passes can have."""
    shape, gpu = adapter_of("llama").shape, torch.device("cuda", 0)
    few, all_sizes = (kernel_bytes(shape, CPU, n) for n in (2 * ONEDNN_TOKENS, 100 * SLICE))
    assert 1e6 < few < all_sizes == few * SLICE // (2 * ONEDNN_TOKENS)
    assert kernel_bytes(shape, CPU, ONEDNN_TOKENS - 1) == kernel_bytes(shape, gpu, 1000) == 0
    assert kernel_bytes(replace(shape, dtype=torch.float64), CPU, 1000) == 0
    assert not products
