"""One flipped byte anywhere in a run directory is found."""

import random
import shutil
import subprocess

import pytest

from anchorlens.runs.checksums import SUMS, find_changed_files, write_sums


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / "run"
    (run / "probes" / "abc").mkdir(parents=True)
    rng = random.Random(0)
    for name, size in (
        ("run.json", 300),
        ("samples.parquet", 3 << 10),
        ("figure.html", 1),
        ("probes/abc/probes.json", 40),
    ):
        (run / name).write_bytes(rng.randbytes(size))
    write_sums(run)
    return run


def test_nothing_is_found_where_nothing_was_changed(folder):
    assert find_changed_files(folder) == ([], [])
    assert [line[66:] for line in (folder / SUMS).read_text().splitlines()] == [
        "figure.html",
        "probes/abc/probes.json",
        "run.json",
        "samples.parquet",
    ]


def test_sha256sum_reads_it(folder):
    if shutil.which("sha256sum") is None:
        pytest.skip("sha256sum is not here")
    assert (
        subprocess.run(
            ["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=folder, check=False
        ).returncode
        == 0
    )


@pytest.mark.parametrize("bit", [1, 0x20, 0x80])
def test_a_flipped_byte_is_found_wherever_it_is(folder, bit):
    rng = random.Random(bit)
    for name in ("run.json", "samples.parquet", "figure.html", "probes/abc/probes.json", SUMS):
        whole = (folder / name).read_bytes()
        # All bytes of the list itself: no part of it is read so loosely that a change passes.
        for where in (
            range(len(whole)) if name == SUMS else [0, len(whole) - 1, rng.randrange(len(whole))]
        ):
            (folder / name).write_bytes(
                whole[:where] + bytes([whole[where] ^ bit]) + whole[where + 1 :]
            )
            assert find_changed_files(folder)[0], (name, where)
        (folder / name).write_bytes(whole)
    assert find_changed_files(folder) == ([], [])


def test_missing_and_added_files_are_told(folder):
    (folder / "figure.html").unlink()
    (folder / "notes.txt").write_text("mine")
    assert find_changed_files(folder) == (["figure.html is missing"], ["notes.txt"])
    (folder / SUMS).unlink()
    (said,), besides = find_changed_files(folder)
    assert said.startswith("SHA256SUMS is missing")
    assert not besides


def test_the_same_line_twice_is_damage(folder):
    text = (folder / SUMS).read_text()
    (folder / SUMS).write_text(text + text.splitlines(keepends=True)[-1])
    assert find_changed_files(folder)[0] == ["SHA256SUMS is damaged"]
