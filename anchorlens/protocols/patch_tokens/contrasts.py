"""What token patching compares: the patch with the control, paired by row over all measured rows (METHOD 5).

No group is chosen by the outcome, so ``delta_all`` and ``flip_rate`` are free of selection. The pathways are not: they are split by
a flip of the same clean P that ΔP starts from, so their gap is description.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.protocols.knockout.cut_tokens import RANDOM
from anchorlens.results.pathways import PathwayResult
from anchorlens.runs.schema import FLIP
from anchorlens.statistics.pathways import ALL, MATCHED, A, Q, effects_frame, quantity_frame
from anchorlens.statistics.resamples import Resamples

Array = npt.NDArray[np.float64]
_GROUPS = ((Q, "q"), (A, "a"), (ALL, "all"))


def paired(layers: Sequence[int], quantity: str, own: Array, other: Array, draws: Resamples) -> pd.DataFrame:
    """Mean difference over the rows that have both, at each layer, with its percentile interval.

    Args:
        layers: Layers.
        quantity: Its name.
        own: [layer row]; NaN where there is none.
        other: What it is compared with, [layer row].
        draws: Resamples over the questions of the rows.
    """
    gap = own - other
    mean, many, n = draws.means(gap.T, ~np.isnan(gap).T)
    return quantity_frame(layers, quantity, RANDOM, mean, many, n)


def patch_contrasts(result: PathwayResult) -> pd.DataFrame:
    """At each layer what is claimed, and what describes it.

    Returns:
        ``delta_all`` and ``flip_rate`` (``matched`` less ``random_tokens``, in points); the levels ``flip_rate_patched`` (control
        ``none``: all of E_Q; ``matched``) and ``flip_rate_random``; ``gap`` (Q less A, control ``none`` and ``matched``) and
        ``placebo_gap``; ``auc`` of the clean probe, over all test rows where the measured ones have one label, else with
        ``auc_knocked_out`` under every control.
    """
    draws, p, flips = result.draws, result.tables(), result.tables(FLIP)
    frames: list[pd.DataFrame] = []
    if RANDOM in p:
        frames.append(paired(result.layers, "delta_all", p[MATCHED].delta, p[RANDOM].delta, draws))
        frames.append(paired(result.layers, "flip_rate", flips[MATCHED].delta, flips[RANDOM].delta, draws))
    for control, table in flips.items():
        name = "flip_rate_random" if control == RANDOM else "flip_rate_patched"
        mean, many, n = draws.means(table.delta.T, ~np.isnan(table.delta).T)
        frames.append(quantity_frame(result.layers, name, control, mean, many, n))
    gaps = effects_frame(result.groups(), result.layers)
    frames.append(gaps[gaps["quantity"] != "effect"])
    frames += result.auc_frames() if len(set(result.labels)) == 2 else [_test_auc(result)]
    return result.named(frames)


def _test_auc(result: PathwayResult) -> pd.DataFrame:
    """AUC of the clean probe over all test rows, as the record has it."""
    said = result.record["probe"]["test_auc"]
    rows = [[np.nan if v is None else v for v in said["layers"][str(layer)]] for layer in result.layers]
    value, low, high = np.array(rows, dtype=np.float64).T
    columns = {"layer": list(result.layers), "quantity": "auc", "control": "none", "value": value}
    return pd.DataFrame({**columns, "ci_low": low, "ci_high": high, "n": int(said["questions"])})


def patch_summary(result: PathwayResult) -> pd.DataFrame:
    """One row: at k* AUC, contrasts with intervals, then ΔP and share of flips (%) of Q, A and All under patch and control."""
    layer = result.shown_layer
    at, effects = result.layers.index(layer), result.effects()
    here = effects[effects["layer"] == layer].set_index(["quantity", "control"])
    values = here[["value", "ci_low", "ci_high"]]
    both = {"p": result.groups(), FLIP: result.groups(FLIP)}
    record: dict[str, Any] = {"model": result.model, "dataset": result.dataset, "layer": layer}
    record["auc"] = values.loc[("auc", "none"), "value"]
    record |= {f"n_{short}": int(both["p"]["none"][name].n[at]) for name, short in _GROUPS}
    for quantity in ("delta_all", "flip_rate"):
        there = (quantity, RANDOM) in values.index
        fact = values.loc[(quantity, RANDOM)].tolist() if there else [np.nan] * 3
        record |= dict(zip((quantity, f"{quantity}_low", f"{quantity}_high"), fact, strict=True))
    for quantity, prefix in (("p", ""), (FLIP, "flips_")):
        for control, suffix in (("none", ""), (RANDOM, f"_{RANDOM}")):
            found = both[quantity].get(control)
            for name, group in _GROUPS:
                record[f"{prefix}{group}{suffix}"] = np.nan if found is None else float(found[name].mean[at])
    return pd.DataFrame([record])


__all__ = ["paired", "patch_contrasts", "patch_summary"]
