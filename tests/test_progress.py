"""Progress: a bar in a terminal, lines in a pipe, nothing if it is turned off."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest
import tqdm.std

import anchorlens as al
from anchorlens.progress import Progress, progress, waiting
from tests.running.small_sweeps import sweep


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(tqdm.std, "time", made)
    return made


def test_in_a_pipe_there_are_few_lines_and_no_carriage_returns(clock, capsys):
    with progress("swap m on d", 3000, "cell", show=True) as bar:
        for _ in range(1000):
            clock.now += 0.05
            bar.advance(3)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert "\r" not in err
    assert 4 <= len(lines) <= 6  # 50 seconds, a line every ten
    assert re.fullmatch(
        r"swap m on d: 20% of 3,000 cells, 00:\d\d spent, about 00:(39|40) left", lines[0]
    )
    assert lines[-1].startswith("swap m on d: 100% of 3,000 cells")


def test_skipped_work_does_not_count_in_the_rate(clock, capsys):
    bar = Progress("swap", 100, "cell", show=True)
    bar.skip(50)
    clock.now += 11
    bar.enter("checks")
    bar.advance(25)
    assert (
        capsys.readouterr().err == "swap: 75% of 100 cells, checks, 00:11 spent, about 00:10 left\n"
    )


def test_no_rest_is_estimated_from_the_first_cells(clock, capsys):
    """The first batch is checked too: 2 % after 12 seconds were followed by the end 30 later."""
    with progress("swap", 1000, "cell", show=True) as bar:
        for share in (20, 300):
            clock.now += 11
            bar.advance(share)
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == "swap: 2% of 1,000 cells, 00:11 spent"
    assert re.fullmatch(r"swap: 32% of 1,000 cells, 00:22 spent, about 00:4\d left", second)


def test_a_long_batch_is_named_every_ten_seconds(clock, monkeypatch, capsys):
    """Nothing was written for 92 seconds, while one batch of heads was measured."""
    monkeypatch.setattr("anchorlens.progress._SILENCE", 0.05)
    monkeypatch.setattr("anchorlens.progress._SECONDS", 0.1)
    with progress("swap", 10, "cell", show=True) as bar:
        time.sleep(0.5)
        assert 2 <= capsys.readouterr().err.count("swap: 00:00 spent\n") <= 5
        clock.now += 11
        bar.advance(4)
        time.sleep(0.3)
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("swap: 40% of 10 cells, 00:11 spent, about ")
    assert "swap: 40% of 10 cells, 00:00 spent" in others


def test_short_work_says_nothing_in_a_pipe_and_work_that_is_not_shown_nothing_at_all(clock, capsys):
    for show, seconds in ((True, 0.9), (False, 60)):
        with progress("answers", 10, "question", show=show) as bar:
            for _ in range(10):
                clock.now += seconds
                bar.advance(1.2)
                bar.enter("checks")
        assert bar.done == 10  # and never more
    Progress("nothing", 0, "cell", show=True).close()
    assert capsys.readouterr() == ("", "")


def test_in_a_terminal_it_is_a_bar_that_is_closed_when_the_work_fails(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with (
        pytest.raises(RuntimeError, match="broken"),
        progress("swap", 10, "cell", show=True) as bar,
    ):
        bar.advance(5)
        bar.enter("checks")
        raise RuntimeError("broken")
    err = capsys.readouterr().err
    assert "\r" in err
    assert "swap:  50%" in err
    assert "checks" in err


def test_the_clock_of_a_bar_goes_on_while_nothing_is_counted(monkeypatch, capsys):
    """The first percentage of a sweep came after 17 s of a bar that stood still."""
    monkeypatch.setattr("anchorlens.progress._CLOCK", 0.05)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    before = set(threading.enumerate())
    with progress("swap", 10, "cell", show=True) as bar:
        bar.enter("clean passes")
        time.sleep(0.5)
        bar.enter("")
        bar.advance(10)
    err = capsys.readouterr().err
    assert err.count("0.00/10.0") >= 4
    assert err.count("clean passes") >= 3
    assert "10.0/10.0" in err
    assert set(threading.enumerate()) <= before | {getattr(tqdm.std.tqdm, "monitor", None)}


def test_the_phase_is_named_in_a_pipe(clock, monkeypatch, capsys):
    monkeypatch.setattr("anchorlens.progress._SILENCE", 0.05)
    with progress("swap", 10, "cell", show=True) as bar:
        bar.enter("clean passes")
        time.sleep(0.3)
    assert capsys.readouterr().err.startswith("swap: 0% of 10 cells, clean passes, 00:00 spent\n")


@pytest.mark.parametrize("is_disabled", [False, True])
def test_a_terminal_that_states_no_size_has_a_bar_unless_tqdm_is_disabled(is_disabled):
    code = (
        "import time; from anchorlens.progress import progress, waiting\n"
        "with progress('swap', 10, 'cell', show=True) as bar:\n"
        "    bar.skip(2); bar.advance(3); bar.enter('checks'); time.sleep(1.2)\n"
        "with waiting('loading m', show=True):\n    time.sleep(2.3)"
    )
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    environment |= {"TQDM_DISABLE": "1"} if is_disabled else {}
    done = subprocess.Popen([sys.executable, "-c", code], stderr=its, env=environment)
    assert done.wait() == 0
    os.write(its, b".")  # else there is nothing to read
    written = os.read(ours, 100_000).decode()
    if is_disabled:
        assert written == "."
        return
    assert " 50%|" in written
    assert "loading m: 00:02 spent" in written


@pytest.mark.parametrize("in_place", [False, True])
def test_work_without_a_count_is_named_after_a_silence(monkeypatch, capsys, in_place):
    monkeypatch.setattr("anchorlens.progress._SILENCE", 0.05)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: in_place, raising=False)
    before = set(threading.enumerate())
    with waiting("loading m", show=True):
        pass  # short work
    with waiting("loading m", show=False):
        time.sleep(0.2)
    assert capsys.readouterr() == ("", "")
    with (
        pytest.raises(RuntimeError, match="broken"),
        waiting("loading m", show=True),
    ):
        time.sleep(0.5)
        raise RuntimeError("broken")
    out, err = capsys.readouterr()
    assert out == ""
    if in_place:
        assert "\rloading m: 00:00 spent" in err
        assert err.endswith("\r")  # the line is removed
    else:
        assert err == "loading m: 00:00 spent\n"
    assert set(threading.enumerate()) <= before | {
        getattr(tqdm.std.tqdm, "monitor", None)
    }  # its thread has ended


def test_an_executed_notebook_has_few_lines_of_a_clock(monkeypatch):
    """nbconvert keeps each state of a line that is replaced; one per second filled the page."""
    for name, seconds in (("_SILENCE", 0.02), ("_CLOCK", 0.02), ("_SECONDS", 5.0)):
        monkeypatch.setattr(f"anchorlens.progress.{name}", seconds)

    class OutStream(io.StringIO):
        """Stands for the standard error of a kernel."""

    OutStream.__module__ = "ipykernel.iostream"
    stream = OutStream()
    monkeypatch.setattr(sys, "stderr", stream)
    with waiting("loading m", show=True):
        time.sleep(0.5)
    assert stream.getvalue().count("spent") == 1
    assert "\r" in stream.getvalue()


def test_the_label_shows_hidden_characters(monkeypatch, capsys):
    monkeypatch.setattr("anchorlens.progress._SILENCE", 0.05)
    with waiting("loading \x1b[31mred", show=True):
        time.sleep(0.3)
    assert capsys.readouterr().err == "loading \\x1b[31mred: 00:00 spent\n"


def test_work_goes_on_without_a_stream(monkeypatch):
    monkeypatch.setattr("anchorlens.progress._SILENCE", 0.05)
    for is_closed_before in (True, False):
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        if is_closed_before:
            stream.close()
        with waiting("loading m", show=True):
            stream.close()
            time.sleep(0.2)
    monkeypatch.setattr(sys, "stderr", None)
    with waiting("loading m", show=True):
        time.sleep(0.2)


@pytest.mark.slow
def test_loading_planning_and_verifying_are_named(tiny, tiny_model, monkeypatch, capsys, tmp_path):
    """Each call that may be long says what it does."""
    monkeypatch.setattr("anchorlens.progress._SILENCE", 0.0)
    model = tiny_model("llama")
    sweep(model, layers=(0,), n_donors=1, progress=True, out=tmp_path / "run")
    told = capsys.readouterr().err
    assert "swap: planning: 00:0" in told
    assert "writing run: 00:0" in told
    al.verify_run(tmp_path / "run", model=model, cells=1)
    assert "verify run: checking files and tables: 00:0" in capsys.readouterr().err
    for show in (True, False):
        al.load_model(tiny("llama", False), device="cpu", check_parity=False, progress=show)
        told = capsys.readouterr().err
        assert all((work in told) == show for work in ("finding ", "fetching ", "loading ")), told
        al.doctor(model, show_progress=show)
        told = capsys.readouterr().err
        assert all((work in told) == show for work in ("hashing", "doctor llama: 00:0")), told
    sweep(model, layers=(0,), n_donors=1, out=tmp_path / "silent")
    al.verify_run(tmp_path / "run", model=model, cells=1, show_progress=False)
    assert capsys.readouterr().err == ""


def test_a_sweep_in_a_pipe(tiny_model, monkeypatch, capsys):
    """A log file gets lines."""
    monkeypatch.setattr("anchorlens.progress._SECONDS", 0.0)
    sweep(tiny_model("llama"), batch_size=2, layers=(0,), n_donors=1, progress=True)
    told = capsys.readouterr().err
    assert "\r" not in told
    assert len(told.splitlines()) > 2
    assert "swap llama capitals: 100% of " in told
