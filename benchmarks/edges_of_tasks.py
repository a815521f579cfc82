"""The strongest edges of SmolLM2 in three tasks: found by attribution, measured exactly.

    python benchmarks/edges_of_tasks.py --task induction
    python benchmarks/edges_of_tasks.py --task ioi --data ioi.csv
    python benchmarks/edges_of_tasks.py --task agreement --data agreement_nounpp.jsonl

Attribution scores all edges of the chosen senders and receivers; the largest are measured exactly,
with the same edges of other pairs as control.

- induction: a prompt repeats a random list of words, ``a b c d e f a b c``, and ``d`` follows. In
  the corrupted prompt another word stands before the first ``d``, so that nothing tells which word
  follows ``c``. Edges from heads to keys: which sender does an induction head read?
- ioi: the corrupted prompt has the other of the two names as giver. All edges.
- agreement: the corrupted prompt has the subject in the other number. All edges.

Pairs that the model does not answer are left out.
"""

import argparse
import random
import time
from collections.abc import Sequence
from typing import Any

import torch
from circuit_scores import rows_of, usable

import anchorlens as al

WORDS = [
    *("cat", "dog", "tree", "house", "river", "stone", "bread", "light", "water", "chair"),
    *("green", "table", "apple", "night", "cloud", "horse", "glass", "paper", "music", "plant"),
]
SENDERS = {"induction": "heads", "ioi": "all", "agreement": "all"}
RECEIVERS = {"induction": "k", "ioi": "all", "agreement": "all"}
# Heads of the induction edges, whose attention to the previous token is printed.
HEADS = ((16, 0), (17, 1), (18, 2), (20, 2))


def repeated_lists(n: int, length: int, seed: int = 0) -> list[dict[str, str]]:
    """Return pairs of repeated lists of words."""
    rng = random.Random(seed)
    rows: list[dict[str, str]] = []
    for _ in range(n):
        words = rng.sample(WORDS, length + 1)
        other = words.pop()
        at = length // 2
        repeated = " ".join(words[: at + 1])
        changed = [*words]
        changed[at] = other
        row = {
            "clean": f" {' '.join(words)} {repeated}",
            "corrupted": f" {' '.join(changed)} {repeated}",
            "answer": f" {words[at + 1]}",
            "wrong": f" {words[at - 1]}",
            "template": "list",
        }
        rows.append(row)
    return rows


def pairs_of(model: object, task: str, data: str | None, n: int) -> "al.PairData":
    """Return the pairs of a task."""
    if task == "induction":
        return al.load_pairs(repeated_lists(n, 8))
    return al.load_pairs(usable(model, rows_of(task, data)[: 2 * n])[:n])


def show_attention(model: Any, pairs: "al.PairData") -> None:
    """Print the attention of the induction heads to the previous token."""
    tokens = model.to_tokens(pairs.pairs[0].clean, prepend_bos=False)
    _, cache = model.run_with_cache(tokens)
    for layer, head in HEADS:
        pattern = cache["pattern", layer][0, head]
        print(f"a{layer}.h{head}: {pattern.diagonal(-1).mean():.2f} to the previous token")


def markdown_rows(result: "al.EdgeResult", scores: "al.EdgeResult", n: int) -> Sequence[str]:
    """Return the table of the largest edges that stand; the last column is their attribution."""
    table = result.table().set_index("edge")
    table = table[table["stands"]].head(n)
    estimates = scores.table().set_index("edge")["effect"]
    rows = [
        "| edge | effect [joint 95 %] | other pair | attribution |",
        "| --- | --- | --- | --- |",
    ]
    for edge, row in table.iterrows():
        interval = f"[{row['sim_low']:+.3f}, {row['sim_high']:+.3f}]"
        rows.append(
            f"| `{edge}` | {row['effect']:+.3f} {interval} | {row['other_pair']:+.3f} |"
            f" {estimates[edge]:+.3f} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=SENDERS, default="induction")
    parser.add_argument("--data", help="file of the pairs of ioi or agreement")
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--top", type=int, default=60, help="edges measured exactly (default: 60)")
    parser.add_argument("--rows", type=int, default=10, help="edges shown (default: 10)")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = al.load_model("smollm2-135m-instruct", progress=False)
    pairs = pairs_of(model, given.task, given.data, given.pairs)
    started = time.process_time()
    screen = al.edge_sweep(
        model,
        pairs,
        senders=SENDERS[given.task],
        receivers=RECEIVERS[given.task],
        method="attribution",
        controls="none",
        n_spot_checks=0,
        progress=False,
    )
    scores = screen.table()
    seconds = time.process_time() - started
    print(f"{len(pairs.pairs)} pairs; {len(scores):,} edges scored in {seconds:.0f} CPU s")
    names = tuple(scores["edge"][: given.top])
    started = time.process_time()
    exact = al.edge_sweep(model, pairs, edges=names, progress=False)
    print(f"{len(names)} measured in {time.process_time() - started:.0f} CPU s")
    print(exact.verdict)
    print(f"{int(exact.table()['stands'].sum())} of {len(names)} stand:\n")
    print("\n".join(markdown_rows(exact, screen, given.rows)))
    print()
    print(al.compare_methods(exact, screen, top=10).round(2).to_string(index=False))
    if given.task == "induction":
        show_attention(model, pairs)


if __name__ == "__main__":
    main()
