"""Damaged and cut files of questions, pairs and studies: the independent reading, or one clear error
(``python -m tests.fuzz_files``).
"""

import pytest

from tests.fuzz_files import GOOD, fuzz


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_read_right_or_refused(tmp_path):
    found = fuzz(tmp_path, 200, seed=1)
    bad = [(kind, case, one) for kind, case, one in found if one.kind not in GOOD]
    assert not bad, bad[:3]
