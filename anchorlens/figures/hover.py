"""What a point of the figure says when it is pointed at."""

import math
from html import escape
from typing import Any

import pandas as pd

from anchorlens.figures.extras import CUTS, GAP, PLACEBOS
from anchorlens.figures.shapes import FEW
from anchorlens.figures.words import DELTA, FLIPS, Contrast, Words, words_of

WEAK = 0.5
"""Share of rows whose null has fewer slots than the anchor, beyond which the null is marked."""


def hover_texts(rows: pd.DataFrame, name: str, panel: str, dataset: str) -> list[str]:
    """What each point of one curve says when pointed at.

    Args:
        rows: The points of one curve, control included.
        name: The curve's shown name.
        panel: The title of its panel.
        dataset: The data set's shown name.

    Returns:
        One text per row: curve, panel, data set, anchor, layer, ΔP with both intervals, P before, n, the probe's AUC.
    """
    first = rows.iloc[0]
    control = str(first["control"])
    kind = "" if control == "none" else f"<br>control: {escape(control, quote=False)}"
    known = PLACEBOS | CUTS
    if control == GAP.label:
        kind = ""
    elif control in known and first["protocol"] == "knockout":
        kind += f" ({known[control]})"
    head = f"<b>{name}</b>{kind}<br>{panel}, {dataset}<br>anchor {escape(first['anchor'], quote=False)}, layer "
    said, words = (_gap_said if control == GAP.label else _point_said), words_of(rows)
    return [head + "<br>".join([str(row.layer), *said(row, words)]) for row in rows.itertuples(index=False)]


def contrast_texts(rows: pd.DataFrame, name: str, panel: str, quantity: str, contrast: Contrast) -> list[str]:
    """The same of one contrast.

    Args:
        rows: Its points under one control.
        name: The shown name of the curve that it belongs to.
        panel: The title of the panel above.
        quantity: Its name in ``effects.parquet``.
        contrast: How the figure speaks of it.
    """
    first = rows.iloc[0]
    control = "" if first["control"] == "none" else f"<br>control: {escape(first['control'], quote=False)}"
    head = f"<b>{quantity}</b>: {contrast.said}{control}<br>{name}<br>{panel}<br>anchor {escape(first['anchor'], quote=False)}"
    texts: list[str] = []
    for row in rows.itertuples(index=False):
        value: Any = row
        lines = [f"{head}, layer {value.layer}", _measured(value, value.value, contrast.unit, contrast.digits)]
        if value.excludes_zero:
            lines.append("the interval of all layers at once excludes 0")
        texts.append("<br>".join([*lines, *_size(value.n)]))
    return texts


def _point_said(row: Any, words: Words) -> list[str]:
    lines = [f"{escape(words.name, quote=False)} {_measured(row, row.delta_p, words.unit, 2)}"]
    if words is not FLIPS:  # nothing has changed before
        before = "P before" if words is DELTA else "before"
        lines.append(f"{before} unknown" if math.isnan(row.p_before) else f"{before} {row.p_before:.3f}")
    lines += _size(row.n)
    if not math.isnan(row.auc):
        lines.append(f"AUC {row.auc:.2f} ({_interval(f'{row.auc_low:.2f}', f'{row.auc_high:.2f}') or 'no interval'})")
    if row.no_signal:
        lines.append("no signal")
    if row.is_noise:
        lines.append(f"within the noise floor (±{row.noise_floor:.1g})")
    if row.null_short > WEAK:
        lines.append(f"null weaker: {100 * row.null_short:.0f} % of rows have fewer slots")
    if row.trivial:
        lines.append("trivial by construction")
    return lines


def _gap_said(row: Any, words: Words) -> list[str]:
    return [
        f"Q − A = {signed(row.delta_p)}{words.unit} with {PLACEBOS['random_tokens']}",
        "a gap that a split makes by itself",
        *_size(row.n),
    ]


def _measured(row: Any, value: float, unit: str, digits: int) -> str:
    """A value with both of its intervals."""
    ends = [[signed(end, digits) for end in pair] for pair in ((row.ci_low, row.ci_high), (row.sim_low, row.sim_high))]
    point, every = _interval(*ends[0]), _interval(*ends[1])
    intervals = [point, *([f"all layers at once {every}"] if every else [])]
    return f"{signed(value, digits)}{unit} ({'; '.join(part for part in intervals if part) or 'no interval'})"


def _interval(low: str, high: str) -> str:
    return "" if "nan" in (low, high) else f"95 %: {low} to {high}"


def _size(n: float) -> list[str]:
    if math.isnan(n):
        return ["n unknown"]
    said = f"n = {int(n)} question{'' if int(n) == 1 else 's'}"
    return [said, f"fewer than {FEW} questions: read with care"] if n < FEW else [said]


def signed(value: float, digits: int = 2) -> str:
    """A number with a true minus."""
    # As in the axis; -0.00 is said as 0.00.
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")
