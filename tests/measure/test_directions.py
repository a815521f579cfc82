"""Directions of ``norm_matched``: differences of activations of two other prompts."""

import random

import pytest
import torch

from anchorlens.engine.hooked_passes import capture
from anchorlens.measure import directions as module
from anchorlens.measure.directions import draw_directions
from anchorlens.measure.patched_pairs import DirectionPrompt, Pair, Placement, slots_of
from anchorlens.prompts.batches import pad_rows
from anchorlens.prompts.tokenized_prompt import TokenizedPrompt
from tests.engine.configurations import adapter_of

SHOTS = random.Random(0).choices(range(90), k=21)
PAIRS = 3


def prompts(begin, n):
    """Prompts of several lengths that begin alike, with two positions behind that."""
    rng = random.Random(1)
    made = []
    for i in range(n):
        ids = (*begin, i, *rng.choices(range(97), k=3 + i % 3))
        prompt = TokenizedPrompt(id=f"other {i}", group=f"{i}", ids=ids, positions={})
        made.append(DirectionPrompt(prompt, (len(begin) + 1, len(begin) + 2)))
    return made


def pairs(others):
    """Pairs whose only placement turns two positions towards two of the other prompts."""
    made = []
    for row, towards in enumerate(zip(others[::2], others[1::2], strict=True)):
        base = TokenizedPrompt(id=f"row {row}", group="", ids=(1, 2, 3, 4, 5), positions={})
        place = Placement("a", "norm_matched", (2, 3), (2, 3), f"draw {row}", towards)
        made.append(Pair(base, base, base, base, f"donor {row}", (place,)))
    return made


@pytest.mark.parametrize("name", ["gpt2", "llama", "local", "gemma2", "alibi", "sinks"])
@pytest.mark.parametrize("begin", [SHOTS, []], ids=["a common template", "nothing in common"])
def test_prompts_that_begin_alike_run_their_common_tokens_once(name, begin, monkeypatch):
    adapter = adapter_of(name, torch.float64)
    others = prompts(begin, 2 * PAIRS)
    tokens = [0]
    right = adapter.forward

    def forward(ids, *args, **named):
        tokens[0] += ids.numel()
        return right(ids, *args, **named)

    monkeypatch.setattr(adapter, "forward", forward)
    ((made,),) = draw_directions(adapter, "resid_pre", [pairs(others)], lambda width: 8)
    longest = max(len(one.prompt.ids) for one in others)
    shared = len(begin) if adapter.has_prefix_cache else 0
    assert tokens[0] == shared + 2 * PAIRS * (longest - shared)
    for row in range(PAIRS):
        alone = []
        for one in others[2 * row : 2 * row + 2]:
            batch = pad_rows([one.prompt.ids])
            (states,) = capture(
                adapter, batch, "resid_pre", [slots_of([one.positions])], to_host=True
            )
            alone.append(states[:, 0])
        wanted = alone[0] - alone[1]
        # Positions behind the first own token: their tokens differ, so no direction is Gaussian.
        assert wanted.norm(dim=-1).min() > 1e-3
        assert torch.allclose(made[row], wanted, rtol=1e-5, atol=1e-5)


def test_a_wanted_position_among_the_common_tokens_shortens_the_run_that_is_shared(monkeypatch):
    adapter = adapter_of("llama", torch.float64)
    others = prompts(SHOTS, 2 * PAIRS)
    early = DirectionPrompt(others[0].prompt, (12, len(SHOTS) + 1))
    asked = []
    right = module.run_prefix

    def run_prefix(adapter, tokens, most):
        asked.append(most)
        return right(adapter, tokens, most)

    monkeypatch.setattr(module, "run_prefix", run_prefix)
    draw_directions(adapter, "resid_pre", [pairs([early, *others[1:]])], lambda width: 8)
    assert asked == [12]
