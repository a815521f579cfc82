"""Measure everything that a GPU is used for, in one command without network. No part begins after
seven minutes (``--minutes``).

    python benchmarks/gpu.py --json gpu.json
    python benchmarks/gpu.py --shapes Qwen3-8B --parts engine grids
    python benchmarks/gpu.py --device cpu --layers 2 --shapes Llama-3.2-1B --small  # to try it

Models have the exact shape of the target models and random weights: the time does not depend on
them. A model that does not fit is left out, and so are parts for which no time is left; both are
said. Seconds are wall-clock seconds of the second of two calls. Parts:

- ``numbers``: the cone engine beside the reference engine, small checkpoints of every family, in
  float32 (differences as multiples of the tolerance of the tests) and in half precision (distance
  from float32, beside that of the reference engine).
- ``engine``: swaps without nulls and checks, beside TransformerLens with cached clean activations
  in one batch (careful), and ``generic_activation_patch`` (generic, scaled from some layers).
  *Rate*: share of the measured rate of a matrix product.
- ``sweeps``: ``al.swap_sweep`` with its defaults.
- ``grids``: ``anchorlens.patching`` beside TransformerLens (scaled from 20 cells), and beside a
  Hugging Face model that gets all cells of a layer as one large batch.
- ``knockout``: ``al.knockout_sweep`` of some questions, with its defaults.
- ``memory``: peak beside the weights and the planned bytes of a sweep of 16 questions and of a grid
  of 64 tokens, with a limit of 24 GB for weights and all, and recovery if memory runs out.
- ``figure``: the target figure (four data sets of 300 questions, both anchors, both nulls), scaled
  from 40 questions of each.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))
sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["TQDM_DISABLE"] = "1"  # TransformerLens shows a progress bar per anchor

import torch
from gpu_models import random_model
from gpu_parts import PARTS, Setting
from peers.report import markdown_table
from targets import SHAPES, config_of

from anchorlens.engine.cost import matrix_rate
from anchorlens.models.hf_model import count_parameters, make_empty_model
from anchorlens.models.load import adapt


def main() -> None:
    """Measure the parts that were asked for, and print a table for each."""
    args = _arguments()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "torch sees no GPU here. To try the script: --device cpu --layers 2 --small --shapes"
            " Llama-3.2-1B"
        )
    report = _Report(args, device)
    for part in [name for name in args.parts if PARTS[name].is_alone]:
        report.add("", part, PARTS[part].run(Setting.without_model(device, args.small)))
    for shape in args.shapes:
        setting = report.make_setting(shape)
        if setting is None:
            continue
        for part in [name for name in args.parts if not PARTS[name].is_alone]:
            if report.has_time(shape, part):
                report.add(shape, part, PARTS[part].run(setting))
        del setting
        if device.type == "cuda":
            torch.cuda.empty_cache()
    report.finish()


@dataclass
class _Report:
    """Rows of all parts, and what was left out."""

    args: argparse.Namespace
    device: torch.device
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def make_setting(self, shape: str) -> Setting | None:
        """Make the model of a shape; None if it does not fit."""
        args = self.args
        config = config_of(shape, **({"num_hidden_layers": args.layers} if args.layers else {}))
        dtype = getattr(torch, args.dtype)
        n_bytes = count_parameters(make_empty_model(config, dtype)) * dtype.itemsize
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            if 1.3 * n_bytes > free:
                self.left_out.append(f"{shape}: {n_bytes / 1e9:.0f} GB of weights do not fit")
                return None
        if not self.has_time(shape, "its model"):
            return None
        model = random_model(config, self.device, dtype)
        adapter = adapt(model)
        rate = max(matrix_rate(adapter.shape, self.device) for _ in range(5))
        _say(
            f"{shape} on {self.name}, {args.dtype}: a matrix product has {rate / 1e12:.3g} TFLOP/s"
        )
        return Setting(
            device=self.device,
            is_small=args.small,
            config=config,
            model=model,
            rate=rate,
            n_bytes=n_bytes,
        )

    @property
    def name(self) -> str:
        """Name of the device."""
        is_card = self.device.type == "cuda"
        return torch.cuda.get_device_name(self.device) if is_card else "the CPU"

    def has_time(self, shape: str, part: str) -> bool:
        """Return whether there is time left for a part; else note that it is left out."""
        spent = time.perf_counter() - self.started
        if spent < 60 * self.args.minutes:
            return True
        self.left_out.append(f"{shape}, {part}: {spent / 60:.1f} minutes are spent")
        return False

    def add(self, shape: str, part: str, found: list[dict[str, Any]]) -> None:
        """Print and keep the rows of a part."""
        print(f"\n### {' '.join(filter(None, (part, shape)))}\n")
        columns = list(found[0])
        table = [tuple(_format(row[column]) for column in columns) for row in found]
        print("\n".join(markdown_table(columns, table)), flush=True)
        self.rows += [{"part": part, "shape": shape, **row} for row in found]

    def finish(self) -> None:
        """Say what was left out, and write the JSON file."""
        for line in self.left_out:
            print(f"\nLeft out: {line}.")
        spent = time.perf_counter() - self.started
        _say(f"{spent / 60:.1f} minutes")
        if self.args.json is not None:
            facts = {
                "device": self.name,
                "torch": torch.__version__,
                "dtype": self.args.dtype,
                "seconds": round(spent, 1),
                "rows": self.rows,
                "left_out": self.left_out,
            }
            self.args.json.write_text(json.dumps(facts, indent=1), encoding="utf8")


def _format(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shapes",
        nargs="+",
        choices=list(SHAPES),
        default=["Qwen3-8B", "Llama-3.2-1B", "Llama-3.2-3B", "Qwen3-32B"],
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=7.0, help="no part begins after these")
    parser.add_argument("--layers", type=int, default=None, help="number of layers, to try it")
    parser.add_argument("--small", action="store_true", help="few rows and cells, to try it")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
