"""Both engines on small models of each family and backend."""

import random

import pytest
import torch

from anchorlens.engine.choose_engine import choose_engine
from anchorlens.engine.generate import greedy
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import InputError
from tests.contract.models import (
    BACKENDS,
    CONE,
    adapter_of,
    continue_greedily,
    hugging_face,
    needs_hooked,
)
from tests.engine.fuzz import KINDS
from tests.engine.make import cut_batch_of, random_rows
from tests.tiers import choose_cases

TRIAL = random_rows((20,), 5)[0]
# Families that bridges run in the reference engine -> reason.
FALLBACK = {
    "gptj": "attention of type",
    "gpt_neo": "attention of type",
    "opt": "a block of type",
    "bloom": "a block of type",
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "family", choose_cases(("gpt2", "neox", "gemma3", "olmo2"), CONE, slow=("llama",))
)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_both_engines_agree(family, backend, kind):
    """Swaps, knockouts, batches of rows with common prefixes, single cells, and batches after one
    another through one cache.
    """
    adapter, moved = adapter_of(family, backend), 0
    for case in range(2):
        outcome = KINDS[kind](random.Random(f"{kind} {family} {case}"), adapter)
        assert outcome.off <= 1
        moved += outcome.effect > 1e-2
    assert moved


@pytest.mark.parametrize("family", CONE)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_cone_engine_is_chosen(family, backend):
    engine = choose_engine(adapter_of(family, backend), "cone", TRIAL)
    assert (engine.name, engine.reason) == ("cone", "")


@pytest.mark.parametrize("family", FALLBACK)
def test_the_reference_engine_has_the_reason(family):
    with pytest.warns(UserWarning, match="The cone engine cannot be used"):
        engine = choose_engine(adapter_of(family, "bridge"), "cone", TRIAL)
    assert engine.name == "reference"
    assert FALLBACK[family] in engine.reason
    assert "in layer 0" in engine.reason


@pytest.mark.parametrize("family", ["gpt_neo", "opt", "gptj"])
def test_a_knockout_is_refused_where_hooks_cannot_change_attention(family):
    adapter = adapter_of(family, "bridge")
    with pytest.raises(
        InputError, match="whose scores hooks cannot change: no knockout is possible"
    ):
        ReferenceEngine(adapter).knockout_states(cut_batch_of(), where=None, windows=[range(3)])


@needs_hooked
@pytest.mark.parametrize("family", [*CONE, "bloom"])
def test_a_knockout_has_the_numbers_of_hooked_transformer(family):
    hooked, bridge = (
        ReferenceEngine(adapter_of(family, backend)).knockout_states(
            cut_batch_of(), where=None, windows=[range(0), range(3), range(1)]
        )
        for backend in ("hooked", "bridge")
    )
    assert float((hooked[:, 0] - hooked[:, 1]).abs().max()) > 1e-2
    torch.testing.assert_close(bridge, hooked, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(
    "family", choose_cases(("gpt2", "gemma3", "gptj"), [*CONE, *FALLBACK], slow=("llama", "bloom"))
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_generation_is_that_of_hugging_face(family, backend):
    """Prompts of several lengths in one batch, with and without a common prefix; one stops
    early.
    """
    begin = TRIAL[:9]
    for prompts in (
        [[*begin, 5, 6], [*begin, 8], [*begin, 9, 10, 11, 12]],
        random_rows((13, 4, 1), 8),
    ):
        wanted = [continue_greedily(hugging_face(family), prompt, 6) for prompt in prompts]
        stop = wanted[0][1]
        ends = [next((i + 1 for i, token in enumerate(ids) if token == stop), 6) for ids in wanted]
        found = greedy(
            adapter_of(family, backend),
            prompts,
            max_new_tokens=6,
            stop=lambda ids, stop=stop: ids[-1] == stop,
        )
        assert found == [ids[:end] for ids, end in zip(wanted, ends, strict=True)]
