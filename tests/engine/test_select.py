"""Which engine is chosen, and what the user is told."""

import warnings

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

from anchorlens.engine.reference import run_swaps
from anchorlens.engine.select import choose_engine
from anchorlens.models.adapter import Adapter
from anchorlens.models.blocks import FusedBlocks
from anchorlens.models.load import load_model
from tests.engine.test_cone import TEXT_FAMILIES, case, gap_of

TRIAL = (5, 17, 230, 9, 88, 301, 4, 12, 55, 7, 100, 2)


@pytest.fixture
def fresh(tiny):
    """A model of this test's own, to be changed."""
    return lambda family="llama": load_model(str(tiny(family)), device="cpu")


def chosen(adapter, engine="cone", sites=("resid_pre",)):
    """The engine, and what was warned of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        picked = choose_engine(adapter, engine, TRIAL, sites)
    return picked, [str(w.message) for w in told if issubclass(w.category, UserWarning)]


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_every_family_is_measured_by_the_cone_engine(tiny_model, family):
    picked, told = chosen(Adapter(tiny_model(family)))
    assert (picked.name, picked.blocks, picked.reason) == ("cone", "fused", "")
    assert type(picked.cone.blocks) is FusedBlocks
    assert told == []


def test_the_oracle_is_used_where_it_is_asked_for(tiny_model):
    picked, told = chosen(Adapter(tiny_model("llama")), "reference")
    assert (picked.name, picked.blocks, picked.reason, picked.cone) == ("reference", "", "", None)
    assert told == []


def twice(value, hook):
    return 2 * value


HOOKS = {
    "add_hook": ("blocks.1.hook_mlp_out", lambda m: m.add_hook("blocks.1.hook_mlp_out", twice)),
    "add_perma_hook": ("blocks.0.hook_resid_pre", lambda m: m.add_perma_hook("blocks.0.hook_resid_pre", twice)),
    "torch": ("blocks.2.mlp", lambda m: m.blocks[2].mlp.register_forward_hook(lambda mod, args, out: 2 * out)),
    "torch_pre": ("blocks.2.attn", lambda m: m.blocks[2].attn.register_forward_pre_hook(lambda mod, args: None)),
    "model": ("the model", lambda m: m.register_forward_hook(lambda mod, args, out: out)),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_of_the_users_own_is_named_and_counts(fresh, kind):
    """The oracle measures with it, so that it is not silently left out."""
    adapter, (name, attach) = Adapter(fresh()), HOOKS[kind]
    attach(adapter.model)
    picked, told = chosen(adapter)
    assert (picked.name, picked.cone) == ("reference", None)
    assert len(told) == 1
    assert f"cannot be used: a hook is attached to {name}. The reference engine measures instead" in told[0]
    assert picked.reason == f"a hook is attached to {name}"


def test_removed_hooks_are_forgotten(fresh):
    adapter = Adapter(fresh())
    adapter.model.add_hook("blocks.1.hook_mlp_out", twice)
    adapter.model.reset_hooks()
    picked, told = chosen(adapter)
    assert (picked.name, told) == ("cone", [])


def test_a_forward_of_the_users_own_counts_as_a_hook(fresh):
    adapter = Adapter(fresh())
    mlp = adapter.model.blocks[1].mlp
    own = mlp.forward
    mlp.forward = lambda x: 2 * own(x)
    picked, told = chosen(adapter)
    assert picked.name == "reference"
    assert len(told) == 1
    assert "blocks.1.mlp" in told[0]


def test_a_site_of_the_users_own(tiny_model):
    picked, told = chosen(Adapter(tiny_model("llama")), sites=[lambda layer: f"blocks.{layer}.hook_resid_mid"])
    assert picked.name == "reference"
    assert len(told) == 1
    assert "a site of your own is read or changed" in told[0]


def own_transformer(**changes):
    sizes = {"n_layers": 2, "d_model": 16, "n_heads": 2, "d_head": 8, "d_mlp": 32, "n_ctx": 32, "d_vocab": 320}
    return HookedTransformer(HookedTransformerConfig(**(sizes | {"act_fn": "gelu", "seed": 1} | changes)))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"positional_embedding_type": "alibi"}, "alibi positions"),
        ({"positional_embedding_type": "shortformer"}, "shortformer positions"),
        ({"attention_dir": "bidirectional"}, "bidirectional attention"),
        ({"attn_only": True}, "blocks without an MLP"),
    ],
)
def test_attention_it_does_not_know_is_named(changes, what):
    model = own_transformer(**changes)
    picked, told = chosen(Adapter(model))
    assert picked.name == "reference"
    assert len(told) == 1
    assert what in told[0]
    usual, nothing = chosen(Adapter(own_transformer()))
    assert (usual.name, nothing) == ("cone", [])


class OwnMLP(torch.nn.Module):
    """An MLP of another class around TransformerLens's."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.cfg = inner, inner.cfg

    def forward(self, x):
        return self.inner(x)


class OwnNorm(OwnMLP):
    """The same around a norm; what it gives is not what the original gives."""

    def forward(self, x):
        return 1.5 * self.inner(x)


@pytest.mark.parametrize(("part", "wrapper", "what"), [("mlp", OwnMLP, "an MLP"), ("ln2", OwnNorm, "a norm")])
@pytest.mark.parametrize("family", ["llama", "neox"])
def test_modules_of_another_class_run_as_they_are(fresh, tiny_model, family, part, wrapper, what):
    model = fresh(family)
    setattr(model.blocks[1], part, wrapper(getattr(model.blocks[1], part)))
    adapter, batch = case(model)
    picked, told = chosen(adapter)
    assert (picked.name, picked.blocks, told) == ("cone", "plain", [])
    assert picked.reason == f"{what} of type {wrapper.__name__}"
    options = {"site": "resid_pre", "layers": (0, 2), "window": 1}
    wanted = run_swaps(adapter, batch, **options)
    gap = gap_of(picked.run_swaps(batch, **options), wanted)
    assert gap.p <= 1e-5
    assert gap.log_p <= 1e-3
    assert max(gap.effects) > 0.1
    unwrapped = float((wanted[0].log_p - run_swaps(Adapter(tiny_model(family)), batch, **options)[0].log_p).abs().max())
    assert (unwrapped > 0.01) is (part == "ln2")


def test_blocks_that_silently_differ_are_not_trusted(fresh, monkeypatch):
    """Fused blocks that give other numbers than the model make way for its own modules."""
    right = FusedBlocks.mlp_out
    monkeypatch.setattr(FusedBlocks, "mlp_out", lambda self, layer, x: right(self, layer, x) + 0.1)
    picked, told = chosen(Adapter(fresh()))
    assert (picked.name, picked.blocks, told) == ("cone", "plain", [])
    assert "on a trial row its probabilities differ from the model's by" in picked.reason


@pytest.mark.parametrize("wrong", [0.9, float("nan")])
def test_an_engine_that_differs_either_way_makes_way_for_the_oracle(fresh, monkeypatch, wrong):
    monkeypatch.setattr(FusedBlocks, "scale", lambda self, layer: wrong)
    picked, told = chosen(Adapter(fresh()))
    assert (picked.name, picked.cone) == ("reference", None)
    assert len(told) == 1
    assert "on a trial row its probabilities differ from the model's by" in told[0]
