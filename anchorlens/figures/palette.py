"""Colours and display names of data sets, and the dark theme.

Each benchmark has one pair of colours (question, answer) in every figure; a sample has the colours
of its benchmark.
"""

import colorsys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import plotly.graph_objects as go

from anchorlens.errors import InputError, did_you_mean

_BENCHMARKS: dict[str, tuple[str, str, str]] = {
    "popqa": ("PopQA", "#1f77b4", "#ff7f0e"),
    "triviaqa": ("TriviaQA", "#2ca02c", "#d62728"),
    "hotpotqa": ("HotpotQA", "#9467bd", "#8c564b"),
    "nq": ("NQ", "#e377c2", "#7f7f7f"),
}
_FURTHER = (
    ("#17a2b8", "#a8a000"),
    ("#393b79", "#e0a800"),
    ("#00695c", "#ad1457"),
    ("#637939", "#7b4173"),
)
_SAMPLE = "-sample"
THEMES = ("light", "dark")
# Light colour -> dark colour; all other colours are data.
_DARK = {
    "#222222": "#e8e8e8",
    "#555555": "#b4b8bd",
    "#e6e6e6": "#2c3136",
    "#c9cdd1": "#2c3136",
    "#444444": "#9aa0a6",
    "#888888": "#7d848b",
    "white": "#14171a",
    "#bbbbbb": "#5a6067",
    "#666666": "#a8adb3",
}
_DARKEST = 0.62
# Shades of one hue for the data sets of an anchor that is neither question nor answer.
_SHADES = (0.0, -0.35, 0.3, 0.5)


@dataclass(frozen=True)
class DatasetStyle:
    """Display style of one data set."""

    display: str  # safe inside plotly's text markup
    question: str  # colour of question curves, #rrggbb
    answer: str
    rank: int  # place in the legend
    shade: float  # amount by which :func:`shade` moves the hue of any other anchor


def _benchmark_of(name: str) -> str | None:
    base = name.casefold().removesuffix(_SAMPLE)
    return base if base in _BENCHMARKS else None


def display_dataset(name: str) -> str:
    """Return the display name of a data set.

    >>> display_dataset("popqa"), display_dataset("popqa-sample"), display_dataset("my quiz")
    ('PopQA', 'PopQA-style sample', 'my quiz')
    """
    base = _benchmark_of(name)
    if base is None:
        return name
    shown = _BENCHMARKS[base][0]
    return f"{shown}-style sample" if name.casefold().endswith(_SAMPLE) else shown


def _further_pair(number: int) -> tuple[str, str]:
    if number < len(_FURTHER):
        return _FURTHER[number]
    # Steps of the golden ratio around the colour circle never repeat a hue.
    hue = (0.07 + number * 0.61803398875) % 1.0
    return hex_of(colorsys.hls_to_rgb(hue, 0.36, 0.75)), hex_of(
        colorsys.hls_to_rgb((hue + 0.5) % 1.0, 0.45, 0.7)
    )


def dataset_styles(names: Sequence[str]) -> dict[str, DatasetStyle]:
    """Return the style of every data set of one figure; repeated names are ignored.

    Benchmarks come first, in the order of the target figures. A sample has the place and colours of
    its benchmark unless that is in the figure too. Others follow in order of appearance.
    """
    unique = list(dict.fromkeys(names))
    own: dict[str, str] = {}
    for name in sorted(unique, key=lambda item: item.casefold().endswith(_SAMPLE)):
        base = _benchmark_of(name)
        if base is not None and base not in own.values():
            own[name] = base
    places = list(_BENCHMARKS)
    ordered = sorted(own, key=lambda item: places.index(own[item]))
    ordered += [name for name in unique if name not in own]
    shown = Counter(display_dataset(name) for name in unique)
    styles: dict[str, DatasetStyle] = {}
    for rank, name in enumerate(ordered):
        question, answer = (
            _BENCHMARKS[own[name]][1:] if name in own else _further_pair(rank - len(own))
        )
        # Names with the same display name ("popqa", "PopQA") would share a legend entry, so both
        # are shown raw.
        display = display_dataset(name) if shown[display_dataset(name)] == 1 else name
        slot = places.index(own[name]) if name in own else rank
        styles[name] = DatasetStyle(
            escape(display, quote=False), question, answer, rank, _SHADES[slot % len(_SHADES)]
        )
    return styles


def hex_of(rgb: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def rgb_of(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def shade(colour: str, amount: float) -> str:
    """Mix ``colour`` with white (``amount`` in (0, 1]) or black (in [-1, 0)).

    >>> shade("#804020", -0.5), shade("#804020", 0.0), shade("#804020", 1.0)
    ('#402010', '#804020', '#ffffff')
    """
    target = 255 if amount > 0 else 0
    parts = [round(part + abs(amount) * (target - part)) for part in rgb_of(colour)]
    return "#" + "".join(f"{part:02x}" for part in parts)


def translucent(colour: str, opacity: float) -> str:
    """Return ``colour`` as a CSS ``rgba()`` with an opacity in [0, 1].

    >>> translucent("#1f77b4", 0.15)
    'rgba(31,119,180,0.15)'
    """
    red, green, blue = rgb_of(colour)
    return f"rgba({red},{green},{blue},{opacity:g})"


def in_theme(figure: go.Figure, theme: str) -> go.Figure:
    """Return ``figure`` in the light or dark theme."""
    if theme not in THEMES:
        raise InputError(
            f"theme={theme!r}: unknown value. {did_you_mean(str(theme), THEMES)}", argument="theme"
        )
    if theme == "light":
        return figure
    made = type(figure)(_darken(figure.to_plotly_json()))
    # Plotly always draws the active button nearly white.
    menus = len(made.to_dict()["layout"].get("updatemenus", ()))
    return made.update_layout(
        updatemenus=[{"bgcolor": "#aeb4ba", "font": {"color": "#222222"}}] * menus
    )


def _darken(value: Any) -> Any:
    if isinstance(value, dict):
        darkened: dict[Any, Any] = {}
        for key, part in value.items():
            is_kept = key in ("x", "y", "template")
            darkened[key] = part if is_kept else _darken(part)
        return darkened
    if isinstance(value, list | tuple):
        return type(value)(_darken(part) for part in value)
    if not isinstance(value, str):
        return value
    if value in _DARK:
        return _DARK[value]
    if value.startswith("#") and len(value) == 7:
        return lighten(value)
    if value.startswith("rgba(34,34,34,"):  # bands in the colour of the text
        return value.replace("34,34,34", "232,232,232")
    if value.startswith("<span"):
        for light, dark in _DARK.items():
            value = value.replace(f"color:{light}", f"color:{dark}")
    return value


def lighten(colour: str) -> str:
    """Return ``colour`` in the same hue, light enough for a dark background.

    >>> lighten("#ff7f0e"), lighten("#8c564b")
    ('#ff983d', '#bb8b81')
    """
    hue, light, saturation = colorsys.rgb_to_hls(*(part / 255 for part in rgb_of(colour)))
    return hex_of(colorsys.hls_to_rgb(hue, max(light, _DARKEST), saturation))


def darken(colour: str, contrast: float = 3.0) -> str:
    """Return ``colour`` in the same hue, dark enough for thin lines on white: the ratio of WCAG 2
    is at least ``contrast``.

    >>> darken("#ff7f0e"), darken("#1f77b4")
    ('#f77500', '#1f77b4')
    """
    hue, light, saturation = colorsys.rgb_to_hls(*(part / 255 for part in rgb_of(colour)))
    while 1.05 / (luminance(colour) + 0.05) < contrast:
        light -= 0.01
        colour = hex_of(colorsys.hls_to_rgb(hue, light, saturation))
    return colour


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2, in [0, 1].

    >>> luminance("#ffffff"), luminance("#000000")
    (1.0, 0.0)
    """
    red, green, blue = map(_linear_light, rgb_of(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear_light(value: int) -> float:
    """Return the light of a red, green or blue value of sRGB, in [0, 1]."""
    part = value / 255
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
