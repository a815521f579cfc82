"""What a curve is called, how it is drawn, and in which panel."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TypeAlias

import pandas as pd

from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures.palette import DatasetStyle, dataset_styles, shaded
from anchorlens.figures.variants import DASHES, SHADES, Variant, variants
from anchorlens.vocabulary import SETTINGS

HUES = ("curve", "dataset")
"""What a colour may stand for."""

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
Key: TypeAlias = tuple[str, ...]
"""The columns of :data:`ENTRY_KEYS` of one curve."""

ENTRY_KEYS = ["dataset", "protocol", "anchor", "pathway", *SETTINGS]
"""What makes two curves, of whatever models, one entry of the legend."""


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


PANEL = ["model", "part", "protocol"]
"""What makes two curves stand in one panel; ``part`` is a label that the user gave, or a data set, or both."""


def panel_titles(table: pd.DataFrame) -> dict[Key, str]:
    """The panels: one per model and part, or per model, part and protocol where the figure has several protocols.

    Curves of two protocols are two quantities, and the sixteen of four data sets cannot be told apart in one panel.

    Returns:
        The title of every (model, part, protocol) of ``table``, models in order of appearance.
    """
    protocols = table["protocol"].unique().tolist()
    present = set(table[PANEL].itertuples(index=False, name=None))
    return {
        (model, part, protocol): ": ".join(
            [name, *(escape(said, quote=False) for said in (part, protocol if len(protocols) > 1 else "") if said)]
        )
        for model, name in display_models(table["model"].unique().tolist()).items()
        for part in table["part"].unique().tolist()
        for protocol in protocols
        if (model, part, protocol) in present
    }


def in_panel(table: pd.DataFrame, panel: Key) -> pd.DataFrame:
    """The rows of one panel."""
    return table[(table[PANEL] == list(panel)).all(axis=1)]


def legend_entries(table: pd.DataFrame, hue: str = "curve") -> dict[Key, Entry]:
    """The legend of a figure.

    Args:
        table: Points as ``with_extras`` gives them.
        hue: ``curve``: question and answer have a colour each. ``dataset``: both have that of the data set, the answer's dashed.

    Returns:
        An entry per (dataset, protocol, anchor, pathway, *settings) of the table. Entries sort by data set, then the usual
        settings first, then pathways before swaps, then question before answer before other anchors. Where the panels are named
        after their protocols, the entries are not, so that one serves the panels of all protocols. An entry names the settings
        that differ between the runs of its protocol.
    """
    if hue not in HUES:
        raise InputError(f"There is no colour={hue!r}. {did_you_mean(str(hue), HUES)}")
    styles = dataset_styles(table["dataset"].unique().tolist())
    if hue == "dataset":
        styles = {name: replace(style, answer=style.question) for name, style in styles.items()}
    keys: list[Key] = list(dict.fromkeys(table[ENTRY_KEYS].itertuples(index=False, name=None)))
    names, differing = _Names(keys), variants(table)
    entries: dict[Key, Entry] = {}
    for key in keys:
        entry, variant = names.entry(key, styles[key[0]]), differing[(key[1], *key[4:])]
        said = [styles[key[0]].display, *([escape(variant.text, quote=False)] if variant.text else [])]
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
        return Entry(label, colour, dash, (style.rank, 0, place, anchor_rank(anchor)))

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
        return Entry(escape(name, quote=False), colour, dash, (style.rank, 1, anchor_rank(anchor), 0))

    def _hue_of_unknown(self, anchor: str) -> str:
        return tuple(dataset_styles([f"anchor {name}" for name in self.unknown]).values())[self.unknown.index(anchor)].answer


def anchor_rank(anchor: str) -> int:
    known = ("question", *_ANSWERS, *_OTHERS)
    return known.index(anchor) if anchor in known else len(known)
