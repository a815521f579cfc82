"""Heading of the figure: title, settings, number of questions, and the legend of bands, controls and marks."""

import re
from collections.abc import Mapping, Sequence
from html import escape

import pandas as pd

from anchorlens.constants import SETTINGS
from anchorlens.figures.controls import CUTS, EXTRAS, PLACEBOS, RANGE, SPLIT, Beside
from anchorlens.figures.hover import THIN_LINE_BELOW, WEAK, metric_labels
from anchorlens.figures.labels import CURVE, anchor_rank
from anchorlens.figures.palette import display_dataset
from anchorlens.figures.traces import POINTWISE, SIMULTANEOUS, has_few

_NULLS = {
    "null": "donor streams at random positions",
    "same_role": "donor streams at other positions, each at the position with its role",
    "norm_matched": "random changes of the same norm",
}
_MEANINGS = _NULLS | CUTS | PLACEBOS
_PROTOCOLS = {"swap": "activation swap", "knockout": "attention knockout"}
_KNOWN = {"True": "known questions only", "False": "known and unknown questions"}


def headline(table: pd.DataFrame) -> str:
    """Return the default title, such as ``ΔP by layer: activation swap``."""
    protocols = [_PROTOCOLS.get(name, name.replace("_", " ")) for name in map(str, table["protocol"].unique())]
    name = metric_labels(table).name
    return escape(f"{name[0].upper()}{name[1:]} by layer: {' and '.join(protocols)}", quote=False)


def title_parts(
    table: pd.DataFrame, contrast_tables: pd.DataFrame, bands: Sequence[str], beside: Mapping[str, Beside]
) -> list[list[str]]:
    """Return the lines below the title, each as a list of parts.

    One line per protocol gives settings, questions and P before; the last line explains bands, controls and marks.
    """
    curves = table[(table["control"] == "none") & (table["extra"] == "")]
    groups = curves.groupby("protocol", sort=False)
    described = [[*_settings(str(protocol), rows), *_numbers(rows), *_describe_text_aucs(rows)] for protocol, rows in groups]
    legend = [metric_labels(table).explanation] if metric_labels(table).explanation else []
    legend += _describe_bands([kind for kind in bands if _has_band(curves, kind) or _has_band(contrast_tables, kind)])
    legend += _describe_controls(beside)
    floor, few = float(curves["noise_floor"].max()), [has_few(own["effect"], own["n"]) for _, own in curves.groupby(CURVE)]
    rings = "; ring: value within it" if curves["is_noise"].any() else ""
    notes = {
        "ticks at the right: −100·P before, the lowest possible ΔP": curves["tick"].notna().any(),
        "▽: null weaker (fewer slots than the anchor in most rows)": (table["frac_null_incomplete"] > WEAK).any(),
        "hollow point: value fixed by construction": curves["by_construction"].any(),
        "×: no signal (AUC interval reaches 0.5)": (curves["no_signal"] & curves["effect"].notna()).any(),
        f"thin line: fewer than {THIN_LINE_BELOW} questions": any(few),
        f"grey line at 0: noise floor (±{floor:.1g}{rings})": floor > 0,
        "lower panels: contrasts; ●: the simultaneous interval excludes 0": len(contrast_tables),
        "pale legend entries: hidden controls": not all(one.shown for one in beside.values()),
    }
    legend += [note for note, holds in notes.items() if holds]
    return [[escape(part, quote=False) for part in parts] for parts in (*described, legend)]


def _has_band(rows: pd.DataFrame, kind: str) -> bool:
    return bool(rows[[f"{kind}_low", f"{kind}_high"]].notna().all(axis=1).any())


def _numbers(curves: pd.DataFrame) -> list[str]:
    n = curves.loc[curves["effect"].notna(), "n"].dropna()
    before = curves["before"].dropna()
    parts = [f"n {_range(n, '.0f')} questions"] if len(n) else []
    return parts + ([f"P before {_range(before, '.2f')}"] if len(before) else [])


def _range(values: pd.Series, style: str) -> str:
    low, high = format(values.min(), style), format(values.max(), style)
    return low if low == high else f"{low}–{high}"


def _describe_controls(beside: Mapping[str, Beside]) -> list[str]:
    names = [name for name in beside if name not in (*EXTRAS, RANGE.label)]
    dotted = [f"{name} ({_MEANINGS[name]})" if name in _MEANINGS else name for name in names]
    if SPLIT.label in beside:
        dotted.append(f"placebo split ({PLACEBOS['random_tokens']})")
    if not dotted:
        return []
    return [("grey area: range of the controls: " if RANGE.label in beside else "dotted: ") + ", ".join(dotted)]


def _describe_text_aucs(curves: pd.DataFrame) -> list[str]:
    texts: list[str] = []
    for name, rows in curves.dropna(subset=["qa_text_auc"]).groupby("dataset", sort=False):
        known = rows.drop_duplicates("qa_text_auc")
        values = [f"{v:.2f}{'!' * (low > 0.5)}" for v, low in zip(known["qa_text_auc"], known["qa_text_auc_low"], strict=True)]
        texts.append(f"{display_dataset(str(name))} {', '.join(values)}")
    above = " (!: above 0.5)" if any("!" in text for text in texts) else ""
    return [f"AUC of a text classifier{above}: {', '.join(texts)}"] if texts else []


def _describe_bands(drawn: Sequence[str]) -> list[str]:
    if set(drawn) == {POINTWISE, SIMULTANEOUS}:
        return ["bands: 95 % bootstrap over questions; inner: pointwise, outer: simultaneous over layers"]
    every = " (simultaneous over layers)" if SIMULTANEOUS in drawn else ""
    return [f"band: 95 % bootstrap over questions{every}"] if drawn else []


def _settings(protocol: str, rows: pd.DataFrame) -> list[str]:
    def values(column: str) -> list[str]:
        return [str(value) for value in rows[column].unique() if value != ""]

    anchors: list[str] = sorted(values("anchor"), key=anchor_rank)
    parts = [f"protocol {protocol}", *(f"readout {name}" for name in values("readout"))]
    parts.append(f"anchor{'s' if len(anchors) > 1 else ''} {', '.join(anchors)}")
    parts += [f"donors {name}" for name in values("donor_rule")] + [f"knockout mode {name}" for name in values("knockout_mode")]
    parts += [name for name in values("direction") if name != "noising"]
    parts += [f"site {name}" for name in values("site") if protocol != "swap" or name != "resid_pre"]
    parts += [f"probe at {name}" for name in values("probe_site") if name != "resid_post"]
    windows = sorted({int(value) for value in rows["window"].dropna()})
    if max(windows, default=0) > (protocol == "swap"):
        parts.append(f"window {', '.join(map(str, windows))}")
    readout = values("readout")
    if readout in (["probe"], ["p_true"]):
        parts += [f"delta_kind {name}" for name in values("delta_kind") if name != "confidence"]
    for name in SETTINGS:
        shared = [_KNOWN.get(value, value) if name == "known_only" else value for value in values(name)]
        if shared and (rows[name].nunique() == 1 or rows["part"].nunique() > 1):
            parts.append(("" if name == "known_only" else f"{name} ") + ", ".join(shared))
    return parts


def wrap_parts(parts: Sequence[str], limit: int) -> list[str]:
    """Join parts by `` · `` into lines of at most ``limit`` characters; only parts longer than a line are broken."""
    words: list[str] = []
    for number, part in enumerate(parts):
        joined = f" · {part}" if number else part
        words += [joined] if len(joined) <= limit else re.findall(r"\s*\S+", joined)
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) <= limit:
            lines[-1] += word
        else:
            lines.append(word.lstrip(" "))
    return [line.strip(" ").removeprefix("· ").removesuffix(" ·") for line in lines]
