"""Estimate how often the verdict of a swap names a layer without an effect, and how often it finds an effect.

    python benchmarks/null_rates_swap.py                   400 sweeps of each kind and size
    python benchmarks/null_rates_swap.py --runs 1000 --sizes 12,20,40,100

Simulated sweeps without a model: samples of two anchors and their nulls at 30 layers. ΔP is drawn with a correlation of 0.8 between
neighbouring layers. The script counts the layers that the verdict names (``layers_off_null``). Kinds of sweeps:

- ``normal``: curve and null are noise of the same size (sd 10 points).
- ``uneven``: the size differs between questions (log-normal), the same for curve and null of a question.
- ``shared level``: every question has its own level far below 0, shared by curve and null. This is an effect that is not specific
  to the anchor.
- ``rare``: one cell in eight loses 50 to 90 points, the others stay near 0; the same for curve and null.
- ``effect``: ``normal``, and the first anchor loses a further 8 points at layers 10-19. A named layer is right if it is one of these
  ten, else wrong.

``names any layer`` is the share of sweeps in which a layer is named; ``wrong`` the share in which a layer without an effect is
named.
"""

import argparse

import numpy as np
import pandas as pd

from anchorlens.protocols.registry import analysis_of
from anchorlens.protocols.swap.findings import layers_off_null
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import SAMPLE_COLUMNS, SLOT_TYPES

ANCHORS, LAYERS = ("exact_question", "pre_answer"), 30
EFFECT, HOLDS = -8.0, range(10, 20)
KINDS = ("normal", "uneven", "shared level", "rare", "effect")


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
    """Return the shares of sweeps that name any layer, a wrong one (no effect), and a right one (effect)."""
    any_, wrong, right = 0, 0, 0
    for seed in range(runs):
        found = {anchor: set(layers) for anchor, layers in layers_off_null(simulated(kind, questions, seed, n_resamples)).items()}
        true = set(HOLDS) if kind == "effect" else set()
        any_ += any(found.values())
        wrong += bool(found["exact_question"] - true or found["pre_answer"])
        right += bool(found["exact_question"] & true)
    return {"any": any_ / runs, "wrong": wrong / runs, "right": right / runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400, help="sweeps per kind and size (default: 400)")
    parser.add_argument("--sizes", default="20,40,100", help="numbers of questions (default: 20,40,100)")
    args = parser.parse_args()
    print(f"| sweep | questions | names any layer | wrong | right |   {args.runs} sweeps each")
    print("| --- | --- | --- | --- | --- |")
    for kind in KINDS:
        for questions in map(int, args.sizes.split(",")):
            found = rates(kind, questions, args.runs)
            right = f"{found['right']:.3f}" if kind == "effect" else "-"
            print(f"| {kind} | {questions} | {found['any']:.3f} | {found['wrong']:.3f} | {right} |", flush=True)


if __name__ == "__main__":
    main()
