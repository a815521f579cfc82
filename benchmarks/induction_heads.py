"""Compare heads found by activation patching with heads by induction score, on SmolLM2-135M.

Patching: each head's `z` of the clean prompt at all positions, into the corrupted prompt of the
sample `induction-pairs`; the effect is the mean change of the logit difference. Induction score:
mean attention from each token in the second half of a random sequence that is repeated once, to the
token after its previous occurrence. The score uses neither the pairs nor a patch.

    python benchmarks/induction_heads.py --limit 20 --out runs/induction
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from scipy.stats import hypergeom, rankdata
from torch import Tensor

import anchorlens as al
from anchorlens.models.adapter import LensModel

Array = npt.NDArray[np.float64]
TOP, DRAWS, SEED = 10, 10_000, 0


def attention_scores(model: LensModel, n_sequences: int, length: int) -> tuple[Array, Array]:
    """Return the induction and the previous-token score of every head, each [layer head], on random
    tokens repeated once.
    """
    generator = torch.Generator().manual_seed(SEED)
    half = torch.randint(100, model.cfg.d_vocab, (n_sequences, length), generator=generator)
    with torch.no_grad():
        _, cache = model.run_with_cache(
            torch.cat([half, half], dim=1), names_filter=lambda name: name.endswith("hook_pattern")
        )
    query = torch.arange(length, 2 * length)

    def to(key: Tensor) -> Array:
        patterns: list[Float[Tensor, "batch head q k"]] = [
            cache["pattern", layer] for layer in range(model.cfg.n_layers)
        ]
        return np.stack(
            [pattern[:, :, query, key].mean((0, 2)).double().numpy() for pattern in patterns]
        )

    return to(query - length + 1), to(query - 1)


def spearman(one: Array, two: Array) -> float:
    """Return the rank correlation of two grids over all heads."""
    return float(np.corrcoef(rankdata(one.ravel()), rankdata(two.ravel()))[0, 1])


def top(values: Array) -> list[int]:
    """Return the flat indices of the largest values, largest first."""
    return [int(head) for head in np.argsort(-values.ravel(), kind="stable")[:TOP]]


def interval(
    statistic: Callable[[Array], float], effects: Array, groups: Array
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval over groups of pairs of a statistic of the mean effect."""
    generator, names = np.random.default_rng(SEED), np.unique(groups)
    members = {name: np.flatnonzero(groups == name) for name in names}
    drawn = [
        np.concatenate([members[name] for name in generator.choice(names, len(names))])
        for _ in range(DRAWS // 10)
    ]
    low, high = np.quantile([statistic(effects[rows].mean(0)) for rows in drawn], (0.025, 0.975))
    return float(low), float(high)


def p_value(size: Array, score: Array, *, within_layers: bool) -> float:
    """Return the one-sided permutation p of the rank correlation; heads are exchanged over the
    model or within their layer.
    """
    generator, observed = np.random.default_rng(SEED), spearman(size, score)
    ranks, others = (rankdata(values.ravel()).reshape(values.shape) for values in (size, score))
    hits = 0
    for _ in range(DRAWS):
        mixed = generator.permuted(ranks, axis=1) if within_layers else generator.permuted(ranks)
        hits += bool(np.corrcoef(mixed.ravel(), others.ravel())[0, 1] >= observed)
    return (1 + hits) / (1 + DRAWS)


def main() -> None:
    """Print the agreement and a table of heads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=int, default=20, help="number of pairs")
    parser.add_argument("--controls", default="auto", help="auto, none, or names of controls")
    parser.add_argument(
        "--sequences", type=int, default=8, help="random sequences of the induction score"
    )
    parser.add_argument(
        "--length", type=int, default=50, help="tokens of a random sequence before it is repeated"
    )
    parser.add_argument("--out", help="run directory of the sweep; an interrupted sweep goes on")
    options = parser.parse_args()
    model = al.load_model("smollm2-135m-instruct", device="cpu")
    score, previous = attention_scores(model, options.sequences, options.length)
    pairs = al.load_pairs("induction-pairs", limit=options.limit)
    chosen: dict[str, Any] = {
        "controls": options.controls,
        "out": options.out,
        "resume": bool(options.out),
    }
    sweep = al.patch_sweep(model, pairs, by="head", site="z", seed=SEED, **chosen)
    effects, grid = sweep.effects.numpy(), sweep.grid()
    effect, size = effects.mean(0), np.abs(effects.mean(0))
    groups = sweep.to_xarray()["group"].to_numpy()
    by_effect, by_score = top(size), top(score)

    def agreement(mean: Array) -> float:
        return spearman(np.abs(mean), score)

    low, high = interval(agreement, effects, groups)
    print(f"{len(effects)} pairs in {len(np.unique(groups))} groups, {size.size} heads")
    print(
        f"Spearman of |effect| and score: {agreement(effect):+.2f}, 95 % interval over groups"
        f" [{low:+.2f}, {high:+.2f}]"
    )
    p_all, p_layer = (p_value(size, score, within_layers=within) for within in (False, True))
    print(f"permutation p: {p_all:.4f}; heads exchanged within layers: {p_layer:.4f}")
    shared = set(by_effect) & set(by_score)
    chance = float(hypergeom.sf(len(shared) - 1, size.size, TOP, TOP))
    print(
        f"top {TOP} of both: {len(shared)} heads, expected by chance {TOP * TOP / size.size:.2f}, p"
        f" {chance:.1g}\n"
    )
    print(
        "| head | effect | recovered share | rank | induction score | rank | previous-token score |"
        " stands |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    shares = sweep.grid(quantity="recovered_share").values
    ranks = [rankdata(-values).reshape(size.shape).astype(int) for values in (size, score)]
    for head in by_effect + [head for head in by_score if head not in shared]:
        at = divmod(head, size.shape[1])
        patched = f"{effect[at]:+.2f} | {shares[at]:+.2f} | {ranks[0][at]}"
        attended = f"{score[at]:.2f} | {ranks[1][at]} | {previous[at]:.2f}"
        print(
            f"| {at[0]}.{at[1]} | {patched} | {attended} | {'yes' if grid.stands[at] else 'no'} |"
        )


if __name__ == "__main__":
    main()
