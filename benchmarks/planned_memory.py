"""Compare the memory that a patch sweep plans with the memory that it takes.

    python benchmarks/planned_memory.py

Each sweep runs in a process of its own, on a random model in the shape of Qwen3 with eight layers,
on four pairs of 64 tokens whose fourth token differs. *Planned*: bytes beside the weights that the
plan of the sweep predicts. *Measured*: the most that the process holds during the sweep beyond what
it held before (VmHWM of Linux, which misses no short peak), after a first small sweep.
"""

import argparse
import json
import subprocess
import sys
import warnings
from pathlib import Path

import torch
from peers.report import markdown_table


def mean_logprob(logits: torch.Tensor) -> torch.Tensor:
    """Return a metric that reads the whole vocabulary at every position."""
    return logits.log_softmax(-1)[0, :, 50].mean()


SHAPES = {"d 512, V 2,000": (512, 2_000), "d 1,024, V 152,000": (1_024, 152_000)}
"""Name -> width and size of the vocabulary."""
SWEEPS = {
    "by position": {"by": "position"},
    "by head, z": {"by": "head", "site": "z"},
    "by head, k": {"by": "head", "site": "k"},
    "by layer": {"by": "layer"},
    "by position, all logits": {"by": "position", "metric": mean_logprob, "layers": (6,)},
}
N_LAYERS, N_TOKENS, N_PAIRS, HEAD = 8, 64, 4, 16
COLUMNS = ("shape", "dtype", "sweep", "planned MB", "measured MB", "ratio")


def measure(shape: str, sweep: str, dtype: str) -> dict[str, object]:
    """Run one sweep in this process."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    import anchorlens as al
    from tests.engine.memory import settled
    from tests.tokenizers_small import small_tokenizer

    warnings.simplefilter("ignore")
    width, n_ids = SHAPES[shape]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=n_ids,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=width // HEAD,
        num_key_value_heads=width // HEAD // 4,
        head_dim=HEAD,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = al.load_model(
        AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval(),
        tokenizer=small_tokenizer("byte", bos=False),
        check_parity=False,
        progress=False,
    )
    draws = torch.Generator().manual_seed(1)
    rows: list[dict[str, object]] = []
    for number in range(N_PAIRS):
        clean = torch.randint(5, n_ids, (N_TOKENS,), generator=draws).tolist()
        corrupted = list(clean)
        corrupted[3] = (corrupted[3] + 7) % n_ids
        rows.append(
            {
                "clean": clean,
                "corrupted": corrupted,
                "answer": [50],
                "wrong": [60],
                "id": str(number),
            }
        )
    options = {"metric": "logit_diff", "controls": "none", "progress": False}
    al.patch_sweep(model, al.load_pairs(rows[:1]), by="layer", layers=(7,), **options)
    options |= SWEEPS[sweep]
    pairs = al.load_pairs(rows)
    plans: list[al.SweepPlan] = []
    settled()
    Path("/proc/self/clear_refs").write_text("5")  # begin the peak anew
    before = status("VmHWM")
    al.patch_sweep(model, pairs, **options, on_plan=plans.append)
    taken = status("VmHWM") - before
    planned = plans[0].peak_bytes
    return {
        "shape": shape,
        "dtype": dtype,
        "sweep": sweep,
        "planned MB": round(planned / 1e6),
        "measured MB": round(taken / 1e6),
        "ratio": round(planned / taken, 2),
    }


def status(name: str) -> int:
    """Return a size of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(name)]
    return int(line.split()[1]) * 1024


def main() -> None:
    """Print one row per shape, dtype and sweep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one)))
        return
    found: list[dict[str, object]] = []
    for shape in SHAPES:
        for dtype in args.dtypes:
            for sweep in SWEEPS:
                command = [sys.executable, __file__, "--one", shape, sweep, dtype]
                root = Path(__file__).resolve().parents[1]
                done = subprocess.run(command, capture_output=True, text=True, cwd=root)
                if done.returncode:
                    raise SystemExit(done.stderr)
                found.append(json.loads(done.stdout.splitlines()[-1]))
    table: list[list[str]] = []
    for row in found:
        cells = [str(row[name]) for name in COLUMNS]
        table.append(cells)
    print("\n".join(markdown_table(COLUMNS, table)))


if __name__ == "__main__":
    main()
