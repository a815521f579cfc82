"""A tick for each curve at the right edge of its panel: -100 P before, as far as ΔP can fall. A curve is read beside its P."""

import pandas as pd

from anchorlens.figures.labels import ENTRY_KEYS
from anchorlens.vocabulary import P

# A tick that lies further off than this many times what is drawn would press the curves flat.
_REACH = 1.6
CURVE = ["model", "part", *ENTRY_KEYS]


def with_ticks(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with ``before``, the mean P before of each curve, and ``tick``, how far it can fall; NaN where none is drawn.

    A mean ΔP cannot fall below -100 times the mean P before of its layer. What a probe reads before differs from layer to layer, so
    the tick is that of the layer where P before is largest: no point of the curve lies below it.

    There is no tick where ΔP has no such floor (another quantity, denoising, P unknown) or where it lies far below all curves.
    """
    own = (
        (table["control"] == "none") & (table["extra"] == "") & (table["quantity"] == P) & (table["direction"] != "denoising")
    )
    known = table["p_before"].where(own & table["delta_p"].notna())
    curves = known.groupby([table[name] for name in CURVE], sort=False)
    before, tick = curves.transform("mean").where(own), -100 * curves.transform("max").where(own)
    return table.assign(before=before, tick=tick.where(tick >= _REACH * min(float(table["delta_p"].min()), 0.0)))


def before_said(table: pd.DataFrame) -> list[str]:
    """``P before 0.48–0.63``, for the title line."""
    known = table["before"].dropna()
    if known.empty:
        return []
    low, high = f"{known.min():.2f}", f"{known.max():.2f}"
    return [f"P before {low}{'' if low == high else f'–{high}'}"]
