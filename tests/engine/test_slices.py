"""Results in slices equal those in one piece: MLPs by tokens, logits by rows and vocabulary."""

import pytest
import torch

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.models import blocks, read
from anchorlens.models.hooked.blocks import HookedBlock
from anchorlens.models.load import adapt, load_model
from tests.engine.configurations import adapter_of
from tests.engine.make import case, swaps_off

# Rows and columns of the read; 97 tokens and 20 rows are whole slices of some of them, and not of
# others.
SLICES = ((3, 5), (4, 7), (5, 3), (7, 97), (256, 4))


def states(adapter, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(n, adapter.d_model, generator=generator).to(adapter.shape.dtype)


@pytest.fixture
def in_slices(monkeypatch):
    """``in_slices(tokens, (rows, columns))`` for the rest of the test."""

    def make(tokens, read_slice=(3, 5)):
        monkeypatch.setitem(blocks.MLP_SLICE, "cpu", tokens)
        monkeypatch.setitem(read.READ_SLICE, "cpu", read_slice)

    return make


@pytest.mark.parametrize("tokens", [3, 4, 7])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "olmo2", "solu_ln", "experts"])
def test_every_token_gets_its_own_mlp(name, tokens, in_slices):
    """Slices equal TransformerLens's modules on all tokens at once."""
    adapter = adapter_of(name, torch.float64)
    block, x = adapter.model.blocks[1], states(adapter, 10)
    in_slices(tokens)
    with torch.no_grad():
        wanted = block.apply_mlp((x if name == "olmo2" else block.ln2(x[None])[0])[None])[0]
        found = HookedBlock(adapter.model, 1).mlp_out(x)
    assert (found - wanted).abs().max() < 1e-6
    assert (wanted[1:] - wanted[:-1]).abs().amax(1).min() > 0.1  # tokens differ


@pytest.mark.parametrize("sizes", SLICES)
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "vocab_out"])
def test_every_row_gets_its_own_logits(name, sizes, in_slices):
    """Any tokens of each row, the first and the last of the vocabulary among them, and the whole
    sum.
    """
    adapter, n = adapter_of(name), 20
    x, last = states(adapter, n), adapter.shape.d_vocab - 1
    tokens = torch.randint(last + 1, (n, 3), generator=torch.Generator().manual_seed(1))
    tokens[:2, 0] = torch.tensor([0, last])
    in_slices(512, sizes)
    with torch.no_grad():
        logits = adapter.model(x[None], start_at_layer=adapter.n_layers, prepend_bos=False)[
            0
        ].double()
    picked, total, _ = adapter.read.scores(x, tokens)
    assert (picked - logits.gather(1, tokens)).abs().max() < 1e-4
    assert (total - logits.logsumexp(-1)).abs().max() < 1e-4
    assert (logits[1:] - logits[:-1]).abs().amax(1).min() > 0.5  # rows differ


def test_a_slice_of_tokens_that_are_never_predicted_adds_nothing(in_slices):
    """A padded vocabulary whose last slice is padding alone, with a bias of minus infinity."""
    adapter = adapter_of.__wrapped__("gpt2")
    in_slices(512, (256, 16))
    x, tokens = states(adapter, 3), torch.tensor([[1, 2], [3, 4], [5, 6]])
    with torch.no_grad():
        adapter.model.unembed.b_U[96:] = -torch.inf
        total = adapter.read.scores(x, tokens)[1]
        wanted = adapter.read.logits(x).logsumexp(-1)
    assert (total - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("sizes", [(256, 4096), (7, 50)])
def test_log_probabilities_are_those_of_a_float64_read(tiny, capped, sizes, in_slices):
    model = load_model(str(tiny("gemma2" if capped else "llama")), device="cpu")
    adapter, unembed = adapt(model), model.unembed
    in_slices(512, sizes)
    with torch.no_grad():
        unembed.W_U *= 20 / (
            unembed.W_U.std() * model.cfg.d_model**0.5
        )  # logits as large as a trained model's
        stream = torch.randn(300, model.cfg.d_model, generator=torch.Generator().manual_seed(0))
        one = adapter.read
        logits = one._apply_final_norm(stream).double() @ unembed.W_U.double() + unembed.b_U
        exact = one._scale(logits).log_softmax(-1)
        tokens = exact.topk(2, -1).indices
        picked, total, _ = one.scores(stream, tokens)
        single = one.logits(stream).log_softmax(-1).gather(1, tokens)
    exact = exact.gather(1, tokens)
    off, off_single = ((x - exact).abs().mean().item() for x in (picked - total[:, None], single))
    assert off < off_single / (2 if capped else 4), (off, off_single)
    assert off < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gptj", "experts"])
def test_a_sweep_in_slices_is_a_sweep(name, in_slices):
    """Against the reference engine in one piece; five anchors, lanes that join later, given
    streams.
    """
    adapter, batch = case(adapter_of(name).model)
    way = {"site": "resid_pre", "layers": (2, 0, 1), "window": 1}
    wanted = ReferenceEngine(adapter).run_swaps(batch, **way)
    in_slices(5, (3, 7))
    assert swaps_off(ConeEngine(adapter).run_swaps(batch, **way), wanted, torch.float32) <= 1
    assert swaps_off(ReferenceEngine(adapter).run_swaps(batch, **way), wanted, torch.float32) <= 1
