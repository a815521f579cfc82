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
    parser.add_argument("--receivers", default="k")
    parser.add_argument("--top", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = al.load_model("smollm2-135m-instruct", progress=False)
    pairs = make_pairs(given.pairs, given.words)
    started = time.process_time()
    options = {"senders": "heads", "receivers": given.receivers, "progress": False}
    screen = al.edge_sweep(
        model, pairs, method="attribution", controls="none", n_spot_checks=0, **options
    )
    scores = screen.table()
    print(f"{len(scores):,} edges scored in {time.process_time() - started:.0f} CPU s")
    names = tuple(scores["edge"][: given.top])
    started = time.process_time()
    exact = al.edge_sweep(model, pairs, edges=names, progress=False)
    print(f"{len(names)} measured in {time.process_time() - started:.0f} CPU s")
    print(exact.verdict)
    both = exact.table().set_index("edge")
    both = both.assign(score=scores.set_index("edge")["effect"])
    columns = ["effect", "sim_low", "sim_high", "other_pair", "stands", "score"]
    print(both[columns].head(12).round(3).to_string())
    print(al.compare_methods(exact, screen, top=10).round(2).to_string(index=False))
    tokens = model.to_tokens(pairs.pairs[0].clean, prepend_bos=False)
    _, cache = model.run_with_cache(tokens)
    for layer, head in ((16, 0), (17, 1), (18, 2), (20, 2)):
        pattern = cache["pattern", layer][0, head]
        print(f"a{layer}.h{head}: {pattern.diagonal(-1).mean():.2f} to the previous token")


if __name__ == "__main__":
    main()
