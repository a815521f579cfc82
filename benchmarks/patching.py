"""CPU seconds of anchorlens.patching beside transformer_lens.patching, on grids of layer and position of SmolLM2-135M.

TransformerLens is timed on random cells and scaled to the grid. Both run in this process with two threads.
"""

import argparse
import random
import time
from collections.abc import Callable

import pandas as pd
import torch
import transformer_lens.patching as theirs
from transformer_lens import HookedTransformer

import anchorlens as al
from anchorlens import patching as ours

SITES = ("resid_pre", "attn_out", "mlp_out")


def cpu_seconds(run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
    """Return a result and the CPU seconds that it took."""
    start = time.process_time()
    with torch.no_grad():
        return run(), time.process_time() - start


def main() -> None:
    """Print one line per site: ratio of CPU seconds, and the largest difference as a share of the metric's range."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--first", type=int, default=4, help="position of the only token that differs")
    parser.add_argument("--cells", type=int, default=40, help="random cells on which TransformerLens is timed")
    options = parser.parse_args()
    torch.set_num_threads(2)
    model = al.load_model("smollm2-135m-instruct", device="cpu", backend="hooked")
    assert isinstance(model, HookedTransformer)
    torch.manual_seed(0)
    clean = torch.randint(100, 40_000, (options.prompts, options.tokens))
    corrupted = clean.clone()
    corrupted[:, options.first] = torch.randint(100, 40_000, (options.prompts,))
    right, wrong = torch.randint(100, 40_000, (2, options.prompts))
    rows = torch.arange(options.prompts)
    with torch.no_grad():
        _, cache = model.run_with_cache(clean)

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return (logits[rows, -1, right] - logits[rows, -1, wrong]).mean()

    grid = [(layer, pos) for layer in range(model.cfg.n_layers) for pos in range(options.tokens)]
    cells = random.Random(0).sample(grid, min(options.cells, len(grid)))
    frame = pd.DataFrame(cells, columns=["layer", "pos"])
    for site in SITES:
        function = getattr(ours, f"get_act_patch_{site}")
        found, fast = cpu_seconds(lambda function=function: function(model, corrupted, cache, metric))
        wanted, slow = cpu_seconds(
            lambda site=site: theirs.generic_activation_patch(
                model, corrupted, cache, metric, theirs.layer_pos_patch_setter, site, index_df=frame
            )
        )
        slow *= len(grid) / len(cells)
        gap = float((torch.stack([found[cell] for cell in cells]) - wanted).abs().max() / (found.max() - found.min()))
        print(f"{site:10} TransformerLens {slow:.1f} s, anchorlens {fast:.1f} s, ratio {slow / fast:.1f}, difference {gap:.1e}")


if __name__ == "__main__":
    main()
