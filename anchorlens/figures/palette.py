"""Which colour and which shown name a data set has.

The eight colours are those of the target figures: one pair (question, answer) per benchmark. They belong to the benchmark,
not to its place in a figure, so the same curve has the same colour in every figure. An embedded sample takes the colours of
the benchmark whose schema it follows, and says in its name that it is a sample.
"""

import colorsys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_BENCHMARKS: dict[str, tuple[str, str, str]] = {
    "popqa": ("PopQA", "#1f77b4", "#ff7f0e"),
    "triviaqa": ("TriviaQA", "#2ca02c", "#d62728"),
    "hotpotqa": ("HotpotQA", "#9467bd", "#8c564b"),
    "nq": ("NQ", "#e377c2", "#7f7f7f"),
}
_FURTHER: tuple[tuple[str, str], ...] = (
    ("#17a2b8", "#a8a000"),
    ("#393b79", "#e0a800"),
    ("#00695c", "#ad1457"),
    ("#637939", "#7b4173"),
)
_SAMPLE = "-sample"
# Shades of one hue for the data sets of an anchor that is neither question nor answer.
_SHADES = (0.0, -0.35, 0.3, 0.5)


@dataclass(frozen=True)
class DatasetStyle:
    """How one data set is shown.

    Attributes:
        display: Its shown name, safe inside plotly's text markup.
        question: Colour of its question curves, ``#rrggbb``.
        answer: Colour of its answer curves, ``#rrggbb``.
        rank: Its place in the legend, from 0.
        shade: How far the hue of any other anchor is moved for it, see :func:`shaded`.
    """

    display: str
    question: str
    answer: str
    rank: int
    shade: float


def _benchmark_of(name: str) -> str | None:
    base = name.casefold().removesuffix(_SAMPLE)
    return base if base in _BENCHMARKS else None


def display_dataset(name: str) -> str:
    """The shown name of a data set.

    >>> display_dataset("popqa"), display_dataset("popqa-sample"), display_dataset("my quiz")
    ('PopQA', 'PopQA-style sample', 'my quiz')
    """
    base = _benchmark_of(name)
    if base is None:
        return name
    shown = _BENCHMARKS[base][0]
    return f"{shown}-style sample" if name.casefold().endswith(_SAMPLE) else shown


def _further_pair(number: int) -> tuple[str, str]:
    """Colours of the ``number``-th data set that has none of its own; without end and always the same."""
    if number < len(_FURTHER):
        return _FURTHER[number]
    # Steps of the golden ratio around the colour circle never come back to a hue.
    hue = (0.07 + number * 0.61803398875) % 1.0
    return hex_of(colorsys.hls_to_rgb(hue, 0.36, 0.75)), hex_of(colorsys.hls_to_rgb((hue + 0.5) % 1.0, 0.45, 0.7))


def dataset_styles(names: Sequence[str]) -> dict[str, DatasetStyle]:
    """Colours, shown names and legend places of the data sets of one figure.

    Args:
        names: Their names, in order of appearance; repeats are ignored.

    Returns:
        A style per name. Benchmarks come first, in the order of the target figures; a sample stands at its benchmark's place
        and takes its colours, unless the benchmark itself is in the figure; all others follow in order of appearance.
    """
    unique = list(dict.fromkeys(names))
    own: dict[str, str] = {}
    for name in sorted(unique, key=lambda item: item.casefold().endswith(_SAMPLE)):
        base = _benchmark_of(name)
        if base is not None and base not in own.values():
            own[name] = base
    places = list(_BENCHMARKS)
    ordered = sorted(own, key=lambda item: places.index(own[item])) + [name for name in unique if name not in own]
    shown = Counter(display_dataset(name) for name in unique)
    styles: dict[str, DatasetStyle] = {}
    for rank, name in enumerate(ordered):
        question, answer = _BENCHMARKS[own[name]][1:] if name in own else _further_pair(rank - len(own))
        # Two names with one shown form ("popqa", "PopQA") would be one legend entry: both keep their raw names.
        display = display_dataset(name) if shown[display_dataset(name)] == 1 else name
        slot = places.index(own[name]) if name in own else rank
        styles[name] = DatasetStyle(escape(display, quote=False), question, answer, rank, _SHADES[slot % len(_SHADES)])
    return styles


def hex_of(rgb: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def rgb_of(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def shaded(colour: str, amount: float) -> str:
    """``colour`` moved towards white (``amount`` in (0, 1]) or black (in [-1, 0)).

    >>> shaded("#804020", -0.5), shaded("#804020", 0.0), shaded("#804020", 1.0)
    ('#402010', '#804020', '#ffffff')
    """
    target = 255 if amount > 0 else 0
    return "#" + "".join(f"{round(part + abs(amount) * (target - part)):02x}" for part in rgb_of(colour))


def translucent(colour: str, opacity: float) -> str:
    """``colour`` as a CSS ``rgba()`` with an opacity in [0, 1].

    >>> translucent("#1f77b4", 0.15)
    'rgba(31,119,180,0.15)'
    """
    red, green, blue = rgb_of(colour)
    return f"rgba({red},{green},{blue},{opacity:g})"
