"""Time of a sweep on a GPU: random weights in the shape of a real model, beside TransformerLens's own activation patching.

    python benchmarks/gpu.py --shapes llama-3.2-1b qwen3-8b

No weights have to be fetched: the time does not depend on them. Rows are random tokens with the lengths of real questions; every
layer is swapped at the anchors. Seconds and ratios are medians of interleaved rounds. Rate: the operations that the numbers depend
on, in the cone's time, as a share of what a large matrix product of the model's MLP reaches on the same device.
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
os.environ["TQDM_DISABLE"] = "1"  # TransformerLens draws a bar for each anchor

import torch
from compare import cone_flops
from jobs import ANCHOR_SETS
from ours import sweep_job
from rich.console import Console
from rich.table import Table
from transformer_lens import HookedTransformer
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config
from worker_transformer_lens import run as transformer_lens

from anchorlens.models.adapter import Adapter
from anchorlens.models.mapping import hooked_config

_LLAMA_ROPE = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
SHAPES: dict[str, Callable[..., PretrainedConfig]] = {
    "llama-3.2-1b": lambda **own: LlamaConfig(**{
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rope_parameters": _LLAMA_ROPE,
    } | own),
    "llama-3.2-3b": lambda **own: LlamaConfig(**{
        "vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "head_dim": 128,
        "num_attention_heads": 24, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rope_parameters": _LLAMA_ROPE,
    } | own),
    "qwen3-8b": lambda **own: Qwen3Config(**{
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "head_dim": 128,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 40960,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    } | own),
}  # fmt: skip
# Tokens that all rows begin with, and those around a row's question.
PROMPTS = {"zero-shot": 2, "5-shot": 110}
_BEFORE, _AFTER, _QUESTION = 2, 4, (8, 18)


def main() -> None:
    """Measure and print."""
    args = _arguments()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here. To try the script: --device cpu --layers 2 --rounds 1 --shapes llama-3.2-1b")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    table = Table("shape", "prompt", "anchors", "n", "cone s", "TransformerLens s", "ratio", "rate", "GiB beside the model")
    with torch.inference_mode():
        for shape in args.shapes:
            config = SHAPES[shape](**({"num_hidden_layers": args.layers} if args.layers else {}))
            adapter = Adapter(random_model(config, device, getattr(torch, args.dtype)))
            rate = matrix_rate(config, device, getattr(torch, args.dtype))
            print(f"{shape} on {name}, {args.dtype}: a matrix product reaches {rate / 1e12:.3g} TFLOP/s", file=sys.stderr)
            for prompt, prefix in PROMPTS.items():
                for anchors in args.anchors:
                    for n in args.examples:
                        job = random_job(config, prefix, ANCHOR_SETS[anchors], n)
                        table.add_row(shape, prompt, anchors, str(n), *_measured(adapter, config, job, rate, args.rounds))
    Console(width=120).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["llama-3.2-1b", "qwen3-8b"])
    parser.add_argument("--examples", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--anchors", nargs="+", choices=list(ANCHOR_SETS), default=list(ANCHOR_SETS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--layers", type=int, default=None, help="fewer than the model has, to try the script on a small machine"
    )
    return parser.parse_args()


def random_model(config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> HookedTransformer:
    """A HookedTransformer of this shape."""
    cfg = hooked_config(config, str(device), dtype, "random")
    generator = torch.Generator(device).manual_seed(0)
    with torch.device(device), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = HookedTransformer(cfg, move_to_device=False)
    for name, parameter in model.named_parameters():
        if name.endswith(".w"):
            parameter.data.fill_(1.0)
        elif ".b" in name:
            parameter.data.zero_()
        else:
            parameter.data.normal_(std=0.02, generator=generator)
    return torch.nn.Module.to(model, device).eval()


def random_job(config: PretrainedConfig, prefix: int, anchors: tuple[str, ...], n: int) -> dict[str, Any]:
    """Rows of random tokens, as :mod:`protocol` says; each donor has as many tokens as its row."""
    draw = random.Random(0)
    begin = [draw.randrange(config.vocab_size) for _ in range(prefix)]
    rows = []
    for _ in range(n):
        size = draw.randint(*_QUESTION)
        ids, donor = ([*begin, *(draw.randrange(config.vocab_size) for _ in range(_BEFORE + size + _AFTER))] for _ in range(2))
        first = prefix + _BEFORE
        places = {"question": list(range(first, first + size)), "answer_site": [len(ids) - 1]}
        places = {anchor: places[anchor] for anchor in anchors}
        rows.append(
            {"ids": ids, "donor_ids": donor, "target": places, "source": places, "read": len(ids) - 1, "token": donor[-1]}
        )
    return {"layers": list(range(config.num_hidden_layers)), "anchors": list(anchors), "rows": rows}


def _measured(adapter: Adapter, config: PretrainedConfig, job: dict[str, Any], rate: float, rounds: int) -> list[str]:
    """A line of the table."""
    for work in (lambda: sweep_job(adapter, job, "cone"), lambda: transformer_lens(adapter.model, job)):
        work()  # kernels are chosen and memory is taken on first use
    cuda = adapter.device.type == "cuda"
    held = torch.cuda.memory_allocated(adapter.device) if cuda else 0
    times: list[tuple[float, float]] = []
    peak = 0
    for _ in range(rounds):
        if cuda:
            torch.cuda.reset_peak_memory_stats(adapter.device)
        cone = _seconds(lambda: sweep_job(adapter, job, "cone"))
        peak = max(peak, torch.cuda.max_memory_allocated(adapter.device) - held) if cuda else 0
        times.append((cone, _seconds(lambda: transformer_lens(adapter.model, job))))
    ours, theirs = (median(column) for column in zip(*times, strict=True))
    reached = cone_flops(job, config.to_dict()) / ours / rate
    ratio = median(b / a for a, b in times)
    return [f"{ours:.3f}", f"{theirs:.3f}", f"{ratio:.1f}", f"{reached:.0%}", f"{peak / 2**30:.2f}" if cuda else "–"]


def matrix_rate(config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations in a second of a large product with a matrix of the MLP, the best of a few."""
    m, repeats = (8192, 20) if device.type == "cuda" else (1024, 1)
    a = torch.rand(m, config.hidden_size, device=device, dtype=dtype)
    b = torch.rand(config.hidden_size, config.intermediate_size, device=device, dtype=dtype)

    def products() -> None:
        for _ in range(repeats):
            c = a @ b
        c[0, 0].item()

    best = min(_seconds(products) for _ in range(6))
    return 2.0 * repeats * m * config.hidden_size * config.intermediate_size / best


def _seconds(work: Callable[[], object]) -> float:
    """Both engines end with numbers on the CPU, so nothing is left running."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
