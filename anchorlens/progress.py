"""Progress display: a bar in a terminal or notebook; in a pipe or log file, a line every ten
seconds. Work without a count, such as loading a model, is named after two seconds.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anchorlens.display import escape_hidden

_SECONDS = 10.0
# Silence after which work without a count is named, and the interval of its clock in a terminal.
_SILENCE = 2.0
_CLOCK = 1.0
_LINE = "{desc}: {percentage:.0f}% of {total:,.0f} {unit}s{postfix}, {elapsed} spent"
_LINE_WITH_REST = f"{_LINE}, about {{remaining}} left"
# Share of the work before which no rest is estimated: the first batch is also checked, so that the
# estimate was up to 20 times the time that was left.
_TOO_EARLY = 0.05


class Waiting:
    """Names work that cannot be counted, from two seconds on, until it is closed.

    A thread writes to the standard error of the moment at which it is made: in a terminal or
    notebook one line with a clock, which is removed at the end; else a line every ten seconds in
    which nothing else was written. In a notebook the clock is shown every ten seconds, because an
    executed notebook that becomes a page keeps each state of the line.

    Args:
        label: Name of the work.
        show: Whether to write anything.
        since: Time (``time.monotonic``) of the last sign of life. If None, now.

    Attributes:
        done: Finished share of the work, in words; empty if unknown.
    """

    def __init__(self, label: str, *, show: bool, since: float | None = None) -> None:
        self._label = escape_hidden(label)
        self._stream = sys.stderr
        self._in_place = is_in_place()
        self._interval = _CLOCK if _is_terminal() else _SECONDS
        self._start = time.monotonic()
        silent = 0.0 if since is None else self._start - since
        self._first_pause = max(0.0, _SILENCE - silent)
        self._written = self._start - _SECONDS
        self.done = ""
        self._clock: Any = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if show and _has_stream():
            self._thread = threading.Thread(target=self._write_lines, name="waiting", daemon=True)
            self._thread.start()

    def _write_lines(self) -> None:
        pause = self._first_pause
        while not self._ended.wait(pause):
            # Another display may have written in the meantime.
            pause = self._written + _SECONDS - time.monotonic()
            if not self._in_place and pause > 0:
                continue
            try:
                if self._in_place:
                    self._show_clock()
                else:
                    self._write_line()
            except (OSError, ValueError):  # the stream was closed; the work goes on
                return
            pause = self._interval

    def _write_line(self) -> None:
        spent = int(time.monotonic() - self._start)
        done = f"{self.done}, " if self.done else ""
        self._written = time.monotonic()
        self._stream.write(f"{self._label}: {done}{spent // 60:02}:{spent % 60:02} spent\n")
        self._stream.flush()

    def note_line(self) -> None:
        """Leave the next line to another display, which writes one every ten seconds too."""
        self._written = time.monotonic() + _SILENCE

    def _show_clock(self) -> None:
        """Show the clock as a bar of ``tqdm``, which keeps other bars on other lines."""
        from tqdm import std

        if self._clock is None:
            self._clock = std.tqdm(
                desc=self._label,
                file=self._stream,
                bar_format="{desc}: {elapsed} spent",
                leave=False,
                **_size(),
                delay=1e-9,  # else it is written before its start is set back
            )
            if self._clock.disable:  # TQDM_DISABLE
                self._ended.set()
                return
            self._clock.start_t -= time.monotonic() - self._start
        self._clock.refresh()

    def close(self) -> None:
        """End the display."""
        self._ended.set()
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if self._clock is not None:
            self._clock.close()


def is_in_place() -> bool:
    """Return whether a display can replace its last line: in a terminal or notebook."""
    if not _has_stream():
        return False
    # A script that imports ipykernel, as nbclient does, is no notebook.
    is_notebook = type(sys.stderr).__module__.partition(".")[0] == "ipykernel"
    return is_notebook or sys.stderr.isatty()


def _is_terminal() -> bool:
    return _has_stream() and sys.stderr.isatty()


def _has_stream() -> bool:
    """Return whether standard error exists, which a windowed program lacks, and is open."""
    return sys.stderr is not None and not getattr(sys.stderr, "closed", False)


@contextmanager
def waiting(label: str, *, show: bool) -> Iterator[None]:
    """Name the work of a ``with`` block that lasts longer than two seconds."""
    made = Waiting(label, show=show)
    try:
        yield
    finally:
        made.close()


@contextmanager
def name_import(*, show: bool) -> Iterator[None]:
    """Name the first import of torch and transformer-lens, which takes ten seconds."""
    is_done = "transformer_lens" in sys.modules
    with waiting("importing torch and transformer-lens", show=show and not is_done):
        yield


class Progress:
    """Counts work towards a total, in ``unit`` (singular).

    Args:
        label: Name of the work.
        total: Total, in ``unit``.
        unit: Unit of the work.
        show: Whether to write anything.
        since: Time (``time.monotonic``) of the last sign of life. If None, now.
    """

    def __init__(
        self, label: str, total: float, unit: str, *, show: bool, since: float | None = None
    ) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.done = 0.0
        self.phase = ""
        self._unit = unit
        self._in_place = is_in_place()
        # A bar in a pipe writes nothing while a batch is measured, which can take a minute.
        self._waiting = Waiting(label, show=show and not self._in_place, since=since)
        self._bar: Any = None
        self._ended = threading.Event()
        self._clock: threading.Thread | None = None
        if show:
            from tqdm import auto, std

            shown = {"total": total, "desc": escape_hidden(label), "unit": unit, "smoothing": 0}
            if self._in_place:
                self._bar = auto.tqdm(**shown, unit_scale=True, **_size())
            else:
                self._bar = std.tqdm(
                    **shown,
                    file=_Lines(self._waiting),
                    bar_format=_LINE,
                    mininterval=_SECONDS,
                    delay=_SECONDS,
                    miniters=0,
                )
            if self._bar.disable:  # TQDM_DISABLE
                self._bar = None
        if self._bar is not None and self._in_place:
            self._clock = threading.Thread(target=self._show_time, name="clock", daemon=True)
            self._clock.start()

    def advance(self, work: float) -> None:
        """Add finished work, up to the total; rounding and split batches could exceed it."""
        step = min(work, max(self.total - self.done, 0))
        self.done += step
        if self._bar is not None:
            if not self._in_place and self.done >= _TOO_EARLY * self.total:
                self._bar.bar_format = _LINE_WITH_REST
            self._bar.update(step)
            self._tell_waiting()

    def skip(self, work: float) -> None:
        """Add work that was finished earlier; it does not count in the rate."""
        step = min(work, max(self.total - self.done, 0))
        self.done += step
        if self._bar is not None:
            self._bar.initial += step
            self._bar.n += step

    def enter(self, phase: str) -> None:
        """Name the current phase, such as ``checks``; empty for the counted work."""
        if phase == self.phase:
            return
        self.phase = phase
        if self._bar is not None:
            self._bar.set_postfix_str(phase, refresh=self._in_place)
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        done = f"{self.done / self.total:.0%} of {self.total:,.0f} {self._unit}s"
        self._waiting.done = ", ".join(filter(None, [done, self.phase]))

    def _show_time(self) -> None:
        """Renew the bar while nothing is counted: a clock that stands still looks like a program
        that hangs.
        """
        while not self._ended.wait(_CLOCK if _is_terminal() else _SECONDS):
            try:
                if time.time() - self._bar.last_print_t >= _CLOCK:
                    self._bar.refresh()
            except (OSError, ValueError):  # the stream was closed; the work goes on
                return

    def close(self) -> None:
        """End the display."""
        self._waiting.close()
        self._ended.set()
        if self._clock is not None:
            self._clock.join()
        if self._bar is not None:
            self._bar.close()


def _size() -> dict[str, Any]:
    """Return the options of ``tqdm`` for the size of the terminal; one that states no size, as of
    some containers and editors, would have an empty bar.
    """
    try:
        states_size = os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError):  # a notebook, or a stream without a file
        states_size = True
    if states_size:
        return {"dynamic_ncols": True}
    usual = shutil.get_terminal_size()
    return {"ncols": usual.columns, "nrows": usual.lines}


class _Lines:
    """Standard error for ``tqdm`` without carriage returns: every refresh is a line.

    Args:
        waiting: Display of silent work, which begins again after each line.
    """

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting

    def write(self, text: str) -> None:
        if line := text.strip():
            self._waiting.note_line()
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        sys.stderr.flush()


@contextmanager
def progress(
    label: str, total: float, unit: str, *, show: bool, since: float | None = None
) -> Iterator[Progress]:
    """Return a :class:`Progress` that is closed at the end of a ``with`` block."""
    made = Progress(label, total, unit, show=show, since=since)
    try:
        yield made
    finally:
        made.close()
