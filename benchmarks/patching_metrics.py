"""Time and peak memory of ``anchorlens.patching`` for metrics that read one position or all of
them, beside TransformerLens.

One prompt of 32 tokens on SmolLM2-135M, ``resid_pre`` by position, first difference at a quarter.
TransformerLens is timed on random cells and scaled. ``--large`` measures a random model with 36
layers and a vocabulary of 151,936 tokens instead, on 64 tokens: its 2,304 cells have 90 GB of
logits in float32. Peak memory is that of the process above its value before the call.
"""

import argparse
import contextlib
import io
import random
import threading
import time
from collections.abc import Callable
from itertools import product

import pandas as pd
import psutil
import torch
import transformer_lens.patching as theirs
from transformer_lens import HookedTransformer, HookedTransformerConfig

import anchorlens as al
from anchorlens import patching as ours

Metric = Callable[[torch.Tensor], torch.Tensor]
METRICS: dict[str, Metric] = {
    "logit difference, last position": lambda x: x[0, -1, 100] - x[0, -1, 200],
    "arg max, last position": lambda x: x[0, -1].argmax().float(),
    "log-probability, last position": lambda x: x[0, -1].log_softmax(-1)[100],
    "largest logit of a token, all positions": lambda x: x[0, :, 100].max(),
    "entropy, all positions": lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1).mean(),
}


class Peak:
    """Largest resident memory while a ``with`` statement runs, above its value at the start, in
    MiB.
    """

    def __enter__(self) -> "Peak":
        self.process = psutil.Process()
        self.start = self.most = self.process.memory_info().rss
        self.is_running = True
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        while self.is_running:
            self.most = max(self.most, self.process.memory_info().rss)
            time.sleep(0.005)

    def __exit__(self, *_: object) -> None:
        self.is_running = False
        self.thread.join()
        self.mib = (self.most - self.start) / 2**20


def large_model() -> HookedTransformer:
    """Return a random model with many layers and a large vocabulary."""
    torch.manual_seed(0)
    config = HookedTransformerConfig(
        n_layers=36,
        d_model=64,
        n_ctx=64,
        d_head=16,
        n_heads=4,
        d_mlp=128,
        d_vocab=151_936,
        act_fn="gelu",
        device="cpu",
        seed=0,
    )
    return HookedTransformer(config)


def main() -> None:
    """Print one row per metric."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true")
    parser.add_argument(
        "--cells", type=int, default=12, help="random cells on which TransformerLens is timed"
    )
    parser.add_argument("--layers", type=int, default=0, help="number of layers; 0 for all")
    options = parser.parse_args()
    torch.set_num_threads(2)
    model = (
        large_model()
        if options.large
        else al.load_model("smollm2-135m-instruct", device="cpu", backend="hooked")
    )
    assert isinstance(model, HookedTransformer)
    tokens = 64 if options.large else 32
    generator = torch.Generator().manual_seed(0)
    clean, other = torch.randint(100, 40_000, (2, 1, tokens), generator=generator)
    corrupted = clean.clone()
    corrupted[:, tokens // 4] = other[:, tokens // 4]
    with torch.no_grad():
        cache = model.run_with_cache(
            clean, names_filter=lambda name: name.endswith("hook_resid_pre")
        )[1]
    layers = range(model.cfg.n_layers)[: options.layers or None]
    grid = pd.DataFrame(list(product(layers, range(tokens))), columns=["layer", "pos"])
    some = random.Random(0).sample(range(len(grid)), options.cells)
    print(
        "| metric | cells | TransformerLens s | anchorlens s | ratio | peak MiB | largest"
        " difference, share of the range |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for name, metric in METRICS.items():
        arguments = (model, corrupted, cache, metric)
        with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            start = time.process_time()
            wanted = theirs.generic_activation_patch(
                *arguments, theirs.layer_pos_patch_setter, "resid_pre", index_df=grid.iloc[some]
            )
            slow = (time.process_time() - start) * len(grid) / len(some)
            start = time.process_time()
            with Peak() as peak:
                found = ours.generic_activation_patch(
                    *arguments, ours.layer_pos_patch_setter, "resid_pre", index_df=grid
                )
            fast = time.process_time() - start
        gap = float(
            (found[some] - wanted).abs().max() / (found.max() - found.min()).clamp(min=1e-30)
        )
        row = (
            name,
            len(grid),
            f"{slow:.1f}",
            f"{fast:.1f}",
            f"{slow / fast:.1f}",
            f"{peak.mib:.0f}",
            f"{gap:.0e}",
        )
        print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
