"""Estimate how often an edge sweep claims an edge without an effect.

    python benchmarks/null_rates_edges.py --markdown docs/edges.md
    # the effects of a real sweep, drawn anew, in place of the worlds
    python benchmarks/null_rates_edges.py --rows runs/edges

Simulated sweeps without a model: effects of pairs (one per group), in logits, on edges of 20
senders and 25 receivers, with the control ``other_pair``. Edges of one sender, and of one receiver,
are correlated: half of an edge's variance is its sender's, 0.3 its receiver's, in each pair.

Worlds in which no edge may be claimed; effect and control are independent unless stated:

- ``normal``, ``heavy-tailed`` (t with 3 degrees of freedom), ``skewed`` (centred exponential):
  noise around 0.
- ``sizes``: normal noise; the sizes of senders and of receivers spread over orders of magnitude
  (log-normal, sd 1.5 each).
- ``products``: an edge is the product of a factor of its sender and one of its receiver, so that
  few numbers make all edges of a pair.
- ``sparse``: an edge of a pair is 0, except in 5 %, where it is +6 or -6.
- ``one-sided sparse``: 5 in 15 % of the pairs and else about 0, in effect and control.
- ``control moves``: effect and control have the mean 2 at every edge.
- ``one partner each``: effect and control have the mean 1; the control of a pair is the effect of
  another pair and a little noise, and each pair serves once. So are pairs drawn where all fit.
- ``shared partner``: the same, and five pairs are the partners of all.

``one sender`` is a world with an effect: the mean is 1 at 10 edges of one sender. There
``claimed`` is the share of sweeps that claim one of them, and ``edges`` the mean share of them that
are claimed.

``--rows`` draws the groups of a measured sweep with replacement: ``labels exchanged`` exchanges
effect and control at random within each group, ``signs drawn`` multiplies all effects of a group by
1 or -1 at random.

``wrong`` is the share of sweeps that claim an edge without an effect, with the 95 % interval of
Wilson.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from null_rates_patch import Array, claimed, draw_measured
from scipy import stats

import anchorlens as al
from anchorlens.protocols.patch.grid_statistics import GridStatistics

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from peers.report import markdown_table, rich_table, show, write_section

TITLE = "How often an edge without an effect is claimed"
SENDERS, RECEIVERS = 20, 25
NULLS = (
    "normal",
    "heavy-tailed",
    "skewed",
    "sizes",
    "products",
    "sparse",
    "one-sided sparse",
    "control moves",
    "one partner each",
    "shared partner",
)
EFFECT = "one sender"
# The sender and the number of its edges that have an effect in EFFECT.
SENDER, N_TRUE = 7, 10
MEASURED = ("labels exchanged", "signs drawn")
N_PARTNERS = 5
COLUMNS = ("world", "groups", "claimed", "edges", "wrong")


def noise(rng: np.random.Generator, pairs: int) -> Array:
    """Draw unit normal noise of effect and control, [effect or control, pair, sender, receiver]."""
    of_sender = rng.normal(size=(2, pairs, SENDERS, 1))
    of_receiver = rng.normal(size=(2, pairs, 1, RECEIVERS))
    own = rng.normal(size=(2, pairs, SENDERS, RECEIVERS))
    return np.sqrt(0.5) * of_sender + np.sqrt(0.3) * of_receiver + np.sqrt(0.2) * own


def draw(world: str, pairs: int, seed: int) -> Array:
    """Draw the effects of one sweep, [effect or control, pair, sender, receiver]."""
    rng = np.random.default_rng([seed, pairs, *world.encode()])
    z = noise(rng, pairs)
    if world == "heavy-tailed":
        return stats.t.ppf(stats.norm.cdf(z), 3)
    if world == "skewed":
        return stats.expon.ppf(stats.norm.cdf(z)) - 1
    if world == "sizes":
        of_sender = np.exp(1.5 * rng.normal(size=(SENDERS, 1)))
        return z * of_sender * np.exp(1.5 * rng.normal(size=RECEIVERS))
    if world == "products":
        of_sender = rng.normal(size=(2, pairs, SENDERS, 1))
        return of_sender * rng.normal(size=(2, pairs, 1, RECEIVERS)) + 0.01 * z
    if world == "sparse":
        return 6.0 * (z > stats.norm.ppf(0.975)) - 6.0 * (z < stats.norm.ppf(0.025))
    if world == "one-sided sparse":
        return 5.0 * (z > stats.norm.ppf(0.85)) + 0.05 * rng.normal(size=z.shape)
    if world == "control moves":
        return z + 2
    if world in ("one partner each", "shared partner"):
        partners = np.roll(np.arange(pairs), 1)
        if world == "shared partner":
            partners = rng.integers(min(N_PARTNERS, pairs), size=pairs)
        return np.stack([z[0] + 1, z[0][partners] + 1 + 0.1 * z[1]])
    if world == EFFECT:
        z[0] += true_edges(world)
    return z


def true_edges(world: str) -> np.ndarray:
    """Return the edges of a world with an effect, [sender receiver]."""
    true = np.zeros((SENDERS, RECEIVERS), dtype=bool)
    if world == EFFECT:
        true[SENDER, :N_TRUE] = True
    return true


def count(
    draw_one: Callable[[int], Array], true: np.ndarray, runs: int, n_resamples: int
) -> tuple[float, float, int]:
    """Return the share of sweeps that claim a true edge, the mean share of true edges claimed, and
    the number of sweeps that claim another.
    """
    hits, share, wrong = 0, 0.0, 0
    for seed in range(runs):
        found = claimed(draw_one(seed), n_controls=1, n_resamples=n_resamples)
        hits += bool(found[true].any())
        share += float(found[true].mean()) if true.any() else 0.0
        wrong += bool(found[~true].any())
    return hits / runs, share / runs, wrong


def effects_of(statistics: GridStatistics) -> Array:
    """Return the mean effects of each group of a sweep, [effect or control, group, 1, edge]."""
    tables = [statistics.table(control) for control in ("none", "other_pair")]
    known = tables[0].notna().all() & tables[1].notna().all()
    edges = [edge for edge in tables[0].columns[1:] if known[edge]]
    grouped = [table.groupby("question_id")[edges].mean() for table in tables]
    return np.stack([table.to_numpy()[:, None] for table in grouped])


def _row(world: str, groups: int, runs: int, found: tuple[float, float, int]) -> tuple[str, ...]:
    hit, share, wrong = found
    has_effect = world == EFFECT
    interval = stats.binomtest(wrong, runs).proportion_ci(0.95, method="wilson")
    return (
        world,
        str(groups),
        f"{100 * hit:.0f} %" if has_effect else "",
        f"{100 * share:.0f} %" if has_effect else "",
        f"{100 * wrong / runs:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200, help="sweeps per row (default: 200)")
    parser.add_argument("--sizes", default="20,40", help="numbers of groups (default: 20,40)")
    drawn = parser.add_mutually_exclusive_group()
    drawn.add_argument(
        "--worlds", default=",".join([*NULLS, EFFECT]), help="separated by commas (default: all)"
    )
    drawn.add_argument("--rows", metavar="RUN", help="folder of an edge sweep with its control")
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="also write the table into this file"
    )
    args = parser.parse_args()
    worlds: dict[str, tuple[Callable[[int, int], Array], np.ndarray]] = {}
    if args.rows:
        measured = effects_of(al.load_run(args.rows)[0].statistics)
        none = np.zeros(measured.shape[2:], dtype=bool)
        for world in MEASURED:
            worlds[world] = partial(draw_measured, world, measured), none
    else:
        for world in args.worlds.split(","):
            worlds[world] = partial(draw, world), true_edges(world)
    started = time.process_time()
    rows: list[tuple[str, ...]] = []
    sizes: Sequence[int] = [int(size) for size in args.sizes.split(",")]
    for world, (draw_one, true) in worlds.items():
        for groups in sizes:
            found = count(partial(draw_one, groups), true, args.runs, args.resamples)
            rows.append(_row(world, groups, args.runs, found))
            print("|", " | ".join(rows[-1]), "|", flush=True)
    n_edges = next(iter(worlds.values()))[1].size
    note = (
        f"{args.runs} sweeps for each row, {n_edges:,} edges, control `other_pair`. Measured in"
        f" {time.process_time() - started:.0f} CPU seconds."
    )
    if args.markdown is not None:
        command = f"`{shlex.join(['python', 'benchmarks/null_rates_edges.py', *sys.argv[1:]])}`"
        write_section(args.markdown, TITLE, [command, "", note, "", *markdown_table(COLUMNS, rows)])
    show([rich_table(COLUMNS, rows)], [note])


if __name__ == "__main__":
    main()
