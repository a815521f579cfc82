"""Progress of long work: a bar in a terminal or notebook, a line every few seconds in a pipe or log file."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

# A log file wants to know that work goes on, not every step of it.
_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Counts work towards a total.

    Args:
        label: What is being done.
        total: How much there is.
        unit: Of what.
        show: Whether anything is shown.
    """

    def __init__(self, label: str, total: float, unit: str, *, show: bool) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done, self.phase = 0.0, ""
        self._told = self._skipped = 0.0
        self._started = self._said = time.monotonic()
        self._bar = None
        self._lines = show and not _interactive()
        if show and not self._lines:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, desc=label, unit=unit, unit_scale=True, dynamic_ncols=True)

    def advance(self, work: float) -> None:
        """So much was done; never past the end: shares of passes do not add up exactly, and a split batch is counted again."""
        step = min(work, max(self.total - self.done, 0))
        self.done += step
        if self._bar is not None:
            self._bar.update(step)
        elif self._lines and time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES:
            self._say()

    def skip(self, work: float) -> None:
        """So much was done before: it counts towards the end, and not towards the rate."""
        step = min(work, max(self.total - self.done, 0))
        self.done += step
        self._skipped += step
        if self._bar is not None:
            self._bar.n += step
            self._bar.initial += step
            self._bar.refresh()

    def enter(self, phase: str) -> None:
        """Name what is being done beside the count (``noise floor``); empty for the work itself."""
        self.phase = phase
        if self._bar is not None:
            self._bar.set_postfix_str(phase)
        elif self._lines and phase and time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES:
            self._say()

    def close(self) -> None:
        """The work has ended, well or not."""
        if self._bar is not None:
            self._bar.close()
        elif self._lines and self._said > self._started and self.done > self._told:  # short work needs no last word
            self._say()

    def _say(self) -> None:
        self._said, self._told = time.monotonic(), self.done
        spent = self._said - self._started
        share = self.done / self.total if self.total else 1.0
        own = self.done - self._skipped
        left = f", about {spent * (self.total - self.done) / own:.0f} s left" if own > 0 and share < 1 else ""
        phase = f" ({self.phase})" if self.phase else ""
        sys.stderr.write(f"{self.label}: {share:.0%} of {self.total:,.0f} {self.unit}s{phase}, {spent:.0f} s{left}\n")
        sys.stderr.flush()


def _interactive() -> bool:
    """A terminal, or a notebook, where a bar can be drawn over itself."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextmanager
def progress(label: str, total: float, unit: str, *, show: bool) -> Iterator[Progress]:
    """A :class:`Progress` that is closed at the end of a ``with`` block."""
    made = Progress(label, total, unit, show=show)
    try:
        yield made
    finally:
        made.close()


__all__ = ["Progress", "progress"]
