"""Edges of induction on SmolLM2: which sender does an induction head read through its keys?

    python benchmarks/edges_induction.py

A prompt repeats a random list of words: ``a b c d e f a b c``, and ``d`` follows. In the corrupted
prompt another word stands before the first ``d``, so that nothing tells which word follows ``c``.
Attribution scores all edges; the largest are measured exactly, with the same edges of other pairs
as control.
"""

import argparse
import random
import time

import torch

import anchorlens as al

WORDS = [
    *("cat", "dog", "tree", "house", "river", "stone", "bread", "light", "water", "chair"),
    *("green", "table", "apple", "night", "cloud", "horse", "glass", "paper", "music", "plant"),
]


def make_pairs(n: int, length: int, seed: int = 0) -> "al.PairData":
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
    return al.load_pairs(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--words", type=int, default=8)
    parser.add_argument("--top", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(2)
    model = al.load_model("smollm2-135m-instruct", progress=False)
    pairs = make_pairs(given.pairs, given.words)
    started = time.process_time()
    screen = al.edge_sweep(model, pairs, method="attribution", controls="none", n_spot_checks=0)
    scores = screen.table()
    print(f"{len(scores):,} edges scored in {time.process_time() - started:.0f} CPU s")
    names = tuple(scores["edge"][: given.top])
    started = time.process_time()
    exact = al.edge_sweep(model, pairs, edges=names)
    print(f"{len(names)} measured in {time.process_time() - started:.0f} CPU s")
    print(exact.verdict)
    both = exact.table().merge(
        scores[["edge", "effect"]].rename(columns={"effect": "attribution"}), on="edge"
    )
    columns = ["edge", "effect", "sim_low", "sim_high", "other_pair", "stands", "attribution"]
    print(both[columns].head(25).to_markdown(index=False, floatfmt="+.3f"))
    rank = both["effect"].abs().rank().corr(both["attribution"].abs().rank())
    signs = (both["effect"] * both["attribution"] < 0).sum()
    print(f"rank correlation of sizes {rank:.2f}; {signs} of {len(both)} with another sign")


if __name__ == "__main__":
    main()
