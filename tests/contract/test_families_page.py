"""The column of docs/families.md for transformer-lens 4."""

import json
import runpy
from pathlib import Path

import pytest

from anchorlens.models.adapter import HAS_HOOKED

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(
    HAS_HOOKED, reason="tests/models/test_families.py checks the columns of transformer-lens 3.9"
)
def test_the_column_is_what_the_script_writes():
    script = runpy.run_path(str(ROOT / "docs" / "make_families.py"))
    assert (
        json.loads(script["BRIDGES"].read_text(encoding="utf8"))["bridges"]
        == script["bridge_cells"]()
    )
