"""Settings by which two runs of one model and data set may differ: what the legend says of them, and how it tells them apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from anchorlens.vocabulary import SETTINGS

_USUAL = {"prompt": "qa", "answers": "given", "distractor": "matched", "split": "fixed", "known_only": "False"}

_KNOWN = {"True": "known only", "False": "known or not"}

SHADES = (0.0, -0.45, 0.45, -0.7)
# The first variant has the look of METHOD 8; dots are the controls'.
DASHES = {
    "solid": ("solid", "14px,3px", "14px,3px,3px,3px", "24px,4px"),
    "dash": ("dash", "10px,4px", "10px,4px,3px,4px", "18px,8px"),
}


@dataclass(frozen=True)
class Variant:
    """One choice of settings among those of a figure.

    Attributes:
        text: What the legend says of it; empty where nothing differs.
        rank: Its place, from 0; the usual settings come first.
    """

    text: str
    rank: int


def variants(table: pd.DataFrame) -> dict[tuple[str, ...], Variant]:
    """The choices of a figure.

    Returns:
        (protocol, *settings) -> variant. Its text holds the settings that differ among the curves of the protocol; where each panel
        has one choice, its title tells them apart and the curves look alike.
    """
    found: dict[tuple[str, ...], Variant] = {}
    for protocol, rows in table.groupby("protocol", sort=False):
        told = rows.groupby("part")[list(SETTINGS)].nunique().max(axis=None) == 1
        choices = sorted(set(rows[list(SETTINGS)].itertuples(index=False, name=None)), key=_order)
        said = [choice for choice in choices if any(choice)]
        differing = [k for k in range(len(SETTINGS)) if len({choice[k] for choice in said}) > 1]
        for rank, choice in enumerate(choices):
            text = ", ".join(f"{SETTINGS[k]} {choice[k]}" for k in differing if choice[k])
            # Runs of older versions do not say; beside one that does, that is the difference.
            text = "settings unknown" if said and not any(choice) else text
            found[(str(protocol), *choice)] = Variant("", 0) if told else Variant(text, rank)
    return found


def _order(choice: Sequence[str]) -> list[tuple[bool, str]]:
    return [(value != _USUAL[name], value) for name, value in zip(SETTINGS, choice, strict=True)]


def shared_settings(rows: pd.DataFrame) -> list[str]:
    """Parts of the title line: settings that all curves share, and those in which labelled runs differ."""
    parts: list[str] = []
    for name in SETTINGS:
        values = [str(value) for value in rows[name].unique()]
        if (len(values) == 1 and values[0]) or rows["part"].nunique() > 1:
            shown = ", ".join(_KNOWN.get(value, value) if name == "known_only" else value for value in values if value)
            parts += [shown if name == "known_only" else f"{name} {shown}"] if shown else []
    return parts
