"""Grids of `anchorlens.patching` in half precision, beside TransformerLens in the same dtype.

    python benchmarks/half_grids.py --grids 200 --json half_grids.json
    python benchmarks/half_grids.py --sweeps 200    # al.patch_sweep instead of the drop-in

Draws grids at random: SmolLM2 and small random checkpoints of every family (some with massive
activations), bfloat16 and float16, several sites, metrics and prompts. Each grid is measured here
in half precision, by TransformerLens in half precision, and here in float32 with the same weights.
Counts the grids that fell back to one forward pass per cell. The difference of each cell from the
float32 run, as a share of the largest effect of that run, is listed for both: median and 99th
percentile over the cells of all grids in which at least one of the two differs from that run. In
the others, about two of five cells of patch sweeps, the patch changes nothing at all. Metrics that
move in steps are listed by themselves, as the share of cells whose value is another one.

With ``--sweeps`` each grid is a patch sweep of two random pairs. The reference engine, whose passes
are TransformerLens' own, takes the place of TransformerLens. A sweep that is not measured by the
cone engine, or stops in a check, counts as fallen back.
"""

import argparse
import contextlib
import io
import json
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformer_lens.patching as theirs

import anchorlens as al
from anchorlens import patching as ours
from tests.models.tiny import FAMILIES, FURTHER_FAMILIES, save_tiny

DTYPES = ("bfloat16", "float16")
# Name of a function -> site, and axes of a cell behind the layer.
FUNCTIONS = {
    "get_act_patch_resid_pre": ("resid_pre", ("pos",)),
    "get_act_patch_attn_out": ("attn_out", ("pos",)),
    "get_act_patch_mlp_out": ("mlp_out", ("pos",)),
    "get_act_patch_attn_head_out_by_pos": ("z", ("pos", "head")),
    "get_act_patch_attn_head_out_all_pos": ("z", ("head",)),
    "get_act_patch_attn_head_v_all_pos": ("v", ("head",)),
    "get_act_patch_attn_head_q_all_pos": ("q", ("head",)),
}
STEPS = ("accuracy", "rank", "top 5")
METRICS = (
    "logit difference",
    "log-probability",
    "probability",
    "KL",
    "sequence loss",
    "margin",
    *STEPS,
)
# Weights of the embedding that make a stream with massive activations: entries and factor.
MASSIVE = (2, 200.0)


@dataclass(frozen=True)
class Grid:
    """Result of one grid.

    Attributes:
        model: Name of the checkpoint.
        dtype: Half-precision dtype.
        function: Function of the drop-in.
        metric: Name of the metric.
        fallback: Reason of a fallback; "" for none.
        ours: Differences from the float32 run, as shares of its largest effect; of metrics that
            move in steps 1 where the value is another one.
        theirs: The same of TransformerLens.
        told: Whether the function said that the effects are within the noise floor.
    """

    model: str
    dtype: str
    function: str
    metric: str
    fallback: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    told: bool


def make_metric(
    name: str, token: int, other: int, clean: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a metric of logits [batch pos d_vocab]; ``clean``: logits of the clean run, for KL."""
    target = clean[:, -1].float().log_softmax(-1)

    def log_p(logits: torch.Tensor) -> torch.Tensor:
        return logits[:, -1].float().log_softmax(-1)

    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "logit difference": lambda x: (x[:, -1, token] - x[:, -1, other]).mean(),
        "log-probability": lambda x: log_p(x)[:, token].mean(),
        "probability": lambda x: log_p(x)[:, token].exp().mean(),
        "KL": lambda x: (target.exp() * (target - log_p(x))).sum(-1).mean(),
        "sequence loss": lambda x: -x.float().log_softmax(-1)[..., token].mean(),
        "margin": lambda x: (x[:, -1, token] - x[:, -1].max(-1).values).float().mean(),
        "accuracy": lambda x: (x[:, -1].argmax(-1) == token).float().mean(),
        "rank": lambda x: (x[:, -1] > x[:, -1, token, None]).sum(-1).float().mean(),
        "top 5": lambda x: (x[:, -1].topk(5).indices == token).any(-1).float().mean(),
    }
    return functions[name]


def in_float32(model: Any, make: Callable[[], Any]) -> Any:
    """Return a float32 model with the weights of a model in half precision."""
    exact = make()
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in exact.named_parameters():
            parameter.copy_(own[name].float())
    return exact


def add_massive_activations(model: Any) -> None:
    """Multiply some entries of the embedding, so that the stream has massive activations."""
    n, factor = MASSIVE
    with torch.no_grad():
        model.embed.W_E[:, :n] *= factor


def quiet(run: Callable[[], Any]) -> Any:
    """Run without gradients and progress bars."""
    with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
        return run()


def measure_grid(
    name: str, dtype: str, half: Any, exact: Any, rng: random.Random, n_cells: int
) -> Grid:
    """Measure one grid with random prompts, site and metric."""
    vocab = int(half.cfg.d_vocab)
    n_rows, n_pos = rng.choice((1, 1, 2, 3)), rng.choice((6, 9, 14))
    draw = torch.Generator().manual_seed(rng.randrange(2**31))
    clean = torch.randint(vocab, (n_rows, n_pos), generator=draw)
    corrupted = clean.clone()
    first = rng.randrange(n_pos // 2)
    last = rng.choice((first + 1, n_pos))
    corrupted[:, first:last] = torch.randint(vocab, (n_rows, last - first), generator=draw)
    function = rng.choice(list(FUNCTIONS))
    metric_name = rng.choice(METRICS)
    site, axes = FUNCTIONS[function]
    logits, cache = quiet(lambda: half.run_with_cache(clean))
    exact_logits, exact_cache = quiet(lambda: exact.run_with_cache(clean))
    token = int(exact_logits[0, -1].argmax())
    other = int(quiet(lambda: exact(corrupted))[0, -1].argmax())
    other = other if other != token else (token + 1) % vocab
    metric = make_metric(metric_name, token, other, logits)
    frame = choose_cells(half, site, axes, n_pos, rng, n_cells)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = quiet(
            lambda: getattr(ours, function)(
                half, corrupted, cache, metric, index_axis_names=None, index_df=frame
            )
        )
    messages = [str(one.message) for one in caught]
    fallback = [one for one in messages if "one forward pass per cell" in one]
    setter = getattr(theirs, function).keywords["patch_setter"]
    their = quiet(
        lambda: theirs.generic_activation_patch(
            half,
            corrupted,
            cache,
            metric,
            patch_setter=setter,
            activation_name=site,
            index_df=frame,
        )
    )
    exact_metric = make_metric(metric_name, token, other, exact_logits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = quiet(
            lambda: getattr(ours, function)(
                exact, corrupted, exact_cache, exact_metric, index_axis_names=None, index_df=frame
            )
        )
    before = float(quiet(lambda: exact_metric(exact(corrupted))))
    size = float((wanted - before).abs().max()) or 1.0

    def differences(values: torch.Tensor) -> tuple[float, ...]:
        gap = (values.double() - wanted.double()).abs()
        gap = (gap > 1e-6).double() if metric_name in STEPS else gap / size
        return tuple(gap.tolist())

    return Grid(
        model=name,
        dtype=dtype,
        function=function,
        metric=metric_name,
        fallback=fallback[0] if fallback else "",
        ours=differences(found),
        theirs=differences(their),
        told=any("noise floor" in one for one in messages),
    )


def measure_sweep(name: str, dtype: str, half: Any, exact: Any, rng: random.Random) -> Grid:
    """Measure one patch sweep with random pairs, site and metric."""
    by, site = rng.choice(
        (
            ("position", "resid_pre"),
            ("position", "attn_out"),
            ("position", "mlp_out"),
            ("head", "z"),
            ("head", "v"),
            ("head", "q"),
        )
    )
    metric = rng.choice(("logit_diff", "prob", "logprob", "kl"))
    options = {"by": by, "site": site, "metric": metric, "progress": False}
    options["layers"] = sorted(rng.sample(range(int(half.cfg.n_layers)), 2))
    pairs = [_random_pair(rng) for _ in range(2)]

    def values(model: Any, engine: str) -> np.ndarray:
        sweep = al.patch_sweep(model, pairs, engine=engine, **options)
        used = sweep.record["plan"]["engine"]
        if used != engine:
            raise al.CheckError(f"measured by the {used} engine: {sweep.record['plan']['reason']}")
        frame = sweep.samples()
        own = frame[frame["control"] == "none"] if "control" in frame else frame
        return own["effect"].to_numpy(dtype=float)

    fallback = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wanted, their = values(exact, "cone"), values(half, "reference")
        try:
            found = values(half, "cone")
        except al.CheckError as why:
            fallback, found = str(why), their
    size = float(np.nanmax(np.abs(wanted))) or 1.0
    return Grid(
        model=name,
        dtype=dtype,
        function=f"patch_sweep {site} by {by}",
        metric=metric,
        fallback=fallback,
        ours=tuple((np.abs(found - wanted) / size).tolist()),
        theirs=tuple((np.abs(their - wanted) / size).tolist()),
        told=any("noise floor" in str(one.message) for one in caught),
    )


def _random_pair(rng: random.Random) -> dict[str, str]:
    """Return a pair of prompts of seven words that differ in one."""
    words = ["".join(rng.sample("abcdefghinos", 2)) for _ in range(7)]
    other = list(words)
    other[rng.randrange(5)] = "".join(rng.sample("klmpqrtuvw", 2))
    answer, wrong = rng.sample("abcdefghi", 2)
    return {
        "clean": " ".join(words),
        "corrupted": " ".join(other),
        "answer": f" {answer}",
        "wrong": f" {wrong}",
    }


def choose_cells(
    model: Any, site: str, axes: Sequence[str], n_pos: int, rng: random.Random, n_cells: int
) -> pd.DataFrame:
    """Return random cells of a grid."""
    n_heads = int(
        (getattr(model.cfg, "n_key_value_heads", None) if site == "v" else None)
        or model.cfg.n_heads
    )
    sizes = {"pos": n_pos, "head": n_heads}
    ranges = [int(model.cfg.n_layers), *(sizes[axis] for axis in axes)]
    every = ours.make_df_from_ranges(ranges, ["layer", *axes])
    numbers = sorted(rng.sample(range(len(every)), min(n_cells, len(every))))
    return every.iloc[numbers].reset_index(drop=True)


def models(
    names: Sequence[str], dtypes: Sequence[str], folder: Path
) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield checkpoints in each dtype, with the same weights in float32.

    A name is that of a family of small checkpoints, with "massive" behind it for massive
    activations, or of a model.
    """
    every = FAMILIES | FURTHER_FAMILIES
    for name in names:
        family = name.removesuffix(" massive")
        path = family
        if family in every:
            path = str(folder / family)
            if not Path(path).exists():
                save_tiny(family, Path(path))
        for dtype in dtypes:

            def make(kind: str, path: str = path) -> Any:
                return al.load_model(path, device="cpu", dtype=kind, progress=False)

            try:
                half = make(dtype)
            except al.InputError as why:
                print(f"{name} in {dtype} is left out: {str(why)[:100]}")
                continue
            if name != family:
                add_massive_activations(half)
            yield name, dtype, half, in_float32(half, lambda make=make: make("float32"))


def run(
    names: Sequence[str],
    dtypes: Sequence[str],
    n_grids: int,
    n_cells: int,
    seed: int = 0,
    *,
    sweeps: bool = False,
) -> list[Grid]:
    """Measure ``n_grids`` grids, spread evenly over models and dtypes; ``sweeps``: by patch
    sweeps.
    """
    grids: list[Grid] = []
    n_models = len(names) * len(dtypes)
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, dtype, half, exact) in enumerate(models(names, dtypes, Path(folder))):
            own = n_grids * (number + 1) // n_models - n_grids * number // n_models
            for i in range(own):
                rng = random.Random(f"{seed}:{name}:{dtype}:{i}")
                if sweeps:
                    grids.append(measure_sweep(name, dtype, half, exact, rng))
                else:
                    grids.append(measure_grid(name, dtype, half, exact, rng, n_cells))
    return grids


def differing(grids: Sequence[Grid]) -> np.ndarray:
    """Return the differences here and of the other package, [who cell], of the cells in which at
    least one is not zero.
    """
    ours = np.concatenate([np.array(grid.ours) for grid in grids])
    theirs = np.concatenate([np.array(grid.theirs) for grid in grids])
    return np.stack([ours, theirs])[:, (ours > 0) | (theirs > 0)]


def ratio(grids: Sequence[Grid], n_draws: int = 1000) -> tuple[float, float, float]:
    """Return the geometric mean of the differences here divided by those of the other package,
    with an interval of 95 % from resamples of the grids.

    Differences below 1e-5 of the largest effect count as 1e-5.
    """
    logs: list[np.ndarray] = []
    for grid in grids:
        ours, theirs = np.maximum(differing([grid]), 1e-5)
        logs.append(np.log(ours / theirs))
    sums = np.array([one.sum() for one in logs])
    counts = np.array([len(one) for one in logs])
    rows = np.random.default_rng(0).integers(len(grids), size=(n_draws, len(grids)))
    draws = sums[rows].sum(1) / counts[rows].sum(1)
    low, high = np.exp(np.quantile(draws, (0.025, 0.975)))
    return float(np.exp(sums.sum() / counts.sum())), float(low), float(high)


def lines(grids: Sequence[Grid]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        "| dtype | metrics | grids | fell back | cells | here: median | 99 % | TransformerLens:"
        " median | 99 % | here / TransformerLens |"
    )
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for dtype in dict.fromkeys(grid.dtype for grid in grids):
        for kind in ("smooth", "in steps"):
            own = [
                grid
                for grid in grids
                if grid.dtype == dtype and (grid.metric in STEPS) == (kind == "in steps")
            ]
            if not own:
                continue
            fallbacks = sum(bool(grid.fallback) for grid in own)
            n_cells = sum(len(grid.ours) for grid in own)
            if kind == "smooth":
                values = differing(own)
                n_cells = values.shape[1]
                numbers = [f"{x:.2g}" for one in values for x in np.quantile(one, (0.5, 0.99))]
                mean, low, high = ratio(own)
                numbers.append(f"{mean:.2f} ({low:.2f} to {high:.2f})")
            else:
                shares = [
                    np.mean([x for grid in own for x in getattr(grid, who)])
                    for who in ("ours", "theirs")
                ]
                numbers = [part for x in shares for part in (f"{100 * x:.1f} % differ", "")]
                numbers.append("")
            yield (
                f"| {dtype} | {kind} | {len(own)} | {fallbacks} | {n_cells} | "
                + " | ".join(numbers)
                + " |"
            )


def main() -> None:
    """Measure the grids; print the table and write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--grids", type=int, default=200)
    parser.add_argument("--sweeps", type=int, default=0, help="patch sweeps instead of grids")
    parser.add_argument("--cells", type=int, default=24, help="cells of each grid")
    parser.add_argument("--models", nargs="+", default=None)
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    default = [*FAMILIES, *FURTHER_FAMILIES, "llama massive", "qwen3 massive", "neox massive"]
    default = [name for name in default if name != "gemma3_multimodal"] + ["smollm2-135m-instruct"]
    start = time.process_time()
    n = args.sweeps or args.grids
    names = args.models or default
    grids = run(names, args.dtypes, n, args.cells, args.seed, sweeps=args.sweeps > 0)
    print("\n".join(lines(grids)))
    for grid in grids:
        if grid.fallback:
            print(f"{grid.model}, {grid.dtype}, {grid.function}, {grid.metric}: {grid.fallback}")
    print(f"{time.process_time() - start:.0f} CPU seconds")
    if args.json:
        args.json.write_text(json.dumps([asdict(grid) for grid in grids], indent=1) + "\n")


if __name__ == "__main__":
    main()
