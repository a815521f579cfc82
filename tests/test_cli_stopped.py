"""Runs from the command line that are stopped, shared between jobs, or measured by workers."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pandas as pd
import psutil
import pytest

from anchorlens.progress import Progress
from anchorlens.running.run_study import Outcome
from tests.running.kills import hashes, interrupt
from tests.shell import ROOT, here, shell, swap_of, write_questions
from tests.tiers import choose_cases

pytestmark = pytest.mark.usefixtures("plain_figure")


@pytest.fixture(scope="module")
def args(tiny, tmp_path_factory):
    return swap_of(
        tiny("llama"), write_questions(tmp_path_factory.mktemp("questions") / "mine.jsonl")
    )


# Sends itself a signal when some cells are done.
_STOPS_ITSELF = """
import os, signal, sys
from anchorlens import progress
from anchorlens.cli import main
real = progress.Progress.advance
def advance(self, work):
    real(self, work)
    if self.unit == "cell" and self.done > 20:
        os.kill(os.getpid(), signal.SIGINT)
progress.Progress.advance = advance
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "signal_name", choose_cases((), ("SIGINT", "SIGTERM", "SIGHUP"), slow=("SIGTERM", "SIGHUP"))
)
def test_a_signal_leaves_no_half_file(args, tmp_path, signal_name):
    """Stopped in the middle of the forward passes."""
    given = [
        *args,
        "--limit",
        "12",
        "--n-donors",
        "9",
        "--batch-size",
        "1",
        "--out",
        str(tmp_path / "a"),
    ]
    done = shell(*given, script=_STOPS_ITSELF.replace("SIGINT", signal_name), code=1, timeout=120)
    assert "Stopped. Nothing was written." in done.stderr
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_the_parent_ignores_stays_ignored(
    capsys, args, tmp_path, monkeypatch, signal_name
):
    """`nohup` starts a command so."""
    number = signal.Signals[signal_name]
    right, before = Progress.advance, signal.signal(number, signal.SIG_IGN)

    def advance(self, work):
        right(self, work)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(Progress, "advance", advance)
    here(capsys, *args, "--out", tmp_path / "a")
    assert signal.signal(number, before) is signal.SIG_IGN
    assert (tmp_path / "a" / "run.json").is_file()


@pytest.mark.slow
def test_ctrl_c_keeps_the_sweeps_that_are_finished(capsys, args, tiny, tmp_path, monkeypatch):
    right, before = Progress.advance, signal.signal(signal.SIGINT, signal.default_int_handler)

    def advance(self, work):
        right(self, work)
        if "gpt2" in self.label:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Progress, "advance", advance)
    err = here(capsys, *args, "--model", tiny("gpt2"), "--out", tmp_path / "a", code=1).err
    signal.signal(signal.SIGINT, before)
    assert f"Stopped. 1 of 2 sweeps is finished and kept in {tmp_path / 'a'}." in err
    assert set(pd.read_parquet(tmp_path / "a" / "curves.parquet")["model"]) == {"llama"}


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGHUP"])
def test_a_terminal_that_is_closed_stops_a_run_as_a_scheduler_does(
    capsys, args, tmp_path, small_shards, signal_name
):
    number = signal.Signals[signal_name]
    inherited = signal.signal(number, signal.SIG_DFL)  # SIGHUP is ignored under nohup
    patch, before = interrupt(2, lambda: os.kill(os.getpid(), number)), signal.getsignal(number)
    err = here(capsys, *args, "--batch-size", "1", "--out", tmp_path / "run", code=1).err
    patch.undo()
    assert "Stopped. 2 shards are kept in" in err
    assert signal.getsignal(number) is before
    signal.signal(number, inherited)


def test_a_second_ctrl_c_does_not_change_the_message(
    capsys, args, tmp_path, small_shards, monkeypatch
):
    patch, right, before = (
        interrupt(2),
        Outcome.kept,
        signal.signal(signal.SIGINT, signal.default_int_handler),
    )

    def kept(self):
        os.kill(os.getpid(), signal.SIGINT)
        return right.fget(self)

    monkeypatch.setattr(Outcome, "kept", property(kept))
    err = here(capsys, *args, "--batch-size", "1", "--out", tmp_path / "run", code=1).err
    patch.undo()
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
    assert "Stopped. 2 shards are kept in" in err
    assert "Nothing was written" not in err


@pytest.mark.slow
def test_a_run_that_was_stopped_is_looked_at_and_goes_on(capsys, args, tmp_path, small_shards):
    patch = interrupt(2)
    out = tmp_path / "run"
    given = [*args, "--batch-size", "1", "--out", out]
    err = here(capsys, *given, code=1).err
    patch.undo()
    assert "Continue with --resume." in err
    assert "2 shards are kept in" in err
    told = here(capsys, "status", out).out
    for said in ("stopped", "2 of 5 shards", "swap: llama on mine", "--resume"):
        assert said in told
    err = here(capsys, *given, code=2).err
    assert "unfinished run (2 shards done)" in err
    assert "Continue it with --resume, or discard it with --restart." in err
    assert (
        "config.seed: 0 before, 3 now"
        in here(capsys, *given, "--resume", "--seed", "3", code=2).err
    )
    here(capsys, *given, "--resume")
    assert json.loads(here(capsys, "status", out, "--json").out)["state"] == "finished"
    here(capsys, *given, "--resume")  # nothing is left to do
    assert "already holds a run" in here(capsys, *given, code=2).err


@pytest.mark.slow
def test_jobs_and_merge(capsys, args, tmp_path, monkeypatch, small_shards):
    monkeypatch.chdir(tmp_path)
    given = [*args, "--batch-size", "1", "--quiet"]
    here(capsys, *given, "--out", "whole")
    said = here(capsys, *given, "--out", "run", "--job", "2/2").out
    assert (
        "Job 2/2 has measured its shards: 2 of 5 shards are in run.parts. When all are there,"
        " finish with: anchorlens merge run" in said
    )
    told = here(capsys, "status", "run").out
    assert "2 of 5 shards" in told
    assert "`anchorlens merge`" in told
    record = json.loads((tmp_path / "run.parts" / "run.json").read_text())
    assert record["command"].pop("folder") == str(tmp_path)  # merge repeats the command there
    record["command"].pop("given")
    assert str(args[args.index("--model") + 1]) not in json.dumps(record)
    err = here(capsys, "merge", "run", code=2).err
    assert "run.parts lacks 3 of 5 shards (0, 2, 4). Run job 1/2 again" in err
    err = here(capsys, *given, "--out", "run", "--job", "1/2", "--seed", "3", code=2).err
    assert "config.seed: 0 before, 3 now" in err
    record = json.loads(here(capsys, *given, "--out", "run", "--job", "1/2", "--json").out)
    assert (record["job"], record["sweeps"][0]["done"]) == ("1/2", 5)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # what was given with relative names is found
    out = here(capsys, "merge", tmp_path / "run").out
    assert f"run     {tmp_path / 'run'}" in out
    assert hashes(tmp_path / "run") == hashes(tmp_path / "whole")
    assert "run is already complete" in here(capsys, "merge", tmp_path / "run").out


@pytest.mark.slow
def test_merge_measures_what_is_missing_and_takes_parts_from_elsewhere(
    capsys, args, tmp_path, small_shards
):
    given = [*args, "--batch-size", "1", "--quiet"]
    for i in (1, 2):
        here(capsys, *given, "--out", tmp_path / f"machine{i}" / "a", "--job", f"{i}/3")
    parts = [tmp_path / f"machine{i}" / "a.parts" for i in (1, 2)]
    out = here(capsys, "merge", tmp_path / "a", *parts, code=2)
    assert "4 shards copied to a.parts." in out.err
    assert "lacks 1 of 5 shards (2). Run job 3/3 again" in out.err
    out = here(capsys, "merge", tmp_path / "a", *parts, "--run-missing", "--json")
    assert "0 shards copied" in out.err
    assert json.loads(out.out)["run"] == str(tmp_path / "a")
    assert not (tmp_path / "a.parts").exists()


@pytest.mark.slow
def test_merge_writes_a_run_whatever_the_recorded_command_says_of_a_dry_run(
    capsys, args, tmp_path, small_shards
):
    out = tmp_path / "run"
    here(capsys, *args, "--batch-size", "1", "--quiet", "--out", out, "--job", "1/1")
    file = tmp_path / "run.parts" / "run.json"
    record = json.loads(file.read_text())
    record["command"]["given"]["dry_run"] = True
    file.write_text(json.dumps(record))
    assert f"run     {out}" in here(capsys, "merge", out).out
    assert (out / "run.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        {},
        {"name": "swap", "given": 3, "folder": "."},
        {"name": "figure", "given": {}, "folder": "."},
    ],
)
def test_merge_refuses_a_command_that_it_cannot_repeat(
    capsys, args, tmp_path, small_shards, command
):
    out = tmp_path / "run"
    here(capsys, *args, "--batch-size", "1", "--quiet", "--out", out, "--job", "1/1")
    file = tmp_path / "run.parts" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "command": command}))
    assert (
        "This run was begun by another version of anchorlens."
        in here(capsys, "merge", out, code=2).err
    )


def _left(mark):
    """Processes that were started with a mark in their environment."""
    found = []
    for one in psutil.process_iter():
        try:
            if one.environ().get("MARK") == mark and one.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(one.cmdline()))
        except psutil.Error:
            continue
    return found


def wait_until(is_so, seconds):
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.2)


needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'anchorlens[ray]'"
)


@needs_ray
@pytest.mark.slow
@pytest.mark.exhaustive
def test_workers_from_a_shell(args, tmp_path):
    given, mark = [*args, "--quiet", "--json"], str(tmp_path)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MARK": mark}
    shell(*given, "--out", str(tmp_path / "whole"), env=env)
    done = shell(
        *given, "--out", str(tmp_path / "out"), "--executor", "ray", "--workers", "2", env=env
    )
    assert json.loads(done.stdout)["run"] == str(tmp_path / "out")
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")
    assert (
        "--executor ray"
        in json.loads((tmp_path / "out" / "run.json").read_text())["sweeps"][0]["environment"][
            "command"
        ]
    )
    assert _left(mark) == []
    workers = ["--executor", "ray", "--workers", "2"]
    done = shell(*given, "--out", str(tmp_path / "bad"), *workers, "--layers", "9", env=env, code=2)
    assert (
        done.stderr.splitlines()[-1]
        == "Error: --layers 9: the model has 3 layers; 9 is the first that it lacks. Give numbers"
        " from -3 to 2."
    )
    assert not [*tmp_path.glob("bad*")]


@needs_ray
@pytest.mark.slow
def test_a_signal_ends_a_run_with_workers_and_leaves_none(args, tmp_path):
    mark = str(tmp_path)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MARK": mark}
    given = [
        *args,
        "--quiet",
        "--out",
        str(tmp_path / "out"),
        "--executor",
        "ray",
        "--workers",
        "2",
    ]
    command, pipe = [sys.executable, "-m", "anchorlens", *given], subprocess.PIPE
    run = subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True)
    wait_until(lambda: any("ray::RayWorker" in line for line in _left(mark)), 120)
    run.send_signal(signal.SIGTERM)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 1, err
    assert "Stopped. Nothing was written." in err
    wait_until(lambda: not _left(mark), 20)
    assert _left(mark) == []
    assert [*tmp_path.iterdir()] == []
