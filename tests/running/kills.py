"""A sweep is killed and continued; its tables have to be those of a sweep that was not stopped.

    python -m tests.running.kills 50

1. ``50`` times at random moments of the measurement and the final write.
2. At every file operation of the final write, from the first temporary file to the removal of the last part: of a new run, of a run
   that replaces an older one, and of a result that is saved over an older run.

Children are forked from a process that has loaded the model, so that a kill hits the measuring and writing and not the start. They
are killed as ``kill -9`` does it.
"""

import argparse
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch

import anchorlens as al
from anchorlens.errors import RunError
from anchorlens.protocols import base as plug
from anchorlens.results import saving
from anchorlens.runs.checksums import find_changed_files
from anchorlens.runs.journal import SweepJournal, parts_of, shards_in
from tests.questions.make import capitals

OPTIONS = {"align": "last", "n_donors": 2, "batch_size": 1, "n_spot_checks": 4, "n_resamples": 50, "progress": False}
TABLES = ("samples", "examples", "curves", "contrasts")
WRITES = ("new", "replaced", "saved")
"""Final writes: of a new run, of one that replaces an older run, and of a result that is saved over an older run."""
# Events of the interpreter before a file operation; a flush has none.
_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link")


def hashes(run):
    """Name -> hash of each table of a run."""
    return {name: hashlib.sha256((run / f"{name}.parquet").read_bytes()).hexdigest() for name in TABLES}


def interrupt(after, act=None):
    """Raise KeyboardInterrupt, or call a function, when so many shards have been written in this process."""
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
        Shards that were there at each kill, how often the run was finished and begun again meanwhile, and what differed.
    """
    rng, data = random.Random(seed), capitals(40)
    whole, out = folder / "whole", folder / "killed"
    before, plug._SHARD_FLOP = plug._SHARD_FLOP, 1.0  # a shard for every unit
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
        plug._SHARD_FLOP = before


def at_operation(folder, number, counted=None):
    """From the final write on, kill this process before a file operation below a folder; ``counted``: file for their count."""
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
    is_new = hashes(out) == new
    assert is_new or hashes(out) == old
    assert find_changed_files(out)[0] == []
    return "new" if is_new else "old"


def write_kills(model, home, kind, share=1.0, seed=0):
    """Kill a final write before each of its file operations, or before a random share of them, and continue.

    Returns:
        What a reader found after each kill: the ``old`` run, the ``new`` one, or ``parts`` alone.

    Raises:
        AssertionError: If a run is damaged or lost, if a file of others is lost, or if a temporary file is left at the end.
    """
    start, folder, whole, count = home / f"start-{kind}", home / kind, home / f"whole-{kind}", home / "count"
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
            f"{len(there)} kills, at {', '.join(map(str, there))} shards; finished {finished} times; differing tables: {differing}\n"
        )
        plug._SHARD_FLOP = 1.0
        for kind in WRITES:
            found = write_kills(model, Path(made), kind)
            counts = ", ".join(f"{name} {found.count(name)}" for name in ("parts", "old", "new"))
            sys.stdout.write(f"final write, {kind}: killed before each of {len(found)} file operations; a reader finds: {counts}\n")
    return 1 if differing or not finished else 0


if __name__ == "__main__":
    raise SystemExit(main())
