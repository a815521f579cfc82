"""Names, styles and panels of the curves of one figure, display texts of controls, and the control
that is drawn by default.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import product
from typing import TypeAlias

import pandas as pd

from anchorlens.constants import NULL_CONTROLS, SETTINGS
from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures.palette import DatasetStyle, dataset_styles, shade

HUES = ("curve", "dataset")
Key: TypeAlias = tuple[str, ...]
# Columns that identify a legend entry, a panel, and a curve without its control. ``part`` is a
# label of the user, a data set, or both.
ENTRY_KEYS = ["dataset", "protocol", "anchor", "pathway", *SETTINGS]
PANEL = ["model", "part", "protocol"]
CURVE = ["model", "part", *ENTRY_KEYS]
PATHWAYS = ("Q-Anchored", "A-Anchored")
_ANSWERS = ("pre_answer", "answer", "pre_answer_all")
# Hue and dash of anchors that are neither question nor answer; dots are for controls.
_OTHERS: dict[str, tuple[str, str]] = {
    "subject": ("#17a2b8", "dashdot"),
    "property": ("#a8a000", "longdash"),
    "subject_last": ("#00695c", "longdashdot"),
    "question_rest": ("#ad1457", "10px,3px,3px,3px,3px,3px"),
    "prompt_last": ("#222222", "5px,3px"),
}
_ANSWER_DASHES = ("dash", "longdashdot", "dashdot")
_ANSWER_SHADES = (0.0, -0.4, 0.35)
# Looks of runs that differ in settings; the first is that of METHOD 8.
_USUAL = {
    "prompt": "qa",
    "answers": "gold",
    "distractor": "matched",
    "split": "fixed",
    "known_only": "False",
}
_SHADES = (0.0, -0.45, 0.45, -0.7)
_DASHES = {
    "solid": ("solid", "14px,3px", "14px,3px,3px,3px", "24px,4px"),
    "dash": ("dash", "10px,4px", "10px,4px,3px,4px", "18px,8px"),
}
# Neutral colour of contrasts over all rows; dash and mark of each data set.
_NEUTRAL = "#222222"
_SYMBOLS = ("circle", "square", "diamond", "triangle-up")
# Words of settings in the legend and the caption.
_WORDS = {
    "answers": {"gold": "given answers", "generated": "the model's answers"},
    "distractor": {"matched": "matched false answers", "random": "random false answers"},
    "split": {"fixed": "pathways of one layer", "per_layer": "pathways of each layer"},
    "known_only": {"True": "known questions only", "False": "known and unknown questions"},
}


@dataclass(frozen=True)
class Entry:
    """Name and style of a curve, the same in every panel."""

    label: str
    colour: str  # #rrggbb
    dash: str  # a plotly dash name or list of lengths
    order: tuple[int, ...]  # sort key in the legend
    of: str = ""  # the part of the label in brackets: the data set and the settings that differ
    symbol: str = "circle"  # of filled marks

    @property
    def group(self) -> str:
        return f"{self.label}|{self.colour}|{self.dash}"


Titles: TypeAlias = Mapping[Key, str]
Entries: TypeAlias = Mapping[Key, Entry]


def display_models(models: Sequence[str]) -> dict[str, str]:
    """Return display names: the last part of a hub name or path, or all of it if two models would
    share the last part.

    >>> display_models(["Qwen/Qwen3-8B", "Qwen/Qwen3-32B"])
    {'Qwen/Qwen3-8B': 'Qwen3-8B', 'Qwen/Qwen3-32B': 'Qwen3-32B'}
    """
    short: dict[str, str] = {}
    for model in models:
        last = re.split(r"[/\\]", model.rstrip("/\\"))[-1]
        short[model] = last or model
    names = list(short.values())
    shown: dict[str, str] = {}
    for model, name in short.items():
        is_unique = names.count(name) == 1
        shown[model] = escape(name if is_unique else model, quote=False)
    return shown


def panel_titles(table: pd.DataFrame) -> dict[Key, str]:
    """Return the title of every (model, part, protocol) of ``table``, models in order of
    appearance.
    """
    protocols = table["protocol"].unique().tolist()
    present = set(table[PANEL].itertuples(index=False, name=None))
    names = display_models(table["model"].unique().tolist())
    parts = table["part"].unique().tolist()
    titles: dict[Key, str] = {}
    for model, part, protocol in product(names, parts, protocols):
        if (model, part, protocol) not in present:
            continue
        texts = [names[model]]
        if part:
            texts.append(escape(part, quote=False))
        if len(protocols) > 1 and protocol:
            texts.append(escape(protocol, quote=False))
        titles[(model, part, protocol)] = ": ".join(texts)
    return titles


def legend_entries(table: pd.DataFrame, hue: str = "curve") -> dict[Key, Entry]:
    """Return the legend entry of every curve, in the colours of ``plot_curves(colour=hue)``.

    Entries are sorted by data set, default settings first, pathways before anchors, then question,
    answer and other anchors. An entry names the settings that differ between the runs of its
    protocol, and the protocol if all panels share it.
    """
    if hue not in HUES:
        raise InputError(
            f"colour={hue!r}: unknown value. {did_you_mean(str(hue), HUES)}", argument="colour"
        )
    styles = dataset_styles(table["dataset"].unique().tolist())
    if hue == "dataset":
        styles = {name: replace(style, answer=style.question) for name, style in styles.items()}
    keys: list[Key] = list(table[ENTRY_KEYS].drop_duplicates().itertuples(index=False, name=None))
    looks = _Looks(keys)
    variants = _variants(table)
    entries: dict[Key, Entry] = {}
    for key in keys:
        entry = (looks.pathway if key[3] else looks.anchor)(key, styles[key[0]])
        text, rank = variants[(key[1], *key[4:])]
        of = ", ".join(filter(None, [styles[key[0]].display, escape(text, quote=False)]))
        dashes = _DASHES.get(entry.dash, (entry.dash,))
        colour = shade(entry.colour, _SHADES[rank % len(_SHADES)])
        order = (entry.order[0], rank, *entry.order[1:])
        entries[key] = Entry(f"{entry.label} ({of})", colour, dashes[rank % len(dashes)], order, of)
    return entries


def anchor_colours(
    dataset: str, protocol: str, anchors: Sequence[str], *, beside: Sequence[str] = ()
) -> dict[str, str]:
    """Return the colour of every anchor's curve, as in a figure of the same sweeps.

    Args:
        dataset: Data set of the sweep.
        protocol: Protocol of the sweep.
        anchors: Anchors of the sweep.
        beside: Data sets of all sweeps of the figure; colours of sets that are no benchmark depend
            on their order.
    """
    style = dataset_styles([*beside, dataset])[dataset]
    keys: list[Key] = [(dataset, protocol, anchor, "") for anchor in anchors]
    looks = _Looks(keys)
    return {key[2]: looks.anchor(key, style).colour for key in keys}


def contrast_entries(entries: Entries) -> dict[Key, Entry]:
    """Return the entry of each contrast by (dataset, protocol, anchor, *settings).

    A contrast over all rows of a protocol with pathways has a neutral colour; any other has the
    entry of its curve.
    """
    anchors: dict[str, set[str]] = {}
    for _, protocol, anchor, *_ in entries:
        anchors.setdefault(protocol, set()).add(anchor)
    found: dict[Key, Entry] = {}
    for (dataset, protocol, anchor, pathway, *settings), entry in entries.items():
        if pathway in PATHWAYS:
            place = entry.order[0] % len(_SYMBOLS)
            rank = entry.order[1] % len(_SHADES)
            which = f", {escape(anchor, quote=False)}" if len(anchors[protocol]) > 1 else ""
            label = f"All rows{which} ({entry.of})"
            colour = shade(_NEUTRAL, abs(_SHADES[rank]))
            entry = Entry(
                label, colour, _DASHES["solid"][place], entry.order, entry.of, _SYMBOLS[place]
            )
        found[(dataset, protocol, anchor, *settings)] = entry
    return found


def words_of(setting: str, value: str) -> str:
    """Return a setting in plain words, such as ``known questions only``, or its name and value."""
    return _WORDS.get(setting, {}).get(value, f"{setting} {value}")


def legend_places(entries: Entries) -> dict[str, int]:
    """Return the place of every legend group, from 0."""
    places: dict[str, int] = {}
    for rank, entry in enumerate(sorted(entries.values(), key=lambda entry: entry.order)):
        places.setdefault(entry.group, rank)
    return places


def _rank_of_settings(choice: Key) -> list[tuple[bool, str]]:
    """Return the sort key of the settings of a curve: usual values are first."""
    rank: list[tuple[bool, str]] = []
    for name, value in zip(SETTINGS, choice, strict=True):
        is_unusual = value != _USUAL[name]
        rank.append((is_unusual, value))
    return rank


def _variants(table: pd.DataFrame) -> dict[Key, tuple[str, int]]:
    """Return text and rank of every (protocol, *settings); the text is empty if panel titles
    distinguish the runs.
    """
    names = list(SETTINGS)
    found = {}
    for protocol, rows in table.groupby("protocol", sort=False):
        distinct = rows[["part", *names]].drop_duplicates()
        choices: list[Key] = sorted(
            set(distinct[names].itertuples(index=False, name=None)),
            key=_rank_of_settings,
        )
        differs = (distinct[names].nunique(dropna=False) > 1).tolist()
        for rank, choice in enumerate(choices):
            texts: list[str] = []
            for name, value, is_told in zip(names, choice, differs, strict=True):
                if is_told and value:
                    texts.append(words_of(name, value))
            found[(str(protocol), *choice)] = (
                ("", 0) if distinct["part"].is_unique else (", ".join(texts), rank)
            )
    return found


class _Looks:
    """Names and styles of the curves of one figure, without their data sets."""

    def __init__(self, keys: Sequence[Key]) -> None:
        plain: set[str] = set()
        for _, _, anchor, pathway, *_ in keys:
            if not pathway:
                plain.add(anchor)
        self.answers = [anchor for anchor in _ANSWERS if anchor in plain]
        unknown = sorted(plain - {*_ANSWERS, *_OTHERS, "exact_question"})
        styles = dataset_styles([f"anchor {name}" for name in unknown]).values()
        self.others = _OTHERS.copy()
        for name, style in zip(unknown, styles, strict=True):
            self.others[name] = (style.answer, "dashdot")
        protocols = {protocol for _, protocol, *_ in keys}
        self.suffix = {name: "" if len(protocols) > 1 else f" {name}" for name in protocols}
        # Anchors that share one pathway label, per protocol.
        self.cut: dict[str, set[str]] = {}
        for _, protocol, anchor, pathway, *_ in keys:
            if pathway:
                self.cut.setdefault(protocol, set()).add(anchor)

    def pathway(self, key: Key, style: DatasetStyle) -> Entry:
        _, protocol, anchor, pathway, *_ = key
        which = f", {anchor}" if len(self.cut[protocol]) > 1 else ""
        # "Q-Anchored" alone is the published name for the knockout.
        suffix = "" if protocol == "knockout" else self.suffix[protocol]
        colour, dash = (
            (style.answer, "dash") if pathway == "A-Anchored" else (style.question, "solid")
        )
        place = _place(pathway, (*PATHWAYS, "All"))
        if place > len(PATHWAYS):
            colour, dash = shade(colour, -0.45), "dashdot"
        label = escape(f"{pathway}{suffix}{which}", quote=False)
        return Entry(label, colour, dash, (style.rank, 0, place, anchor_rank(anchor)))

    def anchor(self, key: Key, style: DatasetStyle) -> Entry:
        _, protocol, anchor, *_ = key
        suffix = self.suffix[protocol]
        if anchor == "exact_question":
            name = f"Q-Anchored{suffix}"
            colour = style.question
            dash = "solid"
        elif anchor in _ANSWERS:
            place = self.answers.index(anchor)
            name = f"A-Anchored{suffix}" + (f", {anchor}" if len(self.answers) > 1 else "")
            colour = shade(style.answer, _ANSWER_SHADES[place])
            dash = _ANSWER_DASHES[place]
        else:
            name = f"{anchor}{suffix}"
            hue, dash = self.others[anchor]
            colour = shade(hue, style.shade)
        if protocol in self.cut:  # beside pathways in the same panel
            colour = shade(colour, -0.45)
        return Entry(
            escape(name, quote=False), colour, dash, (style.rank, 1, anchor_rank(anchor), 0)
        )


def anchor_rank(anchor: str) -> int:
    """Return the place of an anchor among the anchors of a figure."""
    return _place(anchor, ("exact_question", *_ANSWERS, *_OTHERS))


def _place(name: str, known: Sequence[str]) -> int:
    return known.index(name) if name in known else len(known)


@dataclass(frozen=True)
class ControlLabels:
    """Display texts of one control.

    Attributes:
        name: Name in the legend: the kind of control, and its name in arguments and tables.
        short: Name in arguments and tables.
        explanation: Definition of the control; empty if unknown.
    """

    name: str
    short: str
    explanation: str


def _labels(kind: str, short: str, explanation: str) -> ControlLabels:
    return ControlLabels(f"{kind} {short}", short, explanation)


CONTROLS = {
    "random_tokens": _labels(
        "Placebo", "random_tokens", "the same with as many other question tokens"
    ),
    "other_question": _labels(
        "Control", "other_question", "the answer after another row's question"
    ),
    "other_pair": _labels("Control", "other_pair", "another pair's activations at the same place"),
    "null": _labels("Null", "displaced", "the donor's activations at random other positions"),
    "same_role": _labels(
        "Null",
        "same_role",
        "the donor's activations of other positions, each at its own position",
    ),
    "norm_matched": _labels(
        "Null",
        "norm_matched",
        "a change of the same norm and angle at the same positions, in another direction",
    ),
    "size_matched": _labels(
        "Control", "size_matched", "as many exact question tokens cut as other question tokens"
    ),
    "random_before": _labels(
        "Placebo", "random_before", "question tokens before subject and property cut"
    ),
    "random_after": _labels(
        "Placebo", "random_after", "question tokens after subject and property cut"
    ),
    "shuffled_labels": _labels(
        "Placebo", "shuffled_labels", "a probe trained on labels flipped within the question"
    ),
    "cross_fold": _labels(
        "Control", "cross_fold", "pathways by one fold of the probe, ΔP by another"
    ),
}
LEADING = ("random_tokens", "other_question", "other_pair", *NULL_CONTROLS.values())
"""Controls by preference: the first one that a protocol has is drawn, and is subtracted in its
leading contrasts.
"""


def control_labels(control: str) -> ControlLabels:
    """Return the display texts of a control; its own name if it is unknown."""
    return CONTROLS.get(control, ControlLabels(control, control, ""))


def leading_control(present: Sequence[str], preferred: Sequence[str] = LEADING) -> str:
    """Return the preferred control of those present, else the first one; "" if there is none."""
    return next((name for name in (*preferred, *present) if name in present), "")
