"""Progress: a bar where it can be drawn over itself, else a line now and then, and nothing where nothing is asked for."""

import re
import subprocess
import sys

import pytest

from anchorlens import progress as module
from anchorlens.progress import Progress, progress


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_in_a_pipe_there_are_few_lines_and_no_carriage_returns(clock, capsys):
    with progress("swap m on d", 3000, "cell", show=True) as bar:
        for _ in range(1000):
            clock.now += 0.05
            bar.advance(3)
    out, err = capsys.readouterr()
    assert out == ""
    assert "\r" not in err
    lines = err.splitlines()
    # 50 seconds: a line every ten, and the last word once.
    assert 4 <= len(lines) <= 6
    assert len(set(lines)) == len(lines)
    assert lines[0] == "swap m on d: 20% of 3,000 cells, 10 s, about 40 s left"
    assert lines[-1] == "swap m on d: 100% of 3,000 cells, 50 s"


def test_short_work_says_nothing_in_a_pipe(clock, capsys):
    with progress("answers", 10, "question", show=True) as bar:
        for _ in range(10):
            clock.now += 0.9
            bar.advance(1)
    assert capsys.readouterr().err == ""


def test_what_is_done_beside_the_count_is_named(clock, capsys):
    bar = Progress("knockout", 10, "row", show=True)
    bar.advance(10)
    bar.enter("noise floor")
    clock.now += 11
    bar.advance(1)
    assert capsys.readouterr().err == "knockout: 100% of 10 rows (noise floor), 11 s\n"


def test_it_never_goes_past_the_end(clock):
    """Shares of passes do not add up exactly, and a split batch is counted again."""
    bar = Progress("swap", 10, "cell", show=False)
    for _ in range(7):
        bar.advance(1.7)
    assert bar.done == 10
    Progress("nothing", 0, "cell", show=True).close()


def test_nothing_is_shown_where_nothing_is_asked_for(clock, capsys):
    with progress("swap", 10, "cell", show=False) as bar:
        clock.now += 60
        bar.advance(5)
        bar.enter("checks")
    assert capsys.readouterr() == ("", "")


def test_it_is_closed_when_the_work_fails(clock, capsys):
    with pytest.raises(RuntimeError, match="broken"), progress("swap", 10, "cell", show=True) as bar:
        clock.now += 11
        bar.advance(4)
        clock.now += 1
        bar.advance(1)
        raise RuntimeError("broken")
    assert capsys.readouterr().err.splitlines()[-1] == "swap: 50% of 10 cells, 12 s, about 12 s left"


def test_in_a_terminal_it_is_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress("swap", 10, "cell", show=True) as bar:
        bar.advance(5)
        bar.enter("checks")
        bar.advance(5)
    err = capsys.readouterr().err
    assert "\r" in err
    assert "swap: 100%" in err
    assert "checks" in err


def test_a_sweep_in_a_pipe(tiny):
    """A whole process: nothing of a bar in what a log file gets."""
    code = (
        "import sys, anchorlens as al, anchorlens.progress as p\n"
        "p._SECONDS_BETWEEN_LINES = 0.0\n"
        "model = al.load_model(sys.argv[1], device='cpu')\n"
        "al.swap_sweep(model, al.load_qa('popqa-sample', limit=4), donors='random', align='last', n_donors=1, batch_size=1)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tiny("llama"))], capture_output=True)
    told = done.stderr.decode()
    assert done.returncode == 0, told
    assert "\r" not in told
    lines = [line for line in told.splitlines() if line.startswith("swap ")]
    assert re.fullmatch(r"swap llama popqa-sample: \d+% of \d+ cells, \d+ s, about \d+ s left", lines[0])
    assert lines[-1].startswith("swap llama popqa-sample: 100% of ")
