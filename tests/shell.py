"""The command line in a process of its own and in this one, and a whole run for it on a small
random model.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from anchorlens import cli
from tests.questions.make import CAPITALS

ROOT = Path(__file__).resolve().parents[1]


def accept_ctrl_c():
    """In a child: under nohup, or after `&` in a script, SIGINT would be ignored there too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def shell(*args, code=0, script=None, **options):
    """Run ``anchorlens``, or a script in its place, in a process of its own."""
    program = ["-m", "anchorlens"] if script is None else ["-c", script]
    done = subprocess.run(
        [sys.executable, *program, *args],
        capture_output=True,
        text=True,
        cwd=ROOT,
        preexec_fn=accept_ctrl_c,
        **options,
    )
    assert done.returncode == code, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    return done


def here(capsys, *args, code=0):
    """The same in this process, which has the heavy imports already."""
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(a) for a in args])
    out = capsys.readouterr()
    assert stopped.value.code == code, out.err
    return out


def write_questions(path):
    asked = {"property": "capital", "relation": "capital"}
    rows = [
        {"question": f"What is the capital of {c}?", "answers": [a], "subject": c} | asked
        for c, a in CAPITALS.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def swap_of(model, questions):
    return [
        "swap",
        "--model",
        str(model),
        "--dataset",
        "mine",
        "--data-file",
        str(questions),
        "--align",
        "last",
        "--n-donors",
        "1",
        "--limit",
        "5",
        "--n-spot-checks",
        "2",
        "--resamples",
        "50",
        "--device",
        "cpu",
    ]
