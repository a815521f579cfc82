"""Choice of the engine, and its warnings."""

import warnings

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.components import Attention

from anchorlens.engine.choose_engine import choose_engine
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import InputError
from anchorlens.models.hooked.blocks import HookedBlock
from anchorlens.models.load import adapt, load_model
from tests.engine.configurations import CONFIGS, adapter_of
from tests.engine.make import Own, case, effects_of, swaps_off
from tests.engine.test_cone import TEXT_FAMILIES
from tests.models.tiny import VOCAB
from tests.raised import raises

TRIAL = (5, 17, 23, 9, 88, 31, 4, 12, 55, 7, 90, 2)


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


def refused(adapter, **how):
    """The reason for which the reference engine measures instead, and the only warning, which holds
    it.
    """
    picked, (told,) = chosen(adapter, **how)
    assert picked.name == "reference"
    assert f"cannot be used: {picked.reason}." in told
    return picked.reason


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["cone", "reference"])
def test_every_family_and_configuration_gets_the_engine_that_is_asked_for(tiny_model, engine):
    for adapter in (
        *(adapt(tiny_model(family)) for family in TEXT_FAMILIES),
        *map(adapter_of, CONFIGS),
    ):
        picked, told = chosen(adapter, engine)
        assert (picked.name, picked.reason, told) == (engine, "", [])


def twice(value, hook):
    return 2 * value


def nothing(value, hook):
    return None


HOOKS = {
    "add_hook": ("blocks.1.hook_mlp_out", lambda m: m.add_hook("blocks.1.hook_mlp_out", twice)),
    "add_perma_hook": (
        "blocks.0.hook_resid_pre",
        lambda m: m.add_perma_hook("blocks.0.hook_resid_pre", twice),
    ),
    "torch": (
        "blocks.2.mlp",
        lambda m: m.blocks[2].mlp.register_forward_hook(lambda mod, args, out: 2 * out),
    ),
    "torch_pre": (
        "blocks.2.attn",
        lambda m: m.blocks[2].attn.register_forward_pre_hook(lambda mod, args: None),
    ),
    "model": ("the model", lambda m: m.register_forward_hook(lambda mod, args, out: out)),
    # What these see is not changed by the cone, but they would not see it.
    "add_hook_bwd": (
        "blocks.1.hook_mlp_out",
        lambda m: m.add_hook("blocks.1.hook_mlp_out", nothing, dir="bwd"),
    ),
    "torch_bwd": (
        "blocks.2.mlp",
        lambda m: m.blocks[2].mlp.register_full_backward_hook(lambda mod, into, out: None),
    ),
    "torch_bwd_pre": (
        "blocks.0.attn",
        lambda m: m.blocks[0].attn.register_full_backward_pre_hook(lambda mod, out: None),
    ),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_of_the_users_own_is_named_and_counts(fresh, kind):
    """The reference engine measures with it, so that it is not silently left out."""
    adapter, (name, attach) = adapt(fresh()), HOOKS[kind]
    attach(adapter.model)
    assert refused(adapter) == f"a hook is attached to {name}"
    if kind == "add_hook":
        adapter.model.reset_hooks()
        assert chosen(adapter)[0].name == "cone"


def test_a_forward_and_a_site_of_the_users_own(fresh):
    adapter = adapt(fresh())
    assert "a custom site is read or changed" in refused(
        adapter, sites=[lambda layer: f"blocks.{layer}.hook_resid_mid"]
    )
    mlp = adapter.model.blocks[1].mlp
    own = mlp.forward
    mlp.forward = lambda x: 2 * own(x)
    assert "blocks.1.mlp" in refused(adapter)


def own_transformer(**changes):
    sizes = {
        "n_layers": 2,
        "d_model": 16,
        "n_heads": 2,
        "d_head": 8,
        "d_mlp": 32,
        "n_ctx": 32,
        "d_vocab": VOCAB,
    }
    return HookedTransformer(
        HookedTransformerConfig(**(sizes | {"act_fn": "gelu", "seed": 1} | changes))
    )


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"positional_embedding_type": "shortformer"}, "shortformer positions"),
        ({"attention_dir": "bidirectional"}, "bidirectional attention"),
    ],
)
def test_attention_it_does_not_know_is_named(changes, what):
    assert what in refused(adapt(own_transformer(**changes)))
    usual, nothing = chosen(adapt(own_transformer()))
    assert (usual.name, nothing) == ("cone", [])


class OwnAttention(Attention):
    """Attention of the user's own."""

    def forward(self, *args, **kwargs):
        return 0.5 * super().forward(*args, **kwargs)


def ablated(model):
    model.blocks[1].attn.__class__ = OwnAttention


def spliced(model):
    """A sparse autoencoder in place of a hook point, as HookedSAETransformer does it."""
    model.blocks[1].hook_resid_post = torch.nn.Linear(16, 16)


def subclassed(model):
    class Twice(type(model.blocks[0].mlp)):
        def forward(self, x):
            return 2 * super().forward(x)

    model.blocks[0].mlp.__class__ = Twice


def normed(model):
    """A norm of the user's own."""
    model.blocks[1].ln2 = Own(model.blocks[1].ln2, 0.5)


def trained(model):
    """Biases that were zero at the first sweep are not any more."""
    with torch.no_grad():
        for block in model.blocks:
            for bias in (
                block.attn.b_Q,
                block.attn.b_K,
                block.attn.b_V,
                block.attn.b_O,
                block.mlp.b_in,
            ):
                assert not bias.any()
                bias.copy_(torch.randn(bias.shape, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize(
    ("change", "engine", "what"),
    [
        (normed, "cone", ""),
        (trained, "cone", ""),
        (ablated, "reference", "attention of type OwnAttention in layer 1"),
        (spliced, "reference", "blocks.1.hook_resid_post holds a Linear in place of a hook point"),
        (subclassed, "cone", ""),
    ],
)
def test_a_model_that_changed_after_a_sweep_is_looked_at_again(change, engine, what):
    model = own_transformer()
    first, _ = chosen(adapt(model))
    assert first.name == "cone"
    change(model)
    adapter, batch = case(model)
    picked, _ = chosen(adapter)
    assert (picked.name, picked.reason) == (engine, what)
    options = {"site": "resid_pre", "layers": (0, 1), "window": 1}
    wanted = ReferenceEngine(adapter).run_swaps(batch, **options)
    assert swaps_off(picked.run_swaps(batch, **options), wanted, torch.float32) <= 1
    assert max(effects_of(wanted)) > 0.1


@pytest.mark.parametrize("wrong", [0.9, float("nan")])
def test_an_engine_that_differs_is_replaced_by_the_reference_engine(fresh, monkeypatch, wrong):
    monkeypatch.setattr(HookedBlock, "scale", wrong)
    assert "on a trial row it differs from the model by" in refused(adapt(fresh()))


def raising(error):
    def broken(self, x):
        raise error

    return broken


def test_an_engine_that_cannot_run_is_replaced_by_the_reference_engine(fresh, monkeypatch):
    error = RuntimeError("mat1 and mat2 must have the same dtype\nand more")
    monkeypatch.setattr(HookedBlock, "mlp_out", raising(error))
    wanted = "it cannot run a trial row (RuntimeError: mat1 and mat2 must have the same dtype)"
    assert refused(adapt(fresh())) == wanted


def test_memory_that_runs_out_in_the_trial_is_no_reason_to_need_more(fresh, monkeypatch):
    monkeypatch.setattr(HookedBlock, "mlp_out", raising(torch.OutOfMemoryError("no room")))
    with pytest.raises(torch.OutOfMemoryError):
        chosen(adapt(fresh()))


def test_autocast_equals_the_reference_and_what_is_read_stays_exact(fresh):
    """With a bias, which a product in half precision would round as well."""
    adapter = adapt(fresh())
    with torch.no_grad():
        adapter.model.unembed.b_U.normal_(generator=torch.Generator().manual_seed(1))
    rows = torch.randn(
        3, adapter.d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float32
    )
    picks = torch.tensor([[1, 2]] * 3)
    wanted = adapter.read.logits(rows), *adapter.read.scores(rows, picks)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        picked, _ = chosen(adapter)
        found = adapter.read.logits(rows), *adapter.read.scores(rows, picks)
    assert picked.name == "reference"
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("engine", ["cone", "reference"])
def test_a_read_that_is_not_the_models_is_an_error(engine):
    """Hooks behind the final residual stream are refused, because both engines compute P
    from it.
    """
    model = own_transformer()
    model.add_hook("ln_final.hook_normalized", twice)
    with raises(InputError, "model"):
        chosen(adapt(model), engine)
    model.reset_hooks()
    model.ln_final = Own(model.ln_final, 1.5)
    assert chosen(adapt(model), engine)[0].name == engine


@pytest.mark.parametrize("engine", ["cone", "reference"])
def test_a_model_that_cannot_run_itself_is_an_error(engine):
    model = own_transformer()
    torch.nn.Module.to(model, torch.bfloat16)  # behind cfg.dtype's back
    with raises(InputError, "model"):
        chosen(adapt(model), engine)


def unembed_scaled(model, by):
    """Make all of thirty thousand tokens about as likely, so that no error moves a probability by
    much; or one alone likely.
    """
    model.unembed.W_U.mul_(by)
    model.unembed.b_U.zero_()


def tokens_forbidden(model, value):
    model.unembed.b_U[-5:] = value


@pytest.mark.parametrize(
    ("change", "value", "wrong"),
    [
        (unembed_scaled, 1e-4, -1.0),
        (unembed_scaled, 1e4, -1.0),
        (tokens_forbidden, -torch.inf, -1.0),
        (tokens_forbidden, -1e9, -1.0),
        (unembed_scaled, 1.0, 1.05),
    ],
)
def test_an_error_is_found_whatever_the_distribution(monkeypatch, change, value, wrong):
    """A right engine passes; one whose MLPs have the wrong sign, or are 5% off, does not."""
    model, right = (
        own_transformer(d_vocab=30_000 if change is unembed_scaled and value < 1 else VOCAB),
        HookedBlock.mlp_out,
    )
    with torch.no_grad():
        change(model, value)
    adapter = adapt(model)
    assert chosen(adapter)[0].name == "cone"
    monkeypatch.setattr(HookedBlock, "mlp_out", lambda self, x: wrong * right(self, x))
    assert chosen(adapter)[0].name == "reference"


def test_a_model_whose_numbers_change_from_pass_to_pass_is_refused(tiny):
    """Dropout would be measured as an effect, and the reference engine has no spot checks."""
    model = load_model(str(tiny("gpt2")), device="cpu", backend="bridge", progress=False)
    adapter = adapt(model.train())
    for engine in ("cone", "reference"):
        with raises(InputError, "model", word="eval"):
            chosen(adapter, engine)
    adapter = adapt(model.eval())
    assert chosen(adapter)[0].name == "cone"


def test_a_hook_that_draws_at_random_is_refused(fresh):
    model = fresh()
    model.add_hook("blocks.0.hook_resid_post", lambda x, hook: x + torch.randn_like(x))
    with raises(InputError, "model", word="at random"):
        chosen(adapt(model))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_are_named(fresh, value):
    model = fresh()
    with torch.no_grad():
        model.W_E[TRIAL[0]] = value
    with raises(InputError, "model", word="not finite"):
        chosen(adapt(model))
