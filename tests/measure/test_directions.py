"""Directions of ``norm_matched``: differences of activations of two other prompts."""

import random

import pytest
import torch

from anchorlens.engine.hooked_passes import capture
from anchorlens.engine.patches import pad_rows
from anchorlens.measure import patched_pairs as module
from anchorlens.measure.patched_pairs import (
    DirectionPrompt,
    Pair,
    Placement,
    draw_directions,
    gaussian_directions,
    slots_of,
)
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


@pytest.mark.parametrize("rows_of_pass", [1, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_two_prompts_have_the_same_past_the_direction_is_gaussian(dtype, rows_of_pass):
    """Their activations are equal; as rows of a batch they may differ by rounding."""
    adapter = adapter_of("llama", dtype)
    first, second = prompts(SHOTS, 2)
    at = len(SHOTS) - 1, len(SHOTS) + 1
    both = [DirectionPrompt(one.prompt, at) for one in (first, second)]
    ((made,),) = draw_directions(adapter, "resid_pre", [pairs(both)], lambda width: rows_of_pass)
    drawn = gaussian_directions("draw 0", 2, adapter.d_model)
    assert torch.equal(made[0][:, 0], drawn[0].expand(adapter.n_layers, -1))
    assert not torch.isclose(made[0][1:, 1], drawn[1]).all(-1).any()


def test_rounding_is_no_direction(monkeypatch):
    """Also where it makes equal activations differ."""
    adapter = adapter_of("llama", torch.float32)
    first, second = prompts(SHOTS, 2)
    both = [DirectionPrompt(one.prompt, (len(SHOTS) - 1,) * 2) for one in (first, second)]
    right = module.capture

    def capture_with_noise(*args, **named):
        noise = torch.Generator().manual_seed(0)
        streams = right(*args, **named)
        return [one + 1e-6 * torch.randn(one.shape, generator=noise) for one in streams]

    monkeypatch.setattr(module, "capture", capture_with_noise)
    ((made,),) = draw_directions(adapter, "resid_pre", [pairs(both)], lambda width: 8)
    drawn = gaussian_directions("draw 0", 2, adapter.d_model)
    assert torch.equal(made[0], drawn.expand(adapter.n_layers, -1, -1))
