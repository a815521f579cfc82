"""A sweep is killed and continued; its tables have to be those of a sweep that was not stopped.

    python -m tests.running.kills 50

1. ``50`` times at random moments of the measurement and the final write.
2. At every file operation of the final write, from the first temporary file to the removal of the
   last part: of a new run, of a run that replaces an older one, and of a result that is saved over
   an older run.
3. ``50`` times at random system calls that change files, from the first to the last of a command
   that replaces an older run: a new sweep, a merge, and a sweep that was stopped before (Linux).
4. Two processes in two namespaces of process ids, as in two containers, save, measure and read one
   run ``50`` times each; one of them is killed again and again (Linux, if the system allows it).

Children are forked from a process that has loaded the model, so that a kill hits the measuring and
writing and not the start. They are killed as ``kill -9`` does it.
"""

import argparse
import ctypes
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch

import anchorlens as al
from anchorlens.errors import RunError
from anchorlens.protocols import base as plug
from anchorlens.running import saving
from anchorlens.runs.checksums import find_changed_files
from anchorlens.runs.files import parts_of, shards_in
from anchorlens.runs.final_write import find_run
from anchorlens.runs.journal import SweepJournal
from anchorlens.runs.merging import copy_parts
from anchorlens.runs.status import status_of
from tests.questions.make import capitals
from tests.running.system_calls import run_and_kill

OPTIONS = {
    "align": "last",
    "n_donors": 2,
    "batch_size": 1,
    "n_spot_checks": 4,
    "n_resamples": 50,
    "progress": False,
}
TABLES = ("samples", "examples", "curves", "contrasts")
WRITES = ("new", "replaced", "saved")
"""Final writes: of a new run, of one that replaces an older run, and of a result that is saved over
an older run.
"""
COMMANDS = ("replaced", "merged", "resumed")
"""Commands that replace an older run: a new sweep, one that merges the parts of two machines, and
one that was stopped before.
"""
# What a process may be told about a run that another one writes.
_REASONS = (
    "Another process is writing",
    "was replaced by another process while it was read",
    "already holds a run",
    "holds an unfinished run",
    "does not exist",
    "is not a run, and",
)
_NEW_USER, _NEW_PROCESS_IDS = 0x10000000, 0x20000000
# Events of the interpreter before a file operation; a flush has none.
_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link")


def hashes(run):
    """Name -> hash of each table of a run."""
    return {
        name: hashlib.sha256((run / f"{name}.parquet").read_bytes()).hexdigest() for name in TABLES
    }


def interrupt(after, act=None):
    """Raise KeyboardInterrupt, or call a function, when so many shards have been written in this
    process.
    """
    patch, right, kept = pytest.MonkeyPatch(), SweepJournal.write, []

    def write(self, number, *rest):
        if len(kept) == after:
            if act is None:
                raise KeyboardInterrupt
            act()
        kept.append(number)
        return right(self, number, *rest)

    patch.setattr(SweepJournal, "write", write)
    return patch


def fork(sweep, after=None, **more):
    """Measure in a process of its own, which is killed after so many shards."""

    def work():
        warnings.simplefilter("ignore")
        if after is not None:
            interrupt(after, lambda: os.kill(os.getpid(), signal.SIGKILL))
        sweep(**more)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def kills(model, folder, n, seed):
    """Kill ``n`` times.

    Returns:
        Shards that were there at each kill, how often the run was finished and begun again
        meanwhile, and what differed.
    """
    rng, data = random.Random(seed), capitals(40)
    whole, out = folder / "whole", folder / "killed"
    before, plug.SHARD_FLOPS = plug.SHARD_FLOPS, 1.0  # a shard for every unit
    try:
        started, sweep = time.perf_counter(), partial(al.swap_sweep, model, data, **OPTIONS)
        sweep(out=whole)
        takes = time.perf_counter() - started
        wanted, there, finished, differing = hashes(whole), [], 0, []
        while len(there) < n or not finished or shards_in(parts_of(out)):
            child = fork(sweep, out=out, resume=True)
            child.join(rng.uniform(0.0, 0.8 * takes) if len(there) < n else None)
            if child.is_alive():
                os.kill(child.pid, signal.SIGKILL)
                child.join()
                there.append(shards_in(parts_of(out)))
                continue
            assert child.exitcode == 0, child.exitcode
            finished += 1
            found = hashes(out)
            differing += [name for name in TABLES if found[name] != wanted[name]]
            if len(there) < n:
                shutil.rmtree(out)
        return there, finished, differing
    finally:
        plug.SHARD_FLOPS = before


def at_operation(folder, number, counted=None):
    """From the final write on, kill this process before a file operation below a folder;
    ``counted``: file for their count.
    """
    seen, write, flush = [], saving.write_run, os.fsync

    def operation(*_):
        if len(seen) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(1)
        if counted is not None:
            counted.write_text(str(len(seen)))

    def audit(event, given):
        if event in _OPERATIONS and str(given[0]).startswith(str(folder)):
            operation()

    def final_write(*given, **more):
        os.fsync = lambda opened: (operation(), flush(opened))
        sys.addaudithook(audit)
        return write(*given, **more)

    saving.write_run = final_write


def _found(out, old, new):
    """Return what a reader finds after a kill; a run that is there is undamaged."""
    try:
        al.load_run(out)
    except RunError as why:
        assert "does not exist" in str(why), why
        assert shards_in(parts_of(out))
        return "parts"
    run = find_run(out)  # a killed process may have set it aside
    is_new = hashes(run) == new
    assert is_new or hashes(run) == old
    assert find_changed_files(run)[0] == []
    return "new" if is_new else "old"


def write_kills(model, home, kind, share=1.0, seed=0):
    """Kill a final write before each of its file operations, or before a random share of them, and
    continue.

    Returns:
        What a reader found after each kill: the ``old`` run, the ``new`` one, or ``parts`` alone.

    Raises:
        AssertionError: If a run is damaged or lost, if a file of others is lost, or if a temporary
            file is left at the end.
    """
    start, folder, whole, count = (
        home / f"start-{kind}",
        home / kind,
        home / f"whole-{kind}",
        home / "count",
    )
    sweep, out = partial(al.swap_sweep, model, capitals(6), **OPTIONS), folder / "a"
    result = sweep(out=whole)
    old = wanted = hashes(whole)
    if kind != "saved":
        sweep(out=start / "a", job=(1, 1))  # all shards, without the final write
    if kind != "new":
        old = hashes(sweep(seed=1).save(start / "a", overwrite=True))
        (start / "a" / "notes.txt").write_text("mine")

    def finish():
        if kind == "saved":
            result.save(out, overwrite=True)
        else:
            sweep(out=out, resume=True, overwrite=True)

    def child(number, counted=None):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(start, folder)
        process = fork(lambda: (at_operation(folder, number, counted), finish()))
        process.join()
        return process.exitcode

    assert child(None, count) == 0
    n, found = int(count.read_text()), []
    for number in sorted(random.Random(seed).sample(range(n), round(share * n))):
        assert child(number) == -signal.SIGKILL
        found.append(_found(out, old, wanted))
        finish()
        assert hashes(out) == wanted, number
        assert [file.name for file in folder.iterdir()] == ["a"], number
        assert find_changed_files(out) == ([], [] if kind == "new" else ["notes.txt"]), number
    return found


def system_call_kills(model, home, kind, n, seed=0):
    """Kill a command ``n`` times before a random system call that changes a file, while it replaces
    an older run; then repeat it.

    Returns:
        The number of such calls, and what a reader found after each kill: the ``old`` run or the
        ``new`` one.

    Raises:
        AssertionError: If a reader changes anything, a run is damaged or lost, a file of others is
            lost, or a temporary file stays.
    """
    start, folder = home / f"calls-start-{kind}", home / f"calls-{kind}"
    sweep, out = partial(al.swap_sweep, model, capitals(6), **OPTIONS), folder / "a"
    sweep(out=home / f"calls-whole-{kind}")
    wanted = hashes(home / f"calls-whole-{kind}")
    if kind == "resumed":
        sweep(out=start / "a", job=(1, 2))
    old = hashes(sweep(seed=1).save(start / "a"))
    (start / "a" / "notes.txt").write_text("mine")
    machines = []
    if kind == "merged":
        machines = [home / f"machine{i}" / "a" for i in (1, 2)]
        for i, machine in enumerate(machines):
            sweep(out=machine, job=(i + 1, 2))

    def command():
        if machines:
            copy_parts(out, [parts_of(machine) for machine in machines])
        sweep(out=out, overwrite=True, resume=kind != "replaced" or shards_in(parts_of(out)) > 0)

    def child(number):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(start, folder)
        return run_and_kill(command, number)

    total, code = child(None)
    assert code == 0, code
    found = []
    for number in sorted(random.Random(seed).sample(range(total), n)):
        assert child(number) == (number, -signal.SIGKILL)
        before = _entries(folder)
        found.append(_found(out, old, wanted))
        assert status_of(out).state in ("finished", "stopped")
        assert _entries(folder) == before, number
        command()
        assert hashes(out) == wanted, number
        assert [file.name for file in folder.iterdir()] == ["a"], number
        assert find_changed_files(out) == ([], ["notes.txt"]), number
    return total, found


def _entries(folder):
    """Name -> number and time of each file and folder below a folder."""
    stats = {file.relative_to(folder).as_posix(): file.lstat() for file in folder.rglob("*")}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def start_in_own_namespace(work):
    """Run a function in a child that is the first process of a new namespace of process ids.

    Returns:
        The parent of that process, which ends as it does, and its id here.

    Raises:
        OSError: If the system allows no namespace.
    """
    libc, context = ctypes.CDLL(None, use_errno=True), multiprocessing.get_context("fork")
    answer = context.SimpleQueue()

    def parent():
        flags = _NEW_PROCESS_IDS | (0 if os.geteuid() == 0 else _NEW_USER)
        if libc.unshare(flags) == -1:
            answer.put((0, ctypes.get_errno()))
            os._exit(1)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                warnings.simplefilter("ignore")
                assert os.getpid() == 1
                work()
                code = 0
            except BaseException:  # noqa: BLE001 - printed, and the exit code is 1
                traceback.print_exc()
            finally:
                os._exit(code)
        answer.put((pid, 0))
        os._exit(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))

    process = context.Process(target=parent)
    process.start()
    pid, problem = answer.get()
    if not pid:
        raise OSError(problem, f"no namespace of process ids: {os.strerror(problem)}")
    return process, pid


def one_run_in_two_namespaces(model, home, n, seed=0):
    """Let two processes, each the first of its namespace of process ids, save, measure and read one
    run ``n`` times each.

    The second one is killed after a random time and started again, until both are finished.

    Returns:
        How often each action ended in which way, and the number of kills.

    Raises:
        AssertionError: If a reader finds another run than one of the two that are written, or a
            message is none of the expected.
        OSError: If the system allows no namespace.
    """
    folder, rng = home / "shared", random.Random(seed)
    out, context = folder / "a", multiprocessing.get_context("fork")
    sweep = partial(al.swap_sweep, model, capitals(6), **OPTIONS)
    results = [sweep(seed=number) for number in (0, 1)]
    written = [
        hashes(result.save(home / f"shared-{number}")) for number, result in enumerate(results)
    ]
    ids = {result.run_id for result in results}
    results[0].save(out)
    (out / "notes.txt").write_text("mine")

    def read():
        (found,) = al.load_run(out)
        assert found.run_id in ids
        assert found.samples().equals(
            results[[one.run_id for one in results].index(found.run_id)].samples()
        )

    actions = {
        "save": lambda: results[rng.randrange(2)].save(out, overwrite=True),
        "measure": lambda: sweep(seed=rng.randrange(2), out=out, overwrite=True, restart=True),
        "load": read,
        "status": lambda: status_of(out),
        "curves": lambda: al.load_curves(out),
    }

    def work(number):
        rng.seed(f"{seed} {number}")
        ends = Counter()
        for _ in range(n):
            name = rng.choice(list(actions))
            try:
                actions[name]()
                ends[name, "done"] += 1
            except RunError as why:
                ends[
                    name, next((reason for reason in _REASONS if reason in str(why)), str(why))
                ] += 1
        return ends

    answer, n_kills = context.SimpleQueue(), 0
    steady, _ = start_in_own_namespace(lambda: answer.put(work(0)))
    while steady.is_alive():
        other, pid = start_in_own_namespace(lambda: work(rng.random()))
        other.join(rng.uniform(0.5, 5.0))
        if other.is_alive():
            os.kill(pid, signal.SIGKILL)
            n_kills += 1
        other.join()
        assert other.exitcode in (0, signal.SIGKILL), other.exitcode
    assert steady.exitcode == 0
    ends = answer.get()
    unexpected = [said for _, said in ends if said not in ("done", *_REASONS)]
    assert not unexpected, unexpected
    read()
    assert hashes(out) in written
    actions["measure"]()  # also removes the shards of a killed process
    assert [file.name for file in folder.iterdir()] == ["a"]
    assert find_changed_files(out) == ([], ["notes.txt"])
    return ends, n_kills


def _system_calls_and_namespaces(model, home, n, seed):
    for i, kind in enumerate(COMMANDS):
        total, found = system_call_kills(model, home, kind, len(range(i, n, len(COMMANDS))), seed)
        counts = ", ".join(f"{name} {found.count(name)}" for name in ("old", "new"))
        sys.stdout.write(
            f"older run, {kind}: {len(found)} kills at {total} system calls that change files; a"
            f" reader finds: {counts}\n"
        )
    ends, n_kills = one_run_in_two_namespaces(model, home, n, seed)
    sys.stdout.write(
        f"one run in two namespaces of process ids: {n_kills} kills of one; actions of the other:\n"
    )
    for (name, said), count in sorted(ends.items()):
        sys.stdout.write(f"  {name}: {said} {count}\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kills", type=int, nargs="?", default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    from tests.models.tiny import save_tiny

    with tempfile.TemporaryDirectory() as made:
        model = al.load_model(str(save_tiny("llama", Path(made) / "tiny")), device="cpu")
        there, finished, differing = kills(model, Path(made), args.kills, args.seed)
        sys.stdout.write(
            f"{len(there)} kills, at {', '.join(map(str, there))} shards; finished {finished}"
            f" times; differing tables: {differing}\n"
        )
        plug.SHARD_FLOPS = 1.0
        for kind in WRITES:
            found = write_kills(model, Path(made), kind)
            counts = ", ".join(f"{name} {found.count(name)}" for name in ("parts", "old", "new"))
            sys.stdout.write(
                f"final write, {kind}: killed before each of {len(found)} file operations; a reader"
                f" finds: {counts}\n"
            )
        if sys.platform == "linux":
            _system_calls_and_namespaces(model, Path(made), args.kills, args.seed)
    return 1 if differing or not finished else 0


if __name__ == "__main__":
    raise SystemExit(main())
