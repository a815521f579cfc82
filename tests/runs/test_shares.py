"""Shares of a run, and who may hold which at the same time."""

import pytest

from anchorlens.errors import InputError, RunError
from anchorlens.runs.journal import opened, parts_of
from anchorlens.runs.locks import alive
from anchorlens.runs.shares import Share, share_of

SWEEPS = [{"protocol": "swap", "model": "m", "data": {"name": "d"}, "config": {"seed": 0}}]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr("anchorlens.runs.locks._PATIENCE", 0.05)
    monkeypatch.setattr("anchorlens.runs.locks._PATIENCE_OF_JOBS", 0.05)


def whole(target, **more):
    return opened(target, SWEEPS, **({"resume": True, "force_new": False} | more))


def job(target, given, sweeps=SWEEPS):
    return opened(target, sweeps, resume=False, force_new=False, share=share_of(given))


def shard(target, number):
    (parts_of(target) / "000").mkdir(exist_ok=True)
    (parts_of(target) / "000" / f"{number:05d}-0.parquet").write_bytes(b"")


@pytest.mark.parametrize("n", [1, 3, 7])
def test_each_shard_of_each_sweep_is_one_jobs(n):
    for sweep in range(4):
        for number in range(20):
            assert [i for i in range(1, n + 1) if Share(i, n).holds(sweep, number)] == [(sweep + number) % n + 1]


@pytest.mark.parametrize(
    ("given", "share"), [("2/8", Share(2, 8)), (" 1 / 1 ", Share(1, 1)), ((3, 3), Share(3, 3)), (None, None)]
)
def test_a_share_is_read(given, share):
    assert share_of(given) == share


@pytest.mark.parametrize(
    "given", ["4/3", "0/3", "x/3", "1/0", "-1/3", "1/3/5", "", "1", (4, 3), (1, 2, 3), (1.0, 3), (True, 3), 1]
)
def test_what_is_no_share_is_refused(given):
    with pytest.raises(InputError, match=r"shard takes i/n, the i-th of n jobs with i from 1 to n, such as '2/8'; got"):
        share_of(given)


def test_jobs_measure_side_by_side_and_each_share_once(tmp_path):
    out = tmp_path / "out"
    with job(out, "1/3"), job(out, "3/3"):
        assert alive(parts_of(out)) == [Share(1, 3), Share(3, 3)]
        with (
            pytest.raises(RunError, match=r"Another process is job 3/3 of .*lock-3-of-3.*give another shard="),
            job(out, "3/3"),
        ):
            pass
        with pytest.raises(RunError, match=r"Jobs 1/3, 3/3 of .* are measuring"), whole(out):
            pass
        with job(out, "2/3"):
            pass
    assert not parts_of(out).exists()  # nobody measured anything


def test_a_job_is_refused_while_a_process_measures_all(tmp_path):
    out = tmp_path / "out"
    with whole(out), pytest.raises(RunError, match="Another process is measuring"), job(out, "1/2"):
        pass
    with job(out, "1/2"):
        shard(out, 0)
    with whole(out):  # goes on with what the job has
        assert len(list(parts_of(out).glob("000/*"))) == 1


def test_a_job_of_another_run_is_refused_while_shards_or_jobs_are_there(tmp_path):
    out, other = tmp_path / "out", [{**SWEEPS[0], "config": {"seed": 1}}]
    with job(out, "1/2"), pytest.raises(RunError, match=r"sweeps\[0\]\.config\.seed: 0 before, 1 now"), job(out, "2/2", other):
        pass
    with job(out, "2/2", other):  # the first one left nothing
        shard(out, 1)
    with pytest.raises(RunError, match=r"seed: 1 before, 0 now"), job(out, "1/2"):
        pass
    assert len(list(parts_of(out).glob("000/*"))) == 1
