"""Entries of truth probes and text baselines in ``run.json`` and ``examples.parquet``."""

import math
from collections.abc import Mapping

from anchorlens.probing.cross_fitting import CrossFittedProbes
from anchorlens.probing.text_baseline import TextBaseline
from anchorlens.probing.truth_rows import TruthRows


def probe_record(
    probes: CrossFittedProbes | None, texts: Mapping[str, TextBaseline]
) -> dict[str, object]:
    """Return k* and that of each split, the mean validation AUC of every layer, and the AUCs of
    text baselines.
    """
    aucs: dict[str, float | None] = {}
    for layer, auc in ({} if probes is None else probes.validation_auc).items():
        aucs[str(layer)] = None if math.isnan(auc) else float(auc)
    record: dict[str, object] = {
        "probe_layer": None if probes is None else probes.probe_layer,
        "probe_layers": [] if probes is None else list(probes.probe_layers),
        "validation_auc": aucs,
    }
    for name, text in texts.items():
        record[name] = {"auc": text.auc, "ci_low": text.ci_low, "ci_high": text.ci_high}
    return record


def row_columns(
    truth: TruthRows, texts: Mapping[str, TextBaseline]
) -> Mapping[str, Mapping[str, float]]:
    """Return the columns of test rows as name -> row id -> value.

    ``test_split``: index of the split in which the row is tested. ``qa_text_score``: P(false) by
    the classifier of question and answer text.
    """
    ids = [row.id for row in truth.rows]
    splits = zip(ids, truth.test_split, strict=True)
    columns: dict[str, Mapping[str, float]] = {
        "test_split": {name: split for name, split in splits if split is not None}
    }
    if "qa_text_auc" in texts:
        scores = zip(ids, texts["qa_text_auc"].scores.tolist(), strict=True)
        columns["qa_text_score"] = {name: score for name, score in scores if not math.isnan(score)}
    return columns
