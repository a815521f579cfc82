"""Random metrics on random grids of patches, each compared with one full forward pass per cell.

``python -m tests.patching.metric_fuzz 500`` runs 500 cases and prints a table per kind of metric.
``--first 1000`` starts at case 1000. A case is determined by its number (:func:`numbered`).
"""

import argparse
import io
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformer_lens.patching as theirs
from torch import Tensor

from anchorlens import patching as ours
from anchorlens.models.load import load_model
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.running.sweeps import patch_sweep
from tests.models.tiny import VOCAB, save_tiny
from tests.protocols.patch.plain import cache_of, hook_of, patched_logits

FAMILIES = ("gpt2", "neox", "llama", "qwen3", "gemma2", "gemma3")
# Function of the drop-in -> its site.
FUNCTIONS = {
    "resid_pre": "resid_pre",
    "attn_out": "attn_out",
    "mlp_out": "mlp_out",
    "attn_head_out_by_pos": "z",
    "attn_head_k_by_pos": "k",
    "attn_head_q_all_pos": "q",
    "attn_head_v_all_pos": "v",
    "attn_head_pattern_all_pos": "pattern",
    "attn_head_pattern_by_pos": "pattern",
}
SWEEP_SITES = ("resid_pre", "attn_out", "mlp_out", "z", "q", "k", "v")
ROUTES = ("drop_in", "drop_in", "cone", "reference")
# Standard deviation of the noise by which a step may move, and how often it is drawn.
EDGE, DRAWS = 1e-4, 20

Metric = Callable[[Tensor], Any]
Cell = tuple[object, ...]


@dataclass(frozen=True)
class Scene:
    """What a metric is made for.

    Attributes:
        rng: Source of all choices.
        clean: Logits of the clean prompts, [batch pos d_vocab].
        corrupted: Logits of the corrupted prompts.
        a_token: Best token of a clean prompt at its last position.
        b_token: Best token of a corrupted prompt there.
        may_be_nan: Whether the metric may return NaN and infinite values.
    """

    rng: random.Random
    clean: Tensor
    corrupted: Tensor
    a_token: int
    b_token: int
    may_be_nan: bool

    def position(self) -> int:
        """Draw a position, counted from the end."""
        return self.rng.choice((-1, -1, -1, -2, -2, -3, -self.clean.shape[1]))

    def one_of(self, *metrics: Metric) -> Metric:
        """Draw one of these metrics."""
        return self.rng.choice(metrics)


# --- kinds of metrics ---------------------------------------------------------------------------


def accuracy(scene: Scene) -> Metric:
    a, p = scene.rng.choice((scene.a_token, scene.b_token)), scene.position()
    return scene.one_of(
        lambda x: (x[:, -1].argmax(-1) == a).float().mean(),
        lambda x: (x.argmax(-1)[:, -1] == a).float().mean(),
        lambda x: (x[:, p].max(-1).indices == a).float().sum(),
        lambda x: (x[:, -1, a] == x[:, -1].amax(-1)).double().mean(),
        lambda x: (torch.argmax(x.log_softmax(-1)[:, -1], dim=-1) == a).float().mean(),
    )


def rank(scene: Scene) -> Metric:
    a, p = scene.a_token, scene.position()
    return scene.one_of(
        lambda x: (x[:, p] > x[:, p, a, None]).sum(-1).float().mean(),
        lambda x: (x[:, -1] > x[:, -1, a].unsqueeze(-1)).sum(),
        lambda x: (x[0, p].argsort(descending=True) == a).nonzero()[0, 0],
        lambda x: x[:, -1].argsort(-1).argsort(-1)[:, a].float().mean(),
    )


def top_k(scene: Scene) -> Metric:
    a, p, k = scene.a_token, scene.position(), scene.rng.choice((1, 2, 5, 20))
    return scene.one_of(
        lambda x: (x[:, p].topk(k).indices == a).any(-1).float().mean(),
        lambda x: (x[:, -1, a] >= x[:, -1].topk(k, dim=-1).values[:, -1]).float().mean(),
        lambda x: float(sum(a in row.topk(k).indices.tolist() for row in x[:, p])),
    )


def threshold(scene: Scene) -> Metric:
    a, p = scene.a_token, scene.position()
    one, two = (float(x.softmax(-1)[0, p, a]) for x in (scene.clean, scene.corrupted))
    # The corrupted prompt's own probability is a step that unchanged cells lie exactly on.
    at = scene.rng.choice(((one + two) / 2, (one + two) / 2, 0.9 * two + 0.1 * one, two))
    return scene.one_of(
        lambda x: (x.softmax(-1)[:, p, a] > at).float().mean(),
        lambda x: (torch.softmax(x[:, p], -1)[:, a] >= at).sum(),
        lambda x: ((x[:, p, a] - x[:, p].logsumexp(-1)).exp() > at).float().mean(),
    )


def clipped(scene: Scene) -> Metric:
    a, b, p = scene.a_token, scene.b_token, scene.position()
    gap = [float((x[:, p, a] - x[:, p, b]).mean()) for x in (scene.corrupted, scene.clean)]
    low, high = min(gap), (gap[0] + gap[1]) / 2
    return scene.one_of(
        lambda x: (x[:, p, a] - x[:, p, b]).clamp(low, high + 1e-6).mean(),
        lambda x: (x[:, -1, a] - x[:, -1, b] - high).relu().mean(),
        lambda x: torch.maximum(x[:, p, a], x[:, p, b]).sum(),
        lambda x: (x[:, p, a] - x[:, p, b]).sign().mean(),
    )


def over_positions(scene: Scene) -> Metric:
    a, n = scene.a_token, scene.rng.randint(1, 3)
    return scene.one_of(
        lambda x: x[..., a].max(1).values.mean(),
        lambda x: x.log_softmax(-1)[:, :, a].amin(1).sum(),
        lambda x: x[:, :, a].median(1).values.mean(),
        lambda x: x.amax(-1).min(),
        lambda x: x[:, -n:, a].max() - x[:, :n].min(),
        lambda x: x.max(),
        lambda x: x[:, 1:].flatten(1).topk(3).values.sum(),
    )


def chosen_token(scene: Scene) -> Metric:
    p = scene.position() if scene.rng.random() < 0.5 else -2

    def by_loop(x: Tensor) -> Tensor:
        return sum(x[i, -1, int(x[i, p].argmax())] for i in range(len(x)))

    return scene.one_of(
        lambda x: x[:, -1].gather(-1, x[:, p].argmax(-1, keepdim=True)).mean(),
        lambda x: x.log_softmax(-1)[torch.arange(len(x)), -1, x[:, p].argmax(-1)].mean(),
        lambda x: x[:, :-1].gather(-1, x[:, 1:].argmax(-1)[..., None]).mean(),
        by_loop,
    )


def chosen_position(scene: Scene) -> Metric:
    a, b = scene.a_token, scene.b_token

    def by_loop(x: Tensor) -> Tensor:
        best = [int(row[:, a].argmax()) for row in x]
        return torch.stack([x[i, p, b] for i, p in enumerate(best)]).mean()

    return scene.one_of(
        lambda x: x[torch.arange(len(x)), x[..., a].argmax(1), b].mean(),
        lambda x: x[0, x[0, :, a].argmin().item()].softmax(-1)[b],
        lambda x: x[0].index_select(0, x[0, :, a].argmax()[None]).logsumexp(-1).mean(),
        lambda x: x[..., a].argmax(1).float().mean(),
        by_loop,
    )


def branch(scene: Scene) -> Metric:
    """What is read depends on what was read before."""
    a, b, p = scene.a_token, scene.b_token, scene.position()
    middle = float((scene.clean[0, -1, a] + scene.corrupted[0, -1, a]) / 2)

    def one(x: Tensor) -> Tensor:
        return x[0, 0, b] + 5 if x[0, -1].argmax() == a else x[:, p].softmax(-1)[:, a].mean()

    def two(x: Tensor) -> Tensor:
        return x[:, 1].amax(-1).mean() if x[0, -1, a] > middle else x[:, -1, b].mean()

    def three(x: Tensor) -> Tensor:
        for at in range(x.shape[1] - 1, -1, -1):
            if x[0, at, a] > x[0, at, b]:
                return x[0, at].logsumexp(-1)
        return x[0, -1, a]

    return scene.one_of(one, two, three)


def entropy(scene: Scene) -> Metric:
    return scene.one_of(
        lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1).mean(),
        lambda x: torch.distributions.Categorical(logits=x).entropy().amax(1).mean(),
        lambda x: torch.special.entr(torch.softmax(x, dim=-1)).sum((-1, -2)).max(),
    )


def kl(scene: Scene) -> Metric:
    fixed = scene.clean[0].log_softmax(-1)
    return scene.one_of(
        lambda x: (fixed.exp() * (fixed - x.log_softmax(-1))).sum(-1).mean(),
        lambda x: torch.nn.functional.kl_div(
            x.log_softmax(-1), fixed.expand_as(x), log_target=True, reduction="sum"
        ),
        lambda x: (x.softmax(-1) - fixed.exp()).abs().sum(-1).amax(1).mean(),
    )


def smooth_and_step(scene: Scene) -> Metric:
    a, b, p, q = scene.a_token, scene.b_token, scene.position(), scene.position()
    top = int(scene.clean[0, q].argmax())
    return scene.one_of(
        lambda x: (x[:, p, a] - x[:, p, b]).mean() + 3 * (x[:, q].argmax(-1) == top).float().mean(),
        lambda x: x[:, p, a].mean() * (x[:, q, a] > x[:, q, b]).float().mean(),
        lambda x: torch.where(x[:, q].argmax(-1) == top, x[:, p, a], x[:, 0, b]).mean(),
        lambda x: x[:, p, b].sum() + (x.argmax(-1)[:, :-1] == top).sum(),
    )


def coupled(scene: Scene) -> Metric:
    a, b, p = scene.a_token, scene.b_token, scene.position()
    return scene.one_of(
        lambda x: x[:, -1, a].var(unbiased=False) + x[:, p, b].mean(),
        lambda x: x[:, p, a].max() - x[:, p, b].min(),
        lambda x: (
            (x[:, -1].argmax(-1) == a).float().mean() * x[:, p, a].std(unbiased=False) + x[0, p, b]
        ),
        lambda x: x[x[:, -1, a].argmax(), p, b],
        lambda x: x[:, p].mean(0).softmax(-1)[a],
        lambda x: (x[:, p].argmax(-1) == x[0, p].argmax()).float().sum() + x[-1, -1, b],
    )


def writer(scene: Scene) -> Metric:
    """The metric changes its logits."""
    a, b, p = scene.a_token, scene.b_token, scene.position()
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[[b, 3, 8]] = True

    def without(x: Tensor) -> Tensor:
        x[..., b] = -1e9
        return (x[:, p].argmax(-1) == a).float().mean() + x[:, p].softmax(-1)[:, a].mean()

    def centred(x: Tensor) -> Tensor:
        x[:, -1] -= x[:, -1].mean(-1, keepdim=True)
        return x[:, -1, a].mean() + x[:, p, b].mean()

    def filled(x: Tensor) -> Tensor:
        x.masked_fill_(mask, -torch.inf)
        return x.amax(-1).mean()

    def halved(x: Tensor) -> Tensor:
        first = x[:, p]
        x /= 2
        return (first.softmax(-1)[:, a] - x[:, -1].softmax(-1)[:, b]).mean()

    def copied(x: Tensor) -> Tensor:
        x[:, 0] = x[:, -1]
        x[:, -1, b] = 0.0
        return (x[:, 0, a] - x[:, -1].logsumexp(-1)).mean()

    def clamped(x: Tensor) -> Tensor:
        x[:, p].clamp_(min=0)
        return x[:, p].sum(-1).mean() - x[:, -1, a].mean()

    return scene.one_of(without, centred, filled, halved, copied, clamped)


def returned(scene: Scene) -> Metric:
    """Values that are no float32 tensors."""
    a, b, p = scene.a_token, scene.b_token, scene.position()
    return scene.one_of(
        lambda x: x[:, p, a].mean().numpy(),
        lambda x: x.numpy()[:, -1, a].max(),
        lambda x: bool(x[0, p, a] > x[0, p, b]),
        lambda x: x[0, -1, a] > x[0, -1, b],
        lambda x: x[:, -1].argmax(-1).sum(),
        lambda x: x.double().log_softmax(-1)[:, p, a].mean(),
        lambda x: (x[:, p, a] - x[:, p, b]).mean().item(),
        lambda x: int(x[0, p].argmax()),
        lambda x: x[:, -1, a].mean().reshape(1),
        lambda x: x.tolist()[0][p][a],
    )


def not_finite(scene: Scene) -> Metric:
    """NaN or infinite in some cells."""
    a, b = scene.a_token, scene.b_token
    middle = float((scene.clean[0, -1, a] + scene.corrupted[0, -1, a]) / 2)
    low = 0.0 if scene.may_be_nan else 1e-2
    return scene.one_of(
        lambda x: (x[0, -1, a] - middle).clamp(min=low).log(),
        lambda x: (
            (x[0, -1, a] - middle).clamp(*((-9.0, 9.0) if scene.may_be_nan else (low, 9.0))).sqrt()
        ),
        lambda x: (x[:, -1, a] > x[:, -1, b]).float().mean().clamp(min=low).log(),
    )


def nucleus(scene: Scene) -> Metric:
    """Functions of the sorted probabilities."""
    p, share, k = scene.position(), scene.rng.choice((0.3, 0.5, 0.9)), scene.rng.randint(1, 9)
    return scene.one_of(
        lambda x: (
            (x[:, p].softmax(-1).sort(-1, descending=True).values.cumsum(-1) < share)
            .sum(-1)
            .float()
            .mean()
        ),
        lambda x: x[:, p].sort(-1).values[:, -k].mean(),
        lambda x: torch.quantile(x[:, p], share, dim=-1).mean(),
        lambda x: x[:, p].kthvalue(k, -1).indices.float().mean(),
    )


SINGLE: dict[str, Callable[[Scene], Metric]] = {
    kind.__name__: kind
    for kind in (
        accuracy,
        rank,
        top_k,
        threshold,
        clipped,
        over_positions,
        chosen_token,
        chosen_position,
        branch,
        entropy,
        kl,
        smooth_and_step,
        coupled,
        writer,
        returned,
        not_finite,
        nucleus,
    )
}


def combined(scene: Scene) -> Metric:
    """Sum of several metrics of the same logits."""
    parts = [
        SINGLE[name](scene)
        for name in scene.rng.sample([name for name in SINGLE if name != "not_finite"], 3)
    ]
    return lambda x: sum((i + 1) * as_value(part(x)) for i, part in enumerate(parts))


KINDS = {**SINGLE, "combined": combined}


# --- cases --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Result of one case.

    Attributes:
        title: Kind, route, family and what is patched.
        kind: Kind of metric.
        n_cells: Number of cells.
        moves: Whether the expected grid has different values.
        wrong: Cells that differ: index, found and expected value.
        edges: Number of cells that differ, but lie within rounding of a step.
        fallback: Warning that one forward pass per cell is run; "" for none.
        raised: Error where a full forward pass per cell has none; "" for none.
    """

    title: str
    kind: str
    n_cells: int = 0
    moves: bool = False
    wrong: list[tuple[Cell, float, float]] = field(default_factory=list)
    edges: int = 0
    fallback: str = ""
    raised: str = ""


@cache
def model_of(family: str) -> Any:
    """Return a small random model."""
    with tempfile.TemporaryDirectory() as directory:
        return load_model(str(save_tiny(family, Path(directory) / family)), device="cpu")


def as_value(value: Any) -> Tensor:
    """Return what a metric returned as one float32."""
    return torch.as_tensor(value).detach().reshape(()).float()


def prompts_of(rng: random.Random) -> tuple[Tensor, Tensor]:
    """Draw clean and corrupted tokens: equal up to a first position, and behind it in all
    or one.
    """
    shape = rng.randint(1, 4), rng.randint(5, 8)
    clean, other = (
        torch.tensor([[rng.randrange(2, VOCAB) for _ in range(shape[1])] for _ in range(shape[0])])
        for _ in "ab"
    )
    first = rng.randrange(shape[1])
    end = first + 1 if rng.random() < 0.3 else shape[1]
    corrupted = clean.clone()
    corrupted[:, first:end] = other[:, first:end]
    return clean, corrupted


def scene_of(
    rng: random.Random, model: Any, clean: Tensor, corrupted: Tensor, may_be_nan: bool
) -> Scene:
    """Run both prompts and take the tokens that they predict."""
    with torch.no_grad():
        one, two = model(clean), model(corrupted)
    row = rng.randrange(len(clean))
    a, b = int(one[row, -1].argmax()), int(two[row, -1].argmax())
    b = b if a != b else int(two[row, -1].topk(2).indices[1])
    return Scene(rng, one, two, a, b, may_be_nan)


def edit_cache(rng: random.Random, values: dict[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """Change clean activations, now and then; return how."""
    how = rng.choice(("", "", "", "noise", "near", "nan" if rng.random() < 0.3 else ""))
    generator = torch.Generator().manual_seed(rng.randrange(2**16))
    spoiled = rng.choice(list(values))
    for name, value in values.items():
        if how == "noise":
            values[name] = value + 0.3 * torch.randn(value.shape, generator=generator)
        elif how == "near":
            values[name] = own[name] + 0.01 * (value - own[name])
        elif how == "nan" and name == spoiled:
            values[name] = value.clone()
            values[name].view(-1)[rng.randrange(value.numel())] = torch.nan
    return how


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect the warnings that say that the cone engine is not used."""
    said: list[str] = []
    with (
        warnings.catch_warnings(record=True) as caught,
        redirect_stderr(io.StringIO()),
        torch.no_grad(),
    ):
        warnings.simplefilter("always")
        yield said
        texts = [str(one.message) for one in caught]
    said += [text for text in texts if "one forward pass per cell" in text]


def drop_in(rng: random.Random, family: str, kind: str) -> Outcome:
    """``anchorlens.patching`` beside ``transformer_lens.patching``, with the same arguments."""
    model, name = model_of(family), rng.choice(list(FUNCTIONS))
    clean, corrupted = prompts_of(rng)
    metric = KINDS[kind](scene_of(rng, model, clean, corrupted, True))
    hooks = [hook_of(FUNCTIONS[name], layer) for layer in range(model.cfg.n_layers)]
    with torch.no_grad():
        given, own = (
            dict(model.run_with_cache(ids, names_filter=hooks)[1]) for ids in (clean, corrupted)
        )
    title = f"{kind} drop_in {family} {name} {tuple(clean.shape)} {edit_cache(rng, given, own)}"
    seen: list[Tensor] = []

    def recorded(logits: Tensor) -> Tensor:
        seen.append(logits.clone())
        return as_value(metric(logits))

    with listening():
        wanted = getattr(theirs, f"get_act_patch_{name}")(model, corrupted, given, recorded)
    with listening() as said:
        try:
            found = getattr(ours, f"get_act_patch_{name}")(model, corrupted, given, metric)
        except Exception as why:  # noqa: BLE001 - reported
            return Outcome(title, kind, raised=f"{type(why).__name__}: {why}")
    cells = [tuple(cell) for cell in torch.ones_like(wanted).nonzero().tolist()]
    table = [(cell, float(found[cell]), float(wanted[cell])) for cell in cells]
    return judge(title, kind, metric, table, seen, said)


def swept(rng: random.Random, family: str, kind: str, engine: str) -> Outcome:
    """``patch_sweep`` beside full forward passes with plain hooks."""
    model, site, back = model_of(family), rng.choice(SWEEP_SITES), rng.random() < 0.3
    clean, corrupted = prompts_of(rng)
    metric = KINDS[kind](scene_of(rng, model, clean, corrupted, False))
    title = f"{kind} {engine} {family} {site} {tuple(clean.shape)} {'noising' if back else ''}"
    rows = [
        {"clean": one, "corrupted": two, "id": f"p{i}"}
        for i, (one, two) in enumerate(zip(clean.tolist(), corrupted.tolist(), strict=True))
    ]
    options: dict[str, Any] = {
        "by": "position",
        "site": site,
        "controls": "none",
        "progress": False,
        "engine": engine,
    }
    options["direction"] = "noising" if back else "denoising"
    with listening() as said:
        try:
            result = patch_sweep(model, load_pairs(rows), metric=metric, **options)
        except Exception as why:  # noqa: BLE001 - reported
            return Outcome(title, kind, raised=f"{type(why).__name__}: {why}")
    found = result.samples().to_dict("records")
    sources, targets = (corrupted, clean) if back else (clean, corrupted)
    table, seen = [], []
    for i, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        known = cache_of(model, source)
        cells = [one for one in found if one["example_id"] == f"p{i}"]
        assert len(cells) == model.cfg.n_layers * len(target)
        for one in cells:
            at = [int(one["position"])]
            seen.append(
                patched_logits(model, target, known, site, [one["layer"]], at, at).float()[None]
            )
            table.append(
                (
                    (f"p{i}", one["layer"], *at),
                    one["value_after"],
                    float(as_value(metric(seen[-1].clone()))),
                )
            )
        seen.append(patched_logits(model, target, known, site, [], [], []).float()[None])
        table.append(
            ((f"p{i}",), cells[0]["value_before"], float(as_value(metric(seen[-1].clone()))))
        )
    return judge(title, kind, metric, table, seen, said)


def judge(
    title: str,
    kind: str,
    metric: Metric,
    table: Sequence[tuple[Cell, float, float]],
    seen: Sequence[Tensor],
    said: Sequence[str],
) -> Outcome:
    """Compare cells; ``table``: index, found and expected value, ``seen``: the logits of the
    expected values.
    """
    wanted = torch.tensor([exact for *_, exact in table])
    finite = wanted[wanted.isfinite()]
    spread = float(finite.max() - finite.min()) if len(finite) else 0.0
    wrong, edges = [], 0
    for (cell, found, exact), logits in zip(table, seen, strict=True):
        if not is_close(found, exact, spread):
            if is_edge(metric, logits, found, spread):
                edges += 1
            else:
                wrong.append((cell, found, exact))
    moves = spread > 0 or len(finite) not in (0, len(wanted))
    return Outcome(title, kind, len(table), moves, wrong, edges, " ".join(said))


def is_close(found: float, exact: float, spread: float) -> bool:
    """Return whether two values of a metric with this range are equal up to rounding."""
    if found != found or exact != exact:
        return found != found and exact != exact
    return found == exact or abs(found - exact) <= 1e-3 * spread + 1e-4 * abs(exact) + 2e-5


def is_edge(metric: Metric, logits: Tensor, found: float, spread: float) -> bool:
    """Return whether logits that are off by rounding give the value that was found."""
    generator = torch.Generator().manual_seed(0)
    noisy = (logits + EDGE * torch.randn(logits.shape, generator=generator) for _ in range(DRAWS))
    return any(is_close(found, float(as_value(metric(one))), spread) for one in noisy)


def numbered(number: int) -> Outcome:
    """Run the case of this number, always the same."""
    rng = random.Random(number)
    family, kind, route = rng.choice(FAMILIES), rng.choice(list(KINDS)), rng.choice(ROUTES)
    return drop_in(rng, family, kind) if route == "drop_in" else swept(rng, family, kind, route)


# --- report -------------------------------------------------------------------------------------


def row_of(name: str, some: Sequence[Outcome]) -> str:
    """Return the row of a table."""
    numbers = (
        len(some),
        sum(one.n_cells for one in some),
        sum(one.moves for one in some),
        sum(len(one.wrong) for one in some),
        sum(one.edges for one in some),
        sum(bool(one.fallback) for one in some),
        sum(bool(one.raised) for one in some),
    )
    return f"{name:16}" + "".join(f"{number:>10}" for number in numbers)


def report(outcomes: Mapping[int, Outcome]) -> Iterator[str]:
    """Yield the lines of the report."""
    heads = ("cases", "cells", "moving", "wrong", "edges", "fallbacks", "raised")
    yield f"{'kind':16}" + "".join(f"{head:>10}" for head in heads)
    for kind in KINDS:
        yield row_of(kind, [one for one in outcomes.values() if one.kind == kind])
    yield row_of("all", list(outcomes.values()))
    for reason, count in Counter(
        one.fallback for one in outcomes.values() if one.fallback
    ).most_common():
        yield f"fallback, {count} x: {reason}"
    for number, one in outcomes.items():
        if one.wrong:
            silent = "with a warning" if one.fallback else "silently"
            yield (
                f"case {number} ({one.title}): {len(one.wrong)} of {one.n_cells} {silent} wrong,"
                f" first {one.wrong[0]}"
            )
        if one.raised:
            yield f"case {number} ({one.title}): {one.raised}"


def main() -> int:
    """Run cases and print a table per kind of metric."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.patching.metric_fuzz", description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument("cases", type=int)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    outcomes = {
        case: numbered(case) for case in range(options.first, options.first + options.cases)
    }
    for line in report(outcomes):
        print(line)
    print(f"{time.perf_counter() - started:.0f} seconds")
    return int(any(one.wrong or one.raised for one in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
