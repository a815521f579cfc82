"""Entries of ``run.json`` and of ``examples.parquet`` on truth probes and text baselines."""

from collections.abc import Mapping

from anchorlens.probing.probes import LayerProbes
from anchorlens.probing.text_baseline import TextBaseline
from anchorlens.probing.truth_rows import TruthRows


def probe_record(probes: LayerProbes | None, texts: Mapping[str, TextBaseline]) -> dict[str, object]:
    """Return k* and its stability, the validation AUC of every layer, and the AUCs of text baselines."""
    aucs = {} if probes is None else {str(k): probe.validation_auc_ for k, probe in probes.probes.items()}
    return {
        "probe_layer": None if probes is None else probes.probe_layer,
        "probe_layer_over_seeds": [] if probes is None else list(probes.probe_layer_over_seeds),
        "validation_auc": {layer: None if auc != auc else float(auc) for layer, auc in aucs.items()},
        **{name: {"auc": one.auc, "ci_low": one.ci_low, "ci_high": one.ci_high} for name, one in texts.items()},
    }


def text_scores(truth: TruthRows | None, texts: Mapping[str, TextBaseline]) -> dict[str, float]:
    """Return row id -> P(false) by the classifier of question and answer as text; of test rows."""
    if truth is None or "qa_text_auc" not in texts:
        return {}
    scores = zip(truth.rows, texts["qa_text_auc"].scores.tolist(), strict=True)
    return {row.id: score for row, score in scores if score == score}
