"""Sites whose hooks do not run as needed are refused before anything is measured."""

import pytest
import torch

from anchorlens.engine.choose_engine import check_sites, choose_engine
from anchorlens.engine.hooked_passes import last_stream
from anchorlens.engine.patches import TokenBatch
from anchorlens.errors import HookError, InputError
from anchorlens.models.load import adapt, load_model
from tests.raised import raises

TRIAL = (5, 17, 23, 9, 88, 31, 4, 12, 55, 7, 90, 2)


@pytest.fixture
def fresh(tiny):
    """A model of this test's own, to be changed."""
    return lambda: load_model(str(tiny("llama")), device="cpu")


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        ("blocks.{layer}.attn.hook_pattern", "[1, 4, 12, 12]"),
        ("blocks.{layer}.attn.hook_z", "[1, 12, 4, 12]"),
        ("blocks.{layer}.ln2.hook_scale", "[1, 12, 1]"),
        ("blocks.{layer}.mlp.hook_post", "[1, 12, 80]"),
        ("blocks.{layer}.ln1.hook_normalized", "fires 3 times"),
        ("blocks.{layer}.attn.hook_result", "fires 0 times"),
        ("ln_final.hook_normalized", "fires 0 times"),
    ],
)
@pytest.mark.parametrize("engine", ["cone", "reference"])
def test_a_custom_site_of_another_form_is_refused(tiny_model, hook, problem, engine):
    adapter = adapt(tiny_model("llama"))
    with raises(InputError, "site", word=problem) as caught:
        choose_engine(adapter, engine, TRIAL, [lambda layer: hook.format(layer=layer)])
    assert hook.format(layer=0) in str(caught.value)


@pytest.mark.parametrize(
    "hook",
    ["hook_embed", "blocks.1.hook_resid_pre", "blocks.{layer}.ln2.hook_normalized"],
)
def test_a_custom_site_of_the_width_of_the_stream_is_allowed(tiny_model, hook):
    """Also one that is the same hook in every layer."""
    check_sites(
        adapt(tiny_model("llama")),
        torch.tensor(TRIAL),
        [lambda layer: hook.format(layer=layer)],
    )


def test_the_hook_of_every_layer_is_checked(tiny_model):
    """Patches of any layer read the site in all layers."""

    def other_at_the_top(layer):
        return f"blocks.{layer}.mlp.hook_post" if layer == 2 else f"blocks.{layer}.hook_mlp_out"

    with raises(InputError, "site", word=r"blocks.2.mlp.hook_post"):
        choose_engine(adapt(tiny_model("llama")), "cone", TRIAL, [other_at_the_top])


def test_named_sites_cost_no_pass(tiny_model, monkeypatch):
    adapter = adapt(tiny_model("llama"))
    monkeypatch.setattr(adapter, "forward", lambda *args, **how: pytest.fail("a pass was run"))
    check_sites(adapter, torch.tensor(TRIAL), ["resid_pre", "z", "pattern", "mlp_out"])


def compile_block(model):
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")


def compile_block_in_place(model):
    model.blocks[1].compile(backend="eager")


def compile_attention(model):
    model.blocks[1].attn = torch.compile(model.blocks[1].attn, backend="eager")


@pytest.mark.parametrize(
    ("change", "site", "part"),
    [
        (compile_block, "resid_pre", "blocks.1 "),
        (compile_block_in_place, "resid_pre", "blocks.1 "),
        (compile_attention, "z", "blocks.1.attn "),
        (compile_block, lambda layer: f"blocks.{layer}.hook_mlp_out", "blocks.1 "),
    ],
)
def test_a_compiled_part_whose_hooks_do_not_run_is_named(fresh, change, site, part):
    model = fresh()
    change(model)
    with raises(InputError, "model", word=f"{part}is compiled"):
        choose_engine(adapt(model), "reference", TRIAL, [site])


@pytest.mark.filterwarnings("ignore:The cone engine cannot be used")
def test_a_compiled_part_that_holds_no_hook_of_the_sites_is_allowed(fresh):
    model = fresh()
    compile_attention(model)
    assert choose_engine(adapt(model), "cone", TRIAL, ["resid_pre"]).name == "reference"


def test_the_error_of_a_hook_that_never_runs_names_compiled_parts(fresh):
    """Passes that no choice of an engine came before."""
    model = fresh()
    compile_block_in_place(model)
    ids = torch.tensor([TRIAL])
    tokens = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool))
    with raises(HookError, word="compiled or replaced"):
        last_stream(adapt(model), tokens, [("blocks.1.hook_resid_pre", lambda value, hook: value)])
