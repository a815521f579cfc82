"""What token patching compares: the patch with the control, paired by row over all measured rows (METHOD 5).

No group is chosen by the outcome, so ``delta_all`` and ``flip_rate`` are free of selection. The pathways are not: they are split by
a flip of the same clean P that ΔP starts from, so their gap is description.
"""

import numpy as np
import pandas as pd

from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult, auc_frames, pathway_numbers
from anchorlens.runs.schema import FLIP, P
from anchorlens.statistics.bands import Band
from anchorlens.statistics.contrasts import Estimate, mean_of
from anchorlens.statistics.pathways import MATCHED, RANDOM, band_frame, gaps, quantity_frame


def patch_contrasts(result: PathwayResult) -> pd.DataFrame:
    """At each layer what is claimed, and what describes it.

    Returns:
        ``delta_all`` and ``flip_rate`` (``matched`` less ``random_tokens``, in points); the levels ``flip_rate_patched`` (control
        ``none``: all of E_Q; ``matched``) and ``flip_rate_random``; ``gap`` (Q less A, control ``none`` and ``matched``) and
        ``placebo_gap``; ``auc`` of the clean probe, over all test rows where the measured ones have one label, else with
        ``auc_knocked_out`` under every control.
    """
    p, flips = result.tables(), result.tables(FLIP)
    found: list[tuple[str, str, Estimate]] = []
    if RANDOM in p:
        # Flips were averaged over donors, each counted on its own: they cannot be taken from the mean P.
        found += [
            (name, RANDOM, mean_of(tables[MATCHED].delta - tables[RANDOM].delta, result.draws))
            for name, tables in (("delta_all", p), ("flip_rate", flips))
        ]
    for control, table in flips.items():
        name = "flip_rate_random" if control == RANDOM else "flip_rate_patched"
        found.append((name, control, mean_of(table.delta, result.draws)))
    found += [one for one in gaps(result.groups()) if one[0] != "gap_difference"]
    frames = [quantity_frame(result.layers, *one, rate=one[0] == "flip_rate") for one in found]
    frames += auc_frames(result) if len(set(result.labels)) == 2 else [_test_auc(result)]
    return pd.concat(frames, ignore_index=True).assign(anchor=result.anchors[0])


def _test_auc(result: PathwayResult) -> pd.DataFrame:
    """AUC of the clean probe over all test rows, as the record has it."""
    said = result.record["probe"]["test_auc"]
    rows = [[np.nan if v is None else v for v in said["layers"][str(layer)]] for layer in result.layers]
    # A run of version 4 has no bands over all layers.
    ends = np.array([[*row, *[np.nan] * (5 - len(row))] for row in rows], dtype=np.float64).T
    value, low, high, sim_low, sim_high = ends
    n = np.full(len(rows), int(said["questions"]), dtype=np.int64)
    return band_frame(result.layers, "auc", "none", Band(value, low, high, sim_low, sim_high, n))


def patch_summary(result: PathwayResult) -> pd.DataFrame:
    """Return one row: at k* AUC, contrasts with intervals, then ΔP and share of flips (%) by pathway under patch and control."""
    means = {
        (prefix, suffix): (metric, control)
        for metric, prefix in ((P, ""), (FLIP, "flips_"))
        for control, suffix in (("none", ""), (RANDOM, f"_{RANDOM}"))
    }
    contrasts = {name: (name, RANDOM) for name in ("delta_all", "flip_rate")}
    return pd.DataFrame([pathway_numbers(result, {"auc": ("auc", "none")}, contrasts, means)])
