"""Entries of truth probes and text baselines in ``run.json`` and ``examples.parquet``."""

from collections.abc import Mapping

from anchorlens.probing.cross_fitting import CrossFittedProbes
from anchorlens.probing.text_baseline import TextBaseline
from anchorlens.probing.truth_rows import TruthRows


def probe_record(probes: CrossFittedProbes | None, texts: Mapping[str, TextBaseline]) -> dict[str, object]:
    """Return k* and that of each split, the mean validation AUC of every layer, and the AUCs of text baselines."""
    aucs = {} if probes is None else {str(k): auc for k, auc in probes.validation_auc.items()}
    return {
        "probe_layer": None if probes is None else probes.probe_layer,
        "probe_layers": [] if probes is None else list(probes.probe_layers),
        "validation_auc": {layer: None if auc != auc else float(auc) for layer, auc in aucs.items()},
        **{name: {"auc": text.auc, "ci_low": text.ci_low, "ci_high": text.ci_high} for name, text in texts.items()},
    }


def row_columns(truth: TruthRows | None, texts: Mapping[str, TextBaseline]) -> Mapping[str, Mapping[str, float]]:
    """Return the columns of test rows as name -> row id -> value.

    ``test_split``: index of the split in which the row is tested. ``qa_text_score``: P(false) by the classifier of question and
    answer text.
    """
    if truth is None:
        return {}
    columns = {"test_split": {row.id: split for row, split in zip(truth.rows, truth.test_split, strict=True) if split is not None}}
    if "qa_text_auc" not in texts:
        return columns
    scores = zip(truth.rows, texts["qa_text_auc"].scores.tolist(), strict=True)
    return columns | {"qa_text_score": {row.id: score for row, score in scores if score == score}}
