"""Estimate the time of the four target models on hardware that was not available: planned work
divided by rates.

    python benchmarks/on_paper.py

The planner computes batches, FLOPs, bytes and readings of the weights for the model's shape and the
given memory; SmolLM2's tokenizer makes the rows. Rates of the GPU, its bus and the disk come from
data sheets, times the printed shares. The rate of the laptop's processor is this machine's rate of
matrix products, measured by this script. No sweep is run.
"""

import argparse
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peers.report import markdown_table, rich_table, show, write_section
from targets import SHAPES, config_of

import anchorlens as al
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.cost import PassSize, matrix_rate, pass_bytes
from anchorlens.models.adapter import Shape
from anchorlens.models.hf_model import count_parameters
from anchorlens.models.hooked.layer_loader import make_empty_model
from anchorlens.models.hooked.streaming import StreamingCost
from anchorlens.protocols.registry import measurement_of
from anchorlens.running import runner as driver

TITLE = "On paper"
COLUMNS = (
    "model",
    "where",
    "protocol",
    "weights GB",
    "streamed",
    "TFLOP",
    "read",
    "GB read",
    "computing s",
    "reading s",
    "s per question",
)


@dataclass(frozen=True)
class Place:
    """Hardware that a model would run on.

    Attributes:
        name: Name in the table.
        memory: Bytes of memory.
        flops: Multiplications and additions per second that passes reach.
        read: Bytes of weights read per second.
        device: torch device type.
    """

    name: str
    memory: float
    flops: float
    read: float
    device: str


def main() -> None:
    """Plan every case and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument(
        "--markdown",
        type=Path,
        default=None,
        metavar="FILE",
        help="also write the table into this file",
    )
    args = parser.parse_args()
    adapter_model = al.load_model("smollm2-135m-instruct", device="cpu")
    data = al.load_qa("popqa-sample", limit=args.questions)
    rows: list[tuple[str, ...]] = []
    here_rate = 0.0
    for name in SHAPES:
        shape, n_bytes, layer, ends = shape_of(name)
        here_rate = matrix_rate(shape, torch.device("cpu"))
        for place in (
            Place("card, 24 GB", 24e9, 0.4 * 165e12, 0.8 * 31.5e9, "cuda"),
            Place("laptop, 16 GB", 16e9, 0.5 * here_rate, 3e9, "cpu"),
        ):
            streamed = 1.2 * n_bytes > place.memory
            held = (
                StreamingCost(layer * shape.n_layers, 2 * layer + ends, place.read)
                if streamed
                else None
            )
            for spec in (al.Knockout(progress=False), al.Swap(n_donors=1, progress=False)):
                free = place.memory - (0 if streamed else n_bytes)
                there = torch.device(place.device)
                plan, questions = planned(
                    adapter_model, data, spec, replace(shape, streamed=held), int(free), there
                )
                computing, reading = plan.flops / place.flops, plan.weight_bytes / place.read
                rows.append(
                    (
                        name,
                        place.name,
                        spec.NAME,
                        f"{n_bytes / 1e9:.1f}",
                        "yes" if streamed else "no",
                        f"{plan.flops / 1e12:,.0f}",
                        f"{plan.weight_reads}" if streamed else "-",
                        f"{plan.weight_bytes / 1e9:,.0f}" if streamed else "-",
                        f"{computing:,.0f}",
                        f"{reading:,.0f}" if streamed else "-",
                        f"{max(computing, reading) / questions:.2f}",
                    )
                )
    note = (
        f"{args.questions} questions of popqa-sample, bfloat16. Card (a GPU): 165 TFLOP/s and 31.5"
        " GB/s over the bus, from data sheets; passes are assumed to reach 0.4 and 0.8 of these."
        f" Laptop: {here_rate / 1e9:,.0f} GFLOP/s, measured here with {torch.get_num_threads()}"
        " threads, of which sweeps reach 0.5; 3 GB/s from its SSD. Seconds per question: the"
        " larger of computing and reading."
    )
    if args.markdown is not None:
        command = f"`{shlex.join(['python', 'benchmarks/on_paper.py', *sys.argv[1:]])}`"
        write_section(args.markdown, TITLE, [command, "", note, "", *markdown_table(COLUMNS, rows)])
    show([rich_table(COLUMNS, rows)], [note])


def shape_of(name: str) -> tuple[Shape, int, int, int]:
    """Return a target model's shape, and the bytes in bfloat16 of its weights, of a layer, and of
    the embeddings.
    """
    config: Any = config_of(name)
    n_params = count_parameters(make_empty_model(config, torch.bfloat16))
    table = config.vocab_size * config.hidden_size
    ends = table * (1 if config.tie_word_embeddings else 2)
    shape = Shape(
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        d_head=config.head_dim,
        d_mlp=config.intermediate_size,
        mlp_products=3,
        d_vocab=config.vocab_size,
        n_ctx=config.max_position_embeddings,
        dtype=torch.bfloat16,
    )
    layer = (n_params - ends) // config.num_hidden_layers
    return shape, 2 * (n_params + table * config.tie_word_embeddings), 2 * layer, 2 * ends


def planned(
    model: Any, data: al.QAData, spec: Any, shape: Shape, free: int, device: torch.device
) -> tuple[Any, int]:
    """Return the plan of a sweep with the model's shape and device replaced, and its number of
    questions.
    """

    class There(ConeEngine):
        def pass_bytes(self, size: PassSize, lanes: int) -> int:
            return pass_bytes(self.adapter.shape, device, size, lanes)

    # A plan uses only the engine's cost estimates.
    driver.choose_engine = lambda adapter, *_: There(adapter)
    measurement = measurement_of(spec.NAME)
    measurement_class: Any = type(measurement)
    measurement_class.check_model = lambda *_: (
        None
    )  # it would check hooks of layers that the stand-in lacks
    station = driver.LocalRunner(measurement, model, data, spec)
    adapter = station._adapter
    adapter.shape, adapter.n_layers, adapter.d_model = shape, shape.n_layers, shape.d_model
    return station.plan(free).cost, len(data)


if __name__ == "__main__":
    main()
