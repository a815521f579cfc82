"""Progress display: a bar in a terminal or notebook; in a pipe or log file, a line every ten seconds."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SECONDS = 10.0
_LINE = "{desc}: {percentage:.0f}% of {total:,.0f} {unit}s{postfix}, {elapsed} spent, about {remaining} left"


class Progress:
    """Counts work towards a total, in ``unit`` (singular)."""

    def __init__(self, label: str, total: float, unit: str, *, show: bool) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done = 0.0
        self._in_place = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._bar: Any = None
        if show:
            from tqdm import auto, std

            shown = {"total": total, "desc": label, "unit": unit, "smoothing": 0}
            if self._in_place:
                self._bar = auto.tqdm(**shown, unit_scale=True, dynamic_ncols=True)
            else:
                self._bar = std.tqdm(**shown, file=_Lines(), bar_format=_LINE, mininterval=_SECONDS, delay=_SECONDS, miniters=0)

    def advance(self, work: float) -> None:
        """Add finished work, up to the total; rounding and split batches could exceed it."""
        step = min(work, max(self.total - self.done, 0))
        self.done += step
        if self._bar is not None:
            self._bar.update(step)

    def skip(self, work: float) -> None:
        """Add work that was finished earlier; it does not count in the rate."""
        step = min(work, max(self.total - self.done, 0))
        self.done += step
        if self._bar is not None:
            self._bar.initial += step
            self._bar.n += step

    def enter(self, phase: str) -> None:
        """Name the current phase, such as ``checks``; empty for the counted work."""
        if self._bar is not None:
            self._bar.set_postfix_str(phase, refresh=self._in_place)

    def close(self) -> None:
        """End the display."""
        if self._bar is not None:
            self._bar.close()


class _Lines:
    """Standard error for ``tqdm`` without carriage returns: every refresh is a line."""

    def write(self, text: str) -> None:
        if line := text.strip():
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        sys.stderr.flush()


@contextmanager
def progress(label: str, total: float, unit: str, *, show: bool) -> Iterator[Progress]:
    """Return a :class:`Progress` that is closed at the end of a ``with`` block."""
    made = Progress(label, total, unit, show=show)
    try:
        yield made
    finally:
        made.close()
