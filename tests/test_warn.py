"""A warning points at the user's line."""

import subprocess
import sys

import pytest

SCRIPT = """
import anchorlens as al

def load(path):
    return al.load_qa(path)  # here

load({path!r})
"""


def test_a_warning_from_deep_inside_points_at_the_users_line(tmp_path):
    """In a process of its own: here the checks of shapes stand between every two functions."""
    file, script = tmp_path / "quiz.csv", tmp_path / "mine.py"
    file.write_text("question,answers\nWhat is the capital of France?,Paris|City of Light\n")
    script.write_text(SCRIPT.format(path=str(file)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (
        f"{script}:5: UserWarning: file:quiz.csv, row 1: the answer 'Paris|City of Light' is read"
        " as one alias" in done.stderr
    )
    assert "return al.load_qa(path)  # here" in done.stderr


DECORATED = """
import contextlib
import torch

@contextlib.contextmanager
def paused():
    yield

inside = dict(paused=paused, torch=torch, __name__="anchorlens.inside")
exec({inside!r}, inside)

def load():
    return inside["public"]()  # here

load()
"""

INSIDE = """
from anchorlens.display import warn

def deeper():
    warn("see here")

{decorator}
def public():
    deeper()
"""


@pytest.mark.slow
@pytest.mark.parametrize("decorator", ["", "@paused()", "@torch.no_grad()", "@paused()\n@paused()"])
def test_a_decorated_function_is_no_place_of_the_user(tmp_path, decorator):
    script = tmp_path / "mine.py"
    inside = INSIDE.format(decorator=decorator)
    script.write_text(DECORATED.format(inside=inside))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert "mine.py:13: UserWarning: see here" in done.stderr, done.stderr
    assert 'return inside["public"]()  # here' in done.stderr
