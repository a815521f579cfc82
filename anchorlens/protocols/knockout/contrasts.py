"""What a knockout compares: E_Q's cut with the placebo's, paired by row, and the numbers at one layer."""

import numpy as np
import pandas as pd

from anchorlens.protocols.probe_sweep.pathway_result import PathwayResult, auc_frames, pathway_numbers
from anchorlens.runs.schema import P
from anchorlens.statistics.contrasts import Estimate
from anchorlens.statistics.pathways import CROSS_FOLD, MATCHED, RANDOM, SHUFFLED, gaps, quantity_frame


def cut_contrasts(result: PathwayResult) -> pd.DataFrame:
    """What is claimed (``delta_all``, ``flip_rate``, ``auc_drop``, ``own_change``), AUCs, and gaps as description."""
    found: list[tuple[str, str, Estimate]] = []
    tables = result.tables()
    if RANDOM in tables:
        found += [(name, RANDOM, result.contrast(name, MATCHED, RANDOM)) for name in ("delta_all", "flip_rate", "auc_drop")]
    if result.record["config"]["readout"] == "probe":  # log-odds of another reader do not add up
        found += [("own_change", name, result.own_change(name)) for name in (MATCHED, RANDOM) if name in tables]
    found += gaps(result.groups())
    frames = [quantity_frame(result.layers, *one, rate=one[0] == "flip_rate") for one in found]
    return pd.concat([*frames, *auc_frames(result)], ignore_index=True).assign(anchor=result.anchors[0])


def pathway_summary(result: PathwayResult) -> pd.DataFrame:
    """Return one row, at k* (the last layer for ``p_true``): AUCs, text baselines, contrasts with intervals, then the pathways."""
    aucs = {"auc": ("auc", "none"), "auc_cut": ("auc_knocked_out", MATCHED), "auc_placebo": ("auc_knocked_out", RANDOM)}
    gap_keys = {
        "gap": ("gap", "none"), "gap_matched": ("gap", MATCHED), f"gap_{RANDOM}": ("placebo_gap", RANDOM),
        f"gap_{SHUFFLED}": ("placebo_gap", SHUFFLED), f"gap_{CROSS_FOLD}": ("cross_fold_gap", CROSS_FOLD),
    }  # fmt: skip
    contrasts = {
        "delta_all": ("delta_all", RANDOM), "flip_rate": ("flip_rate", RANDOM), "auc_drop": ("auc_drop", RANDOM),
        "own_change": ("own_change", MATCHED),
    }  # fmt: skip
    record = pathway_numbers(result, aucs | gap_keys, contrasts, {("", ""): (P, "none")})
    pair = result.pair_text
    record |= {"text_only_auc": result.text_only["auc"], "pair_text_auc": np.nan if pair is None else pair["auc"]}
    return pd.DataFrame([record])
