"""Title, line of facts and caption of the figure."""

from html import escape

import pandas as pd

from anchorlens.constants import MIN_QUESTIONS_FOR_CLAIM, SETTINGS, P
from anchorlens.figures.labels import CURVE, PATHWAYS, anchor_rank, control_labels, words_of
from anchorlens.figures.palette import display_dataset
from anchorlens.figures.traces import FEW, SIMULTANEOUS, WEAK
from anchorlens.results.quick_look import QUICK_NOTE
from anchorlens.results.vocabulary import RowWords, metric_labels, row_words
from anchorlens.statistics.bands import is_concentrated

_PROTOCOLS = {
    "swap": "activation swap",
    "knockout": "attention knockout",
    "patch": "activation patching",
}
_READOUTS = {
    "first_token": "P of the answer's first token",
    "answer_mean": "P per token of the answer",
    "answer_joint": "P of the whole answer",
    "probe": "P by a truth probe",
    "p_true": "P(True)",
}
_MODES = {"mask": "attention masked before the softmax", "zero": "attention weights set to 0"}
_DELTAS = {"signed": "ΔP of P itself", "true_label": "ΔP of P of the true label"}


def headline(table: pd.DataFrame) -> str:
    """Return the default title, such as ``ΔP by layer: activation swap``."""
    name = metric_labels(table).name
    return escape(
        f"{name[0].upper()}{name[1:]} by layer: {' and '.join(_protocols(table))}", quote=False
    )


def main_facts(table: pd.DataFrame) -> list[str]:
    """Return the parts of the line below the title: number of questions, value before the change,
    and what P is.
    """
    curves = table[table["control"] == "none"]
    before = curves.groupby(CURVE, sort=False)["value_before"].mean().dropna()
    name = metric_labels(table).before
    facts = [QUICK_NOTE] if curves["is_quick"].any() else []
    facts.append(_count(curves))
    if name and len(before):
        facts.append(f"{name} {_range(before, '.2f')}")
    facts.append(
        ", ".join(_READOUTS.get(readout, readout) for readout in _values(curves, "readout"))
    )
    return list(filter(None, facts))


def _words_of(table: pd.DataFrame) -> RowWords:
    """Return the words for the rows of a table, those of its first protocol."""
    return row_words(str(table["protocol"].iloc[0]))


def caption(
    table: pd.DataFrame,
    contrast_tables: pd.DataFrame,
    bands: tuple[str, str],
    *,
    has_controls: bool,
) -> str:
    """Return the caption: quantity, settings, bands of curves and contrasts, controls, marks and
    text classifiers, as sentences.
    """
    curves = table[table["control"] == "none"]
    labels = metric_labels(table)
    words = _words_of(table)
    parts = [f"{labels.explanation or labels.name} by layer. {'; '.join(main_facts(table))}"]
    for protocol, rows in curves.groupby("protocol", sort=False):
        settings = _settings(str(protocol), rows)
        parts.append(settings)
    if curves["pathway"].isin(PATHWAYS).any():
        parts.append(
            "Q-Anchored: rows whose prediction flips; A-Anchored: the others. This split alone"
            " draws Q below A"
        )
    parts += [
        _describe_band(curves, bands),
        _describe_claims(curves),
        _describe_controls(table),
        *_describe_contrasts(contrast_tables, bands),
    ]
    floor = float(curves["noise_floor"].max())
    notes = {
        "×: no signal of the probe (the interval of its AUC reaches 0.5)": (
            has_controls and (curves["no_signal"] & curves["effect"].notna()).any()
        ),
        "Asterisk: value fixed by construction": curves["by_construction"].any(),
        "+: measured layer; the line bridges the others": _skips_layers(curves),
        f"Shaded around 0: noise floor (±{floor:.1g})": floor > 0,
        f"Some points have fewer than {FEW} {words.groups}: interpret with care": (
            (curves["n"] < FEW).any()
        ),
        "In most rows a null has fewer positions than its anchor": (
            (table["frac_null_incomplete"] > WEAK).any()
        ),
    }
    parts += [note for note, holds in notes.items() if holds] + _describe_text_aucs(curves)
    return " ".join(f"{part}." for part in parts if part)


def _protocols(table: pd.DataFrame) -> list[str]:
    return [_PROTOCOLS.get(name, name.replace("_", " ")) for name in _values(table, "protocol")]


def _values(rows: pd.DataFrame, column: str) -> list[str]:
    return [str(value) for value in rows[column].unique() if value != ""]


def _count(curves: pd.DataFrame) -> str:
    n = curves.loc[curves["effect"].notna(), "n"].dropna()
    return f"{_range(n, '.0f')} {_words_of(curves).groups}" if len(n) else ""


def _range(values: pd.Series, style: str) -> str:
    low, high = format(values.min(), style), format(values.max(), style)
    return low if low == high else f"{low}–{high}"


def _skips_layers(curves: pd.DataFrame) -> bool:
    """Return whether a curve lacks a layer between two of its layers."""
    for _, own in curves.groupby(CURVE):
        widest_step = own["layer"].sort_values().diff().max()
        if widest_step > 1:
            return True
    return False


def _settings(protocol: str, rows: pd.DataFrame) -> str:
    """Return a sentence such as ``Attention knockout: attention masked before the softmax; prompt
    qa; given answers``.
    """
    anchors = sorted(_values(rows, "anchor"), key=anchor_rank)
    parts = [f"{row_words(protocol).place}{'s' if len(anchors) > 1 else ''} {', '.join(anchors)}"]
    parts += [f"donors: {name}" for name in _values(rows, "donor_rule")]
    parts += [_MODES.get(name, name) for name in _values(rows, "knockout_mode")]
    for name in _values(rows, "direction"):
        if name != "noising":
            parts.append(name)
    for name in _values(rows, "site"):
        is_usual = protocol == "swap" and name == "resid_pre"
        if not is_usual:
            parts.append(f"site {name}")
    for name in _values(rows, "probe_site"):
        if name != "resid_post":
            parts.append(f"probe at {name}")
    windows = sorted(set(rows["window"].dropna().astype(int)))
    if max(windows, default=0) > (protocol == "swap"):
        parts.append(f"windows of {', '.join(map(str, windows))} layers")
    if _values(rows, "readout") in (["probe"], ["p_true"]):
        for name in _values(rows, "delta_kind"):
            if name in _DELTAS:
                parts.append(_DELTAS[name])
    for name in SETTINGS:
        if rows[name].nunique() == 1 or rows["part"].nunique() > 1:
            parts += [words_of(name, value) for value in _values(rows, name)]
    (kind,) = _protocols(rows)
    return f"{kind[0].upper()}{kind[1:]}: {'; '.join(parts)}"


def _describe_band(curves: pd.DataFrame, bands: tuple[str, str]) -> str:
    band = bands[0]
    if not band or curves[f"{band}_low"].isna().all():
        return ""
    which = (
        "simultaneous over all layers"
        if band == SIMULTANEOUS
        else "pointwise, for a layer chosen beforehand"
    )
    words = _words_of(curves)
    text = (
        f"Bands: 95 %, {which} (bootstrap over {words.groups}; none below"
        f" {MIN_QUESTIONS_FOR_CLAIM} {words.groups})"
    )
    own = curves[curves["control"] == "none"]
    is_few = is_concentrated(own["n_effective"], own["n_clusters"]).any()
    if SIMULTANEOUS not in bands or not is_few:
        return text
    return (
        f"{text}. Where few {words.groups} carry the effect (hover), simultaneous bands allow for"
        f" an unseen {words.group} at the end of the scale"
    )


def _describe_claims(curves: pd.DataFrame) -> str:
    """Return the meaning of the filled marks of curves, or why there are none."""
    if not (curves["metric"] == P).all():
        return ""
    if not curves["has_findings"].any():
        return "The results are tables without findings, so nothing is marked as a claim"
    if curves["is_quick"].all():
        return "A quick look (fewer layers and donors, no nulls) claims nothing"
    if not curves["claimed"].any():
        return "The findings claim no layer beyond every control, so nothing is marked"
    text = "Filled marks: layers at which the findings claim an effect beyond every control"
    if curves.loc[curves["claimed"], "pathway"].isin(PATHWAYS).any():
        text += "; of a knockout over all rows, marked on Q-Anchored"
    return text


def _describe_controls(table: pd.DataFrame) -> str:
    texts: list[str] = []
    for name in _values(table, "control"):
        if name == "none":
            continue
        one = control_labels(name)
        texts.append(f"{one.name}{one.explanation and f', {one.explanation}'}")
    split = (
        "; with pathways, split in the same way" if table["pathway"].isin(PATHWAYS).any() else ""
    )
    return f"Dotted: {'; '.join(texts)}{split}" if texts else ""


def _describe_contrasts(contrast_tables: pd.DataFrame, bands: tuple[str, str]) -> list[str]:
    if contrast_tables.empty:
        return []
    first = "Lower panels: difference from the control, paired by row"
    if bands[0] != bands[1]:
        first += ", with bands that are simultaneous over all layers"
    parts = [first]
    if not contrast_tables["has_findings"].any():
        return parts
    claims = {
        "Filled marks below: layers of the findings' claims about the quantity": (
            contrast_tables["claimed"].any()
        ),
        "Shaded (of several data sets: strips in the colours of Q-Anchored): layers at which "
        "all contrasts stand": (contrast_tables["shaded"].any()),
    }
    found = [text for text, holds in claims.items() if holds]
    return [*parts, *found]


def _describe_text_aucs(curves: pd.DataFrame) -> list[str]:
    texts: list[str] = []
    for name, rows in curves.dropna(subset=["qa_text_auc"]).groupby("dataset", sort=False):
        known = rows.drop_duplicates("qa_text_auc")
        values: list[str] = []
        for value, low in zip(known["qa_text_auc"], known["qa_text_auc_low"], strict=True):
            note = " (above 0.5)" if low > 0.5 else ""
            values.append(f"{value:.2f}{note}")
        texts.append(f"{display_dataset(str(name))} {', '.join(values)}")
    return [f"AUC of a classifier of the text alone: {', '.join(texts)}"] if texts else []
