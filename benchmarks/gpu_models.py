"""Models of random weights in the shapes of the target models, and rows of random tokens."""

import random
import warnings
from typing import Any

import torch
from transformer_lens import HookedTransformer
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from anchorlens.models.hooked.mapping import make_hooked_config

# Tokens that all rows begin with, and those around a row's question.
PROMPTS = {"zero-shot": 2, "5-shot": 110}
_BEFORE, _AFTER, _QUESTION = 2, 4, (8, 18)


def random_model(
    config: PretrainedConfig, device: torch.device, dtype: torch.dtype
) -> HookedTransformer:
    """Make a HookedTransformer of this shape with random weights."""
    generator = torch.Generator(device).manual_seed(0)
    model = empty_model(config, device, dtype)
    for name, parameter in model.named_parameters():
        if name.endswith(".w"):
            parameter.data.fill_(1.0)
        elif ".b" in name:
            parameter.data.zero_()
        else:
            parameter.data.normal_(std=0.02, generator=generator)
    return torch.nn.Module.to(model, device)


def empty_model(
    config: PretrainedConfig, device: torch.device, dtype: torch.dtype
) -> HookedTransformer:
    """Make a HookedTransformer of this shape, whose weights have no values yet and lie in memory as
    those of a loaded model: matrices are views of transposed ones.
    """
    where = "cpu" if device.type == "meta" else str(device)
    cfg = make_hooked_config(config, where, dtype, "random")
    with torch.device(device), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = HookedTransformer(cfg, move_to_device=False)
    for name, parameter in model.named_parameters():
        if name.endswith("W_O"):
            stored = torch.empty_like(
                parameter.permute(2, 0, 1), memory_format=torch.contiguous_format
            )
            parameter.data = stored.permute(1, 2, 0)
        elif "W_" in name.rpartition(".")[2] and name != "embed.W_E":
            stored = torch.empty_like(parameter.mT, memory_format=torch.contiguous_format)
            parameter.data = stored.mT
    return model.eval()


def random_job(
    config: PretrainedConfig, prefix: int, anchors: tuple[str, ...], n: int
) -> dict[str, Any]:
    """Make a job (:mod:`protocol`) of random tokens; each donor is as long as its row."""
    draw = random.Random(0)
    begin = [draw.randrange(config.vocab_size) for _ in range(prefix)]
    rows = []
    for _ in range(n):
        size = draw.randint(*_QUESTION)
        ids, donor = (
            [*begin, *(draw.randrange(config.vocab_size) for _ in range(_BEFORE + size + _AFTER))]
            for _ in range(2)
        )
        first = prefix + _BEFORE
        places = {"exact_question": list(range(first, first + size)), "pre_answer": [len(ids) - 1]}
        places = {anchor: places[anchor] for anchor in anchors}
        rows.append(
            {
                "ids": ids,
                "donor_ids": donor,
                "target": places,
                "source": places,
                "read": len(ids) - 1,
                "token": donor[-1],
            }
        )
    return {"layers": list(range(config.num_hidden_layers)), "places": list(anchors), "rows": rows}


def find_tokenizer() -> PreTrainedTokenizerBase:
    """Return SmolLM2's tokenizer where its package is installed, else a small one of the tests."""
    from transformers import AutoTokenizer

    from anchorlens.errors import AnchorlensError
    from anchorlens.models.checkpoint import DEMO, fetch_packaged_model
    from tests.tokenizers_small import small_tokenizer

    try:
        return AutoTokenizer.from_pretrained(fetch_packaged_model(DEMO))
    except (AnchorlensError, OSError):
        return small_tokenizer("byte", bos=True)
