"""Parts of ``benchmarks/gpu.py``: each measures something and returns rows of a table."""

import contextlib
import io
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformer_lens.patching as theirs
from alone import engine_alone, planned
from careful import careful
from gpu_models import PROMPTS, find_tokenizer, random_job
from transformer_lens import HookedTransformer
from transformers import AutoModelForCausalLM, PretrainedConfig
from worker_transformer_lens import run as generic

import anchorlens as al
from anchorlens import patching as ours
from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.models.adapter import Adapter
from anchorlens.models.load import adapt
from tests.engine.make import case, swaps_off
from tests.models.tiny import FAMILIES, save_tiny

Row = dict[str, Any]

GIB = 2**30
CARD = 24e9
"""Bytes of the smaller card of ``memory``."""
DATA = ("popqa-sample", "triviaqa-sample", "hotpotqa-sample", "nq-sample")
ANCHORS = ("exact_question", "pre_answer")
# Cells and layers of slow peers that are measured; the rest is scaled.
_CELLS, _LAYERS = 20, 4
# Tokens of one pass of the peer that batches cells.
_TOKENS = 16384


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Device and model of a part.

    Attributes:
        device: The device.
        is_small: Whether few rows and cells are measured, to try the script.
        config: Configuration of the model; None for parts without one.
        model: Model of random weights.
        rate: FLOP/s of a matrix product of its MLP.
        n_bytes: Bytes of its weights.
    """

    device: torch.device
    is_small: bool
    config: PretrainedConfig | None = None
    model: HookedTransformer | None = None
    rate: float = 0.0
    n_bytes: int = 0

    @classmethod
    def without_model(cls, device: torch.device, is_small: bool) -> "Setting":
        """Return the setting of a part that makes its own models."""
        return cls(device=device, is_small=is_small)

    @cached_property
    def adapter(self) -> Adapter:
        """Adapter of the model."""
        return adapt(self.live)

    @property
    def live(self) -> HookedTransformer:
        """The model, with a tokenizer."""
        assert self.model is not None  # parts with a model get one
        if self.model.tokenizer is None:
            self.model.set_tokenizer(find_tokenizer(), default_padding_side="right")
        return self.model

    @property
    def is_card(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def pick(self, many: int, few: int) -> int:
        """Return ``few`` if the script is only tried."""
        return few if self.is_small else many


@dataclass(frozen=True)
class Part:
    """A part of the benchmark; ``is_alone``: it makes its own models."""

    run: Callable[[Setting], list[Row]]
    is_alone: bool = False


def measure_numbers(setting: Setting) -> list[Row]:
    """Compare the engines on small checkpoints of every family."""
    rows: list[Row] = []
    for family in list(FAMILIES)[: 2 if setting.is_small else None]:
        with tempfile.TemporaryDirectory() as folder:
            path = str(save_tiny(family, Path(folder)))
            exact = _both_engines(path, torch.float32, setting.device)
            row: Row = {"family": family, "float32": swaps_off(*exact, torch.float32)}
            for dtype in (torch.bfloat16, torch.float16):
                cone, reference = _both_engines(path, dtype, setting.device)
                name = str(dtype).removeprefix("torch.")
                row[f"{name}, cone"] = _distance(cone, exact[1])
                row[f"{name}, reference"] = _distance(reference, exact[1])
            rows.append(row)
    return rows


Measured = tuple[Metrics, list[Metrics]]


def _both_engines(path: str, dtype: torch.dtype, device: torch.device) -> tuple[Measured, Measured]:
    model = al.load_model(path, dtype=dtype, device=str(device), progress=False)
    adapter, batch = case(model)
    options: dict[str, Any] = {"site": "resid_pre", "window": 1}
    options["layers"] = range(adapter.n_layers)
    return (
        ConeEngine(adapter).run_swaps(batch, **options),
        ReferenceEngine(adapter).run_swaps(batch, **options),
    )


def _distance(found: Measured, exact: Measured) -> float:
    """Return the median difference of log P."""
    pairs = zip([found[0], *found[1]], [exact[0], *exact[1]], strict=True)
    off = torch.cat([(a.log_p - b.log_p).abs().flatten() for a, b in pairs])
    return float(off.nan_to_num(0.0).median())


def measure_engine(setting: Setting) -> list[Row]:
    """Measure swaps without nulls and checks, beside TransformerLens."""
    assert setting.config is not None
    rows: list[Row] = []
    for prompt, prefix in PROMPTS.items():
        n = setting.pick(16, 2)
        job = random_job(setting.config, prefix, ANCHORS, n)
        few = job | {"layers": job["layers"][:: max(1, len(job["layers"]) // _LAYERS)]}
        scale = len(job["layers"]) / len(few["layers"])
        works: list[Callable[[], object]] = [
            lambda job=job: engine_alone(setting.adapter, job, "cone"),
            lambda few=few: careful(setting.live, few, together=True),
            lambda few=few: generic(setting.live, few),
        ]
        with torch.inference_mode():
            own, by_hand, by_library = (_seconds(work) for work in works)
            flops = planned(setting.adapter, job, "cone")[1].flops
        rows.append(
            {
                "prompt": prompt,
                "rows": n,
                "cells": n * len(ANCHORS) * len(job["layers"]),
                "s": own,
                "careful ×": scale * by_hand / own,
                "generic ×": scale * by_library / own,
                "rate": flops / own / setting.rate,
            }
        )
    return rows


def measure_sweeps(setting: Setting) -> list[Row]:
    """Measure sweeps of swaps with their defaults, end to end."""
    rows: list[Row] = []
    for prompt in ("qa", "fewshot(5)"):
        for n in (4, 16, 40) if not setting.is_small else (2,):
            data = al.load_qa("popqa-sample", limit=n)

            def work(data: Any = data, prompt: str = prompt) -> Any:
                return al.swap_sweep(setting.live, data, prompt=prompt, progress=False)

            seconds = _seconds(work)
            with _peak(setting) as peak:
                sweep = work()
            rows.append(
                {
                    "prompt": prompt,
                    "questions": n,
                    "samples": len(sweep.samples()),
                    "s": seconds,
                    "planned GiB": sweep.record["plan"]["peak_bytes"] / GIB,
                    "peak GiB": peak[0],
                }
            )
    return rows


def measure_grids(setting: Setting) -> list[Row]:
    """Measure grids of the drop-in, beside TransformerLens and cells in large batches."""
    rows: list[Row] = []
    sizes = ((1, 32), (4, 32), (8, 64)) if not setting.is_small else ((1, 6),)
    for n_rows, n_pos in sizes:
        tokens, cache = _prompts(setting, n_rows, n_pos)
        for name, site, axes in (
            ("get_act_patch_resid_pre", "resid_pre", ("layer", "pos")),
            ("get_act_patch_attn_head_out_all_pos", "z", ("layer", "head")),
        ):
            row: Row = {"grid": f"{site} by {axes[1]}", "rows x tokens": f"{n_rows} x {n_pos}"}
            function = getattr(ours, name)
            with warnings.catch_warnings(record=True) as told, _quiet():
                warnings.simplefilter("always")
                work = partial(function, setting.live, tokens, cache, _metric)
                row["s"] = _seconds(work)
                with _peak(setting) as peak:
                    table = work()
            row["peak GiB"] = peak[0]
            row["fell back"] = any("one forward pass per cell" in str(one.message) for one in told)
            row["cells"] = table.numel()
            row["TransformerLens s, scaled"] = _their_seconds(setting, tokens, cache, site, axes)
            by_batch = "–"
            if site == "resid_pre":
                by_batch = _batched_seconds(setting, tokens)
            row["Hugging Face, cells in batches, s"] = by_batch
            rows.append(row)
    return rows


def _metric(logits: torch.Tensor) -> torch.Tensor:
    return (logits[:, -1, 5] - logits[:, -1, 6]).mean()


def _prompts(setting: Setting, n_rows: int, n_pos: int) -> tuple[torch.Tensor, Any]:
    """Return corrupted tokens, and the clean cache of tokens that differ at one position."""
    model = setting.live
    generator = torch.Generator().manual_seed(0)
    corrupted = torch.randint(8, 400, (n_rows, n_pos), generator=generator)
    clean = corrupted.clone()
    clean[:, 2] = 7
    names = [f"blocks.{i}.{hook}" for i in range(model.cfg.n_layers) for hook in _HOOKS]
    with torch.no_grad():
        _, cache = model.run_with_cache(clean.to(setting.device), names_filter=names)
    return corrupted.to(setting.device), cache


_HOOKS = ("hook_resid_pre", "attn.hook_z")


def _their_seconds(
    setting: Setting, tokens: torch.Tensor, cache: Any, site: str, axes: tuple[str, ...]
) -> float:
    """Return the seconds of TransformerLens for a grid, from those of some random cells."""
    cfg = setting.live.cfg
    second = int(tokens.shape[1]) if axes[1] == "pos" else int(cfg.n_heads)
    cells = [(layer, place) for layer in range(int(cfg.n_layers)) for place in range(second)]
    some = random.Random(0).sample(cells, min(len(cells), _CELLS))
    setters = {"pos": "layer_pos_patch_setter", "head": "layer_head_vector_patch_setter"}
    setter = getattr(theirs, setters[axes[1]])
    frame = pd.DataFrame(some, columns=["layer", axes[1]])

    def work() -> object:
        with torch.no_grad(), _quiet():
            return theirs.generic_activation_patch(
                setting.live, tokens, cache, _metric, setter, site, index_df=frame
            )

    return _seconds(work) / len(some) * len(cells)


def _batched_seconds(setting: Setting, tokens: torch.Tensor) -> float:
    """Return the seconds of a Hugging Face model that gets all cells of a layer in large batches,
    for a grid of ``resid_pre`` by position.
    """
    assert setting.config is not None
    if setting.is_card and torch.cuda.mem_get_info(setting.device)[0] < 1.5 * setting.n_bytes:
        return float("nan")
    with torch.device(setting.device):
        model: Any = AutoModelForCausalLM.from_config(
            setting.config, dtype=setting.adapter.shape.dtype
        )
    model.eval()
    n_rows, n_pos = tokens.shape
    every = tokens.repeat(n_pos, 1)
    position = torch.arange(n_pos, device=tokens.device).repeat_interleave(n_rows)

    def patch(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        states = args[0].clone()
        at = position[first : first + len(states)]
        lines = torch.arange(len(states), device=states.device)
        states[lines, at] *= 0.5  # the time does not depend on what is written
        return (states, *args[1:])

    first = 0
    step = max(1, _TOKENS // n_pos)

    def work() -> None:
        nonlocal first
        with torch.inference_mode():
            for layer in model.model.layers:
                handle = layer.register_forward_pre_hook(patch)
                try:
                    for start in range(0, len(every), step):
                        first = start
                        logits = model(every[start : start + step], logits_to_keep=1).logits
                        (logits[:, -1, 5] - logits[:, -1, 6]).tolist()
                finally:
                    handle.remove()

    seconds = _seconds(work)
    del model
    if setting.is_card:
        torch.cuda.empty_cache()
    return seconds


def measure_knockout(setting: Setting) -> list[Row]:
    """Measure a sweep of knockouts with its defaults, end to end."""
    n = 40
    data = al.load_qa("popqa-sample", limit=n)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sweep = al.knockout_sweep(setting.live, data, progress=False)
    return [
        {
            "questions": n,
            "samples": len(sweep.samples()),
            "s, first call": time.perf_counter() - started,
            "planned GiB": sweep.record["plan"]["peak_bytes"] / GIB,
        }
    ]


def measure_memory(setting: Setting) -> list[Row]:
    """Compare planned and measured memory; on a GPU also within 24 GB for weights and all, and with
    memory that runs out.
    """
    data = al.load_qa("popqa-sample", limit=setting.pick(16, 2))
    tokens, cache = _prompts(setting, 1, setting.pick(64, 6))

    def sweep(**options: Any) -> Any:
        return al.swap_sweep(setting.live, data, progress=False, **options)

    def grid() -> torch.Tensor:
        with _quiet():
            return ours.get_act_patch_attn_head_out_all_pos(setting.live, tokens, cache, _metric)

    rows: list[Row] = []
    for limit in ("none", "24 GB") if setting.is_card else ("none",):
        with _limited(setting, None if limit == "none" else CARD) as fits:
            for name, work in (("sweep", sweep), ("grid of heads", grid)):
                row: Row = {"limit": limit, "what": name, "planned GiB": "–", "peak GiB": "–"}
                row["done"] = fits
                if fits:
                    with _peak(setting) as peak:
                        found = work()
                    row["peak GiB"] = peak[0]
                    if name == "sweep":
                        row["planned GiB"] = found.record["plan"]["peak_bytes"] / GIB
                rows.append(row)
    if setting.is_card:
        rows.append(_recover(setting, sweep))
    return rows


def _recover(setting: Setting, sweep: Callable[..., Any]) -> Row:
    """Take memory away after planning, so that a batch does not fit, and compare the result."""
    whole = sweep()
    ballast: list[torch.Tensor] = []

    def take(plan: Any) -> None:
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(setting.device)[0]
        size = max(0, int(free - 0.3 * plan.pass_bytes))
        ballast.append(torch.empty(size, dtype=torch.uint8, device=setting.device))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = sweep(on_plan=take)
    ballast.clear()
    torch.cuda.empty_cache()
    columns = ["value_before", "value_after"]
    off = (whole.samples()[columns] - again.samples()[columns]).abs().max().max()
    return {
        "limit": "taken away",
        "what": f"sweep, splits {again.record['plan'].get('split', 0)}",
        "planned GiB": again.record["plan"]["peak_bytes"] / GIB,
        "peak GiB": "–",
        "done": f"largest difference of P {off:.2g}",
    }


@contextmanager
def _limited(setting: Setting, limit: float | None) -> Iterator[bool]:
    """Limit the memory of this process; yields whether the weights fit."""
    if limit is None:
        yield True
        return
    total = torch.cuda.mem_get_info(setting.device)[1]
    # A card of this size has less for tensors: CUDA itself takes about half a gigabyte.
    usable = limit - 0.5e9
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, usable / total), setting.device)
    try:
        yield torch.cuda.memory_allocated(setting.device) < usable - 1e9
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, setting.device)


def measure_figure(setting: Setting) -> list[Row]:
    """Measure the sweeps of the target figure on some questions, and scale to 300 of each set."""
    n = setting.pick(40, 2)
    rows: list[Row] = []
    for name in DATA[: setting.pick(4, 1)]:
        data = al.load_qa(name, limit=n)
        started = time.perf_counter()
        al.swap_sweep(setting.live, data, anchors=ANCHORS, progress=False)
        seconds = time.perf_counter() - started
        rows.append(
            {"data": name, "questions": n, "s": seconds, "300 questions, s": 300 / n * seconds}
        )
    total = sum(row["300 questions, s"] for row in rows)
    rows.append({"data": "all", "questions": "", "s": "", "300 questions, s": total})
    return rows


@contextmanager
def _peak(setting: Setting) -> Iterator[list[Any]]:
    """Measure the peak GiB beside what is held at the beginning; in the list afterwards."""
    found: list[Any] = []
    if not setting.is_card:
        yield found
        found.append("–")
        return
    torch.cuda.synchronize(setting.device)
    torch.cuda.reset_peak_memory_stats(setting.device)
    held = torch.cuda.memory_allocated(setting.device)
    yield found
    found.append((torch.cuda.max_memory_allocated(setting.device) - held) / GIB)


@contextmanager
def _quiet() -> Iterator[None]:
    """Show no progress bars."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def _seconds(work: Callable[[], object]) -> float:
    """Return the seconds of the second of two calls: in the first, kernels are chosen and memory is
    allocated.
    """
    work()
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


PARTS = {
    "numbers": Part(measure_numbers, is_alone=True),
    "engine": Part(measure_engine),
    "grids": Part(measure_grids),
    "sweeps": Part(measure_sweeps),
    "memory": Part(measure_memory),
    "knockout": Part(measure_knockout),
    "figure": Part(measure_figure),
}
"""Parts by name, in the order in which they are measured."""

__all__ = ["PARTS", "Setting"]
