"""Jobs that measure shares of a sweep, one after the other and at once, and the run that is made of their shards."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
import warnings

import pytest
import torch

import anchorlens as al
from anchorlens.errors import EmptySweepError, InputError, RunError
from anchorlens.protocols import plug
from anchorlens.runs.journal import parts_of, shards_in
from anchorlens.runs.merging import brought, missing_in, refuse_missing
from anchorlens.runs.status import status_of
from tests.protocols.test_resume import OPTIONS, SWEEPS
from tests.questions.make import capitals, data_of
from tests.runs.kills import hashes
from tests.tiers import fast

forks = pytest.mark.skipif(sys.platform != "linux", reason="children are forked")


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(plug, "_SHARD_FLOP", 1.0)


@pytest.fixture
def swap(tiny_model):
    """``swap(out=..., shard=...)``: a sweep of six shards."""
    return lambda **more: SWEEPS["swap"](tiny_model("llama"), **more)


@pytest.mark.parametrize("name", fast(["swap"], SWEEPS))
def test_three_jobs_make_the_run_of_one_process(name, tiny_model, tmp_path):
    def sweep(**more):
        return SWEEPS[name](tiny_model("llama"), **more)

    whole, out = sweep(out=tmp_path / "whole"), tmp_path / "out"
    for i in (3, 1, 2):
        told = sweep(out=out, shard=(i, 3))
        assert not out.exists()
    assert told == status_of(out)
    assert (told.state, told.sweeps[0].done) == ("stopped", told.sweeps[0].shards)
    refuse_missing(out)
    merged = sweep(out=out, resume=True)
    assert hashes(out) == hashes(tmp_path / "whole")
    for said in ("plan", "checks", "noise", "counts"):
        assert merged.record[said] == whole.record[said], said
    assert not parts_of(out).exists()


def child(call, *given, **options):
    """A process of its own that has the model already."""

    def work():
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        call(*given, **options)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


@forks
def test_jobs_at_once(swap, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the children
    try:
        out = tmp_path / "out"
        swap(out=tmp_path / "whole")
        jobs = [child(swap, out=out, shard=f"{i}/3") for i in (1, 2, 3)]
        for job in jobs:
            job.join()
        assert [job.exitcode for job in jobs] == [0, 0, 0]
        assert status_of(out).sweeps[0].done == status_of(out).sweeps[0].shards
        assert len(list(parts_of(out).glob("log-*-of-3.jsonl"))) == 3
        swap(out=out, resume=True)
        assert hashes(out) == hashes(tmp_path / "whole")
    finally:
        torch.set_num_threads(before)


@forks
def test_a_job_that_is_killed_runs_again(swap, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        out = tmp_path / "out"
        swap(out=tmp_path / "whole")
        swap(out=out, shard="2/2")
        there = shards_in(parts_of(out))
        job = child(swap, out=out, shard="1/2")
        while job.is_alive() and shards_in(parts_of(out)) == there:
            time.sleep(0.005)
        os.kill(job.pid, signal.SIGKILL)
        job.join()
        swap(out=out, shard="1/2")
        refuse_missing(out)
        swap(out=out, resume=True)
        assert hashes(out) == hashes(tmp_path / "whole")
    finally:
        torch.set_num_threads(before)


def test_what_is_missing_is_named_and_can_be_measured_here(swap, tmp_path):
    out = tmp_path / "out"
    swap(out=tmp_path / "whole")
    swap(out=out, shard="1/3")
    swap(out=out, shard="3/3")
    gone = [one.numbers for one in missing_in(out)]
    assert gone == [tuple(range(1, status_of(out).sweeps[0].shards, 3))]
    with pytest.raises(RunError, match=r"lacks \d of \d+ shards \(1, 4.*\)\. Run job 2/3 again, or measure here"):
        refuse_missing(out)
    shard = next(parts_of(out).glob("000/00003-*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1])  # damaged is missing too
    with pytest.raises(RunError, match=r"\(1, 3, 4.*\)\. Run jobs 1/3, 2/3 again"):
        refuse_missing(out)
    with pytest.warns(UserWarning, match="is damaged"):
        swap(out=out, resume=True)
    assert hashes(out) == hashes(tmp_path / "whole")


def test_what_a_job_may_not(swap, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"shard= needs a run directory"):
        swap(shard="1/2")
    for other in ("force_new", "overwrite"):
        with pytest.raises(InputError, match=rf"{other}=True and shard= contradict"):
            swap(out=out, shard="1/2", **{other: True})
    swap(out=out, shard="1/2")
    with pytest.raises(RunError, match=r"sweeps\[0\]\.config\.n_donors: 1 before, 2 now"):
        swap(out=out, shard="2/2", n_donors=2)
    with pytest.raises(RunError, match=r"plan\.batches: \[2, 2.* before, \[3, 3"):
        swap(out=out, shard="2/2", batch_size=3)
    with pytest.raises(RunError, match="unfinished run"):
        swap(out=out)
    swap(out=out, shard="2/2")
    done = swap(out=out, resume=True)
    assert swap(out=out, shard="1/2").state == "finished"  # a job that comes late has nothing to do
    with pytest.raises(RunError, match="holds a run that was not stopped|n_donors: 1 before"):
        swap(out=out, shard="1/2", n_donors=2)
    assert al.load_run(out)[0].run_id == done.run_id


def test_shards_of_machines_that_share_no_files(swap, tmp_path):
    swap(out=tmp_path / "whole")
    for i in (1, 2):
        swap(out=tmp_path / f"machine{i}" / "out", shard=(i, 2))
    others = [parts_of(tmp_path / f"machine{i}" / "out") for i in (1, 2)]
    out = tmp_path / "out"
    shards = len(json.loads((tmp_path / "whole" / "run.json").read_text())["sweeps"][0]["plan"]["batches"])
    assert brought(out, others) == shards
    assert brought(out, others) == 0  # they are there
    swap(out=out, resume=True)
    assert hashes(out) == hashes(tmp_path / "whole")


@pytest.mark.parametrize("what", ["another run", "another plan", "a damaged shard", "no parts"])
def test_parts_that_do_not_fit_are_refused_and_nothing_is_copied(what, swap, tmp_path):
    out, other = tmp_path / "out", tmp_path / "other"
    swap(out=out, shard="1/2")
    more = {"another run": {"seed": 3}, "another plan": {"batch_size": 3}}.get(what, {})
    swap(out=other, shard="2/2", **more)
    shard = min(parts_of(other).glob("000/*.parquet"))
    if what == "a damaged shard":
        shard.write_bytes(shard.read_bytes() + b"x")
    if what == "no parts":
        shutil.rmtree(parts_of(other))
    there = sorted(parts_of(out).rglob("*"))
    said = {
        "another run": "seed: 0 before, 3 now",
        "another plan": r"plan\.batches",
        "a damaged shard": "is damaged",
        "no parts": "holds no parts",
    }
    with pytest.raises(RunError, match=said[what]):
        brought(out, [parts_of(other)])
    assert [file for file in sorted(parts_of(out).rglob("*")) if file.name != "lock"] == [f for f in there if f.name != "lock"]


def test_parts_for_a_place_that_has_none_leave_nothing_where_they_are_refused(swap, tmp_path):
    with pytest.raises(RunError, match="holds no parts of a run"):
        brought(tmp_path / "out", [tmp_path / "nothing.parts"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_jobs_of_a_study(tiny, tmp_path):
    """Sweeps of several data sets, one of them without a row; a job has its share of each."""
    sets = [
        capitals(),
        data_of(list(capitals().examples[:8]), name="others"),
        data_of(list(capitals().examples[:1]), name="one"),
    ]
    study = al.Study([str(tiny("llama"))], sets, [al.Swap(**OPTIONS)])
    whole = al.run_study(study, tmp_path / "whole")
    assert len(whole.empty) == 1
    out = tmp_path / "out"
    for i in (2, 1):
        done = al.run_study(study, out, shard=(i, 2))
        assert (done.results, len(done.empty), done.total) == ([], 1, 3)
        if i == 2:
            with pytest.raises(RunError, match=r"shards of sweep 0 \(0, 2.*shards of sweep 1 \(1.*Run job 1/2 again"):
                refuse_missing(out)
    refuse_missing(out)
    merged = al.run_study(study, out, resume=True)
    assert len(merged.results) == 2
    assert hashes(out) == hashes(tmp_path / "whole")


def test_a_job_of_a_study_without_a_row_says_so(tiny, tmp_path):
    study = al.Study([str(tiny("llama"))], [data_of(list(capitals().examples[:1]), name="one")], [al.Swap(**OPTIONS)])
    with pytest.raises(EmptySweepError):
        al.run_study(study, tmp_path / "out", shard="1/2")
    assert list(tmp_path.iterdir()) == []


def test_other_inputs_than_those_that_are_drawn_here(swap, tmp_path, monkeypatch):
    """What a model writes may differ between machines; its rows would be put together with shards of others."""
    from anchorlens.protocols import driver

    out = tmp_path / "out"
    swap(out=out, shard="1/2")
    monkeypatch.setattr(driver, "_digest", lambda inputs: "another")
    with pytest.raises(RunError, match="measured on other inputs"):
        swap(out=out, resume=True)
