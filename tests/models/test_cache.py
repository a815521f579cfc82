"""The user's cache: built once even by two processes, checked, rebuilt when damaged."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anchorlens.models.cache import MANIFEST, build_once, cache_dir, is_intact

BUILDER = """
import sys, time
from pathlib import Path
from anchorlens.models.cache import build_once

def build(directory):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    (directory / "a.txt").write_text("half")
    time.sleep(0.7)
    (directory / "a.txt").write_text("whole")
    return {"from": "a test"}

sys.stdout.write((build_once(Path(sys.argv[1]), build) / "a.txt").read_text())
"""


def test_two_processes_at_once_build_once_and_both_see_it_whole(tmp_path):
    target, log = tmp_path / "models" / "m", tmp_path / "log"
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", BUILDER, str(target), str(log)]
    environment = {**os.environ, "PYTHONPATH": root}
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0] for process in both] == ["whole", "whole"]
    assert log.read_text() == "built\n"
    assert sorted(path.name for path in target.parent.iterdir()) == [
        "m",
        "m.lock",
    ], "no scratch files are left"


def test_a_killed_build_leaves_nothing_that_looks_complete(tmp_path):
    target = tmp_path / "m"

    def fails(directory):
        (directory / "a.txt").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(target, fails)
    assert not target.exists()
    build_once(target, write("whole"))
    assert (target / "a.txt").read_text() == "whole"


def write(text):
    def build(directory):
        (directory / "a.txt").write_text(text)
        (directory / "b.txt").write_text("b")
        return {}

    return build


@pytest.mark.parametrize(
    "damage",
    [
        lambda target: (target / "a.txt").write_text("hacked"),
        lambda target: (target / "a.txt").write_text("wh0le"),
        lambda target: (target / "b.txt").unlink(),
        lambda target: (target / MANIFEST).write_text("{"),
        lambda target: (target / MANIFEST).unlink(),
    ],
)
def test_a_damaged_directory_is_built_again_with_a_warning(tmp_path, damage):
    target = build_once(tmp_path / "m", write("whole"))
    time.sleep(0.02)
    damage(target)
    with pytest.warns(UserWarning, match="m are damaged"):
        build_once(target, write("again"))
    assert (target / "a.txt").read_text() == "again"


def test_a_copied_cache_is_whole_though_its_times_are_new(tmp_path):
    target = build_once(tmp_path / "m", write("whole"))
    os.utime(target / "a.txt", (1, 1))
    assert is_intact(target)


def test_the_environment_moves_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ANCHORLENS_CACHE", str(tmp_path / "c"))
    assert cache_dir() == tmp_path / "c"
    monkeypatch.delenv("ANCHORLENS_CACHE")
    assert cache_dir().name == "anchorlens"
