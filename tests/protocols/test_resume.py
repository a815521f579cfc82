"""Sweeps that are stopped and go on; :mod:`tests.runs.kills` kills processes."""

import json
import resource
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import anchorlens as al
from anchorlens.errors import InputError, RunError
from anchorlens.protocols import driver, plug
from anchorlens.runs.journal import SweepJournal, parts_of, shards_in
from tests.questions.make import capitals, data_of
from tests.runs.kills import TABLES, hashes
from tests.tiers import fast

OPTIONS = {"align": "last", "n_donors": 1, "batch_size": 2, "n_resamples": 20, "progress": False}
TRUTH = {"n_resamples": 20, "progress": False, "batch_size": 10}
SWEEPS = {
    "swap": lambda model, **more: al.swap_sweep(model, capitals(), **(OPTIONS | more)),
    "knockout": lambda model, **more: al.knockout_sweep(model, questions(), **(TRUTH | {"layers": [0, 2]} | more)),
    "patch_tokens": lambda model, **more: al.patch_tokens_sweep(model, questions(), **(TRUTH | more)),
    "answer_only": lambda model, **more: al.answer_only_sweep(model, questions(), **(TRUTH | more)),
}


@cache
def questions():
    return al.load_qa("popqa-sample", limit=90)


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(plug, "_SHARD_FLOP", 1.0)


@pytest.fixture
def stopped(monkeypatch):
    """``stopped(after)``: the process is interrupted when so many more shards are kept."""

    def make(after):
        right, kept = SweepJournal.write, []

        def write(self, number, *rest):
            if len(kept) == after:
                raise KeyboardInterrupt
            kept.append(number)
            return right(self, number, *rest)

        monkeypatch.setattr(SweepJournal, "write", write)
        return lambda: monkeypatch.setattr(SweepJournal, "write", right)

    return make


def began(sweep, stopped, out, after=2, **more):
    """A sweep that was interrupted after so many shards."""
    go_on = stopped(after)
    with pytest.raises(KeyboardInterrupt):
        sweep(out=out, **more)
    go_on()
    assert shards_in(parts_of(out)) == after
    assert not out.exists()


@pytest.mark.parametrize("name", fast(["swap", "knockout"], SWEEPS))
def test_a_sweep_that_goes_on_has_the_same_bytes(name, tiny_model, tmp_path, small_shards, stopped, monkeypatch):
    def sweep(**more):
        return SWEEPS[name](tiny_model("llama"), **more)

    whole = sweep(out=tmp_path / "whole")
    out = tmp_path / "out"
    began(sweep, stopped, out)
    measured = []
    right = driver.Station.shard
    monkeypatch.setattr(driver.Station, "shard", lambda self, number, bar: measured.append(number) or right(self, number, bar))
    result = sweep(out=out, resume=True)
    assert measured[0] == 2
    assert len(measured) >= 1
    assert hashes(out) == hashes(tmp_path / "whole")
    assert not parts_of(out).exists()
    assert result.run_id == whole.run_id
    for told in ("plan", "checks", "noise", "counts"):
        assert result.record[told] == whole.record[told], told
    assert result.record["checks"]["cells"] == 4
    # Without a directory to write to it is the same sweep.
    assert sweep().samples().equals(result.samples())


def test_what_is_done_is_done(tiny_model, tmp_path, small_shards, monkeypatch):
    out = tmp_path / "out"
    first = SWEEPS["swap"](tiny_model("llama"), out=out, resume=True)  # nothing is there yet: it begins
    before = hashes(out)
    monkeypatch.setattr(driver, "_carried_out", None)  # nothing is measured
    again = SWEEPS["swap"](tiny_model("llama"), out=out, resume=True)
    assert again.samples().equals(first.samples())
    assert hashes(out) == before
    with pytest.raises(RunError, match=r"n_donors: 1 before, 2 now"):
        SWEEPS["swap"](tiny_model("llama"), out=out, resume=True, n_donors=2)
    with pytest.raises(RunError, match="holds a run already"):
        SWEEPS["swap"](tiny_model("llama"), out=out)
    assert hashes(out) == before


def test_an_unfinished_run_is_neither_taken_nor_thrown_away_by_accident(tiny_model, tmp_path, small_shards, stopped):
    def sweep(**more):
        return SWEEPS["swap"](tiny_model("llama"), **more)

    out = tmp_path / "out"
    began(sweep, stopped, out)
    with pytest.raises(RunError, match=r"unfinished run \(2 shards done\).*resume=True.*force_new=True"):
        sweep(out=out)
    with pytest.raises(InputError, match="contradict"):
        sweep(out=out, resume=True, force_new=True)
    with pytest.raises(InputError, match="need a run directory"):
        sweep(resume=True)
    assert shards_in(parts_of(out)) == 2
    sweep(out=out, force_new=True, n_donors=2)
    assert al.load_run(out)[0].record["config"]["n_donors"] == 2
    assert not parts_of(out).exists()


def other_weights(model):
    with torch.no_grad():
        model.blocks[1].mlp.W_out[0, 0] += 1.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n_donors": 2}, r"sweeps\[0\]\.config\.n_donors: 1 before, 2 now"),
        ({"seed": 3}, r"config\.seed: 0 before, 3 now"),
        ({"layers": [1]}, r"config\.layers: null before, \[1\] now"),
        ({"data": 11}, r"data\.limit: null before, 11 now"),
        ({"weights": True}, r"model\.weights_sha256: .* before"),
        ({"batch_size": 3}, r"plan\.batches: \[2, 2.* before, \[3, 3"),
        ({"check_cells": 2}, r"plan\.check_cells: 4 before, 2 now"),
    ],
)
def test_what_changed_is_named(change, said, tiny, tmp_path, small_shards, stopped):
    model, out = al.load_model(str(tiny("llama")), device="cpu"), tmp_path / "out"

    def sweep(*, data=None, weights=False, **more):
        if weights:
            other_weights(model)
        return al.swap_sweep(model, capitals(data), **(OPTIONS | more))

    began(sweep, stopped, out)
    with pytest.raises(RunError, match=said):
        sweep(out=out, resume=True, **change)
    assert shards_in(parts_of(out)) == 2  # nothing lost


def test_a_damaged_shard_is_told_put_aside_and_measured_again(tiny_model, tmp_path, small_shards, stopped):
    def sweep(**more):
        return SWEEPS["swap"](tiny_model("llama"), **more)

    sweep(out=tmp_path / "whole")
    out = tmp_path / "out"
    began(sweep, stopped, out, after=3)
    shard = sorted(parts_of(out).glob("*/*.parquet"))[1]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.warns(UserWarning, match=r"00001-\w+\.parquet is damaged.*measured again"):
        sweep(out=out, resume=True)
    assert hashes(out) == hashes(tmp_path / "whole")


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_is_not_ours_is_never_removed(what, tiny_model, tmp_path):
    own = tmp_path / "out.parts"
    if what == "folder":
        (own / "notes").mkdir(parents=True)
        (own / "notes" / "my.parquet").write_text("mine")
    else:
        own.write_text("mine")
    for more in ({}, {"resume": True}, {"force_new": True}):
        with pytest.raises(RunError, match=r"out\.parts is there and holds no parts of a run"):
            SWEEPS["swap"](tiny_model("llama"), out=tmp_path / "out", **more)
    assert (own / "notes" / "my.parquet" if what == "folder" else own).read_text() == "mine"


def test_two_processes_on_one_run(tiny_model, tmp_path):
    out, model = tmp_path / "out", tiny_model("llama")

    def second(plan):
        with pytest.raises(RunError, match="Another process is measuring"):
            SWEEPS["swap"](model, out=out)

    SWEEPS["swap"](model, out=out, on_plan=second)
    assert len(al.load_run(out)) == 1


FULL = """
import resource, sys, warnings
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
import anchorlens as al
from anchorlens.protocols import plug
from tests.protocols.test_resume import OPTIONS
from tests.questions.make import capitals
plug._SHARD_FLOP = 1.0
model = al.load_model(sys.argv[1], device="cpu")
def full(plan):
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
try:
    al.swap_sweep(model, capitals(), out=sys.argv[2], on_plan=full if sys.argv[3] == "full" else None, resume=True, **OPTIONS)
except al.RunError as why:
    print(why)
    raise SystemExit(2)
"""


@pytest.mark.slow
def test_a_full_disk(tiny, tmp_path):
    def sweep(state):
        given = [sys.executable, "-c", FULL, str(tiny("llama")), str(tmp_path / "out"), state]
        return subprocess.run(given, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2])

    assert resource.RLIMIT_FSIZE is not None
    done = sweep("full")
    assert done.returncode == 2, done.stderr[-2000:]
    assert "cannot be written" in done.stdout
    assert "resume=True" in done.stdout
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.rglob("*.tmp"))
    done = sweep("empty again")
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(al.load_run(tmp_path / "out")) == 1


@pytest.mark.slow
def test_a_study_goes_on_where_it_was(tiny, tmp_path, small_shards, stopped):
    """Stopped in its second sweep: the first one stands in the run directory, shards of the second beside it."""
    sets = [capitals(), data_of(list(capitals().examples[:8]), name="others")]
    spec = al.Swap(**OPTIONS)
    study = al.Study([str(tiny("llama"))], sets, [spec])
    al.run_study(study, tmp_path / "whole")
    out, n = tmp_path / "out", shards_of(tmp_path / "whole")
    go_on = stopped(n + 1)
    with pytest.raises(KeyboardInterrupt):
        al.run_study(study, out)
    go_on()
    record = json.loads((out / "run.json").read_text())
    assert len(record["sweeps"]) == 1
    assert len(record["pending"]) == 1
    with pytest.raises(RunError, match="unfinished run"):
        al.run_study(study, out)
    with pytest.raises(RunError, match=r"sweeps\[1\]\.config\.readout"):
        al.run_study(replace(study, specifications=[spec.changed(readout="answer_mean")]), out, resume=True)
    outcome = al.run_study(study, out, resume=True)
    assert len(outcome.results) == 2
    assert {name: value for name, value in hashes(out).items() if name in TABLES} == hashes(tmp_path / "whole")
    assert json.loads((out / "run.json").read_text())["pending"] == []
    assert len(al.run_study(study, out, resume=True).results) == 2


def shards_of(run):
    """Shards of the first sweep of a run."""
    return len(json.loads((run / "run.json").read_text())["sweeps"][0]["plan"]["batches"])


@pytest.mark.parametrize("more", [{}, {"resume": True}, {"shard": "1/2"}])
def test_a_place_that_nobody_may_write_is_refused_before_anything_is_measured(tiny_model, monkeypatch, more):
    """/proc refuses even who may do everything."""
    if not Path("/proc/self").is_dir():
        pytest.skip("there is no /proc here")
    monkeypatch.setattr(driver.Station, "plan", None)
    with pytest.raises(RunError, match="cannot be written.*Choose another path"):
        SWEEPS["swap"](tiny_model("llama"), out=Path("/proc/runs/a"), **more)
