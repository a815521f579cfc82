"""The docs say what the code says."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_tables_of_arguments_are_those_of_the_specifications():
    made = runpy.run_path(str(ROOT / "docs" / "make_arguments.py"))
    assert made["PAGE"].read_text(encoding="utf8") == made["page"](), "run `python docs/make_arguments.py`"
