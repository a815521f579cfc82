"""Bridges that a user made: raw, in compatibility mode, with hooks, and with recurrent layers."""

import random
import warnings

import pytest
import torch

import anchorlens as al
from anchorlens.engine.choose_engine import choose_engine
from anchorlens.engine.generate import greedy
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import InputError
from anchorlens.models.load import adapt, load_model
from tests.contract.models import (
    CONE,
    RECURRENT,
    continue_greedily,
    hugging_face,
    live_bridge,
    recurrent,
    tokenizer,
)
from tests.engine.fuzz import KINDS
from tests.engine.make import (
    DONOR_LENGTHS,
    LENGTHS,
    answer_reader,
    batch_of,
    cut_batch_of,
    effects_of,
    random_rows,
)
from tests.tiers import choose_cases

TRIAL = random_rows((20,), 5)[0]
MODES = {"raw": None, "compatible": {"no_processing": True}, "processed": {}}


def bridge_in(mode, family):
    bridge = live_bridge(hugging_face(family))
    if MODES[mode] is not None:
        bridge.enable_compatibility_mode(disable_warnings=True, **MODES[mode])
    return adapt(load_model(bridge, tokenizer=tokenizer()))


@pytest.mark.sampled(5)
@pytest.mark.slow
@pytest.mark.parametrize(
    "family", choose_cases(("gpt2", "llama", "phi3"), CONE, slow=("gemma2", "mistral"))
)
@pytest.mark.parametrize("mode", MODES)
def test_numbers_are_those_of_the_bridges_own_forward_pass(mode, family):
    adapter = bridge_in(mode, family)
    rows = torch.tensor(random_rows((17, 17), 6))
    with torch.no_grad():
        wanted = adapter.model(rows).log_softmax(-1).flatten(0, 1)
        found = adapter.read.logits(
            adapter.forward(rows, torch.ones_like(rows)).flatten(0, 1)
        ).log_softmax(-1)
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)
    assert al.model_card(adapter.model).weights_processed == (mode == "processed")
    engine = choose_engine(adapter, "cone", TRIAL)
    assert (engine.name, engine.reason) == ("cone", "")
    for kind in ("swaps", "cuts", "in_a_row"):
        assert KINDS[kind](random.Random(f"{kind} {family}"), adapter).off <= 1


def double(value, hook):
    return 2 * value


def test_a_users_hook_is_named_and_leads_to_the_reference_engine():
    adapter = bridge_in("raw", "llama")
    clean = adapter.whole(torch.tensor(TRIAL))[1]
    adapter.model.blocks[1].mlp.hook_out.add_hook(double)
    assert not torch.allclose(adapter.whole(torch.tensor(TRIAL))[1], clean)
    with pytest.warns(UserWarning, match="a hook is attached to blocks.1.mlp.hook_out"):
        assert choose_engine(adapter, "cone", TRIAL).name == "reference"
    adapter.model.reset_hooks()
    assert choose_engine(adapter, "cone", TRIAL).name == "cone"


def test_a_hook_on_the_module_of_hugging_face_is_named():
    adapter = bridge_in("raw", "qwen2")
    adapter.model.blocks[2].mlp.original_component.register_forward_hook(
        lambda module, args, out: 2 * out
    )
    with pytest.warns(UserWarning, match="a hook is attached to blocks.2.mlp"):
        assert choose_engine(adapter, "cone", TRIAL).name == "reference"


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The cone engine cannot be used")
@pytest.mark.parametrize("part", RECURRENT)
def test_recurrent_layers_run_in_the_reference_engine_and_refuse_a_knockout(part):
    hf, adapter = recurrent(part)
    try:
        engine = choose_engine(adapter, "cone", TRIAL)
    except InputError as error:  # Qwen 3 Next on transformer-lens 3.9
        assert RECURRENT[part][0] == "Qwen3Next"
        assert "install a newer one" in str(error)
        return
    assert engine.name == "reference"
    assert "a recurrent block" in engine.reason
    assert part in engine.reason
    row = random_rows((15,), 4)[0]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = hf(input_ids=torch.tensor([row]), use_cache=False).logits[0].log_softmax(-1)
    padded, mask = torch.tensor([[*row, 0, 0]]), torch.tensor([[1] * 15 + [0] * 2])
    found = adapter.read.logits(adapter.forward(padded, mask)[0, :15]).log_softmax(-1)
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)
    rows, donors = random_rows(LENGTHS, 1), random_rows(DONOR_LENGTHS, 2)
    swaps = engine.run_swaps(
        batch_of(answer_reader(adapter, rows), rows, donors),
        site="resid_pre",
        layers=range(adapter.n_layers),
        window=1,
    )
    assert effects_of(swaps)[0] > 0.1
    for case in range(4):
        assert KINDS["cells"](random.Random(case), adapter).off <= 1  # without a prefix cache
    prompts = random_rows((13, 4, 7), 8)
    assert greedy(adapter, prompts, max_new_tokens=3, stop=lambda ids: False) == [
        continue_greedily(hf, each, 3) for each in prompts
    ]
    with pytest.raises(
        InputError, match="through which tokens act without attention: no knockout is possible"
    ):
        ReferenceEngine(adapter).knockout_states(cut_batch_of(), where=None, windows=[range(1)])
