"""Repeat the audit of a screen where all edges are known: how often is its statement true?

    python benchmarks/screen_certificate.py --markdown docs/edges.md

All exact effects and all scores of some models are computed once: planted effects that attribution
cannot see (:func:`planted_circuits.hidden`), small random checkpoints, and SmolLM2 with receivers
in a few layers, over all positions and by segment. The code of ``al.screen_edges`` then draws and
limits 400 times with different seeds. "At most N other edges reach the cut" is true if no more do.
Cuts are fixed, or the median of the candidates.

The second table has the recall of the edges with the largest exact effects against the share of
edges that are measured. Exit code 1 if the lower limit of a share of true statements (95 %, Wilson)
is below 92 %.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import torch
from eap_ig import our_scores, random_model, random_pair
from peers.report import markdown_table, rich_table, show, write_section
from planted_circuits import STEPS, Circuit, hidden, induction, measure_attribution, measure_exact
from scipy.stats import binomtest

import anchorlens as al
from anchorlens.running.screen_edges import largest_effects
from anchorlens.statistics import audits
from anchorlens.statistics.audits import Screen, audit_screen

TITLE = "How often the statement is true"
REPEATS, LEAST = 400, 0.92
# Noise of the planted circuit, and pairs of the small checkpoints and of SmolLM2.
NOISE, SMALL_PAIRS, PAIRS = 0.06, 3, 3
RECEIVERS = "k,v,mlps,logits"
LAYERS = {"all": (22, 25, 28), "segment": (22, 25)}
# Edges to be found: the first hundred, or a twentieth of a small graph.
MOST_FOUND, SHARE_FOUND = 100, 20
SHARES = (0.02, 0.05, 0.1, 0.2, 0.5)
SCREENS = ("attribution", "attribution_ig")

Effects = Mapping[str, float]
Limit = Callable[[Screen], int]


@dataclass(frozen=True, kw_only=True)
class Known:
    """Model whose edges are all known.

    Attributes:
        name: Name in the tables.
        exact: Edge -> mean exact effect.
        scores: Screen -> edge -> mean score.
        cut: Cut that is fixed beforehand.
        tops: Numbers of candidates and of audited edges.
    """

    name: str
    exact: Effects
    scores: Mapping[str, Effects]
    cut: float
    tops: Sequence[tuple[int, int]] = ((5, 20), (10, 40), (20, 100))


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Repeated audits of one screen.

    Attributes:
        missed: Number of edges other than the candidates that reach the cut.
        limits: Stated limit of each repeat.
        cut: The cut.
    """

    missed: int
    limits: Sequence[int]
    cut: float

    @property
    def n_true(self) -> int:
        """Number of repeats whose statement is true."""
        return sum(limit >= self.missed for limit in self.limits)

    @property
    def lower(self) -> float:
        """Lower limit of the share of true statements."""
        test = binomtest(self.n_true, len(self.limits))
        return float(test.proportion_ci(0.95, method="wilson").low)


def stated_limit(screen: Screen) -> int:
    """Return the limit that a screen states."""
    return screen.missed_at_most


def repeat(
    known: Known,
    *,
    screen: str = "attribution",
    top: int,
    audit: int,
    cut: float | None,
    n: int = REPEATS,
    limit: Limit = stated_limit,
) -> Repeats:
    """Draw the audit of a screen repeatedly, and compare its statement with the truth."""
    limits: list[int] = []
    missed, used = 0, 0.0
    # The same counts occur again and again.
    cached = lru_cache(maxsize=None)(audits.most_with_property)

    def most(counts: Sequence[audits.Audit], confidence: float) -> int:
        return cached(tuple(counts), confidence)

    with mock.patch.object(audits, "most_with_property", most):
        for seed in range(n):
            found = audit_screen(
                known.scores[screen],
                lambda edges: {edge: known.exact[edge] for edge in edges},
                top=top,
                audit=audit,
                cut=cut,
                seed=seed,
            )
            limits.append(limit(found))
            # Neither depends on the draw.
            if not seed:
                used = found.cut
                others = known.exact.keys() - set(found.candidates)
                missed = sum(abs(known.exact[edge]) >= used for edge in others)
    return Repeats(missed=missed, limits=limits, cut=used)


def recall(known: Known, screen: str) -> tuple[int, list[float]]:
    """Return the number of edges to be found, and the share of them among the candidates, for each
    share of edges that is measured.
    """
    wanted = min(MOST_FOUND, max(1, len(known.exact) // SHARE_FOUND))
    best = set(_largest(known.exact)[:wanted])
    ranked = _largest(known.scores[screen])
    shares: list[float] = []
    for share in SHARES:
        candidates = ranked[: round(share * len(ranked))]
        shares.append(len(best.intersection(candidates)) / wanted)
    return wanted, shares


def _largest(values: Effects) -> list[str]:
    return sorted(values, key=lambda edge: -abs(values[edge]))


def from_circuit(
    circuit: Circuit, name: str, tops: Sequence[tuple[int, int]] = ((2, 10), (5, 20), (10, 60))
) -> Known:
    """Return the edges of a planted circuit."""
    scores = {"attribution": 0, "attribution_ig": STEPS}
    return Known(
        name=name,
        exact=measure_exact(circuit),
        scores={
            method: measure_attribution(circuit, steps=steps) for method, steps in scores.items()
        },
        cut=0.5,
        tops=tops,
    )


def from_checkpoint(n_layers: int, n_kv_heads: int | None, name: str) -> Known:
    """Return the edges of a random checkpoint."""
    model = random_model(n_layers, 4, 48, n_kv_heads)
    generator = torch.Generator().manual_seed(0)
    pairs = [random_pair(generator) for _ in range(SMALL_PAIRS)]

    def mean(method: str, steps: int = 0) -> Effects:
        found = [our_scores(model, *pair, method=method, steps=steps) for pair in pairs]
        return {edge: sum(one[edge] for one in found) / len(found) for edge in found[0]}

    return Known(
        name=name,
        exact=mean("exact"),
        scores={"attribution": mean("EAP"), "attribution_ig": mean("EAP-IG", STEPS)},
        cut=0.1,
    )


def small_cases() -> list[Known]:
    """Return the cases that take seconds."""
    return [
        from_circuit(
            induction(noising=True, grouped=True), "planted: induction, grouped", ((1, 8), (2, 10))
        ),
        from_circuit(hidden(noise=NOISE), "planted: saturated head, cancelling pair"),
        from_checkpoint(3, None, "random, 3 layers"),
        from_checkpoint(3, 2, "random, 3 layers, grouped"),
    ]


def from_smollm2(by: str, layers: tuple[int, ...]) -> Known:
    """Return edges of SmolLM2 into a few layers, on sentences with two names; ``by="segment"``
    gives an edge the largest of its effects over segments.
    """
    model = al.load_model("smollm2-135m-instruct", progress=False)
    pairs = al.load_pairs("ioi-pairs", limit=PAIRS)
    found: dict[str, Effects] = {}
    for method in ("exact", *SCREENS):
        options: dict[str, Any] = {"receivers": RECEIVERS, "layers": layers, "by": by}
        result = al.edge_sweep(
            model,
            pairs,
            method=method,
            controls="none",
            n_spot_checks=0,
            progress=False,
            **options,
        )
        found[method] = largest_effects(result)
    exact = found.pop("exact")
    return Known(
        name=f"SmolLM2, {len(layers)} layers{', by segment' if by == 'segment' else ''}",
        exact=exact,
        scores=found,
        cut=0.02,
        tops=((20, 100), (50, 200), (100, 400)),
    )


TRUE_COLUMNS = (
    *("model", "edges", "top", "audit", "cut", "missed"),
    *("stated at most (median)", "true", "lower limit"),
)


def true_rows(known: Known) -> tuple[list[tuple[str, ...]], float]:
    """Return the rows of a model, and its smallest lower limit."""
    rows: list[tuple[str, ...]] = []
    least = 1.0
    for top, audit in known.tops:
        for cut in (known.cut, None):
            found = repeat(known, top=top, audit=audit, cut=cut)
            least = min(least, found.lower)
            row = (
                known.name,
                f"{len(known.exact):,}",
                str(top),
                str(audit),
                f"{found.cut:.3f}{'' if cut is not None else ' (median)'}",
                f"{found.missed:,}",
                f"{median(found.limits):,.0f}",
                f"{100 * found.n_true / len(found.limits):.1f} %",
                f"{100 * found.lower:.1f} %",
            )
            rows.append(row)
    return rows, least


RECALL_COLUMNS = (
    *("model", "screen", "true top"),
    *(f"{100 * share:.0f} % measured" for share in SHARES),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="without SmolLM2")
    parser.add_argument(
        "--markdown",
        type=Path,
        default=None,
        metavar="FILE",
        help="also write the tables into this file",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    cases = small_cases()
    if not args.small:
        cases += [from_smollm2(by, layers) for by, layers in LAYERS.items()]
    rows: list[tuple[str, ...]] = []
    recalls: list[tuple[str, ...]] = []
    least = 1.0
    for known in cases:
        own, lower = true_rows(known)
        rows += own
        least = min(least, lower)
        for screen in SCREENS:
            wanted, shares = recall(known, screen)
            cells = (f"{100 * share:.0f} %" for share in shares)
            recalls.append((known.name, screen, str(wanted), *cells))
    notes = [
        f"{REPEATS} audits with different seeds for each row, scores by `attribution`, cuts in"
        " logits. Lower limit: of a 95 % interval of the share of true statements (Wilson).",
        "Share of the edges with the largest exact effects that are among the candidates, if so"
        " many edges are measured:",
        f"Measured in {time.process_time() - started:.0f} CPU seconds on one thread.",
    ]
    if args.markdown is not None:
        command = f"`{shlex.join(['python', 'benchmarks/screen_certificate.py', *sys.argv[1:]])}`"
        tables = (markdown_table(TRUE_COLUMNS, rows), markdown_table(RECALL_COLUMNS, recalls))
        lines = [command, "", notes[0], "", *tables[0], "", notes[1], "", *tables[1], "", notes[2]]
        write_section(args.markdown, TITLE, lines)
    show([rich_table(TRUE_COLUMNS, rows), rich_table(RECALL_COLUMNS, recalls)], notes)
    sys.exit(least < LEAST)


if __name__ == "__main__":
    main()
