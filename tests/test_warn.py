"""A warning points at the user's line."""

import subprocess
import sys

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
