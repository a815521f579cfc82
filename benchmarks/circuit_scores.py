"""Score circuits of SmolLM2 that several methods select, on pairs that selected none of them.

    python benchmarks/circuit_scores.py --task ioi --data ioi.csv
    python benchmarks/circuit_scores.py --task agreement --data agreement_nounpp.jsonl
    python benchmarks/circuit_scores.py --task ioi --data ioi.csv --by segment

Every edge of the model is scored by attribution (EAP) and integrated gradients (EAP-IG, 5 steps).
The best ``--exact`` edges of each are measured exactly, everything behind the receiver running
(``flow``), in both directions; edges that are not measured follow in the order of EAP-IG:

- exact: an edge's clean contribution in the corrupted run;
- exact, clean run: an edge's corrupted contribution in the clean run, where other edges may back it
  up;
- exact, both: the mean of the two, which is single at each end of the path that EAP-IG follows.

With ``--by segment`` an edge is at one of three places: the changed word (the giver, or the
subject) and the last word, each with the word before it, and the words between. Exact effects are
then those in the corrupted run alone.

``random`` ranks edges at random. Circuits of the first third of the ``--find`` pairs and of all of
them run on ``--score`` other pairs. Prints CPR, CMD and faithfulness of small circuits with
intervals over clusters of pairs, and the share of edges that two resamples of whole clusters have
in common. At the end: what later layers repair of the direct effects of heads (``--repair`` pairs).
"""

import argparse
import csv
import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import anchorlens as al
from anchorlens.engine.edges.graph import Edge
from anchorlens.models.load import adapt
from anchorlens.prompts.tokenize_pairs import set_up_pairs
from anchorlens.protocols.edges.circuit_pairs import CircuitPairs, open_pairs
from anchorlens.protocols.edges.faithfulness import SHARES, score_circuits
from anchorlens.protocols.edges.head_effects import measure_heads
from anchorlens.protocols.edges.select_edges import rank
from anchorlens.protocols.patch.spec import Patch

Scores = Mapping[Edge, float]
QUIET: dict[str, Any] = {"controls": "none", "n_spot_checks": 0, "progress": False}
EAP = {"method": "attribution"}
EAP_IG = {"method": "attribution_ig", "steps": 5}
# Sizes whose faithfulness is printed: 0.2, 0.5, 1 and 2 % of all edges.
SMALL = [1, 2, 3, 4]


def rows_of(task: str, data: str | None) -> list[dict[str, Any]]:
    """Return the pairs of a task."""
    if task == "ioi" and data is None:
        return [
            _with_segments(
                {name: getattr(pair, name) for name in ("clean", "corrupted", "answer", "wrong")}
            )
            for pair in al.load_pairs("ioi-pairs").pairs
        ]
    if data is None:
        raise SystemExit("--data: a file with clean_prefix, patch_prefix and the two answers.")
    text = Path(data).read_text(encoding="utf8")
    if task == "ioi":
        pairs = [_exchanged_names(row) for row in csv.DictReader(text.splitlines())]
        return [_with_segments(pair) for pair in pairs]
    found = [json.loads(line) for line in text.splitlines()]
    return [
        _with_segments(
            {
                "clean": row["clean_prefix"],
                "corrupted": row["patch_prefix"],
                "answer": row["clean_answer"],
                "wrong": row["patch_answer"],
            }
        )
        for row in found
    ]


def _with_segments(pair: Mapping[str, str]) -> dict[str, Any]:
    """Return a pair that names the changed word and the last word, each with the word before it,
    so that the text occurs once.
    """
    words = [pair[name].split() for name in ("clean", "corrupted")]
    (at,) = [i for i, (a, b) in enumerate(zip(*words, strict=True)) if a != b]
    segments = {
        "changed": [" ".join(own[at - 1 : at + 1]) for own in words],
        "end": [" ".join(own[-2:]) for own in words],
    }
    return {**pair, "segments": segments}


def _exchanged_names(row: Mapping[str, str]) -> dict[str, str]:
    """Return a pair whose corrupted prompt has the other of the two names as giver."""
    changed = zip(row["clean"].split(), row["corrupted_hard"].split(), strict=True)
    ((giver, other),) = [(a, b) for a, b in changed if a != b]
    return {
        "clean": row["clean"],
        "corrupted": row["corrupted_hard"],
        "answer": f" {other}",
        "wrong": f" {giver}",
    }


def usable(model: Any, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the pairs of equal length that the model answers: the clean prompt prefers the answer,
    the corrupted one the other.
    """
    numbered = [{**row, "id": str(number)} for number, row in enumerate(rows)]
    context = set_up_pairs(adapt(model), al.load_pairs(numbered), Patch())
    found: list[dict[str, Any]] = []
    for pair in context.pairs:
        sides = (pair.clean.ids, pair.corrupted.ids)
        if len({len(ids) for ids in sides}) > 1:
            continue
        logits = model(torch.tensor(sides))[:, -1]
        clean, corrupted = (logits[:, pair.answer[0]] - logits[:, pair.wrong[0]]).tolist()
        if clean > 0 > corrupted:
            found.append(rows[int(pair.clean.pair.id)])
    return found


def measure(
    model: object, pairs: Sequence[dict[str, Any]], n: int, **options: Any
) -> tuple[Scores, float, float]:
    """Return the score of every measured edge, the overlap of the best ``n`` in resamples, and CPU
    seconds.
    """
    start = time.process_time()
    sweep = al.edge_sweep(model, al.load_pairs(list(pairs)), **options, **QUIET)
    seconds = time.process_time() - start
    circuit = sweep.circuit(n)
    return circuit.scores, circuit.overlap, seconds


def rank_measured(exact: Scores, others: Scores) -> list[Edge]:
    """Rank measured edges, then the others."""
    return rank(exact) + [edge for edge in rank(others) if edge not in exact]


def show(
    name: str,
    n: int,
    ranked: Sequence[Edge],
    opened: CircuitPairs,
    *,
    overlap: float | None = None,
    seconds: float | None = None,
) -> None:
    """Print the row of a method."""
    sizes = [max(1, round(share * len(ranked))) for share in SHARES]
    found = score_circuits(
        opened,
        [ranked[:size] for size in sizes],
        ablation="patching",
        n_edges=len(ranked),
        with_rest=False,
    )
    table = found.table().iloc[SMALL]
    small = [
        f"{row.faithfulness:.2f} [{row.low:.2f}, {row.high:.2f}]" for row in table.itertuples()
    ]
    cells = [name, str(n or ""), str(found.cpr), str(found.cmd), *small]
    cells.append("" if overlap is None else f"{overlap:.2f}")
    cells.append("" if seconds is None else f"{seconds:.0f}")
    print(f"| {' | '.join(cells)} |", flush=True)


def show_repair(opened: CircuitPairs) -> None:
    """Print how much of the direct effects of heads later layers repair."""
    found = measure_heads(opened, "heads", joint=8)
    singles = found.singles[found.singles["direct_low"] > 0]
    repaired = singles[singles["repaired_low"] > 0]
    print(f"\n{len(singles)} heads with a direct effect above 0, {len(repaired)} of them repaired")
    print(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=("ioi", "agreement"), default="ioi")
    parser.add_argument("--data", default=None, help="file of pairs")
    parser.add_argument("--find", type=int, default=30, help="pairs to find circuits on")
    parser.add_argument("--score", type=int, default=100, help="other pairs to score them on")
    parser.add_argument("--exact", type=int, default=1000, help="best edges of EAP and of EAP-IG")
    parser.add_argument("--repair", type=int, default=20, help="pairs for effects of heads")
    parser.add_argument("--by", choices=("all", "segment"), default="all")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = al.load_model("smollm2-135m-instruct", progress=False)
    started = time.process_time()
    rows = usable(model, rows_of(args.task, args.data))
    random.Random(0).shuffle(rows)
    find, others = rows[: args.find], rows[args.find : args.find + args.score]
    opened = open_pairs(model, al.load_pairs(others), by=args.by)
    edges = list(opened.every_edge)
    one_percent = round(0.01 * len(edges))
    print(f"{args.task}: {len(rows)} usable pairs, {len(find)} to find, {len(others)} to score")
    head = "method | pairs | CPR | CMD | 0.2 % | 0.5 % | 1 % | 2 % | overlap | CPU s to find"
    print(f"| {head} |\n|---|{'---:|' * 9}", flush=True)
    random.Random(1).shuffle(edges)
    show("random", 0, edges, opened)
    for n in (len(find) // 3, len(find)):
        pairs = find[:n]
        eap, overlap, seconds = measure(model, pairs, one_percent, by=args.by, **EAP)
        show("EAP", n, rank(eap), opened, overlap=overlap, seconds=seconds)
        ig, overlap, seconds_ig = measure(model, pairs, one_percent, by=args.by, **EAP_IG)
        show("EAP-IG", n, rank(ig), opened, overlap=overlap, seconds=seconds_ig)
        best = dict.fromkeys((*rank(eap)[: args.exact], *rank(ig)[: args.exact]))
        names = list(dict.fromkeys(edge._replace(place="all").name for edge in best))
        # By segment, each of them is measured at every place.
        n_exact = len(names) * len(opened.places)
        top = min(one_percent, n_exact)
        restored, overlap, cost = measure(
            model, pairs, top, edges=names, method="exact", by=args.by
        )
        label = f"exact, best {n_exact:,}"
        total = seconds + seconds_ig + cost
        chosen = overlap if top < n_exact else None  # resamples that take all edges are alike
        show(label, n, rank_measured(restored, ig), opened, overlap=chosen, seconds=total)
        if args.by != "all":
            continue
        lost, overlap, cost = measure(
            model, pairs, top, edges=names, method="exact", direction="noising"
        )
        total += cost
        show(f"{label}, clean run", n, rank_measured(lost, ig), opened, overlap=overlap)
        both = {edge: (restored[edge] - lost[edge]) / 2 for edge in restored}
        show(f"{label}, both", n, rank_measured(both, ig), opened, seconds=total)
    if args.repair and args.by == "all":
        show_repair(open_pairs(model, al.load_pairs(find[: args.repair])))
    print(f"{time.process_time() - started:.0f} CPU seconds in all")


if __name__ == "__main__":
    main()
