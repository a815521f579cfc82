"""Light and dark: the colours of everything that is not data, and data colours that can be seen on black."""

import colorsys
from typing import Any

import plotly.graph_objects as go

from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures.palette import hex_of, rgb_of

THEMES = ("light", "dark")
_PAPER, _INK, _QUIET, _GRID, _LINE = "#14171a", "#e8e8e8", "#b4b8bd", "#2c3136", "#9aa0a6"
# Colours of the light figure and what takes their place; everything else is data.
_SWAPPED = {
    "#222222": _INK, "#555555": _QUIET, "#e6e6e6": _GRID, "#444444": _LINE, "#888888": "#7d848b", "white": _PAPER,
    "#bbbbbb": "#5a6067", "#666666": "#a8adb3",
}  # fmt: skip
_DARKEST = 0.62


def in_theme(figure: go.Figure, theme: str) -> go.Figure:
    """``figure`` on white or on near black.

    Raises:
        InputError: no such theme.
    """
    if theme not in THEMES:
        raise InputError(f"There is no theme={theme!r}. {did_you_mean(str(theme), THEMES)}")
    if theme == "light":
        return figure
    made = go.Figure(_darkened(figure.to_plotly_json()))
    # The button that is pressed is nearly white, whatever the others are.
    layout: Any = made.layout  # plotly's types allow for figures that have none
    for menu in layout.updatemenus:
        menu.update(bgcolor="#aeb4ba", font={"color": "#222222"})
    return made


def _darkened(value: Any) -> Any:
    """A figure as plain values with every colour replaced."""
    if isinstance(value, dict):
        return {key: _darkened(part) if key not in ("x", "y", "template") else part for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_darkened(part) for part in value)
    if not isinstance(value, str):
        return value
    if value in _SWAPPED:
        return _SWAPPED[value]
    if value.startswith("#") and len(value) == 7:
        return lighter(value)
    if value.startswith("<span"):
        for old, new in _SWAPPED.items():
            value = value.replace(f"color:{old}", f"color:{new}")
    return value


def lighter(colour: str) -> str:
    """``colour`` with so much light that it can be seen on near black, in its own hue.

    >>> lighter("#ff7f0e"), lighter("#8c564b")
    ('#ff983d', '#bb8b81')
    """
    hue, light, saturation = colorsys.rgb_to_hls(*(part / 255 for part in rgb_of(colour)))
    return hex_of(colorsys.hls_to_rgb(hue, max(light, _DARKEST), saturation))
