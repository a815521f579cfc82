"""Score circuits of SmolLM2 that several methods select, on pairs that selected none of them.

    python benchmarks/circuit_scores.py --task ioi
    python benchmarks/circuit_scores.py --task agreement --data agreement_nounpp.jsonl

Every edge of the model is scored on ``--find`` pairs: by attribution (EAP), integrated gradients
(EAP-IG, 5 steps), and exactly with everything behind the receiver frozen; ``random`` ranks them at
random. The circuits of the first third of these pairs and of all of them run on ``--score`` other
pairs. Prints CPR, CMD and stability, each with intervals over clusters of pairs where it has one.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import anchorlens as al
from anchorlens.prompts.pairs import PairData
from anchorlens.protocols.edges.circuit_pairs import open_pairs
from anchorlens.protocols.edges.faithfulness import SHARES, score_circuits
from anchorlens.protocols.edges.select_edges import rank

METHODS = {
    "EAP": {"method": "attribution"},
    "EAP-IG": {"method": "attribution_ig", "steps": 5},
    "exact, frozen": {"method": "exact", "downstream": "freeze"},
}


def rows_of(task: str, data: str | None) -> list[dict[str, str]]:
    """Return the pairs of a task."""
    if task == "ioi":
        return [
            {name: getattr(pair, name) for name in ("clean", "corrupted", "answer", "wrong")}
            for pair in al.load_pairs("ioi-pairs").pairs
        ]
    if data is None:
        raise SystemExit("--data: a file with clean_prefix, patch_prefix and the two answers.")
    found = [json.loads(line) for line in Path(data).read_text(encoding="utf8").splitlines()]
    return [
        {
            "clean": row["clean_prefix"],
            "corrupted": row["patch_prefix"],
            "answer": row["clean_answer"],
            "wrong": row["patch_answer"],
        }
        for row in found
    ]


def usable(model: object, rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return the pairs of equal length that the model answers: the clean prompt prefers the answer,
    the corrupted one the other.
    """
    found: list[dict[str, str]] = []
    for row in rows:
        try:
            opened = open_pairs(model, al.load_pairs([row]))
        except al.EmptySweepError:
            continue
        if opened.clean[0] > 0 > opened.ablated[0]:
            found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=("ioi", "agreement"), default="ioi")
    parser.add_argument("--data", default=None, help="file of the pairs of agreement")
    parser.add_argument("--find", type=int, default=18, help="pairs to find circuits on")
    parser.add_argument("--score", type=int, default=30, help="other pairs to score them on")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = al.load_model("smollm2-135m-instruct", progress=False)
    started = time.process_time()
    rows = usable(model, rows_of(args.task, args.data))
    random.Random(0).shuffle(rows)
    find, others = rows[: args.find], rows[args.find : args.find + args.score]
    opened = open_pairs(model, al.load_pairs(others))
    n_edges = len(opened.graph.edges(opened.graph.senders, opened.graph.receivers))
    sizes = [max(1, round(share * n_edges)) for share in SHARES]
    print(f"{args.task}: {len(rows)} usable pairs, {len(find)} to find, {len(others)} to score")
    print("| method | pairs | CPR | CMD | at 1 % | stability of the 1 % | CPU s to find |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    edges = list(opened.graph.edges(opened.graph.senders, opened.graph.receivers))
    random.Random(1).shuffle(edges)
    _show("random", 0, [edges[:n] for n in sizes], opened, n_edges, "", 0.0)
    for name, options in METHODS.items():
        for n in (len(find) // 3, len(find)):
            start = time.process_time()
            pairs: PairData = al.load_pairs(find[:n])
            sweep = al.edge_sweep(
                model, pairs, controls="none", n_spot_checks=0, progress=False, **options
            )
            seconds = time.process_time() - start
            circuit = sweep.circuit(sizes[3])
            ranked = rank(circuit.scores)
            told = f"{circuit.overlap:.2f}"
            _show(name, n, [ranked[:size] for size in sizes], opened, n_edges, told, seconds)
    print(f"{time.process_time() - started:.0f} CPU seconds in all")


def _show(
    name: str,
    n: int,
    circuits: Sequence[Sequence[object]],
    opened: object,
    n_edges: int,
    stability: str,
    seconds: float,
) -> None:
    """Print the row of a method."""
    found = score_circuits(
        opened,  # pyright: ignore[reportArgumentType]
        circuits,  # pyright: ignore[reportArgumentType]
        ablation="patching",
        n_edges=n_edges,
        with_rest=False,
    )
    at = found.table().iloc[3]
    one = f"{at['faithfulness']:.2f} [{at['low']:.2f}, {at['high']:.2f}]"
    print(f"| {name} | {n} | {found.cpr} | {found.cmd} | {one} | {stability} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
