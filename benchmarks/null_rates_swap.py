"""Estimate how often the findings of a swap name a layer without an effect, and how often they find an effect.

    python benchmarks/null_rates_swap.py                   400 sweeps of each kind and size
    python benchmarks/null_rates_swap.py --runs 1000 --sizes 12,20,40,100

Simulated sweeps without a model: samples of two anchors and their nulls at 30 layers. ΔP is drawn with a correlation of 0.8 between
neighbouring layers. The script counts the layers of the findings. Kinds of sweeps:

- ``normal``: curve and null are noise of the same size (sd 10 points).
- ``uneven``: the size differs between questions (log-normal), the same for curve and null of a question.
- ``shared level``: every question has its own level far below 0, shared by curve and null. This is an effect that is not specific
  to the anchor.
- ``rare``: one cell in eight loses 50 to 90 points, the others stay near 0; the same for curve and null.
- ``curve sparse``: curve and null have the same mean, -9 points; the curve loses 60 points in 15 % of the cells, the null 9 in all.
- ``null sparse``: the same with the roles of curve and null exchanged, and 5 % of the cells (-3 points).
- ``null falls``: the curve is noise around -1 point, the null loses 15 points: the null moves, and the swap must not be named.
- ``effect``: ``normal``, and the first anchor loses a further 8 points at layers 10-19. A named layer is right if it is one of these
  ten, else wrong.

``swap`` and ``null`` are the shares of sweeps in which a layer is named for the swap (``stands``) and for the null (``null_moves``);
``wrong``: the share in which the swap is named at a layer without an effect; ``wrong layers``: the share of such layers.
"""

import argparse

import numpy as np
import pandas as pd
from scipy import stats

from anchorlens.protocols.registry import analysis_of
from anchorlens.protocols.swap.findings import NULL_MOVES
from anchorlens.results.findings import STANDS
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import SAMPLE_COLUMNS, SLOT_TYPES

ANCHORS, LAYERS = ("exact_question", "pre_answer"), 30
EFFECT, HOLDS = -8.0, range(10, 20)
KINDS = ("normal", "uneven", "shared level", "rare", "curve sparse", "null sparse", "null falls", "effect")


def noise(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw unit normal noise with correlation 0.8 between neighbours along the last axis."""
    steps = rng.normal(size=shape)
    out = np.empty(shape)
    out[..., 0] = steps[..., 0]
    for layer in range(1, shape[-1]):
        out[..., layer] = 0.8 * out[..., layer - 1] + 0.6 * steps[..., layer]
    return out


def simulated(kind: str, questions: int, seed: int, n_resamples: int = 1000) -> SweepResult:
    """Make a sweep with random ΔP; only the columns that curves and verdicts use are filled in."""
    rng = np.random.default_rng([seed, questions, *kind.encode()])
    # [anchor, curve or null, question, layer]
    delta = 10 * noise(rng, len(ANCHORS), 2, questions, LAYERS)
    if kind == "uneven":
        delta *= rng.lognormal(sigma=0.75, size=(questions, 1))
    elif kind == "shared level":
        delta += rng.normal(-30, 15, size=(questions, 1))
    elif kind == "rare":
        falls = noise(rng, len(ANCHORS), 2, questions, LAYERS) > 1.15
        delta = delta / 20 - falls * rng.uniform(50, 90, size=(questions, 1))
    elif kind in ("curve sparse", "null sparse"):
        far, share = (0, 0.15) if kind == "curve sparse" else (1, 0.05)
        falls = delta[:, far] / 10 < stats.norm.ppf(share)
        delta[:, far] = -60 * falls * rng.uniform(0.8, 1.2, size=(questions, 1))
        delta[:, 1 - far] = -60 * share + delta[:, 1 - far] / 10
    elif kind == "null falls":
        delta += np.array([-1.0, -15.0])[:, None, None]
    elif kind == "effect":
        delta[0, 0, :, HOLDS.start : HOLDS.stop] += EFFECT
    index = pd.MultiIndex.from_product(
        [ANCHORS, ("none", "null"), [f"q{i:03d}" for i in range(questions)], range(LAYERS)],
        names=["anchor", "control", "example_id", "layer"],
    )
    same = {
        "model": "none", "dataset": kind, "protocol": "swap", "readout": "first_token", "delta_kind": "probability", "donor_id": "d",
        "metric": "p", "value_before": 0.7, "by_construction": False, "seed": 0, "n_patched": 3, "n_null_patched": 3,
        "pre_answer_token_differs": False,
    }  # fmt: skip
    own = index.to_frame(index=False).assign(question_id=lambda frame: frame["example_id"], effect=delta.ravel(), **same)
    samples = own.assign(**{name: None for name in SAMPLE_COLUMNS if name not in own.columns}).astype(SLOT_TYPES)
    examples = pd.DataFrame({"role": "base", "example_id": samples["example_id"].unique()})
    config = {
        "anchors": ANCHORS, "layers": list(range(LAYERS)), "readout": "first_token", "delta_kind": "probability", "n_null_donors": 1,
        "n_resamples": n_resamples, "seed": 0,
    }  # fmt: skip
    record = {"config": config, "noise": {"floor": 1e-4}, "model": {"name": "none"}, "data": {"name": kind}, "counts": {}}
    analysis = analysis_of("swap")
    return analysis.result.make(analysis, samples, examples, record, "simulated")


def rates(kind: str, questions: int, runs: int, n_resamples: int = 1000) -> dict[str, float]:
    """Return the shares of sweeps that name the swap, its null, a wrong layer (no effect), and a right one (effect)."""
    count = dict.fromkeys(("swap", "null", "wrong", "wrong layers", "right"), 0.0)
    true = {("exact_question", layer) for layer in HOLDS} if kind == "effect" else set()
    for seed in range(runs):
        statements = simulated(kind, questions, seed, n_resamples).findings.statements
        swap, null = (
            {(one.anchor, k) for one in statements if one.status == status for k in one.layers} for status in (STANDS, NULL_MOVES)
        )
        count["swap"] += bool(swap)
        count["null"] += bool(null)
        count["wrong"] += bool(swap - true)
        count["wrong layers"] += len(swap - true) / (len(ANCHORS) * LAYERS - len(true))
        count["right"] += bool(swap & true)
    return {name: number / runs for name, number in count.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400, help="sweeps per kind and size (default: 400)")
    parser.add_argument("--sizes", default="10,20,40,100", help="numbers of questions (default: 10,20,40,100)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of sweeps, separated by commas (default: all)")
    args = parser.parse_args()
    print("| sweep | questions | swap | null | wrong | wrong layers | right |\n| --- | --- |" + " --- |" * 5)
    for kind in args.kinds.split(","):
        for questions in map(int, args.sizes.split(",")):
            found = rates(kind, questions, args.runs)
            right = f"{found['right']:.3f}" if kind == "effect" else "-"
            shares = " | ".join(f"{found[name]:.3f}" for name in ("swap", "null", "wrong"))
            print(f"| {kind} | {questions} | {shares} | {found['wrong layers']:.4f} | {right} |", flush=True)


if __name__ == "__main__":
    main()
