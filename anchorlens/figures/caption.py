"""Title, line of facts and caption of the figure."""

from html import escape

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM, SETTINGS
from anchorlens.figures.controls import control_labels
from anchorlens.figures.hover import FEW, WEAK, metric_labels
from anchorlens.figures.labels import CURVE, PATHWAYS, anchor_rank, words_of
from anchorlens.figures.palette import display_dataset
from anchorlens.figures.traces import SIMULTANEOUS
from anchorlens.statistics.bands import is_concentrated

_PROTOCOLS = {"swap": "activation swap", "knockout": "attention knockout"}
_READOUTS = {
    "first_token": "P of the answer's first token", "answer_mean": "P per token of the answer",
    "answer_joint": "P of the whole answer", "probe": "P by a truth probe", "p_true": "P(True)",
}  # fmt: skip
_MODES = {"mask": "attention masked before the softmax", "zero": "attention weights set to 0"}
_DELTAS = {"signed": "ΔP of P itself", "true_label": "ΔP of P of the true label"}


def headline(table: pd.DataFrame) -> str:
    """Return the default title, such as ``ΔP by layer: activation swap``."""
    name = metric_labels(table).name
    return escape(f"{name[0].upper()}{name[1:]} by layer: {' and '.join(_protocols(table))}", quote=False)


def main_facts(table: pd.DataFrame) -> list[str]:
    """Return the parts of the line below the title: questions, P before, and what P is."""
    curves = table[table["control"] == "none"]
    before = curves.groupby(CURVE, sort=False)["p_before"].mean().dropna()
    facts = [_count(curves), f"P before {_range(before, '.2f')}" if len(before) else ""]
    return [part for part in (*facts, ", ".join(_READOUTS.get(name, name) for name in _values(curves, "readout"))) if part]


def caption(table: pd.DataFrame, contrast_tables: pd.DataFrame, band: str) -> str:
    """Return the caption: quantity, settings, bands, controls, contrasts, marks and text classifiers, as sentences."""
    curves = table[table["control"] == "none"]
    labels = metric_labels(table)
    parts = [f"{labels.explanation or labels.name} by layer. {'; '.join(main_facts(table))}"]
    parts += [_settings(str(protocol), rows) for protocol, rows in curves.groupby("protocol", sort=False)]
    if curves["pathway"].isin(PATHWAYS).any():
        parts.append("Q-Anchored: rows whose prediction flips; A-Anchored: the others. This split alone draws Q below A")
    parts += [_describe_band(curves, band), _describe_controls(table), *_describe_contrasts(contrast_tables)]
    floor = float(curves["noise_floor"].max())
    notes = {
        "×: no signal of the probe (the interval of its AUC reaches 0.5)": (curves["no_signal"] & curves["effect"].notna()).any(),
        "Asterisk: value fixed by construction": curves["by_construction"].any(),
        "+: measured layer; the line bridges the others": any(
            own["layer"].sort_values().diff().max() > 1 for _, own in curves.groupby(CURVE)
        ),
        f"Shaded around 0: noise floor (±{floor:.1g})": floor > 0,
        f"Some points have fewer than {FEW} questions: interpret with care": (curves["n"] < FEW).any(),
        "In most rows a null has fewer positions than its anchor": (table["frac_null_incomplete"] > WEAK).any(),
    }
    parts += [note for note, holds in notes.items() if holds] + _describe_text_aucs(curves)
    return " ".join(f"{part}." for part in parts if part)


def _protocols(table: pd.DataFrame) -> list[str]:
    return [_PROTOCOLS.get(name, name.replace("_", " ")) for name in _values(table, "protocol")]


def _values(rows: pd.DataFrame, column: str) -> list[str]:
    return [str(value) for value in rows[column].unique() if value != ""]


def _count(curves: pd.DataFrame) -> str:
    n = curves.loc[curves["effect"].notna(), "n"].dropna()
    return f"{_range(n, '.0f')} questions" if len(n) else ""


def _range(values: pd.Series, style: str) -> str:
    low, high = format(values.min(), style), format(values.max(), style)
    return low if low == high else f"{low}–{high}"


def _settings(protocol: str, rows: pd.DataFrame) -> str:
    """Return a sentence such as ``Attention knockout: attention masked before the softmax; prompt qa; given answers``."""
    anchors = sorted(_values(rows, "anchor"), key=anchor_rank)
    parts = [f"anchor{'s' if len(anchors) > 1 else ''} {', '.join(anchors)}"]
    parts += [f"donors: {name}" for name in _values(rows, "donor_rule")]
    parts += [_MODES.get(name, name) for name in _values(rows, "knockout_mode")]
    parts += [name for name in _values(rows, "direction") if name != "noising"]
    parts += [f"site {name}" for name in _values(rows, "site") if protocol != "swap" or name != "resid_pre"]
    parts += [f"probe at {name}" for name in _values(rows, "probe_site") if name != "resid_post"]
    windows = sorted({int(value) for value in rows["window"].dropna()})
    if max(windows, default=0) > (protocol == "swap"):
        parts.append(f"windows of {', '.join(map(str, windows))} layers")
    if _values(rows, "readout") in (["probe"], ["p_true"]):
        parts += [_DELTAS[name] for name in _values(rows, "delta_kind") if name in _DELTAS]
    for name in SETTINGS:
        if rows[name].nunique() == 1 or rows["part"].nunique() > 1:
            parts += [words_of(name, value) for value in _values(rows, name)]
    (kind,) = _protocols(rows)
    return f"{kind[0].upper()}{kind[1:]}: {'; '.join(parts)}"


def _describe_band(curves: pd.DataFrame, band: str) -> str:
    if not band or curves[f"{band}_low"].isna().all():
        return ""
    which = "simultaneous over all layers" if band == SIMULTANEOUS else "pointwise, for a layer chosen beforehand"
    text = f"Bands: 95 %, {which} (bootstrap over questions; none below {MIN_QUESTIONS_FOR_CLAIM} questions)"
    own = curves[curves["control"] == "none"]
    if band != SIMULTANEOUS or not is_concentrated(own["n_effective"], own["n"]).any():
        return text
    return f"{text}. Where few questions carry the effect (hover), they allow for an unseen question at the end of the scale"


def _describe_controls(table: pd.DataFrame) -> str:
    named = [control_labels(name) for name in _values(table, "control") if name != "none"]
    texts = [f"{one.name}{one.explanation and f', {one.explanation}'}" for one in named]
    split = "; with pathways, split in the same way" if table["pathway"].isin(PATHWAYS).any() else ""
    return f"Dotted: {'; '.join(texts)}{split}" if texts else ""


def _describe_contrasts(contrast_tables: pd.DataFrame) -> list[str]:
    if contrast_tables.empty:
        return []
    parts = ["Lower panels: difference from the control, paired by row"]
    if not contrast_tables["has_findings"].any():
        return [*parts, "The results are tables without findings, so nothing is marked as a claim"]
    claims = {
        "Filled marks: layers of the findings' claims about the quantity": contrast_tables["claimed"].any(),
        "Shaded (of several data sets: strips in the colours of Q-Anchored): layers at which all contrasts stand": contrast_tables[
            "shaded"
        ].any(),
    }
    found = [text for text, holds in claims.items() if holds]
    return [*parts, *(found or ["The findings claim no layer, so nothing is marked"])]


def _describe_text_aucs(curves: pd.DataFrame) -> list[str]:
    texts: list[str] = []
    for name, rows in curves.dropna(subset=["qa_text_auc"]).groupby("dataset", sort=False):
        known = rows.drop_duplicates("qa_text_auc")
        above = [" (above 0.5)" if low > 0.5 else "" for low in known["qa_text_auc_low"]]
        values = ", ".join(f"{value:.2f}{note}" for value, note in zip(known["qa_text_auc"], above, strict=True))
        texts.append(f"{display_dataset(str(name))} {values}")
    return [f"AUC of a classifier of the text alone: {', '.join(texts)}"] if texts else []
