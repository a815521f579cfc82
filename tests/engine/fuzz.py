"""Random batches on small models of every kind of configuration: the cone engine against the oracle.

``python -m tests.engine.fuzz 200`` runs 200 cases of each kind on each configuration and prints what differs; names of
configurations may follow the number. ``--kinds swaps cuts`` takes some kinds only, ``--first 1000`` other cases than the first ones.

A case is made of what a :class:`random.Random` gives: of a seed here, of hypothesis (which shrinks it) in the slow tests.
"""

import argparse
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from anchorlens.engine.cone import Cone
from anchorlens.engine.interventions import AnchorSwap, CutBatch, SwapBatch
from anchorlens.engine.knockout import cut_edges
from anchorlens.engine.readouts import (
    AnswerReader,
    ChoiceReader,
    Metrics,
    Reader,
    ReadPlan,
    StateReader,
    answer_joint,
    first_token,
)
from anchorlens.engine.reference import Oracle, last_stream
from anchorlens.models.adapter import Adapter
from anchorlens.questions.tokens import pad_rows
from tests.engine.configurations import CONFIGS, adapter_of, types_of
from tests.engine.make import slots


@dataclass(frozen=True)
class Outcome:
    """What a case showed.

    Attributes:
        off: How far the numbers are from the oracle's, where 1 is what rounding may do.
        effect: The largest change of log P, of a logit difference or of a state by anything that was changed, by the oracle.
        told: The case in words.
    """

    off: float
    effect: float
    told: str


# What rounding may do, by the model's type: to P, to logarithms and logits of size 1, and to states of size 1. What is read of a
# float64 model goes through float32, and the weights of its experts do.
ALLOWED = {torch.float32: (2e-5, 2e-4, 1e-4), torch.float64: (2e-6, 1e-5, 1e-6)}


def metrics_off(found: Metrics, wanted: Metrics, dtype: torch.dtype) -> float:
    """How far metrics are off, where 1 is allowed; NaN has to stand where it stands."""
    in_p, in_logs, _ = ALLOWED[dtype]
    worst = 0.0
    for name in ("p", "log_p", "logit_diff"):
        a, b = getattr(found, name).double(), getattr(wanted, name).double()
        if a.shape != b.shape or not torch.equal(a.isnan(), b.isnan()):
            return float("inf")
        allowed = torch.full_like(b, in_p) if name == "p" else in_logs * (1 + b.abs())
        worst = max([worst, *((a - b).abs() / allowed)[~b.isnan()].nan_to_num(torch.inf).tolist()])
    return worst


def swaps_off(found: tuple[Metrics, list[Metrics]], wanted: tuple[Metrics, list[Metrics]], dtype: torch.dtype) -> float:
    """The clean pass and every swap."""
    assert len(found[1]) == len(wanted[1])
    pairs = zip([found[0], *found[1]], [wanted[0], *wanted[1]], strict=True)
    return max(metrics_off(a, b, dtype) for a, b in pairs)


def states_off(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> float:
    """States of any shape, as a share of the largest."""
    if found.shape != wanted.shape:
        return float("inf")
    return float((found - wanted).abs().nan_to_num(torch.inf).max() / (1 + wanted.abs().max()) / ALLOWED[dtype][2])


def effect_of(wanted: tuple[Metrics, list[Metrics]]) -> float:
    """The largest change by any swap."""
    before, after = wanted
    moved = [
        (getattr(m, name) - getattr(before, name)).abs().nan_to_num(0.0).max()
        for m in after
        for name in ("log_p", "logit_diff")
    ]
    return max(map(float, moved), default=0.0)


# --- cases --------------------------------------------------------------------------------------------------------------------

Tokens = list[int]


def tokens(rng: random.Random, adapter: Adapter, n: int) -> Tokens:
    """So many tokens, of one number: they are not what is looked for, so that a case stays small."""
    return random.Random(rng.randrange(2**16)).choices(range(adapter.model.cfg.d_vocab), k=n)


def rows_and_donors(
    rng: random.Random, adapter: Adapter, n: int, begin: Tokens, longest: int = 20, again: float = 0.3
) -> tuple[list[Tokens], ...]:
    """Rows behind a beginning, some of them the same row again, or that row and a token 0, with which rows are padded.

    Some donors are their row with a few other tokens, as donors of the same template are.
    """
    rows, donors = ([[*begin, *tokens(rng, adapter, rng.randint(1, longest))] for _ in range(n)] for _ in range(2))
    if rng.random() > 1 - again:
        for i in range(n):
            donors[i] = rows[rng.randrange(n)] if rng.random() > 0.5 else donors[i]
            rows[i] = [*rows[rng.randrange(n)], *rng.choice(((), (), (0,)))] if rng.random() > 0.6 else rows[i]
    for i, row in enumerate(rows):
        if rng.random() < 0.4:
            other = set(some_positions(rng, len(begin), len(row), rng.choice((1, 1, 2, 3))))
            donor = [rng.randrange(adapter.model.cfg.d_vocab) if p in other else token for p, token in enumerate(row)]
            # Cut, as it is or longer.
            donors[i] = [*donor, *tokens(rng, adapter, 4)][: rng.randint(len(begin) + 1, len(row) + 4)]
    return rows, donors


def some_positions(rng: random.Random, low: int, length: int, n: int) -> tuple[int, ...]:
    """Different positions of a row in any order, not before ``low`` where there are others."""
    low = min(low, length - 1)
    return tuple(rng.sample(range(low, length), min(n, length - low)))


def a_reader(rng: random.Random, adapter: Adapter, rows: list[Tokens], low: int = 0) -> tuple[str, Reader]:
    """P of the model's own best tokens at some positions, a choice, or a probe of a layer."""
    kind = rng.choice(("answer", "answer", "choice", "state"))
    reads = [sorted(some_positions(rng, low, len(row), rng.choice((1, 1, 2, 3)))) for row in rows]
    last = torch.tensor([where[-1] for where in reads])
    if kind == "choice":
        return f"choice at {last.tolist()}", ChoiceReader(last, (1, 2), (3,))
    if kind == "state":
        weight = torch.randn(adapter.d_model, generator=torch.Generator().manual_seed(3), dtype=torch.float32) / 10
        layer, site = rng.randrange(adapter.n_layers), rng.choice(adapter.sites)
        return f"{site} of layer {layer} at {last.tolist()}", StateReader(layer, site, last, lambda states: states @ weight)
    joint = rng.random() < 0.7
    stream, columns = last_stream(adapter, pad_rows(rows)), []
    for i, where in enumerate(reads):
        best, second = adapter.read.logits(stream[i, where]).topk(2).indices.T.tolist()
        for slot, p in enumerate(where):
            columns.append((i, p, best[slot], second[slot] if slot == 0 and i % 3 != 1 else -1, slot))
    plan = ReadPlan(*(torch.tensor(column) for column in zip(*columns, strict=True)), n_examples=len(rows))
    return f"{'joint' if joint else 'first'} at {reads}", AnswerReader(plan, answer_joint if joint else first_token)


def swap_batch(
    rng: random.Random,
    adapter: Adapter,
    *,
    begin: Tokens,
    n: int,
    most: int = 3,
    longest: int = 20,
    again: float = 0.3,
    behind: bool = False,
) -> tuple[str, SwapBatch]:
    """Spans anywhere: at position 0, on the read and behind it, of any length, none at all; reads too, or behind the beginning."""
    rows, donors = rows_and_donors(rng, adapter, n, begin, longest, again)
    low = len(begin) if rng.random() < 0.5 else 0
    swaps, told = [], []
    for k in range(rng.randint(1, most)):
        at = [some_positions(rng, low, len(row), rng.choice((1, 1, 0, 2, 4, 30))) for row in rows]
        if not any(at):
            at[0] = (len(rows[0]) - 1,)
        if rng.random() < 0.7:
            stays = rng.choice((0.0, 0.0, 0.85, 1.0))  # how much of what is taken stays where it stood
            source = [
                tuple(
                    p if rng.random() < stays and p < len(donor) else rng.randrange(min(low, len(donor) - 1), len(donor))
                    for p in here
                )
                for here, donor in zip(at, donors, strict=True)
            ]
            swaps.append(AnchorSwap(f"span{k}", "none", slots(at), source=slots(source)))
            told.append(f"{at} from {source}")
        else:
            where, generator = slots(at), torch.Generator().manual_seed(k)
            shape = (adapter.n_layers, *where.positions.shape, adapter.d_model)
            streams = torch.randn(shape, generator=generator).to(adapter.shape.dtype)
            swaps.append(AnchorSwap(f"span{k}", "none", where, streams=streams))
            told.append(f"{at} given")
    read, reader = a_reader(rng, adapter, rows, len(begin) if behind else 0)
    lengths = f"{[len(row) for row in rows]} behind {len(begin)}, donors {[len(row) for row in donors]}"
    return f"rows {lengths}; put {'; '.join(told)}; read {read}", SwapBatch(
        pad_rows(rows), reader, tuple(swaps), pad_rows(donors)
    )


def a_way(rng: random.Random, adapter: Adapter, most: int = 3) -> dict[str, object]:
    """Site, layers in any order (now and then one of them twice) and window."""
    layers = rng.sample(range(adapter.n_layers), rng.randint(1, most))
    if rng.random() > 0.9:
        layers.append(layers[0])
    return {"site": rng.choice(adapter.sites), "layers": tuple(layers), "window": rng.choice((1, 1, 2, 3, 7))}


def cut_batch(
    rng: random.Random, adapter: Adapter, *, begin: Tokens, n: int, everywhere: bool, longest: int = 15
) -> tuple[str, CutBatch]:
    """Edges anywhere, in some heads or all; for single layers' states now and then several reads a row."""
    rows, _ = rows_and_donors(rng, adapter, n, begin, longest)
    width, edges, told = max(map(len, rows)), [], []
    for _ in range(rng.randint(1, 3)):
        sources = [some_positions(rng, 0, len(row), rng.choice((1, 0, 2, 5))) for row in rows]
        targets = [None if rng.random() < 0.5 else some_positions(rng, 0, len(row), 3) for row in rows]
        edges.append(cut_edges(sources, targets, width))
        told.append(f"{sources} -> {targets}")
    n_heads = adapter.shape.n_heads
    heads = None if rng.random() < 0.5 else tuple(sorted(rng.sample(range(n_heads), rng.randint(1, n_heads))))
    mode = rng.choice(("mask", "zero"))
    reads = [(i, len(row) - 1 if rng.random() < 0.5 else rng.randrange(len(row))) for i, row in enumerate(rows)]
    if not everywhere and rng.random() > 0.7:
        reads += [(i, rng.randrange(len(rows[i]))) for i in some_positions(rng, 0, n, 3)]
    row, position = (torch.tensor(column) for column in zip(*reads, strict=True))
    lengths = f"rows {[len(row) for row in rows]} behind {len(begin)}"
    return f"{lengths}; {mode} {'; '.join(told)}; heads {heads}; read {reads}", CutBatch(
        pad_rows(rows), row, position, tuple(edges), mode, heads
    )


def layers_between(rng: random.Random, adapter: Adapter) -> range:
    """Neighbouring layers."""
    first, last = sorted((rng.randrange(adapter.n_layers), rng.randrange(adapter.n_layers)))
    return range(first, last + 1)


def some_windows(rng: random.Random, adapter: Adapter) -> list[range]:
    """Windows of layers, now and then an empty one; often all from one layer on, as cumulative curves have them."""
    windows = [layers_between(rng, adapter) if rng.random() < 0.85 else range(0) for _ in range(rng.randint(1, 5))]
    return windows if rng.random() < 0.5 else [range(window.stop) for window in windows]


# --- kinds of cases -----------------------------------------------------------------------------------------------------------


def swaps(rng: random.Random, adapter: Adapter) -> Outcome:
    """One batch, measured twice by one engine: what it kept of the first time is used in the second."""
    begin = tokens(rng, adapter, rng.choice((0, 0, 5, 33)))
    told, batch = swap_batch(rng, adapter, begin=begin, n=rng.choice((1, 1, 2, 3, 5, 9, 10)))
    way, cone = a_way(rng, adapter), Cone(adapter)
    wanted = Oracle(adapter).run_swaps(batch, **way)
    off = max(swaps_off(cone.run_swaps(batch, **way), wanted, adapter.shape.dtype) for _ in range(2))
    return Outcome(off, effect_of(wanted), f"{told}; {way}")


def cuts(rng: random.Random, adapter: Adapter) -> Outcome:
    """One batch of knockouts: some windows at one place, or all layers at every place."""
    begin, everywhere = tokens(rng, adapter, rng.choice((0, 0, 4, 33))), rng.random() > 0.6
    told, batch = cut_batch(rng, adapter, begin=begin, n=rng.choice((1, 2, 3, 5)), everywhere=everywhere)
    if everywhere:
        way = {"site": rng.choice(adapter.sites), "layers": layers_between(rng, adapter)}
        wanted = Oracle(adapter).cut_states_everywhere(batch, **way)
        found = Cone(adapter).cut_states_everywhere(batch, **way)
        effect = float((wanted[1:] - wanted[:1]).abs().max())
    else:
        windows = some_windows(rng, adapter)
        where = None if rng.random() < 0.5 else (rng.choice(adapter.sites), rng.randrange(adapter.n_layers))
        way = {"where": where, "windows": windows}
        wanted, found = (engine.cut_states(batch, **way) for engine in (Oracle(adapter), Cone(adapter)))
        (clean,) = Oracle(adapter).cut_states(CutBatch(batch.tokens, batch.row, batch.position, batch.edges[:1]), where=where,
                                              windows=[range(0)])  # fmt: skip
        effect = float((wanted - clean).abs().max())
    return Outcome(states_off(found, wanted, adapter.shape.dtype), effect, f"{told}; {way}")


def together(rng: random.Random, adapter: Adapter) -> Outcome:
    """Several batches whose rows begin alike, in part or not at all, in one pass: what each gives alone; then once more."""
    begin, way = tokens(rng, adapter, 40), a_way(rng, adapter)
    batches, told = [], []
    for _ in range(rng.randint(2, 4)):
        own = [*begin[: rng.choice((40, 0, 3, 36))], *tokens(rng, adapter, rng.choice((0, 2)))]
        text, batch = swap_batch(rng, adapter, begin=own, n=rng.choice((1, 2, 4)), longest=12)
        batches.append(batch)
        told.append(text)
    alone = [Cone(adapter).run_swaps(batch, **way) for batch in batches]
    cone, off = Cone(adapter), 0.0
    for _ in range(2):
        found = cone.run_many_swaps(batches, **way)
        off = max([off, *(swaps_off(a, b, adapter.shape.dtype) for a, b in zip(found, alone, strict=True))])
    off = max(off, swaps_off(alone[-1], Oracle(adapter).run_swaps(batches[-1], **way), adapter.shape.dtype))
    return Outcome(off, max(map(effect_of, alone)), f"{' | '.join(told)}; {way}")


def cells(rng: random.Random, adapter: Adapter) -> Outcome:
    """The oracle's one cell a row, each at a layer of its own: what it gives for all rows at all these layers."""
    begin, n = tokens(rng, adapter, rng.choice((0, 5, 30))), rng.choice((2, 1, 3, 4, 6))
    told, batch = swap_batch(rng, adapter, begin=begin, n=n, most=1, again=0.7, behind=rng.random() < 0.7)
    layers = [rng.randrange(adapter.n_layers) for _ in range(n)]
    site, window = rng.choice(adapter.sites), rng.choice((1, 1, 2, 3, 7))
    every = sorted(set(layers))
    clean, (changed,) = Oracle(adapter).run_swaps(batch, site=site, layers=every, window=window)
    before, after = Oracle(adapter, worth_a_pass=rng.choice((2, 64))).run_cells(batch, site=site, layers=layers, window=window)
    at = [every.index(layer) for layer in layers]
    wanted = Metrics(*(getattr(changed, name)[at, range(n)] for name in ("p", "log_p", "logit_diff")))
    off = max(metrics_off(a, b, adapter.shape.dtype) for a, b in ((before, clean), (after, wanted)))
    return Outcome(off, effect_of((clean, [wanted])), f"{told}; {site} of layers {layers}, window {window}")


def in_a_row(rng: random.Random, adapter: Adapter) -> Outcome:
    """Many batches through one engine: what it keeps grows, is used in part, branches and is of no use."""
    cone, oracle, begin, off, effects, told = Cone(adapter), Oracle(adapter), tokens(rng, adapter, 34), 0.0, [0.0], []
    for _ in range(rng.randint(2, 5)):
        step = rng.choice(("same", "longer", "branch", "shorter", "other"))
        keep = {"same": 44, "longer": 44, "branch": rng.randrange(44), "shorter": rng.randrange(44), "other": 0}[step]
        more = {"longer": rng.randint(1, 10), "branch": rng.randint(1, 10), "other": 34}.get(step, 0)
        begin = [*begin[:keep], *tokens(rng, adapter, more)][:44]
        n = rng.choice((1, 1, 2, 4))
        if rng.random() < 0.75:
            text, batch = swap_batch(rng, adapter, begin=begin, n=n, most=2, longest=8)
            way = a_way(rng, adapter, most=2)
            wanted = oracle.run_swaps(batch, **way)
            one = swaps_off(cone.run_swaps(batch, **way), wanted, adapter.shape.dtype)
            effects.append(effect_of(wanted))
        else:
            text, cut = cut_batch(rng, adapter, begin=begin, n=n, everywhere=False, longest=8)
            way = {"where": None, "windows": [layers_between(rng, adapter), range(0)]}
            states = oracle.cut_states(cut, **way)
            one = states_off(cone.cut_states(cut, **way), states, adapter.shape.dtype)
            effects.append(float((states[:, 0] - states[:, 1]).abs().max()))
        off = max(off, one)
        told.append(f"{step}: {text}; {way}; kept {0 if cone._prefix is None else len(cone._prefix.ids)}; off {one:.2g}")
    return Outcome(off, max(effects), " | ".join(told))


KINDS: dict[str, Callable[[random.Random, Adapter], Outcome]] = {
    kind.__name__: kind for kind in (swaps, cuts, together, cells, in_a_row)
}


def outcome(kind: str, name: str, rng: random.Random) -> Outcome:
    """One case of a kind on a configuration."""
    return KINDS[kind](rng, adapter_of(name, rng.choice(types_of(name))))


def numbered(kind: str, name: str, case: int) -> Outcome:
    """The case of this number, always the same."""
    return outcome(kind, name, random.Random(f"{kind} {name} {case}"))


def main() -> int:
    """Count the cases that differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.fuzz", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("cases", type=int, help="of each kind, on each configuration")
    parser.add_argument("names", nargs="*", help=f"configurations: {', '.join(CONFIGS)}")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    started, bad, done = time.process_time(), 0, 0
    for name in asked.names or CONFIGS:
        line = []
        for kind in asked.kinds:
            worst, moved, wrong = 0.0, 0, []
            for case in range(asked.first, asked.first + asked.cases):
                one = numbered(kind, name, case)
                worst, moved = max(worst, one.off), moved + (one.effect > 1e-2)
                wrong += [f"  {kind} {case}: {one.off:.3g} times what is allowed: {one.told}"] if not one.off <= 1 else []
            line.append(f"{kind} {len(wrong)} wrong, worst {worst:.2g}, {moved} moved")
            done, bad = done + asked.cases, bad + len(wrong)
            told(*wrong[:3])
        told(f"{name:22} {'; '.join(line)}")
    told(f"{bad} of {done} cases differ; {time.process_time() - started:.0f} CPU seconds")
    return int(bad > 0)


def told(*lines: str) -> None:
    """Lines, as soon as there are any."""
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
