"""Simulated sweeps of a swap, changed in one respect: no model."""

import runpy
import sys
from pathlib import Path

import numpy as np

from anchorlens.protocols.swap.analysis import ANALYSIS
from tests.protocols.sweeps import check_statements

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))  # the script imports its worlds
SIMULATION = runpy.run_path(str(ROOT / "benchmarks" / "null_rates_swap.py"))
simulated, false_rates, power = (SIMULATION[name] for name in ("simulated", "false_rates", "power"))
NULLS = ("same_role", "norm_matched")


def changed(result, samples=None, anchors=None, noise=None, examples=None, **config):
    """The same sweep with other samples or settings."""
    record = {**result.record, "config": {**result.record["config"], **config}}
    record["config"]["anchors"] = anchors or record["config"]["anchors"]
    record["noise"] = {"floor": result.noise_floor if noise is None else noise}
    frame = result.samples(all_columns=True) if samples is None else samples
    inputs = result.examples(all_columns=True) if examples is None else examples
    return ANALYSIS.result.make(ANALYSIS, frame, inputs, record, result.run_id)


def statements(result):
    """Anchor, null and status -> layers of the statements, as they agree with the contrasts."""
    return {
        (one.anchor, one.control, one.status): set(one.layers)
        for one in check_statements(result).statements
    }


def shifted(result, *shifts, anchor="pre_answer"):
    """Samples of an anchor whose delta_p is moved: (layers, controls, points)."""
    moved = result.samples(all_columns=True)
    for layers, controls, points in shifts:
        here = (
            (moved["anchor"] == anchor)
            & moved["layer"].isin(layers)
            & moved["control"].isin(controls)
        )
        moved.loc[here, "effect"] += points
    return moved


def in_relations(result, sizes):
    """The same sweep with relations of these sizes."""
    questions = sorted(result.samples(all_columns=True)["question_id"].unique())
    names = [f"r{i}" for i, size in enumerate(sizes) for _ in range(size)]
    of = dict(zip(questions, names, strict=True))
    frame = result.samples(all_columns=True)
    return changed(result, frame.assign(cluster=frame["question_id"].map(of)))


def donor_values(result, swap, null, base=0.01):
    """The same sweep with P of the donor's answer after the swap and after norm_matched, at layers
    10 to 19 of the first anchor.
    """
    frame = result.samples(all_columns=True)
    rng = np.random.default_rng(0)
    noise = rng.uniform(-0.01, 0.01, len(frame))
    after = np.full(len(frame), base) + noise
    here = frame.eval("anchor == 'exact_question' and 10 <= layer < 20").to_numpy()
    after[here & (frame["control"] == "none").to_numpy()] += swap
    after[here & (frame["control"] == "norm_matched").to_numpy()] += null
    columns = {
        "donor_p_before": base,
        "donor_p_after": after.clip(0, 1),
        "donor_logit_before": 0.0,
        "donor_logit_after": 0.0,
        "donor_is_top_before": 0.0,
        "donor_is_top_after": (after > 0.2).astype(float),
        "logit_diff_before": 3.0,
        "logit_diff_after": 3.0 + frame["effect"] / 10,
    }
    return changed(result, frame.assign(**columns))
