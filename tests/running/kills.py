"""A sweep is killed at random moments and goes on, until it is done; its tables have to be those of a sweep that was left alone.

    python -m tests.running.kills 50

Children are forked from a process that has loaded the model, so that a kill hits the measuring and writing and not the start. Each
gets a random time to live; when it runs out, it is killed as ``kill -9`` does it.
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
from anchorlens.protocols import base as plug
from anchorlens.runs.journal import SweepJournal, parts_of, shards_in
from tests.questions.make import capitals

OPTIONS = {"align": "last", "n_donors": 2, "batch_size": 1, "n_spot_checks": 4, "n_resamples": 50, "progress": False}
TABLES = ("samples", "examples", "curves", "contrasts")


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
    return 1 if differing or not finished else 0


if __name__ == "__main__":
    raise SystemExit(main())
