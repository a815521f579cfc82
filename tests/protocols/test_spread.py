"""Sweeps that Ray's workers measure: the bytes of one process, whoever dies meanwhile."""

import os
import shutil
import signal
from functools import cache

import pytest
import torch

import anchorlens as al
from anchorlens.errors import InputError
from anchorlens.protocols import spread
from anchorlens.runs import workers
from anchorlens.runs.journal import SweepJournal, parts_of, shards_in
from tests.questions.make import capitals
from tests.runs.kills import hashes

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'anchorlens[ray]'")
pytestmark = pytest.mark.slow

TRUTH = {"n_resamples": 20, "progress": False, "batch_size": 10}
SWAP = al.Swap(align="last", n_donors=1, batch_size=2, n_resamples=20, progress=False)


@cache
def questions():
    return al.load_qa("popqa-sample", limit=90)


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    """One cluster for all of them, in which plans are cut into small shards, here and in the workers."""

    def small_shards():
        from anchorlens.protocols import plug

        plug._SHARD_FLOP = 1.0

    from anchorlens.protocols import plug

    before, threads = plug._SHARD_FLOP, torch.get_num_threads()
    torch.set_num_threads(1)
    plug._SHARD_FLOP = 1.0
    folder = workers._own_folder()
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder,
        runtime_env={"worker_process_setup_hook": small_shards},
    )  # fmt: skip
    yield
    ray.shutdown()
    shutil.rmtree(folder)
    plug._SHARD_FLOP = before
    torch.set_num_threads(threads)


TWO = {"workers": 2}


def test_every_protocol_has_the_bytes_of_one_process(tiny, tmp_path):
    """Two models, one of them loaded after the other by the same workers."""
    specs = [
        al.Knockout(layers=[0, 2], **TRUTH), al.PatchTokens(**TRUTH), al.AnswerOnly(**TRUTH), SWAP.changed(n_donors=2),
    ]  # fmt: skip
    study = al.Study([str(tiny("llama")), str(tiny("gpt2"))], [questions()], specs, device="cpu")
    whole = al.run_study(study, tmp_path / "whole")
    done = al.run_study(study, tmp_path / "out", executor=al.RayExecutor(**TWO))
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")
    for one, other in zip(whole.results, done.results, strict=True):
        for said in ("config", "model", "data", "plan", "checks", "noise", "counts", "environment"):
            assert one.record[said] == other.record[said], said
    assert not parts_of(tmp_path / "out").exists()


def test_a_worker_that_is_killed_midway_loses_nothing(tiny, tmp_path, monkeypatch):
    model, made = str(tiny("llama")), []
    al.swap_sweep(model, capitals(), out=tmp_path / "whole", **SWAP.model_dump())
    right, write = spread.Workers.__init__, SweepJournal.write
    monkeypatch.setattr(spread.Workers, "__init__", lambda self, crew: made.append(crew) or right(self, crew))
    kept = []

    def kill(self, number, *rest):
        kept.append(number)
        if len(kept) in (2, 4):
            os.kill(made[0].places[len(kept) % 4 // 2].pid, signal.SIGKILL)
        return write(self, number, *rest)

    monkeypatch.setattr(SweepJournal, "write", kill)
    with pytest.warns(UserWarning, match="another one takes its place"):
        al.swap_sweep(model, capitals(), out=tmp_path / "out", executor=al.RayExecutor(**TWO), **SWAP.model_dump())
    assert sorted(kept) == list(range(len(kept)))  # each of them once
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")


def test_stopped_with_workers_and_finished_without(tiny, tmp_path, monkeypatch):
    model, out = str(tiny("llama")), tmp_path / "out"
    al.swap_sweep(model, capitals(), out=tmp_path / "whole", **SWAP.model_dump())
    write, kept = SweepJournal.write, []

    def stop(self, number, *rest):
        if len(kept) == 3:
            raise KeyboardInterrupt
        kept.append(number)
        return write(self, number, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(SweepJournal, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            al.swap_sweep(model, capitals(), out=out, executor=al.RayExecutor(**TWO), **SWAP.model_dump())
    assert shards_in(parts_of(out)) == 3
    al.swap_sweep(model, capitals(), out=out, resume=True, **SWAP.model_dump())
    assert hashes(out) == hashes(tmp_path / "whole")


def test_without_a_directory_and_with_code_of_your_own(tiny):
    model, given = (
        str(tiny("llama")),
        SWAP.model_dump() | {"donors": lambda base, pool: [one for one in pool if one is not base][:1]},
    )
    alone = al.swap_sweep(model, capitals(), **given)
    shared = al.swap_sweep(model, capitals(), executor=al.RayExecutor(**TWO), **given)
    assert alone.run_id == shared.run_id
    assert alone.samples().equals(shared.samples())
    assert alone.verdict == shared.verdict


def test_an_input_error_in_a_worker_and_too_many_workers(tiny, tmp_path):
    model = str(tiny("llama"))
    with pytest.raises(InputError, match="layers must be different numbers from 0 to 2"):
        al.swap_sweep(model, capitals(), out=tmp_path / "a", executor=al.RayExecutor(**TWO), layers=[7], progress=False)
    with pytest.raises(InputError, match=r"workers=3 of 1 CPU each were asked for, and there is room for 2"):
        al.swap_sweep(model, capitals(), out=tmp_path / "a", executor=al.RayExecutor(workers=3), progress=False)
    assert list(tmp_path.iterdir()) == []
