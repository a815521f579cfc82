"""Note on a swap that starts from a low probability, which explains a flat curve."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anchorlens.constants import P

_LOW = 0.2
"""P before below which the note is written."""


def low_p_note(curves: pd.DataFrame, config: Mapping[str, Any]) -> str:
    """Return how far P can fall, with the cure, if P of the answer is low before the swap.

    Args:
        curves: Curves of a swap.
        config: Arguments of the swap.

    Returns:
        A sentence; empty where P is high, where it may rise (denoising), or where no P is read.
    """
    if config.get("direction") == "denoising" or config.get("delta_kind") != "probability":
        return ""
    own = curves[(curves["control"] == "none") & (curves["metric"] == P)]
    before = float(own["value_before"].mean())
    if not before < _LOW:
        return ""
    cures: list[str] = []
    if not str(config.get("prompt", "")).startswith("fewshot"):
        cures.append("prompt='fewshot(2)'")
    if not config.get("known_only"):
        cures.append("known_only=True")
    cure = f" Use {' or '.join(cures)}." if cures else ""
    return f"P before is {before:.2g}: ΔP cannot fall below {-100 * before:.2g} points.{cure}"
