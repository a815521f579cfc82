"""Faults between two steps of a write or a removal, and what the next command makes of them."""

import multiprocessing
import os
import sys
import traceback
from collections import Counter

import pandas as pd
import pytest

from anchorlens.errors import RunError
from anchorlens.runs import files
from anchorlens.runs.checksums import find_changed_files
from anchorlens.runs.files import is_running, parts_of, process_tag, remove_parts
from anchorlens.runs.jobs import Job
from anchorlens.runs.journal import shards_in
from anchorlens.runs.locks import lock_run, running_jobs
from anchorlens.runs.status import status_of
from anchorlens.runs.store import check_target, read_record
from tests.runs.test_journal import measure, whole
from tests.runs.test_store import DEAD, save


def stop_at(monkeypatch, name, number):
    """Raise KeyboardInterrupt instead of the call ``number`` of a function of os."""
    right, calls = getattr(os, name), []

    def call(*given, **more):
        calls.append(given)
        if len(calls) > number:
            raise KeyboardInterrupt
        return right(*given, **more)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("number", range(5))
def test_an_interrupted_removal_of_the_replaced_run_is_completed(tmp_path, monkeypatch, number):
    """Its list of files goes last: without it, files of this package would be taken for those of others."""
    run = save(tmp_path / "a")
    (run / "notes.txt").write_text("mine")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, "unlink", number)
        save(run)
    monkeypatch.setattr("anchorlens.runs.store.is_running", lambda tag: False)  # this process was killed
    check_target(run, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert find_changed_files(run) == ([], ["notes.txt"])


@pytest.mark.parametrize(("name", "number"), [*(("unlink", number) for number in range(6)), ("rmdir", 0), ("rmdir", 1)])
def test_an_interrupted_removal_of_parts_is_completed(tmp_path, monkeypatch, name, number):
    """The shards that are left are not continued, and the folder is not refused."""
    out = tmp_path / "out"
    with whole(out) as journal:
        measure(journal, 2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, name, number)
        remove_parts(parts_of(out))
    with pytest.raises(RunError, match="is not a run, and .* holds no parts"):
        status_of(out)
    assert list(tmp_path.iterdir()) == []
    with whole(out, resume=False) as journal:
        measure(journal, 2)
    assert shards_in(parts_of(out)) == 2


def test_a_run_that_was_set_aside_is_found_by_readers(tmp_path):
    for read in (read_record, status_of):
        aside = save(tmp_path / "a").rename(tmp_path / f".a.{DEAD}.old")
        assert read(tmp_path / "a")
        assert not aside.exists()
        assert check_target(tmp_path / "a", overwrite=True).is_dir()


def test_a_run_that_cannot_be_restored_is_named(tmp_path, monkeypatch):
    aside = save(tmp_path / "a").rename(tmp_path / f".a.{DEAD}.old")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.rename", refuse)
    said = rf"A killed process left a run in .*\.a\.{DEAD}\.old, and it cannot be moved to .*a \(Permission denied\)"
    for read in (read_record, check_target, status_of):
        with pytest.raises(RunError, match=said):
            read(tmp_path / "a")
    assert (aside / "run.json").is_file()


def test_files_of_a_process_that_holds_the_lock_stay(tmp_path):
    """It may be one of another machine, whose number means nothing here."""
    work = tmp_path / f".a.{DEAD}.tmp"
    work.mkdir()
    with lock_run(parts_of(tmp_path / "a"), tmp_path / "a", None):
        check_target(tmp_path / "a")
        assert work.is_dir()
    check_target(tmp_path / "a")
    assert not work.exists()


def test_a_job_that_has_no_record_yet_is_no_interrupted_removal(tmp_path):
    """Two jobs that start at the same time: the parts hold nothing but the lock of the first."""
    out = tmp_path / "a"
    with lock_run(parts_of(out), out, Job(1, 3)):
        check_target(out)
        assert running_jobs(parts_of(out)) == [Job(1, 3)]
        with lock_run(parts_of(out), out, Job(2, 3)):
            assert running_jobs(parts_of(out)) == [Job(1, 3), Job(2, 3)]
    check_target(out)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the start of a process is read from the clock")
def test_a_clock_that_is_set_does_not_change_the_name_of_a_process(monkeypatch):
    tag = process_tag()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 12345.0)  # as the clock minus the uptime
    assert process_tag() == tag
    assert is_running(tag)
    assert not is_running(f"{os.getpid()}-1")
    assert not is_running(DEAD)


def test_the_name_of_a_process_without_proc(monkeypatch):
    monkeypatch.setattr(files, "Path", lambda name: type("Absent", (), {"is_file": lambda self: False})())
    assert is_running(process_tag())
    assert not is_running(f"{os.getpid()}-1")


def start(out, barrier, found):
    """Measure a run in a process that starts at the same time as others, and report how it ends."""
    barrier.wait()
    try:
        with whole(out, resume=False) as journal:
            check_target(out)
            measure(journal, 2)
            save(out)
            remove_parts(journal.folder, keep_locks=True)
            found.put("measured")
    except BaseException as why:  # noqa: BLE001 - what is no RunError fails the test
        found.put(str(why) if isinstance(why, RunError) else traceback.format_exc())


@pytest.mark.skipif(sys.platform != "linux", reason="children are forked")
@pytest.mark.parametrize("round_number", range(5))
def test_processes_that_start_on_one_run_at_the_same_time(tmp_path, round_number):
    """One of them measures the run; the others are refused with the reason."""
    fork, n = multiprocessing.get_context("fork"), 6
    barrier, found = fork.Barrier(n), fork.Queue()
    processes = [fork.Process(target=start, args=(tmp_path / "a", barrier, found)) for _ in range(n)]
    for process in processes:
        process.start()
    ends = [found.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    reasons = ("measured", "Another process is measuring", "already holds a run", "holds an unfinished run")
    counts = Counter(next((one for one in reasons if one in end), end) for end in ends)
    assert counts["measured"] == 1, counts
    assert counts.keys() <= set(reasons), counts
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert pd.read_parquet(tmp_path / "a" / "samples.parquet").shape[0] == 1
