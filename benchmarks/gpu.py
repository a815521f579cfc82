"""Measure the engine on a GPU, with random weights in the shape of a real model, beside
TransformerLens on the same cells.

    python benchmarks/gpu.py --shapes llama-3.2-1b qwen3-8b

No weights are downloaded: the time does not depend on them. Rows are random tokens with the lengths
of real questions; every layer is swapped at the anchors, without nulls. Seconds are wall-clock
seconds: medians of interleaved rounds, with smallest and largest. Careful and generic: how many
times as long TransformerLens takes, with cached clean activations in one batch, and with
``generic_activation_patch``. Rate: FLOPs of the plan per second of the engine, divided by the
FLOP/s of a matrix product of the model's MLP on the same device.
"""

import argparse
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))
os.environ["TQDM_DISABLE"] = "1"  # TransformerLens shows a progress bar per anchor

import torch
from alone import engine_alone, planned
from careful import careful
from peers.jobs import ANCHOR_SETS
from peers.report import rich_table, show, spread
from transformer_lens import HookedTransformer
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config
from worker_transformer_lens import run as generic

from anchorlens.engine.cost import matrix_rate
from anchorlens.models.adapt import adapt
from anchorlens.models.adapter import Adapter
from anchorlens.models.hooked.mapping import make_hooked_config

_LLAMA_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SHAPES: dict[str, Callable[..., PretrainedConfig]] = {
    "llama-3.2-1b": lambda **own: LlamaConfig(
        **{
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "head_dim": 64,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rope_parameters": _LLAMA_ROPE,
        }
        | own
    ),
    "llama-3.2-3b": lambda **own: LlamaConfig(
        **{
            "vocab_size": 128256,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "head_dim": 128,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rope_parameters": _LLAMA_ROPE,
        }
        | own
    ),
    "qwen3-8b": lambda **own: Qwen3Config(
        **{
            "vocab_size": 151936,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "head_dim": 128,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 40960,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        }
        | own
    ),
}
# Tokens that all rows begin with, and those around a row's question.
PROMPTS = {"zero-shot": 2, "5-shot": 110}
_BEFORE, _AFTER, _QUESTION = 2, 4, (8, 18)
COLUMNS = (
    "shape",
    "prompt",
    "anchors",
    "n",
    "engine s",
    "min–max",
    "careful ×",
    "generic ×",
    "rate",
    "GiB beside the model",
)


def main() -> None:
    """Measure all cases and print the table."""
    args = _arguments()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "torch sees no GPU here. To try the script: --device cpu --layers 2 --rounds 1 --shapes"
            " llama-3.2-1b"
        )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    rows: list[tuple[str, ...]] = []
    with torch.inference_mode():
        for shape in args.shapes:
            config = SHAPES[shape](**({"num_hidden_layers": args.layers} if args.layers else {}))
            adapter = adapt(random_model(config, device, getattr(torch, args.dtype)))
            rate = max(matrix_rate(adapter.shape, adapter.device) for _ in range(5))
            print(
                f"{shape} on {name}, {args.dtype}: a matrix product reaches {rate / 1e12:.3g}"
                " TFLOP/s",
                file=sys.stderr,
            )
            for prompt, prefix in PROMPTS.items():
                for anchors in args.anchors:
                    for n in args.examples:
                        job = random_job(config, prefix, ANCHOR_SETS[anchors], n)
                        rows.append(
                            (
                                shape,
                                prompt,
                                anchors,
                                str(n),
                                *_measured(adapter, job, rate, args.rounds),
                            )
                        )
                        print(*rows[-1], file=sys.stderr, flush=True)
    show([rich_table(COLUMNS, rows)], [])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shapes", nargs="+", choices=list(SHAPES), default=["llama-3.2-1b", "qwen3-8b"]
    )
    parser.add_argument("--examples", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument(
        "--anchors", nargs="+", choices=list(ANCHOR_SETS), default=list(ANCHOR_SETS)
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--layers",
        type=int,
        default=None,
        help="number of layers, to try the script on a small machine",
    )
    return parser.parse_args()


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


def _measured(adapter: Adapter, job: dict[str, Any], rate: float, rounds: int) -> list[str]:
    """Measure one job and return its columns."""
    works = (
        lambda: engine_alone(adapter, job, "cone"),
        lambda: careful(adapter.model, job, together=True),
        lambda: generic(adapter.model, job),
    )
    for work in works:
        work()  # warm-up: kernels are chosen and memory is allocated on first use
    cuda = adapter.device.type == "cuda"
    held = torch.cuda.memory_allocated(adapter.device) if cuda else 0
    times: list[tuple[float, ...]] = []
    peak = 0
    for _ in range(rounds):
        if cuda:
            torch.cuda.reset_peak_memory_stats(adapter.device)
        ours = _seconds(works[0])
        peak = max(peak, torch.cuda.max_memory_allocated(adapter.device) - held) if cuda else 0
        times.append((ours, *map(_seconds, works[1:])))
    own = [line[0] for line in times]
    ratios = [f"{median(line[i] / line[0] for line in times):.1f}" for i in (1, 2)]
    reached = planned(adapter, job, "cone")[1].flops / median(own) / rate
    return [
        f"{median(own):.3f}",
        spread(own, ".3f"),
        *ratios,
        f"{reached:.0%}",
        f"{peak / 2**30:.2f}" if cuda else "–",
    ]


def _seconds(work: Callable[[], object]) -> float:
    """Time a call. It ends with numbers on the CPU, so no kernel is still running."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
