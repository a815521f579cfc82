"""``swap_sweep`` of anchorlens with its defaults."""

from ours import LIBRARIES, default_sweep, load

run = default_sweep

__all__ = ["LIBRARIES", "load", "run"]
