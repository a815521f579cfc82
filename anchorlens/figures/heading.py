"""What the figure says about itself, above its panels: what was done, on how many questions, and how to read it."""

import re
from collections.abc import Mapping, Sequence
from html import escape

import pandas as pd

from anchorlens.figures.extras import CUTS, EXTRAS, PLACEBOS, RANGE, SPLIT, Beside
from anchorlens.figures.hover import WEAK
from anchorlens.figures.labels import anchor_rank
from anchorlens.figures.palette import display_dataset
from anchorlens.figures.shapes import FEW, POINTWISE, SIMULTANEOUS, has_band, rests_on_few
from anchorlens.figures.ticks import CURVE, before_said
from anchorlens.figures.variants import shared_settings
from anchorlens.figures.words import words_of

_CONTROLS = {"null": "donor streams at random positions"}
_PROTOCOLS = {
    "swap": "activation swap",
    "knockout": "attention knockout",
}
# Where the mode is the rule by which donors are chosen.
_OF_DONORS = ("swap", "patch_tokens")


def headline(table: pd.DataFrame) -> str:
    """The title where the user gives none: ``ΔP by layer: activation swap``."""
    protocols = [_PROTOCOLS.get(name, name.replace("_", " ")) for name in map(str, table["protocol"].unique())]
    name = words_of(table).name
    return escape(f"{name[0].upper()}{name[1:]} by layer: {' and '.join(protocols)}", quote=False)


def title_parts(
    table: pd.DataFrame, effects: pd.DataFrame, bands: Sequence[str], beside: Mapping[str, Beside]
) -> list[list[str]]:
    """What the figure says about itself under its title, in parts that are never broken apart.

    Args:
        table: Points as ``with_ticks`` gives them.
        effects: Contrasts that are drawn below.
        bands: The bands that are drawn.
        beside: What the second legend lists.

    Returns:
        What was done, for each protocol (its settings, questions, P before), and how to read it (bands, controls, marks); each of
        these begins a line.
    """
    curves = table[(table["control"] == "none") & (table["extra"] == "")]
    done = [
        [*_settings(str(protocol), rows), *_numbers(rows), *_text_said(rows)]
        for protocol, rows in curves.groupby("protocol", sort=False)
    ]
    read = [said for said in (words_of(table).said,) if said]
    read += _bands_said([kind for kind in bands if has_band(curves, kind) or has_band(effects, kind)])
    read += _controls_said(beside)
    if bool(curves["tick"].notna().any()):
        read.append("ticks at the right: −100·P before, as far as ΔP can fall")
    if bool((table["null_short"] > WEAK).any()):
        read.append("▽: null weaker (fewer slots than the anchor in most rows)")
    if bool(curves["trivial"].any()):
        read.append("hollow: trivial by construction")
    if bool((curves["no_signal"] & curves["delta_p"].notna()).any()):
        read.append("×: no signal (AUC interval reaches 0.5)")
    if any(rests_on_few(rows, "delta_p") for _, rows in curves.groupby(CURVE, sort=False)):
        read.append(f"thin line: fewer than {FEW} questions")
    floor = float(curves["noise_floor"].max())
    if floor > 0:
        rings = "; rings: within it" if bool(curves["is_noise"].any()) else ""
        read.append(f"grey line at 0: noise floor (±{floor:.1g}{rings})")
    if len(effects):
        read.append("below: what can be claimed, ●: the interval of all layers at once excludes 0")
    if any(not one.shown for one in beside.values()):
        read.append("pale entries: click to show")
    return [[escape(part, quote=False) for part in parts] for parts in (*done, read)]


def _numbers(curves: pd.DataFrame) -> list[str]:
    """Questions behind the curves, and P before."""
    n = curves.loc[curves["delta_p"].notna(), "n"].dropna()
    low, high = (int(n.min()), int(n.max())) if len(n) else (0, 0)
    said = f"n {low}" if low == high else f"n {low}–{high}"
    return ([f"{said} questions"] if len(n) else []) + before_said(curves)


def _controls_said(beside: Mapping[str, Beside]) -> list[str]:
    """What the grey area holds, and what is dotted."""
    meanings = _CONTROLS | CUTS | PLACEBOS
    dotted = [
        f"{name} ({meanings[name]})" if name in meanings else name for name in beside if name not in (*EXTRAS, RANGE.label)
    ]
    if SPLIT.label in beside:
        dotted.append(f"placebo split ({PLACEBOS['random_tokens']})")
    if not dotted:
        return []
    if RANGE.label in beside:
        return [f"grey area: range of the controls: {', '.join(dotted)}"]
    return [f"dotted: {', '.join(dotted)}"]


def _text_said(curves: pd.DataFrame) -> list[str]:
    """What question and answer as text tell of the answers' truth, for each data set; a mark where it is more than chance."""
    known = curves.dropna(subset=["pair_text"])
    told: list[str] = []
    for name, rows in known.groupby("dataset", sort=False):
        marks = ["!" if low > 0.5 else "" for low in rows.drop_duplicates("pair_text")["pair_text_low"]]
        values = rows["pair_text"].drop_duplicates()
        told.append(f"{display_dataset(str(name))} {', '.join(f'{v:.2f}{m}' for v, m in zip(values, marks, strict=True))}")
    above = " (!: above 0.5)" if any("!" in one for one in told) else ""
    return [f"AUC of question and answer as text{above}: {', '.join(told)}"] if told else []


def _bands_said(drawn: Sequence[str]) -> list[str]:
    if set(drawn) == {POINTWISE, SIMULTANEOUS}:
        return ["bands: 95 % bootstrap over questions, inner: each layer by itself, outer: all layers at once"]
    every = " (all layers at once)" if SIMULTANEOUS in drawn else ""
    return [f"band: 95 % bootstrap over questions{every}"] if drawn else []


def _settings(protocol: str, rows: pd.DataFrame) -> list[str]:
    def values(column: str) -> list[str]:
        return [str(value) for value in rows[column].unique() if value != ""]

    anchors: list[str] = sorted(values("anchor"), key=anchor_rank)
    parts = [f"protocol {protocol}", *(f"readout {name}" for name in values("readout"))]
    parts.append(f"anchor{'s' if len(anchors) > 1 else ''} {', '.join(anchors)}")
    parts += [f"{'donors' if protocol in _OF_DONORS else 'mode'} {name}" for name in values("mode")]
    parts += [name for name in values("direction") if name != "noising"]
    parts += [f"site {name}" for name in values("site") if protocol != "swap" or name != "resid_pre"]
    parts += [f"probe at {name}" for name in values("probe_site") if name != "resid_post"]
    windows = sorted({int(value) for value in rows["window"].dropna()})
    if any(window > (1 if protocol == "swap" else 0) for window in windows):
        parts.append(f"window {', '.join(map(str, windows))}")
    readout = values("readout")
    if readout in (["probe"], ["p_true"]):
        parts += [f"delta_kind {name}" for name in values("delta_kind") if name != "confidence"]
    return parts + shared_settings(rows)


def wrapped(parts: Sequence[str], limit: int) -> list[str]:
    """Lines of at most ``limit`` characters; parts are joined by `` · `` and only one longer than a line is broken inside."""
    lines: list[str] = []
    for word in _words(parts, limit):
        if lines and len(lines[-1]) + len(word) <= limit:
            lines[-1] += word
        else:
            lines.append(word.lstrip(" "))
    return [line.strip(" ").removeprefix("· ").removesuffix(" ·") for line in lines]


def _words(parts: Sequence[str], limit: int) -> list[str]:
    words: list[str] = []
    for number, part in enumerate(parts):
        joined = part if number == 0 else f" · {part}"
        words += [joined] if len(joined) <= limit else re.findall(r"\s*\S+", joined)
    return words
