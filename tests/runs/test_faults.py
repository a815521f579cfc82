"""Faults between two steps of a write or a removal, and what the next command makes of them."""

import errno
import multiprocessing
import os
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock

from anchorlens.errors import RunError
from anchorlens.runs import files, final_write
from anchorlens.runs.checksums import find_changed_files
from anchorlens.runs.files import is_abandoned, parts_of, process_tag, remove_parts
from anchorlens.runs.final_write import check_target, find_run, rehearse_write, restore_run
from anchorlens.runs.jobs import Job
from anchorlens.runs.journal import shards_in
from anchorlens.runs.locks import LockedError, lock_run, running_jobs
from anchorlens.runs.status import status_of
from anchorlens.runs.store import load_curves, open_for_reading, read_record, write_run
from tests.runs.test_journal import measure, whole
from tests.runs.test_store import DEAD, SWEEP, TABLES, save

# Tag of a process of another machine or container; it may run or not.
FOREIGN = "1-123456-0123456789ab"
READERS = {
    "status_of": status_of,
    "read_record": read_record,
    "load_curves": load_curves,
    "find_run": find_run,
    "check_target": lambda path: check_target(path, overwrite=True),
}


def stop_at(monkeypatch, name, number):
    """Raise KeyboardInterrupt instead of the call ``number`` of a function of os."""
    right, calls = getattr(os, name), []

    def call(*given, **more):
        calls.append(given)
        if len(calls) > number:
            raise KeyboardInterrupt
        return right(*given, **more)

    monkeypatch.setattr(os, name, call)


def write_next(out):
    """Do what every writer does first."""
    with lock_run(out, prepare=restore_run):
        pass


def entries(folder):
    """Name -> number, size and time of each file and folder below a folder."""
    found = {}
    for file in sorted(folder.rglob("*")):
        stat = file.lstat()
        found[file.relative_to(folder).as_posix()] = stat.st_ino, stat.st_size, stat.st_mtime_ns
    return found


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def without_locks(monkeypatch, code=errno.ENOLCK):
    """Let every lock fail as on a file system without locks."""

    def acquire(self, *_, **__):
        Path(self.lock_file).touch()
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(FileLock, "acquire", acquire)


# --- writers restore
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(5))
def test_an_interrupted_removal_of_the_replaced_run_is_completed(tmp_path, monkeypatch, number):
    """Its list of files goes last: without it, files of this package would be taken for those of
    others.
    """
    run = save(tmp_path / "a")
    (run / "notes.txt").write_text("mine")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, "unlink", number)
        save(run)
    write_next(run)
    assert names(tmp_path) == ["a"]
    assert find_changed_files(run) == ([], ["notes.txt"])


@pytest.mark.parametrize(
    ("name", "number"), [*(("unlink", number) for number in range(6)), ("rmdir", 0), ("rmdir", 1)]
)
def test_an_interrupted_removal_of_parts_is_completed(tmp_path, monkeypatch, name, number):
    """The shards that are left are not continued, and the folder is not refused."""
    out = tmp_path / "out"
    with whole(out) as journal:
        measure(journal, 2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, name, number)
        remove_parts(parts_of(out))
    with pytest.raises(RunError, match="holds no parts"):
        status_of(out)
    write_next(out)
    assert list(tmp_path.iterdir()) == []
    with whole(out, resume=False) as journal:
        measure(journal, 2)
    assert shards_in(parts_of(out)) == 2


@pytest.mark.parametrize(
    "tag",
    [DEAD, FOREIGN, f"{os.getpid()}-1-{DEAD.split('-')[2]}"],
    ids=["dead", "foreign", "reused number"],
)
@pytest.mark.parametrize("there", ["nothing", "empty folder"])
def test_a_writer_restores_the_run_that_a_killed_process_set_aside(tmp_path, tag, there):
    """The unfinished run goes, and files of the same form of another run stay.

    A job script may have made an empty folder.
    """
    aside = save(tmp_path / "a").rename(tmp_path / f".a.{tag}.old")
    save(tmp_path / "b").rename(tmp_path / f".a.x.{tag}.old")
    (tmp_path / f".a.{tag}.tmp" / "probes").mkdir(parents=True)
    if there == "empty folder":
        (tmp_path / "a").mkdir()
    write_next(tmp_path / "a")
    assert find_changed_files(tmp_path / "a") == ([], [])
    assert names(tmp_path) == [f".a.x.{tag}.old", "a"]
    assert not aside.exists()


def test_the_rest_of_a_run_whose_removal_was_interrupted_does_not_become_a_run_again(
    tmp_path, monkeypatch
):
    """The user has deleted the new run in the meantime."""
    run = save(tmp_path / "a")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, "unlink", 2)
        save(run)
    for file in run.iterdir():
        file.unlink()
    run.rmdir()
    with pytest.raises(RunError, match="does not exist"):
        read_record(run)
    write_next(run)
    assert names(tmp_path) == []


def test_a_run_that_cannot_be_restored_is_named(tmp_path, monkeypatch):
    aside = save(tmp_path / "a").rename(tmp_path / f".a.{DEAD}.old")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.rename", refuse)
    with pytest.raises(
        RunError,
        match=(
            rf"The run .*a is in .*\.a\.{DEAD}\.old and cannot be moved back \(Permission denied\)"
        ),
    ):
        write_next(tmp_path / "a")
    assert (aside / "run.json").is_file()


def test_a_job_that_has_no_record_yet_is_no_interrupted_removal(tmp_path):
    """Two jobs that start at the same time: the parts hold nothing but the lock of the first."""
    out = tmp_path / "a"
    with lock_run(out, Job(1, 3), restore_run):
        assert running_jobs(parts_of(out)) == [Job(1, 3)]
        with lock_run(out, Job(2, 3), restore_run):
            assert running_jobs(parts_of(out)) == [Job(1, 3), Job(2, 3)]
        with pytest.raises(LockedError, match="1/3"):
            write_next(out)
        assert running_jobs(parts_of(out)) == [Job(1, 3)]
    write_next(out)
    assert list(tmp_path.iterdir()) == []


# --- readers change nothing
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("tag", [DEAD, FOREIGN], ids=["dead", "foreign"])
@pytest.mark.parametrize(
    "state", ["aside", "aside, empty folder", "aside, rehearsal", "replaced", "unfinished"]
)
def test_a_reader_finds_the_run_and_changes_nothing(tmp_path, tag, reader, state):
    run = tmp_path / "a"
    save(run)
    (tmp_path / f".a.{tag}.tmp").mkdir()
    (tmp_path / f".a.{tag}.tmp" / "samples.parquet").write_bytes(b"half")
    if state.startswith("aside"):
        run.rename(tmp_path / f".a.{tag}.old")
    if state == "replaced":
        save(tmp_path / "other").rename(tmp_path / f".a.{tag}.old")
    if state in ("aside, empty folder", "aside, rehearsal"):
        run.mkdir()
    if state == "aside, rehearsal":
        (run / final_write._REHEARSAL).write_bytes(b"x")
    before = entries(tmp_path)
    found = READERS[reader](run)
    assert entries(tmp_path) == before
    if reader == "status_of":
        assert found.state == "finished"
    if reader == "find_run":
        assert found == (tmp_path / f".a.{tag}.old" if state.startswith("aside") else run)


@pytest.mark.parametrize("reader", [*READERS][:3])
def test_a_reader_leaves_the_first_save_of_a_run_alone(tmp_path, reader):
    """Another container is between its tables and the rename."""
    (tmp_path / f".a.{FOREIGN}.tmp").mkdir()
    with lock_run(tmp_path / "a"):
        before = entries(tmp_path)
        with pytest.raises(RunError, match="does not exist|is not a run, and"):
            READERS[reader](tmp_path / "a")
        assert entries(tmp_path) == before


def test_a_run_that_is_replaced_while_it_is_read_is_named(tmp_path):
    run = save(tmp_path / "a")
    said = "was replaced by another process while it was read. Read it again"
    for fails in (True, False):
        with pytest.raises(RunError, match=said), open_for_reading(run):
            save(run)
            if fails:
                raise RunError("samples.parquet has other rows")
    with pytest.raises(RunError, match="other rows"), open_for_reading(run):
        raise RunError("samples.parquet has other rows")


# --- tags and locks
# ------------------------------------------------------------------------------------------------------------


def test_files_of_another_machine_are_removed_under_a_lock_only(tmp_path, monkeypatch):
    work = tmp_path / f".a.{FOREIGN}.tmp"
    work.mkdir()
    with monkeypatch.context() as patch:
        without_locks(patch)
        with pytest.warns(UserWarning, match="without locks"):
            save(tmp_path / "a")
        assert work.is_dir()
        (tmp_path / "a").rename(tmp_path / f".a.{FOREIGN}.old")
        with (
            pytest.warns(UserWarning),
            pytest.raises(RunError, match="another machine"),
        ):
            save(tmp_path / "a")
        assert work.is_dir()
    write_next(tmp_path / "a")
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("tag", "locked", "without"),
    [
        (DEAD, True, True),
        (FOREIGN, True, False),
        (process_tag(), True, True),
        ("running", True, False),
    ],
    ids=["dead", "foreign", "own", "running"],
)
def test_whose_files_count_as_abandoned(tag, locked, without):
    if tag == "running":
        parent = Path(f"/proc/{os.getppid()}/stat")
        start = files._start_of(parent) if parent.is_file() else files._start_by_clock(os.getppid())
        tag = f"{os.getppid()}-{start}-{DEAD.split('-')[2]}"
    assert is_abandoned(tag, locked=True) == locked
    assert is_abandoned(tag, locked=False) == without


def test_a_tag_names_the_system_and_the_namespace_of_processes(monkeypatch):
    """Containers have the same process numbers, and start times within one second of the start of
    the machine.
    """
    tag = process_tag()
    right = Path.readlink
    other = Path("pid:[4026539999]")
    monkeypatch.setattr(Path, "readlink", lambda self: other if self.name == "pid" else right(self))
    *process, machine = process_tag().split("-")
    assert process == tag.split("-")[:2]
    if sys.platform == "linux":
        assert machine != tag.split("-")[2]
        assert not is_abandoned(tag, locked=False)


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere the start of a process is read from the clock"
)
def test_a_clock_that_is_set_does_not_change_the_name_of_a_process(monkeypatch):
    tag = process_tag()
    monkeypatch.setattr(
        "psutil._pslinux.boot_time", lambda: 12345.0
    )  # as the clock minus the uptime
    assert process_tag() == tag


def test_the_name_of_a_process_without_proc(monkeypatch):
    absent = type("Absent", (), {"is_file": lambda self: False, "is_symlink": lambda self: False})
    monkeypatch.setattr(files, "Path", lambda name: absent())
    pid, start, machine = process_tag().split("-")
    assert (int(pid), int(start)) == (os.getpid(), files._start_by_clock(os.getpid()))
    parent = os.getppid()
    assert not is_abandoned(f"{parent}-{files._start_by_clock(parent)}-{machine}", locked=False)
    assert is_abandoned(f"{parent}-1-{machine}", locked=False)


def start(out, barrier, found):
    """Measure a run in a process that starts at the same time as others, and report how it ends."""
    barrier.wait()
    try:
        with whole(out, resume=False) as journal:
            check_target(out)
            measure(journal, 2)
            write_run(journal.lock, TABLES, [SWEEP], more=lambda folder: None)
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
    processes = [
        fork.Process(target=start, args=(tmp_path / "a", barrier, found)) for _ in range(n)
    ]
    for process in processes:
        process.start()
    ends = [found.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    reasons = (
        "measured",
        "Another process is writing",
        "already holds a run",
        "holds an unfinished run",
    )
    counts = Counter(next((one for one in reasons if one in end), end) for end in ends)
    assert counts["measured"] == 1, counts
    assert counts.keys() <= set(reasons), counts
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert pd.read_parquet(tmp_path / "a" / "samples.parquet").shape[0] == 1


# --- the final write is rehearsed
# ----------------------------------------------------------------------------------------------

THERE = ("nothing", "empty folder", "run")
# Events of the interpreter before a file operation; a flush has none.
_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


def place(folder, there):
    """Make what is at a run's place before the rehearsal."""
    run = folder / "a"
    if there == "run":
        save(run)
        (run / "notes.txt").write_text("mine")
    if there == "empty folder":
        run.mkdir()
    return run


@pytest.mark.parametrize("there", THERE)
def test_a_rehearsal_leaves_what_was_there(tmp_path, there):
    run = place(tmp_path, there)
    before = entries(tmp_path)
    with lock_run(run) as lock:
        rehearse_write(lock)
    assert entries(tmp_path) == before


def kill_at_operation(folder, number, work):
    """Kill this process before its file operation ``number`` below a folder."""
    seen, flush = [], os.fsync

    def operation():
        if len(seen) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(1)

    def audit(event, given):
        if event in _OPERATIONS and str(given[0]).startswith(str(folder)):
            operation()

    os.fsync = lambda opened: (operation(), flush(opened))
    sys.addaudithook(audit)
    work()
    os._exit(0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are forked")
@pytest.mark.parametrize("there", THERE)
def test_a_rehearsal_that_is_killed_leaves_nothing_for_ever(tmp_path, there):
    """Killed before each of its file operations.

    A reader finds what was there, and the next writer removes the rest.
    """
    fork = multiprocessing.get_context("fork")
    number, ends = 0, []
    while not ends or ends[-1] == -signal.SIGKILL:
        folder = tmp_path / str(number)
        folder.mkdir()
        run = place(folder, there)

        def rehearse(run=run):
            with lock_run(run) as lock:
                rehearse_write(lock)

        process = fork.Process(target=kill_at_operation, args=(folder, number, rehearse))
        process.start()
        process.join()
        ends.append(process.exitcode)
        if there == "run":
            assert find_changed_files(find_run(run)) == ([], ["notes.txt"])
            with pytest.raises(RunError, match="already holds a run"):
                check_target(run)
        else:
            assert check_target(run) == run
        write_next(run)
        assert names(folder) in ([[]] if there == "nothing" else [["a"]])
        assert not run.exists() or names(run) == (
            [] if there == "empty folder" else names(place(tmp_path / "wanted", there))
        )
        number += 1
    assert ends[-1] == 0
    assert number > 15


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.EBUSY, "It is a mount point.*give a folder below it"),
        (errno.EXDEV, "It is a mount point.*give a folder below it"),
        (errno.EACCES, "Check the permissions"),
        (errno.ENOSPC, "Make room"),
        (errno.EIO, "Check the file system"),
    ],
)
@pytest.mark.parametrize("number", range(4))
def test_a_rehearsal_that_fails_leaves_what_was_there(tmp_path, monkeypatch, code, said, number):
    """``number``: the rename that fails; there are four for a place with a run."""
    run = place(tmp_path, "run")
    before, right, calls = entries(tmp_path), os.rename, []

    def rename(*given, **more):
        calls.append(given)
        if len(calls) == number + 1:
            raise OSError(code, os.strerror(code))
        return right(*given, **more)

    said = "The run .* cannot be moved back" if number == 3 else f"{os.strerror(code)}.*{said}"
    with monkeypatch.context() as patch, lock_run(run) as lock, pytest.raises(RunError, match=said):
        patch.setattr(os, "rename", rename)
        rehearse_write(lock)
    write_next(run)
    assert entries(tmp_path) == before


def test_a_name_that_leaves_no_room_for_temporary_names_is_refused(tmp_path):
    run = tmp_path / ("x" * 240)
    said = (
        r"cannot be written \(File name too long\)\. Nothing is stored there\. Give a shorter path"
    )
    with pytest.raises(RunError, match=said), lock_run(run) as lock:
        rehearse_write(lock)
    assert names(tmp_path) == []


def test_a_mount_point_is_refused(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "out")
    with pytest.raises(
        RunError,
        match=(
            r"out cannot be written\. It is a mount point.*give a folder below it, such as"
            r" .*out/run"
        ),
    ):
        check_target(tmp_path / "out")
    assert check_target(tmp_path / "out" / "run") == tmp_path / "out" / "run"


# --- file systems without folder flush or locks
# --------------------------------------------------------------------------------


def failing_flush(monkeypatch, code):
    """Let the flush of folders fail."""
    right = os.fsync

    def fsync(opened):
        if Path(f"/proc/self/fd/{opened}").resolve().is_dir():
            raise OSError(code, os.strerror(code))
        right(opened)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_that_cannot_flush_folders_is_in_the_record(tmp_path, monkeypatch, code):
    failing_flush(monkeypatch, code)
    with whole(tmp_path / "a") as journal:
        measure(journal, 2)
        rehearse_write(journal.lock)
        write_run(journal.lock, TABLES, [SWEEP], more=lambda folder: None)
    assert shards_in(parts_of(tmp_path / "a")) == 2
    assert read_record(tmp_path / "a")["sweeps"][0]["environment"]["file_system_lacks"] == [
        "flush of folders"
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_flush_that_fails_for_another_reason_is_an_error(tmp_path, monkeypatch):
    failing_flush(monkeypatch, errno.EIO)
    with pytest.raises(RunError, match="Input/output error"):
        save(tmp_path / "a")
    assert names(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_in_the_record(tmp_path, monkeypatch, code):
    without_locks(monkeypatch, code)
    with (
        pytest.warns(UserWarning, match="without locks"),
        whole(tmp_path / "a") as journal,
    ):
        measure(journal, 2)
        write_run(journal.lock, TABLES, [SWEEP], more=lambda folder: None)
    assert read_record(tmp_path / "a")["sweeps"][0]["environment"]["file_system_lacks"] == ["locks"]
    monkeypatch.undo()
    save(tmp_path / "b")
    assert "file_system_lacks" not in read_record(tmp_path / "b")["sweeps"][0]["environment"]


# --- every error of the system names the path and what is stored
# ---------------------------------------------------------------

STEPS = {
    "note": (
        lambda one: one.note_once("model", {}),
        r"out\.parts/000/model\.json cannot be written",
        "temporary",
    ),
    "shard": (
        lambda one: one.write(1, pd.DataFrame({"value": [1]}), {}),
        r"Shard 1 of .*000 cannot be written",
        "temporary",
    ),
    "log": (
        lambda one: one.write(1, pd.DataFrame({"value": [1]}), {}),
        r"out\.parts/log\.jsonl cannot be written",
        "log.jsonl",
    ),
    "begin": (
        lambda one: one.find_shards(6),
        r"out\.parts/log\.jsonl cannot be written",
        "log.jsonl",
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_full_disk_at_any_file_of_the_parts_names_it(tmp_path, monkeypatch, step):
    """A shard that is stored counts, even if its line of the log is not."""
    work, said, which = STEPS[step]
    right = Path.open

    def full(self, *given, **more):
        if self.name == which or (which == "temporary" and self.name.endswith(".tmp")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return right(self, *given, **more)

    n = 2 if step == "log" else 1
    said = (
        rf"{said} \(No space left on device\)\. Kept: {n} shards? in .*out\.parts\. Make room, and"
        r" continue with resume=True"
    )
    with whole(tmp_path / "out") as journal:
        one = measure(journal, 1)
        monkeypatch.setattr(Path, "open", full)
        with pytest.raises(RunError, match=said):
            work(one)
        monkeypatch.undo()
    assert shards_in(parts_of(tmp_path / "out")) == n


def test_an_unreadable_file_of_the_parts_is_not_called_damaged(tmp_path, monkeypatch):
    out = tmp_path / "out"
    with whole(out) as journal:
        measure(journal, 2)

    def refuse(self):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(RunError, match=r"run\.json"):
        status_of(out)
    with (
        pytest.raises(RunError, match=r"out\.parts"),
        whole(out),
    ):
        pass
