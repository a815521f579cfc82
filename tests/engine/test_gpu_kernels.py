"""Kernels and limits that only a GPU uses, computed on a CPU."""

import copy

import pytest
import torch

import anchorlens as al
from anchorlens.engine import cone_layout
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.models import blocks, read
from anchorlens.models.devices import index_on
from anchorlens.models.load import adapt
from anchorlens.models.read import READ_SLICE
from tests.engine.configurations import adapter_of
from tests.engine.make import answer_reader, batch_of, case, random_rows, swaps_off
from tests.engine.stand_in import run_grid

HALF = (torch.bfloat16, torch.float16)


@pytest.fixture
def as_on_gpu(monkeypatch):
    """Norms in one kernel, products of half-precision weights, slices and joint attention of a
    GPU.
    """
    monkeypatch.setattr(blocks, "has_fused_norms", lambda _: True)
    monkeypatch.setattr(read, "_has_product", lambda *_: True)
    monkeypatch.setattr(read, "_with_wide_sums", lambda x, w: x.float() @ w.float())
    monkeypatch.setitem(cone_layout.JOINT_ATTENTION, "cpu", cone_layout.JOINT_ATTENTION["cuda"])
    monkeypatch.setitem(READ_SLICE, "cpu", READ_SLICE["cuda"])


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "gemma2", "olmo2", "neox", "ln_pre", "rms_pre_one_key_head"]
)
def test_the_cone_has_the_numbers_of_the_reference_engine(as_on_gpu, name):
    adapter = adapter_of(name)
    rows, donors = random_rows([9, 12, 10, 14], 1, 97), random_rows([9, 12, 10, 14], 2, 97)
    reader = answer_reader(adapter, rows, ((8,), (11,), (9,), (13,)))
    places = {str(p): (((p,),) * 4, ((p,),) * 4) for p in range(1, 8)}
    batch = batch_of(reader, rows, donors, places)
    options = {"site": "resid_pre", "layers": range(adapter.n_layers), "window": 1}
    found = ConeEngine(adapter).run_swaps(batch, **options)
    wanted = ReferenceEngine(adapter).run_swaps(batch, **options)
    assert swaps_off(found, wanted, torch.float32) <= 1


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("centred", [False, True])
def test_a_norm_in_one_kernel_rounds_once(monkeypatch, dtype, centred):
    """Its distance from the exact norm is at most that of the norm in parts."""
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(200, 64, generator=generator).to(dtype)
    weight = (1 + 0.3 * torch.randn(64, generator=generator)).to(dtype)
    bias = torch.randn(64, generator=generator).to(dtype) if centred else None
    wide = None if bias is None else bias.double()
    exact = blocks.norm(x.double(), 1e-6, centred=centred, weight=weight.double(), bias=wide)
    parts = blocks.norm(x, 1e-6, centred=centred, weight=weight, bias=bias)
    monkeypatch.setattr(blocks, "has_fused_norms", lambda _: True)
    whole = blocks.norm(x, 1e-6, centred=centred, weight=weight, bias=bias)
    assert whole.dtype is dtype
    assert (whole - exact).abs().mean() <= 1.01 * (parts - exact).abs().mean()


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.bfloat16, 2e-5), (torch.float16, 2e-6)])
def test_two_half_precision_numbers_hold_a_float32_row(as_on_gpu, dtype, allowed):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 256, generator=generator)
    weight = torch.randn(256, 500, generator=generator).to(dtype)
    exact = x.double() @ weight.double()
    scale = x.norm(dim=1, keepdim=True).double() * weight.double().norm(dim=0)
    found = read.wide_product(x, weight)
    assert found.dtype is torch.float32
    assert ((found - exact).abs() / scale).max() < allowed
    # One number alone is too coarse.
    high, low = read.split_in_two(x, dtype)
    assert ((high.double() @ weight.double() - exact).abs() / scale).max() > 20 * allowed
    assert not low.eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_products_are_ordinary_ones(as_on_gpu, dtype):
    x, weight = torch.randn(3, 8), torch.randn(8, 5).to(dtype)
    assert torch.equal(read.wide_product(x, weight), x @ weight.float())


def test_gradients_go_through_an_ordinary_product(as_on_gpu):
    x = torch.randn(3, 8, requires_grad=True)
    weight = torch.randn(8, 5).to(torch.bfloat16)
    read.wide_product(x, weight).sum().backward()
    assert torch.allclose(x.grad, weight.float().sum(1).expand(3, -1))
    with torch.no_grad():
        assert read.has_wide_sums(x, weight)


def test_a_device_without_such_products_multiplies_in_float32():
    one = torch.ones(4, 4)
    assert not read.has_wide_sums(one, one.to(torch.bfloat16))
    assert torch.equal(read.wide_product(one, one.to(torch.bfloat16)), one @ one)


@pytest.mark.parametrize("dtype", HALF)
def test_probabilities_in_half_precision_with_kernels_of_a_gpu(tiny, dtype, request):
    """P is as near to that of float32 with a GPU's kernels as with a CPU's."""

    def metrics():
        model = al.load_model(str(tiny("llama")), dtype=dtype, progress=False)
        adapter, batch = case(model)
        return ConeEngine(adapter).run_swaps(
            batch, site="resid_pre", layers=range(adapter.n_layers), window=1
        )

    adapter, batch = case(al.load_model(str(tiny("llama")), progress=False))
    exact = ReferenceEngine(adapter).run_swaps(
        batch, site="resid_pre", layers=range(adapter.n_layers), window=1
    )

    def distance(found):
        pairs = zip([found[0], *found[1]], [exact[0], *exact[1]], strict=True)
        return torch.cat([(a.log_p - b.log_p).abs().flatten() for a, b in pairs]).mean()

    plain = distance(metrics())
    request.getfixturevalue("as_on_gpu")
    assert distance(metrics()) <= 1.3 * plain


@pytest.mark.parametrize(
    ("site", "columns"), [("resid_pre", ("pos",)), ("z", ("head",)), ("z", ("pos", "head"))]
)
def test_a_grid_waits_as_often_for_many_cells_as_for_few(tiny_model, site, columns):
    waits, launches, cells = [], [], []
    for n_places in (2, None):
        index_on.cache_clear()
        cone = ConeEngine(adapt(copy.deepcopy(tiny_model("llama"))))
        gpu, n_cells, *_ = run_grid(
            cone, site, columns, n_rows=2, n_pos=12, budget=2**34, n_places=n_places
        )
        waits.append([one for one in gpu.waits if one != "layer"])
        launches.append(gpu.launches)
        cells.append(n_cells)
    assert waits[0] == waits[1]
    assert len(waits[0]) < 10
    assert launches[1] - launches[0] <= 8 * (cells[1] - cells[0])


@pytest.mark.parametrize("site", ["resid_pre", "z"])
def test_a_pass_needs_no_more_memory_than_planned(tiny_model, site):
    """And not less than a fifth of it, so that the plan says something."""
    cone = ConeEngine(adapt(copy.deepcopy(tiny_model("llama"))))
    columns = ("pos",) if site == "resid_pre" else ("head",)
    gpu, _, planned, _ = run_grid(cone, site, columns, n_rows=40, n_pos=24, budget=2**34)
    assert gpu.peak <= planned - 24 * 2**20
    assert gpu.peak > 0.2 * (planned - 24 * 2**20)
