"""Entries of truth probes and text baselines in ``run.json`` and ``examples.parquet``."""

from collections.abc import Mapping

from anchorlens.probing.probes import LayerProbes
from anchorlens.probing.text_baseline import TextBaseline
from anchorlens.probing.truth_rows import TruthRows


def probe_record(probes: LayerProbes | None, texts: Mapping[str, TextBaseline]) -> dict[str, object]:
    """Return k* and its bootstrap draws, the validation AUC of every layer, and the AUCs of text baselines."""
    aucs = {} if probes is None else {str(k): probe.validation_auc_ for k, probe in probes.probes.items()}
    return {
        "probe_layer": None if probes is None else probes.probe_layer,
        "probe_layer_over_seeds": [] if probes is None else list(probes.probe_layer_over_seeds),
        "validation_auc": {layer: None if auc != auc else float(auc) for layer, auc in aucs.items()},
        **{name: {"auc": text.auc, "ci_low": text.ci_low, "ci_high": text.ci_high} for name, text in texts.items()},
    }


def text_scores(truth: TruthRows | None, texts: Mapping[str, TextBaseline]) -> dict[str, float]:
    """Return row id -> P(false) of the test rows, by the classifier of question and answer text."""
    if truth is None or "qa_text_auc" not in texts:
        return {}
    scores = zip(truth.rows, texts["qa_text_auc"].scores.tolist(), strict=True)
    return {row.id: score for row, score in scores if score == score}
