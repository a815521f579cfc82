"""Compare the engine's attention with torch's scaled-dot-product attention on tensors of real
sweeps, in CPU seconds.

    python benchmarks/attention.py --cases "*/both/*"

Clean rows and lanes are timed separately: lanes of a row share keys, which the fused function needs
as a copy for each lane. The columns `fused` are its time divided by the engine's.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import torch
import torch.nn.functional as F
from alone import engine_alone, load
from einops import rearrange, repeat
from jaxtyping import Float
from peers.jobs import CASES, model_directory, write_jobs
from torch import Tensor

from anchorlens.engine.cone_attention import GroupAttention
from anchorlens.models.blocks import Block

_OWN = GroupAttention.attend


def main() -> None:
    """Measure all cases and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help="cases, as in benchmarks/compare.py",
    )
    args = parser.parse_args()
    cases = [case for case in CASES if any(fnmatch(case.name, pattern) for pattern in args.cases)]
    adapter = load(model_directory())
    seconds: Counter[tuple[str, str]] = Counter()
    largest = 0.0

    def both(self: GroupAttention, block: Block, *streams: Any) -> Tensor:
        nonlocal largest
        found: dict[str, Tensor] = {}
        part = (
            "clean" if streams[1].data_ptr() == streams[3].data_ptr() else "lanes"
        )  # clean rows have their own keys
        ways = {"own": _OWN, "fused": fused}
        for name in sorted(
            ways, reverse=bool(block.layer % 2)
        ):  # alternates, so that both find a warm cache equally often
            started = time.process_time()
            found[name] = ways[name](self, block, *streams)
            seconds[part, name] += time.process_time() - started
        largest = max(largest, float((found["own"] - found["fused"]).abs().max()))
        return found["own"]

    GroupAttention.attend = both
    print(
        f"{'case':26} {'engine s':>8} {'clean s':>8} {'fused':>6} {'lanes s':>8} {'fused':>6}"
        f" {'largest difference':>19}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, file in write_jobs(adapter.model, cases, Path(folder)).items():
            job = json.loads(file.read_text())
            engine_alone(adapter, {**job, "layers": job["layers"][:1]}, "cone")
            seconds.clear()
            largest = 0.0
            started = time.process_time()
            engine_alone(adapter, job, "cone")
            whole = (
                time.process_time()
                - started
                - seconds["clean", "fused"]
                - seconds["lanes", "fused"]
            )
            clean, lanes = seconds["clean", "own"], seconds["lanes", "own"]
            ratios = seconds["clean", "fused"] / clean, seconds["lanes", "fused"] / lanes
            print(
                f"{name:26} {whole:8.2f} {clean:8.2f} {ratios[0]:6.2f} {lanes:8.2f}"
                f" {ratios[1]:6.2f} {largest:19.1e}",
                flush=True,
            )


def fused(
    self: GroupAttention,
    block: Block,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    base_k: Tensor,
    base_v: Tensor,
    prefix: tuple[Tensor, Tensor] | None,
    _: object = (),
) -> Float[Tensor, "lane found head d_head"]:
    """Compute :meth:`GroupAttention.attend` by ``scaled_dot_product_attention``, without soft cap,
    slopes, sinks and knockouts.
    """
    sizes = {"lane": len(q), "row": self.n_rows}
    own = "lane (row key) kv d_head -> (lane row) kv key d_head"
    keys, values = (
        [rearrange(each[:, _all_or(self.keys)], own, row=self.n_rows)] for each in (k, v)
    )
    if self.n_base:
        before = "(row key) kv d_head -> (lane row) kv key d_head"
        keys.insert(0, repeat(base_k[self.base], before, **sizes))
        values.insert(0, repeat(base_v[self.base], before, **sizes))
    for table, shared in zip((keys, values), prefix or (), strict=False):
        table.insert(0, shared.expand(sizes["lane"] * sizes["row"], *shared.shape))
    excluded = self.exclusion_mask(block.window)
    queries = "lane (row query) head d_head -> (lane row) head query d_head"
    out = F.scaled_dot_product_attention(
        rearrange(q[:, _all_or(self.queries)], queries, row=self.n_rows),
        torch.cat(keys, 2),
        torch.cat(values, 2),
        attn_mask=(
            None
            if excluded is None
            else repeat(
                ~excluded[0, :, 0, :, 0], "row query key -> (lane row) 1 query key", **sizes
            )
        ),
        scale=1.0,  # queries are already scaled
        enable_gqa=True,
    )
    return rearrange(out, "(lane row) head query d_head -> lane (row query) head d_head", **sizes)[
        :, _all_or(self.query_slots)
    ]


def _all_or(index: Tensor | None) -> Tensor | slice:
    return slice(None) if index is None else index


if __name__ == "__main__":
    main()
