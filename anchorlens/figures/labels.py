"""What a curve is called, how it is drawn, and what the figure says about itself."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

import pandas as pd

from anchorlens.figures.extras import CUTS, EXTRAS, GAP
from anchorlens.figures.hover import WEAK
from anchorlens.figures.palette import DatasetStyle, dataset_styles, display_dataset, shaded
from anchorlens.figures.shapes import FEW, POINTWISE, SIMULTANEOUS, has_band, rests_on_few
from anchorlens.figures.variants import DASHES, SHADES, Variant, shared_settings, variants
from anchorlens.figures.words import words_of
from anchorlens.vocabulary import SETTINGS

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
Key: TypeAlias = tuple[str, ...]
"""The columns of :data:`ENTRY_KEYS` of one curve."""

ENTRY_KEYS = ["dataset", "protocol", "anchor", "pathway", *SETTINGS]
"""What makes two curves, of whatever models, one entry of the legend."""

# Where the mode is the rule by which donors are chosen.
_OF_DONORS = ("swap", "patch_tokens")


@dataclass(frozen=True)
class Entry:
    """One curve's name and look, the same in every panel.

    Attributes:
        label: The shown name.
        colour: ``#rrggbb``.
        dash: A plotly dash name or list of lengths.
        order: Where it stands in the legend; entries sort by it.
        of: The part of the label in brackets: data set and what else tells its run from others.
    """

    label: str
    colour: str
    dash: str
    order: tuple[int, ...]
    of: str = ""

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


def legend_entries(table: pd.DataFrame) -> dict[Key, Entry]:
    """The legend of a figure.

    Args:
        table: Points as ``with_extras`` gives them.

    Returns:
        An entry per (dataset, protocol, anchor, pathway, *settings) of the table. Entries sort by data set, then the usual
        settings first, then pathways before swaps, then question before answer before other anchors. Where the panels are named
        after their protocols, the entries are not, so that one serves the panels of all protocols. An entry names the settings
        that differ between the runs of its protocol, and says where all of its curves rest on fewer than 20 questions.
    """
    styles = dataset_styles(table["dataset"].unique().tolist())
    own = table[table["control"] == "none"]
    keys: list[Key] = list(dict.fromkeys(table[ENTRY_KEYS].itertuples(index=False, name=None)))
    names, differing = _Names(keys), variants(table)
    few = own.groupby(ENTRY_KEYS, sort=False)[["model", "delta_p", "n"]].apply(
        lambda rows: all(rests_on_few(curve, "delta_p") for _, curve in rows.groupby("model"))
    )
    entries: dict[Key, Entry] = {}
    for key in keys:
        entry, variant = names.entry(key, styles[key[0]]), differing[(key[1], *key[4:])]
        said = [styles[key[0]].display, *([escape(variant.text, quote=False)] if variant.text else [])]
        said += [f"n &lt; {FEW}"] if bool(few.get(key, default=False)) else []
        entries[key] = _of_variant(entry, ", ".join(said), variant)
    return entries


def legend_places(entries: Mapping[Key, Entry]) -> dict[str, int]:
    """Group -> place in the legend, from 0."""
    places: dict[str, int] = {}
    for rank, entry in enumerate(sorted(entries.values(), key=lambda entry: entry.order)):
        places.setdefault(entry.group, rank)
    return places


def _of_variant(entry: Entry, of: str, variant: Variant) -> Entry:
    """``entry`` with its whole label, in a look that no other choice of settings has."""
    colour = shaded(entry.colour, SHADES[variant.rank % len(SHADES)])
    dashes = DASHES.get(entry.dash, (entry.dash,))
    dash = dashes[variant.rank % len(dashes)]
    return Entry(f"{entry.label} ({of})", colour, dash, (entry.order[0], variant.rank, *entry.order[1:]), of)


class _Names:
    """What has to be known of the whole figure to name one curve."""

    def __init__(self, keys: Sequence[Key]) -> None:
        plain = {anchor for _, _, anchor, pathway, *_ in keys if not pathway}
        self.answers = [anchor for anchor in _ANSWERS if anchor in plain]
        self.unknown = [anchor for anchor in sorted(plain) if anchor not in {*_ANSWERS, *_OTHERS, "question"}]
        protocols = {protocol for _, protocol, *_ in keys}
        # What a name says of its protocol; "Q-Anchored" is the published name for the knockout.
        self.of = {name: "" if len(protocols) > 1 else f" {name}" for name in protocols}
        # Anchors that one pathway label would stand for, per protocol.
        self.cut: dict[str, set[str]] = {}
        for _, protocol, anchor, pathway, *_ in keys:
            if pathway:
                self.cut.setdefault(protocol, set()).add(anchor)

    def entry(self, key: Key, style: DatasetStyle) -> Entry:
        """An entry without its data set."""
        return self._pathway(key, style) if key[3] else self._anchor(key, style)

    def _pathway(self, key: Key, style: DatasetStyle) -> Entry:
        _, protocol, anchor, pathway, *_ = key
        place = _PATHWAYS.index(pathway) if pathway in _PATHWAYS else len(_PATHWAYS)
        which = f", {anchor}" if len(self.cut[protocol]) > 1 else ""
        of_protocol = "" if protocol == "knockout" else self.of[protocol]
        label = escape(f"{pathway}{of_protocol}{which}", quote=False)
        colour = style.answer if pathway == "A-Anchored" else style.question
        dash = "dash" if pathway == "A-Anchored" else "solid"
        if place == len(_PATHWAYS):
            colour, dash = shaded(colour, -0.45), "dashdot"
        return Entry(label, colour, dash, (style.rank, 0, place, _rank(anchor)))

    def _anchor(self, key: Key, style: DatasetStyle) -> Entry:
        _, protocol, anchor, *_ = key
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
        return Entry(escape(name, quote=False), colour, dash, (style.rank, 1, _rank(anchor), 0))

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


def title_parts(table: pd.DataFrame, effects: pd.DataFrame, bands: Sequence[str]) -> list[str]:
    """What the figure says about itself under its title, in parts that are never broken apart.

    Args:
        table: Points as ``with_extras`` gives them.
        effects: Contrasts that are drawn below.
        bands: The bands that are drawn.

    Returns:
        Protocol with its settings (those that differ from the default), unit, then what bands, dots and marks mean.
    """
    curves = table[table["control"] == "none"]
    parts: list[str] = []
    for protocol, rows in curves.groupby("protocol", sort=False):
        parts += _settings(str(protocol), rows)
    parts += [said for said in (words_of(table).said,) if said]
    parts += _bands_said([kind for kind in bands if has_band(curves, kind) or has_band(effects, kind)])
    dotted = [
        f"{name} ({said})" if (said := (_CONTROLS | CUTS).get(name)) else name
        for name in table.loc[(table["control"] != "none") & (table["extra"] == ""), "control"].unique()
    ]
    kinds = set(table["extra"])
    if GAP.label in kinds:
        dotted.append("placebo gap (Q − A of a split by other question tokens)")
    if dotted:
        parts.append("dotted: " + ", ".join(dotted))
    if bool((table["null_short"] > WEAK).any()):
        parts.append("▽: null weaker (fewer slots than the anchor in most rows)")
    if bool(curves["trivial"].any()):
        parts.append("hollow: trivial by construction")
    if bool((curves["no_signal"] & curves["delta_p"].notna()).any()):
        parts.append("×: no signal (AUC interval reaches 0.5)")
    if any(rests_on_few(rows, "delta_p") for _, rows in curves.groupby(["model", *ENTRY_KEYS], sort=False)):
        parts.append(f"thin line: fewer than {FEW} questions")
    floor = float(curves["noise_floor"].max())
    if floor > 0:
        rings = "; rings: within it" if bool(curves["is_noise"].any()) else ""
        parts.append(f"grey: noise floor (±{floor:.1g}{rings})")
    parts += _text_said(curves)
    if len(effects):
        parts.append("below: what can be claimed, ●: the interval of all layers at once excludes 0")
    if any(not extra.shown for extra in EXTRAS.values() if extra.label in kinds):
        parts.append("pale entries: click to show")
    return [escape(part, quote=False) for part in parts]


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
