"""Who asks for workers, and what is said where there can be none."""

import importlib.util
from contextlib import contextmanager

import pytest

import anchorlens as al
from anchorlens.errors import InputError, WorkerError
from anchorlens.protocols import spread
from anchorlens.protocols.hands import Loading
from anchorlens.runs import workers
from anchorlens.runs.workers import RayExecutor, executor_of
from tests.questions.make import capitals

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'anchorlens[ray]'"
)


@pytest.fixture
def installed(monkeypatch):
    """As if Ray were there, for what is looked at before it is imported."""
    monkeypatch.setattr(workers, "find_spec", lambda name: name)


def test_what_is_asked_for(installed):
    assert executor_of(None) is None
    assert executor_of("ray") == RayExecutor()
    mine = al.RayExecutor(workers=2, address="auto", gpus_per_worker=0.5)
    assert executor_of(mine) is mine


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": 0}, "workers takes a whole number from 1 on, got 0"),
        ({"workers": True}, "workers takes a whole number"),
        ({"address": ""}, "address takes that of a Ray cluster"),
        ({"gpus_per_worker": -1}, "gpus_per_worker takes a number from 0 on, got -1"),
        ({"gpus_per_worker": 1.5}, "gpus_per_worker takes a part of one GPU or a whole number of them, got 1.5"),
    ],
)
def test_what_cannot_be_asked_for(given, said, installed, unchecked):
    with pytest.raises(InputError, match=said):
        RayExecutor(**given)


@pytest.mark.parametrize("given", ["dask", 2, ["ray"]])
def test_there_is_one_executor(given):
    with pytest.raises(InputError, match=r"executor takes 'ray' or an al\.RayExecutor, got"):
        executor_of(given)


def test_without_ray_it_is_said_how_to_get_it(monkeypatch, tmp_path, tiny):
    monkeypatch.setattr(workers, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"not installed: pip install 'anchorlens\[ray\]'"):
        al.swap_sweep(str(tiny("llama")), capitals(), executor="ray", out=tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_live_model_is_refused_before_any_worker_is_made(tiny_model, installed, tmp_path):
    model = tiny_model("llama")
    with pytest.raises(InputError, match="each worker loads the model: give its name or path instead of a HookedTransformer"):
        al.swap_sweep(model, capitals(), executor="ray", out=tmp_path / "a")
    with pytest.raises(InputError, match="each worker loads the model"):
        al.run_study(al.Study([model], [capitals()], [al.Swap()]), tmp_path / "a", executor="ray")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("given", "wanted"), [(None, 2.0), (4.0, 4.0)])
@pytest.mark.usefixtures("installed", "unchecked")
def test_a_worker_gets_as_many_gpus_as_its_model_is_spread_over(monkeypatch, given, wanted):
    asked = []

    @contextmanager
    def crew(executor, role, device):
        asked.append((executor.gpus_per_worker, role.args[0], device))
        yield None

    monkeypatch.setattr(spread, "crew", crew)
    loading = Loading("cuda", n_devices=2)
    with spread.at_work(RayExecutor(gpus_per_worker=given), loading):
        assert asked == [(wanted, loading, "cuda")]


# --- with Ray ------------------------------------------------------------------------------------------------------------------


@needs_ray
def test_a_cluster_that_is_not_there():
    with (
        pytest.raises(InputError, match=r"No Ray cluster answers at address='127\.0\.0\.1:1' \(.*refused.*ray start --head"),
        workers.crew(RayExecutor(address="127.0.0.1:1"), None, "cpu"),
    ):
        pass


class Holder:
    """What a worker holds in these tests."""

    def __init__(self, note, gpus):
        self.note, self.gpus = note, gpus

    def double(self, number):
        import warnings

        if number == 3:
            warnings.warn("three is odd", UserWarning, stacklevel=1)
        return 2 * number, self.gpus

    def fails(self, number):
        raise InputError(f"Not {number}.")

    def dies(self, number):
        """Kills its process, always, or once where a file can be made."""
        import os
        from pathlib import Path

        once = Path(self.note) / str(number)
        if number == 13 or (number == 4 and not once.exists()):
            once.touch()
            os.kill(os.getpid(), 9)
        return number


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    from functools import partial

    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with workers.crew(RayExecutor(workers=2), partial(Holder, str(tmp_path_factory.mktemp("notes"))), "cpu") as made:
        yield made
    torch.set_num_threads(before)


def calls(method, numbers):
    return [workers.Call(number, f"number {number}", method, (number,)) for number in numbers]


@needs_ray
@pytest.mark.slow
def test_calls_and_warnings_come_back(two):
    with pytest.warns(UserWarning, match="three is odd"):
        found = dict(two.done(calls("double", range(8))))
    assert found == {number: (2 * number, 0.0) for number in range(8)}
    assert two.everywhere("all", "double", 1) == [(2, 0.0), (2, 0.0)]
    assert len({place.pid for place in two.places}) == 2


@needs_ray
@pytest.mark.slow
def test_an_error_in_a_worker_is_the_same_error_here(two):
    with pytest.raises(InputError, match=r"^Not 5\.$") as found:
        list(two.done(calls("fails", [5])))
    assert type(found.value) is InputError


@needs_ray
@pytest.mark.slow
def test_a_worker_that_dies_costs_nothing_and_a_call_that_kills_is_stopped(two, capfd):
    before = {place.pid for place in two.places}
    with pytest.warns(UserWarning, match=r"A worker \(process \d+ on .*\) died at number 4: another one takes its place"):
        assert sorted(dict(two.done(calls("dies", range(8))))) == list(range(8))
    assert two.everywhere("all", "double", 1) == [(2, 0.0), (2, 0.0)]  # the other one is there by now
    assert len({place.pid for place in two.places} - before) == 1
    with pytest.warns(UserWarning), pytest.raises(WorkerError, match=r"3 workers died at number 13.*memory.*resume=True"):
        list(two.done(calls("dies", [13, 14])))
    assert "died" not in capfd.readouterr().out  # standard output is for results
