"""What a curve is called, how it is drawn, and what the figure says about itself."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from anchorlens.figures.extras import EXTRAS, GAP, PLACEBOS
from anchorlens.figures.palette import DatasetStyle, dataset_styles, shaded
from anchorlens.vocabulary import FLIP, P

_PATHWAYS = ("Q-Anchored", "A-Anchored", "All")
_ANSWERS = ("answer_site", "answer", "answer_site_all")
# Anchors that are neither question nor answer: hue and dash. Dots are kept for the controls.
_OTHERS: dict[str, tuple[str, str]] = {
    "subject": ("#17a2b8", "dashdot"),
    "property": ("#a8a000", "longdash"),
    "subject_last": ("#00695c", "longdashdot"),
    "question_rest": ("#ad1457", "10px,3px,3px,3px,3px,3px"),
    "prompt_last": ("#222222", "5px,3px"),
}
_ANSWER_DASHES = ("dash", "longdashdot", "dashdot")
_ANSWER_SHADES = (0.0, -0.4, 0.35)
_CONTROLS = {"null": "donor streams at random positions"}
_PROTOCOLS = {
    "swap": "activation swap",
    "knockout": "attention knockout",
}
# Where the mode is the rule by which donors are chosen.
_OF_DONORS = ("swap", "patch_tokens")


@dataclass(frozen=True)
class Words:
    """How a figure speaks of the quantity that it draws.

    Attributes:
        name: In the title and in front of a value.
        axis: The y axis's title.
        said: The part of the title line that says what is drawn; empty where the name says it.
        unit: After a value, with a space before it.
    """

    name: str
    axis: str
    said: str
    unit: str


_DELTA = Words("ΔP", "ΔP", "ΔP in percentage points", " points")
_FLIPS = Words(
    "flip rate", "flip rate (points)", "flip rate: share of predictions that changed, in percentage points", " points"
)


def words_of(table: pd.DataFrame) -> Words:
    """The words for the quantity of a table's points."""
    quantity = str(table["quantity"].iloc[0])
    known = {P: _DELTA, FLIP: _FLIPS}
    return known[quantity] if quantity in known else Words(name := f"Δ {quantity}", name, "", "")


@dataclass(frozen=True)
class Entry:
    """One curve's name and look, the same in every panel.

    Attributes:
        label: The shown name.
        colour: ``#rrggbb``.
        dash: A plotly dash name or list of lengths.
        order: Where it stands in the legend; entries sort by it.
    """

    label: str
    colour: str
    dash: str
    order: tuple[int, int, int, int]

    @property
    def group(self) -> str:
        """What the legend lists once, and hides and shows together: all that has one name and one look."""
        return f"{self.label}|{self.colour}|{self.dash}"


def display_models(models: Sequence[str]) -> dict[str, str]:
    """Shown names: the last part of a hub name or path, or the whole where two models would share it.

    >>> display_models(["Qwen/Qwen3-8B", "Qwen/Qwen3-32B"])
    {'Qwen/Qwen3-8B': 'Qwen3-8B', 'Qwen/Qwen3-32B': 'Qwen3-32B'}
    """
    short = {model: re.split(r"[/\\]", model.rstrip("/\\"))[-1] or model for model in models}
    names = list(short.values())
    return {model: escape(name if names.count(name) == 1 else model, quote=False) for model, name in short.items()}


def panel_titles(table: pd.DataFrame) -> dict[tuple[str, str], str]:
    """The panels: one per model, or per model and protocol where the figure has several protocols.

    Curves of two protocols are two quantities, and the sixteen of four data sets cannot be told apart in one panel.

    Returns:
        The title of every (model, protocol) of ``table``, models in order of appearance.
    """
    protocols = table["protocol"].unique().tolist()
    present = set(table[["model", "protocol"]].itertuples(index=False, name=None))
    return {
        (model, protocol): name if len(protocols) == 1 else f"{name}: {escape(protocol, quote=False)}"
        for model, name in display_models(table["model"].unique().tolist()).items()
        for protocol in protocols
        if (model, protocol) in present
    }


def legend_entries(table: pd.DataFrame) -> dict[tuple[str, str, str, str], Entry]:
    """The legend of a figure.

    Args:
        table: Points as ``with_extras`` gives them.

    Returns:
        An entry per (dataset, protocol, anchor, pathway) of the table. Entries sort by data set, then pathways before swaps,
        then question before answer before other anchors. Where the panels are named after their protocols, the entries are
        not, so that one serves the panels of all protocols.
    """
    styles = dataset_styles(table["dataset"].unique().tolist())
    keys = list(dict.fromkeys(table[["dataset", "protocol", "anchor", "pathway"]].itertuples(index=False, name=None)))
    names = _Names(keys)
    return {key: names.entry(key, styles[key[0]]) for key in keys}


class _Names:
    """What has to be known of the whole figure to name one curve."""

    def __init__(self, keys: Sequence[tuple[str, str, str, str]]) -> None:
        plain = {anchor for _, _, anchor, pathway in keys if not pathway}
        self.answers = [anchor for anchor in _ANSWERS if anchor in plain]
        self.unknown = [anchor for anchor in sorted(plain) if anchor not in {*_ANSWERS, *_OTHERS, "question"}]
        protocols = {protocol for _, protocol, _, _ in keys}
        # What a name says of its protocol; "Q-Anchored" is the published name for the knockout.
        self.of = {name: "" if len(protocols) > 1 else f" {name}" for name in protocols}
        # Anchors that one pathway label would stand for, per protocol.
        self.cut: dict[str, set[str]] = {}
        for _, protocol, anchor, pathway in keys:
            if pathway:
                self.cut.setdefault(protocol, set()).add(anchor)

    def entry(self, key: tuple[str, str, str, str], style: DatasetStyle) -> Entry:
        return self._pathway(key, style) if key[3] else self._anchor(key, style)

    def _pathway(self, key: tuple[str, str, str, str], style: DatasetStyle) -> Entry:
        _, protocol, anchor, pathway = key
        place = _PATHWAYS.index(pathway) if pathway in _PATHWAYS else len(_PATHWAYS)
        which = f", {anchor}" if len(self.cut[protocol]) > 1 else ""
        of_protocol = "" if protocol == "knockout" else self.of[protocol]
        label = escape(f"{pathway}{of_protocol}{which}", quote=False) + f" ({style.display})"
        colour = style.answer if pathway == "A-Anchored" else style.question
        dash = "dash" if pathway == "A-Anchored" else "solid"
        if place == len(_PATHWAYS):
            colour, dash = shaded(colour, -0.45), "dashdot"
        return Entry(label, colour, dash, (style.rank, 0, place, _rank(anchor)))

    def _anchor(self, key: tuple[str, str, str, str], style: DatasetStyle) -> Entry:
        _, protocol, anchor, _ = key
        if anchor == "question":
            name, colour, dash = f"Q-Anchored{self.of[protocol]}", style.question, "solid"
        elif anchor in _ANSWERS:
            place = self.answers.index(anchor)
            name = f"A-Anchored{self.of[protocol]}" + (f", {anchor}" if len(self.answers) > 1 else "")
            colour, dash = shaded(style.answer, _ANSWER_SHADES[place]), _ANSWER_DASHES[place]
        else:
            name = f"{anchor}{self.of[protocol]}"
            hue, dash = _OTHERS.get(anchor) or (self._hue_of_unknown(anchor), "dashdot")
            colour = shaded(hue, style.shade)
        if protocol in self.cut:
            # Beside pathways of the same panel, so that no two look alike.
            colour = shaded(colour, -0.45)
        label = escape(name, quote=False) + f" ({style.display})"
        return Entry(label, colour, dash, (style.rank, 1, _rank(anchor), 0))

    def _hue_of_unknown(self, anchor: str) -> str:
        return tuple(dataset_styles([f"anchor {name}" for name in self.unknown]).values())[self.unknown.index(anchor)].answer


def _rank(anchor: str) -> int:
    known = ("question", *_ANSWERS, *_OTHERS)
    return known.index(anchor) if anchor in known else len(known)


def headline(table: pd.DataFrame) -> str:
    """The title where the user gives none: ``ΔP by layer: activation swap``."""
    protocols = [_PROTOCOLS.get(name, name.replace("_", " ")) for name in map(str, table["protocol"].unique())]
    name = words_of(table).name
    return escape(f"{name[0].upper()}{name[1:]} by layer: {' and '.join(protocols)}", quote=False)


def title_parts(table: pd.DataFrame, *, bands: bool) -> list[str]:
    """What the figure says about itself under its title, in parts that are never broken apart.

    Args:
        table: Points as ``with_extras`` gives them.
        bands: Whether the 95 % bands are drawn.

    Returns:
        Protocol with its settings (those that differ from the default), unit, then what bands, dots and marks mean.
    """
    curves = table[table["control"] == "none"]
    parts: list[str] = []
    for protocol, rows in curves.groupby("protocol", sort=False):
        parts += _settings(str(protocol), rows)
    parts += [said for said in (words_of(table).said,) if said]
    if bands and bool((curves["ci_low"].notna() & curves["ci_high"].notna()).any()):
        parts.append("band: 95 % bootstrap over questions")
    dotted = [
        f"{name} ({_CONTROLS[name]})" if name in _CONTROLS else name
        for name in table.loc[(table["control"] != "none") & (table["extra"] == ""), "control"].unique()
    ]
    kinds = set(table["extra"])
    if GAP.label in kinds:
        dotted.append("placebo gap (Q − A of a split by other question tokens)")
    if dotted:
        parts.append("dotted: " + ", ".join(dotted))
    if bool(curves["trivial"].any()):
        parts.append("hollow: trivial by construction")
    if bool((curves["no_signal"] & curves["delta_p"].notna()).any()):
        parts.append("×: no signal (AUC interval reaches 0.5)")
    floor = float(curves["noise_floor"].max())
    if floor > 0:
        rings = "; rings: within it" if bool(curves["is_noise"].any()) else ""
        parts.append(f"grey: noise floor (±{floor:.1g}{rings})")
    if any(not extra.shown for extra in EXTRAS.values() if extra.label in kinds):
        parts.append("pale entries: click to show")
    return [escape(part, quote=False) for part in parts]


def _settings(protocol: str, rows: pd.DataFrame) -> list[str]:
    def values(column: str) -> list[str]:
        return [str(value) for value in rows[column].unique() if value != ""]

    anchors: list[str] = sorted(values("anchor"), key=_rank)
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
    return parts


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


def hover_texts(rows: pd.DataFrame, name: str, panel: str, dataset: str) -> list[str]:
    """What each point of one curve says when pointed at.

    Args:
        rows: The points of one curve, control included.
        name: The curve's shown name.
        panel: The title of its panel.
        dataset: The data set's shown name.

    Returns:
        One text per row: curve, panel, data set, anchor, layer, ΔP with its interval, P before, n, the probe's AUC.
    """
    first = rows.iloc[0]
    control = str(first["control"])
    kind = "" if control == "none" else f"<br>control: {escape(control, quote=False)}"
    if control == GAP.label:
        kind = ""
    elif control in PLACEBOS and first["protocol"] == "knockout":
        kind += f" ({PLACEBOS[control]})"
    head = f"<b>{name}</b>{kind}<br>{panel}, {dataset}<br>anchor {escape(first['anchor'], quote=False)}, layer "
    said, words = (_gap_said if control == GAP.label else _point_said), words_of(rows)
    return [head + "<br>".join([str(row.layer), *said(row, words)]) for row in rows.itertuples(index=False)]


def _point_said(row: Any, words: Words) -> list[str]:
    interval = _interval(_signed(row.ci_low), _signed(row.ci_high))
    lines = [f"{escape(words.name, quote=False)} {_signed(row.delta_p)}{words.unit} ({interval})"]
    if words is not _FLIPS:  # nothing has changed before
        before = "P before" if words is _DELTA else "before"
        lines.append(f"{before} unknown" if math.isnan(row.p_before) else f"{before} {row.p_before:.3f}")
    lines.append(_size(row.n))
    if not math.isnan(row.auc):
        lines.append(f"AUC {row.auc:.2f} ({_interval(f'{row.auc_low:.2f}', f'{row.auc_high:.2f}')})")
    if row.no_signal:
        lines.append("no signal")
    if row.is_noise:
        lines.append(f"within the noise floor (±{row.noise_floor:.1g})")
    if row.trivial:
        lines.append("trivial by construction")
    return lines


def _gap_said(row: Any, words: Words) -> list[str]:
    return [
        f"Q − A = {_signed(row.delta_p)}{words.unit} with {PLACEBOS['random_tokens']}",
        "a gap that a split makes by itself",
        _size(row.n),
    ]


def _interval(low: str, high: str) -> str:
    return "no interval" if "nan" in (low, high) else f"95 %: {low} to {high}"


def _size(n: float) -> str:
    return "n unknown" if math.isnan(n) else f"n = {int(n)} question{'' if int(n) == 1 else 's'}"


def _signed(value: float) -> str:
    # A true minus, as in the axis; -0.00 is said as 0.00.
    text = f"{value:.2f}"
    return "0.00" if text in ("-0.00", "0.00") else text.replace("-", "\N{MINUS SIGN}")
