"""Compare the cone engine with the reference engine on random batches, on small models of every
kind of configuration.

``python -m tests.engine.fuzz 200`` runs 200 cases of each kind on each configuration and prints
those that differ; names of configurations may follow the number. ``--kinds swaps cuts`` restricts
the kinds, ``--first 1000`` starts at case 1000. A case is determined by its kind, configuration and
number (:func:`numbered`).
"""

import argparse
import random
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.knockout import cut_edges
from anchorlens.engine.patches import AnchorSwap, KnockoutBatch, SwapBatch, pad_rows
from anchorlens.engine.readouts import (
    ChoiceReader,
    Metrics,
    Reader,
    StateReader,
    answer_joint,
    first_token,
)
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.measure.patched_pairs import gaussian_directions
from anchorlens.models.adapter import Adapter
from tests.engine.configurations import CONFIGS, adapter_of, types_of
from tests.engine.make import answer_reader, effects_of, metrics_off, slots, states_off, swaps_off


@dataclass(frozen=True)
class Outcome:
    """Result of one case.

    Attributes:
        off: Largest difference of the engines, as a multiple of what rounding may do.
        effect: Largest change of a log P, logit difference or state by any intervention, by the
            reference engine.
    """

    off: float
    effect: float


def _directions(label: str, n: int, adapter: Adapter) -> torch.Tensor:
    """Directions that differ between layers, as those of two other prompts do."""
    layers = [
        gaussian_directions(f"{label}:{layer}", n, adapter.d_model)
        for layer in range(adapter.n_layers)
    ]
    return torch.stack(layers)


def largest_effect(wanted: tuple[Metrics, list[Metrics]]) -> float:
    """Return the largest change of a metric by any swap."""
    return max(effects_of(wanted), default=0.0)


# --- cases
# --------------------------------------------------------------------------------------------------------------------

Tokens = list[int]


def tokens(rng: random.Random, adapter: Adapter, n: int) -> Tokens:
    return random.Random(rng.randrange(2**16)).choices(range(adapter.model.cfg.d_vocab), k=n)


def rows_and_donors(
    rng: random.Random,
    adapter: Adapter,
    n: int,
    begin: Tokens,
    longest: int = 20,
    again: float = 0.3,
) -> tuple[list[Tokens], ...]:
    """Draw rows behind a common prefix, and their donors.

    Some rows repeat another one, or repeat it with a token 0 (the padding id) at the end. Some
    donors are their row with a few other tokens, as donors of the same template are.
    """
    rows, donors = (
        [[*begin, *tokens(rng, adapter, rng.randint(1, longest))] for _ in range(n)]
        for _ in range(2)
    )
    if rng.random() > 1 - again:
        for i in range(n):
            donors[i] = rows[rng.randrange(n)] if rng.random() > 0.5 else donors[i]
            rows[i] = (
                [*rows[rng.randrange(n)], *rng.choice(((), (), (0,)))]
                if rng.random() > 0.6
                else rows[i]
            )
    for i, row in enumerate(rows):
        if rng.random() < 0.4:
            other = set(some_positions(rng, len(begin), len(row), rng.choice((1, 1, 2, 3))))
            donor = [
                rng.randrange(adapter.model.cfg.d_vocab) if p in other else token
                for p, token in enumerate(row)
            ]
            # Cut, as it is or longer.
            donors[i] = [*donor, *tokens(rng, adapter, 4)][
                : rng.randint(len(begin) + 1, len(row) + 4)
            ]
    return rows, donors


def some_positions(rng: random.Random, low: int, length: int, n: int) -> tuple[int, ...]:
    """Draw different positions of a row in any order, not before ``low`` where there are others."""
    low = min(low, length - 1)
    return tuple(rng.sample(range(low, length), min(n, length - low)))


def a_reader(rng: random.Random, adapter: Adapter, rows: list[Tokens], low: int = 0) -> Reader:
    """Draw a reader: P of the model's own best tokens at some positions, a choice, or a probe of a
    layer.
    """
    kind = rng.choice(("answer", "answer", "choice", "state"))
    reads = [sorted(some_positions(rng, low, len(row), rng.choice((1, 1, 2, 3)))) for row in rows]
    last = torch.tensor([where[-1] for where in reads])
    if kind == "choice":
        return ChoiceReader(last, (1, 2), (3,))
    if kind == "state":
        weight = (
            torch.randn(
                adapter.d_model, generator=torch.Generator().manual_seed(3), dtype=torch.float32
            )
            / 10
        )
        layer, site = rng.randrange(adapter.n_layers), rng.choice(adapter.sites)
        return StateReader(layer, site, last, lambda states: states @ weight)
    return answer_reader(adapter, rows, reads, answer_joint if rng.random() < 0.7 else first_token)


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
) -> SwapBatch:
    """Draw spans anywhere: at position 0, on the read and behind it, of any length, none at all;
    donors or given streams.
    """
    rows, donors = rows_and_donors(rng, adapter, n, begin, longest, again)
    low = len(begin) if rng.random() < 0.5 else 0
    swaps = []
    for k in range(rng.randint(1, most)):
        at = [some_positions(rng, low, len(row), rng.choice((1, 1, 0, 2, 4, 30))) for row in rows]
        if not any(at):
            at[0] = (len(rows[0]) - 1,)
        if rng.random() < 0.7:
            stays = rng.choice(
                (0.0, 0.0, 0.85, 1.0)
            )  # how much of what is taken stays where it stood
            source = [
                tuple(
                    (
                        p
                        if rng.random() < stays and p < len(donor)
                        else rng.randrange(min(low, len(donor) - 1), len(donor))
                    )
                    for p in here
                )
                for here, donor in zip(at, donors, strict=True)
            ]
            swap = AnchorSwap(
                anchor=f"span{k}", control="none", slots=slots(at), source=slots(source)
            )
            swaps.append(swap)
        else:
            where, generator = slots(at), torch.Generator().manual_seed(k)
            shape = (adapter.n_layers, *where.positions.shape, adapter.d_model)
            streams = torch.randn(shape, generator=generator).to(adapter.shape.dtype)
            swap = AnchorSwap(anchor=f"span{k}", control="none", slots=where, streams=streams)
            swaps.append(swap)
        if rng.random() < 0.3:
            some = [i for i, where in enumerate(at) if where and rng.random() < 0.7]
            directions = {i: _directions(f"{k}:{i}", len(at[i]), adapter) for i in some}
            swaps[-1] = replace(swaps[-1], directions=directions)
    reader = a_reader(rng, adapter, rows, len(begin) if behind else 0)
    return SwapBatch(pad_rows(rows), reader, tuple(swaps), pad_rows(donors))


def a_way(rng: random.Random, adapter: Adapter, most: int = 3) -> dict[str, object]:
    """Draw a site, layers in any order (now and then one of them twice) and a window."""
    layers = rng.sample(range(adapter.n_layers), rng.randint(1, most))
    if rng.random() > 0.9:
        layers.append(layers[0])
    return {
        "site": rng.choice(adapter.sites),
        "layers": tuple(layers),
        "window": rng.choice((1, 1, 2, 3, 7)),
    }


def cut_batch(
    rng: random.Random,
    adapter: Adapter,
    *,
    begin: Tokens,
    n: int,
    everywhere: bool,
    longest: int = 15,
) -> KnockoutBatch:
    """Draw edges anywhere, in some heads or all; for single layers' states now and then several
    reads a row.
    """
    rows, _ = rows_and_donors(rng, adapter, n, begin, longest)
    width, edges = max(map(len, rows)), []
    for _ in range(rng.randint(1, 3)):
        sources = [some_positions(rng, 0, len(row), rng.choice((1, 0, 2, 5))) for row in rows]
        targets = [
            None if rng.random() < 0.5 else some_positions(rng, 0, len(row), 3) for row in rows
        ]
        edges.append(cut_edges(sources, targets, width))
    n_heads = adapter.shape.n_heads
    heads = (
        None
        if rng.random() < 0.5
        else tuple(sorted(rng.sample(range(n_heads), rng.randint(1, n_heads))))
    )
    mode = rng.choice(("mask", "zero"))
    reads = [
        (i, len(row) - 1 if rng.random() < 0.5 else rng.randrange(len(row)))
        for i, row in enumerate(rows)
    ]
    if not everywhere and rng.random() > 0.7:
        reads += [(i, rng.randrange(len(rows[i]))) for i in some_positions(rng, 0, n, 3)]
    row, position = (torch.tensor(column) for column in zip(*reads, strict=True))
    return KnockoutBatch(
        tokens=pad_rows(rows),
        row=row,
        position=position,
        edges=tuple(edges),
        mode=mode,
        heads=heads,
    )


def layers_between(rng: random.Random, adapter: Adapter) -> range:
    first, last = sorted((rng.randrange(adapter.n_layers), rng.randrange(adapter.n_layers)))
    return range(first, last + 1)


def some_windows(rng: random.Random, adapter: Adapter) -> list[range]:
    """Draw windows of layers, now and then an empty one; often all from layer 0 on, as cumulative
    curves have them.
    """
    windows = [
        layers_between(rng, adapter) if rng.random() < 0.85 else range(0)
        for _ in range(rng.randint(1, 5))
    ]
    return windows if rng.random() < 0.5 else [range(window.stop) for window in windows]


# --- kinds of cases
# -----------------------------------------------------------------------------------------------------------


def swaps(rng: random.Random, adapter: Adapter) -> Outcome:
    """One batch, measured twice by one cone engine, which keeps the common prefix."""
    begin = tokens(rng, adapter, rng.choice((0, 0, 5, 33)))
    batch = swap_batch(rng, adapter, begin=begin, n=rng.choice((1, 1, 2, 3, 5, 9, 10)))
    way, cone = a_way(rng, adapter), ConeEngine(adapter)
    wanted = ReferenceEngine(adapter).run_swaps(batch, **way)
    off = max(
        swaps_off(cone.run_swaps(batch, **way), wanted, adapter.shape.dtype) for _ in range(2)
    )
    return Outcome(off, largest_effect(wanted))


def cuts(rng: random.Random, adapter: Adapter) -> Outcome:
    """One batch of knockouts: some windows at one place, or all layers at every place."""
    begin, everywhere = tokens(rng, adapter, rng.choice((0, 0, 4, 33))), rng.random() > 0.6
    batch = cut_batch(rng, adapter, begin=begin, n=rng.choice((1, 2, 3, 5)), everywhere=everywhere)
    if everywhere:
        way = {"site": rng.choice(adapter.sites), "layers": layers_between(rng, adapter)}
        wanted, found = (
            engine.knockout_states_all_layers(batch, **way)
            for engine in (ReferenceEngine(adapter), ConeEngine(adapter))
        )
        effect = float((wanted[1:] - wanted[:1]).abs().max())
    else:
        windows = some_windows(rng, adapter)
        where = (
            None
            if rng.random() < 0.5
            else (rng.choice(adapter.sites), rng.randrange(adapter.n_layers))
        )
        wanted, found = (
            engine.knockout_states(batch, where=where, windows=windows)
            for engine in (ReferenceEngine(adapter), ConeEngine(adapter))
        )
        clean = ReferenceEngine(adapter).knockout_states(
            replace(batch, edges=batch.edges[:1]), where=where, windows=[range(0)]
        )
        effect = float((wanted - clean).abs().max())
    return Outcome(states_off(found, wanted, adapter.shape.dtype), effect)


def together(rng: random.Random, adapter: Adapter) -> Outcome:
    """Several batches whose rows begin alike, in part or not at all, one after the other, twice:
    the numbers of each alone.
    """
    begin, way = tokens(rng, adapter, 40), a_way(rng, adapter)
    batches = []
    for _ in range(rng.randint(2, 4)):
        own = [*begin[: rng.choice((40, 0, 3, 36))], *tokens(rng, adapter, rng.choice((0, 2)))]
        batches.append(swap_batch(rng, adapter, begin=own, n=rng.choice((1, 2, 4)), longest=12))
    alone = [ConeEngine(adapter).run_swaps(batch, **way) for batch in batches]
    cone, off = ConeEngine(adapter), 0.0
    for _ in range(2):
        found = [cone.run_swaps(batch, **way) for batch in batches]
        off = max(
            [
                off,
                *(swaps_off(a, b, adapter.shape.dtype) for a, b in zip(found, alone, strict=True)),
            ]
        )
    off = max(
        off,
        swaps_off(
            alone[-1], ReferenceEngine(adapter).run_swaps(batches[-1], **way), adapter.shape.dtype
        ),
    )
    return Outcome(off, max(map(largest_effect, alone)))


def jointly(rng: random.Random, adapter: Adapter) -> Outcome:
    """The swaps of one batch, in passes that run together and share their clean rows, each with
    layers of its own.
    """
    begin = tokens(rng, adapter, rng.choice((0, 0, 5, 33)))
    batch = swap_batch(rng, adapter, begin=begin, n=rng.choice((1, 2, 3, 5)), most=4)
    jobs = [(replace(batch, swaps=(swap,)), a_way(rng, adapter)["layers"]) for swap in batch.swaps]
    way = {key: value for key, value in a_way(rng, adapter).items() if key != "layers"}
    found = ConeEngine(adapter).run_swap_batches(jobs, **way)
    wanted = [ReferenceEngine(adapter).run_swaps(one, layers=layers, **way) for one, layers in jobs]
    off = max(swaps_off(a, b, adapter.shape.dtype) for a, b in zip(found, wanted, strict=True))
    return Outcome(off, max(map(largest_effect, wanted)))


def cells(rng: random.Random, adapter: Adapter) -> Outcome:
    """The reference engine's one cell a row, each at a layer of its own, against its own full
    sweep.
    """
    begin, n = tokens(rng, adapter, rng.choice((0, 5, 30))), rng.choice((2, 1, 3, 4, 6))
    batch = swap_batch(rng, adapter, begin=begin, n=n, most=1, again=0.7, behind=rng.random() < 0.7)
    layers = [rng.randrange(adapter.n_layers) for _ in range(n)]
    site, window = rng.choice(adapter.sites), rng.choice((1, 1, 2, 3, 7))
    every = sorted(set(layers))
    clean, (changed,) = ReferenceEngine(adapter).run_swaps(
        batch, site=site, layers=every, window=window
    )
    before, after = ReferenceEngine(adapter, min_shared_tokens=rng.choice((2, 64))).run_cells(
        batch, site=site, layers=layers, window=window
    )
    at = [every.index(layer) for layer in layers]
    wanted = changed.map(lambda value: value[at, range(n)])
    off = max(metrics_off(a, b, adapter.shape.dtype) for a, b in ((before, clean), (after, wanted)))
    return Outcome(off, largest_effect((clean, [wanted])))


def in_a_row(rng: random.Random, adapter: Adapter) -> Outcome:
    """Many batches through one cone engine: the prefix that it keeps grows, is used in part,
    branches and is of no use.
    """
    cone, reference, begin, off, contrasts = (
        ConeEngine(adapter),
        ReferenceEngine(adapter),
        tokens(rng, adapter, 34),
        0.0,
        [0.0],
    )
    for _ in range(rng.randint(2, 5)):
        step = rng.choice(("same", "longer", "branch", "shorter", "other"))
        keep = {
            "same": 44,
            "longer": 44,
            "branch": rng.randrange(44),
            "shorter": rng.randrange(44),
            "other": 0,
        }[step]
        more = {"longer": rng.randint(1, 10), "branch": rng.randint(1, 10), "other": 34}.get(
            step, 0
        )
        begin = [*begin[:keep], *tokens(rng, adapter, more)][:44]
        n = rng.choice((1, 1, 2, 4))
        if rng.random() < 0.75:
            batch = swap_batch(rng, adapter, begin=begin, n=n, most=2, longest=8)
            way = a_way(rng, adapter, most=2)
            wanted = reference.run_swaps(batch, **way)
            off = max(off, swaps_off(cone.run_swaps(batch, **way), wanted, adapter.shape.dtype))
            contrasts.append(largest_effect(wanted))
        else:
            cut = cut_batch(rng, adapter, begin=begin, n=n, everywhere=False, longest=8)
            way = {"where": None, "windows": [layers_between(rng, adapter), range(0)]}
            states = reference.knockout_states(cut, **way)
            off = max(
                off, states_off(cone.knockout_states(cut, **way), states, adapter.shape.dtype)
            )
            contrasts.append(float((states[:, 0] - states[:, 1]).abs().max()))
    return Outcome(off, max(contrasts))


KINDS: dict[str, Callable[[random.Random, Adapter], Outcome]] = {
    kind.__name__: kind for kind in (swaps, cuts, together, jointly, cells, in_a_row)
}


def numbered(kind: str, name: str, case: int) -> Outcome:
    """Run the case of this number, always the same."""
    rng = random.Random(f"{kind} {name} {case}")
    return KINDS[kind](rng, adapter_of(name, rng.choice(types_of(name))))


def main() -> int:
    """Count and print the cases that differ."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.engine.fuzz", description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument("cases", type=int, help="of each kind, on each configuration")
    parser.add_argument("names", nargs="*", help=f"configurations: {', '.join(CONFIGS)}")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    started, n_wrong, n_cases = time.process_time(), 0, 0
    for name in options.names or CONFIGS:
        for kind in options.kinds:
            outcomes = {
                case: numbered(kind, name, case)
                for case in range(options.first, options.first + options.cases)
            }
            wrong = [
                f"{case} ({one.off:.3g} times the tolerance)"
                for case, one in outcomes.items()
                if not one.off <= 1
            ]
            worst, moved = (
                max(one.off for one in outcomes.values()),
                sum(one.effect > 1e-2 for one in outcomes.values()),
            )
            print(
                f"{name:22} {kind:9} worst {worst:.2g}, {moved} moved; wrong:"
                f" {', '.join(wrong) or 'none'}",
                flush=True,
            )
            n_wrong, n_cases = n_wrong + len(wrong), n_cases + len(outcomes)
    print(f"{n_wrong} of {n_cases} cases differ; {time.process_time() - started:.0f} CPU seconds")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
