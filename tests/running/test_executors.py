"""A sweep has the same bytes in whichever way it is measured: stopped, killed, in jobs, in workers
of Ray.
"""

import os
import random
import signal
import subprocess
import sys
from functools import cache, partial
from importlib.util import find_spec
from itertools import pairwise

import psutil
import pytest

import anchorlens as al
from anchorlens.constants import NULL_CONTROLS
from anchorlens.errors import InputError
from anchorlens.running import executors, ray_network
from anchorlens.running.executors import Loading, RayExecutor, executor_of
from anchorlens.runs.journal import parts_of, shards_in
from anchorlens.runs.merging import copy_parts, refuse_missing
from anchorlens.runs.status import status_of
from tests.questions.make import capitals
from tests.raised import raises
from tests.running.kills import (
    COMMANDS,
    WRITES,
    fork,
    hashes,
    interrupt,
    kills,
    one_run_in_two_namespaces,
    system_call_kills,
    write_kills,
)
from tests.shell import ROOT
from tests.tiers import choose_cases

pytestmark = [
    pytest.mark.usefixtures("small_shards"),
    pytest.mark.filterwarnings("ignore:Few rows"),
]
OPTIONS = {"align": "last", "n_donors": 1, "batch_size": 2, "n_resamples": 20, "progress": False}
TRUTH = {"n_splits": 1, "n_resamples": 20, "progress": False, "batch_size": 10}
PATCH = {"n_resamples": 20, "progress": False, "batch_size": 1, "by": "layer"}
EDGES = {"n_resamples": 20, "progress": False, "batch_size": 1, "controls": "other_pair"}
SWEEPS = {
    "swap": lambda model, **more: al.swap_sweep(
        model, capitals(), null=tuple(NULL_CONTROLS), **(OPTIONS | more)
    ),
    "knockout": lambda model, **more: al.knockout_sweep(
        model, questions(), **(TRUTH | {"layers": [0, 2]} | more)
    ),
    "patch_tokens": lambda model, **more: al.patch_tokens_sweep(
        model, questions(), **(TRUTH | more)
    ),
    "answer_only": lambda model, **more: al.answer_only_sweep(model, questions(), **(TRUTH | more)),
    "patch": lambda model, **more: al.patch_sweep(model, pairs(), metric=rank(), **(PATCH | more)),
    "edges": lambda model, **more: al.edge_sweep(
        model, pairs(), metric=rank(), receivers="logits", **(EDGES | more)
    ),
}


def rank():
    """A metric that moves in steps and reads whole rows; made here, so that Ray sends its code to
    the workers.
    """
    return lambda logits: (logits[:, -1] > logits[:, -1, 7:8]).sum(-1).float()


@cache
def pairs():
    places = ("France", "Japan", "Italy", "Spain", "Peru", "Cuba", "Iran")
    return al.load_pairs(
        [
            {
                "clean": f"The capital of {a} is",
                "corrupted": f"The capital of {b} is",
                "answer": " x",
                "wrong": " y",
            }
            for a, b in pairwise(places)
        ]
    )


@cache
def questions():
    return al.load_qa("popqa-sample", limit=40)


@pytest.fixture(scope="module")
def whole(tiny_model, tmp_path_factory):
    """``whole(name)``: a sweep that one process measured without a stop, and its directory."""

    @cache
    def make(name):
        out = tmp_path_factory.mktemp("whole") / "out"
        return SWEEPS[name](tiny_model("llama"), out=out), out

    return make


def stopped(sweep, out, **more):
    patch = interrupt(2)
    with pytest.raises(KeyboardInterrupt, match=r"^Stopped\. 2 shards are kept in .* Continue"):
        sweep(out=out, **more)
    patch.undo()
    assert (shards_in(parts_of(out)), out.exists()) == (2, False)


def stop_and_resume(sweep, out):
    stopped(sweep, out)
    return sweep(out=out, resume=True)


def kill_and_resume(sweep, out):
    process = fork(sweep, after=2, out=out)
    process.join()
    assert (process.exitcode, shards_in(parts_of(out))) == (-signal.SIGKILL, 2)
    return sweep(out=out, resume=True)


def share_in_turn(sweep, out):
    for i in (3, 1, 2):
        status = sweep(out=out, job=(i, 3))
        assert not out.exists()
    assert (status.state, status.sweeps[0].done) == ("stopped", status.sweeps[0].shards)
    assert status == status_of(out)
    refuse_missing(out)
    done = sweep(out=out, resume=True)
    assert sweep(out=out, job="1/3").state == "finished"  # a job that comes late has nothing to do
    return done


def share_at_once(sweep, out):
    """One of the jobs is killed and runs again."""
    first = [
        fork(sweep, out=out, job="1/3"),
        fork(sweep, out=out, job="2/3"),
        fork(sweep, after=0, out=out, job="3/3"),
    ]
    for process in first:
        process.join()
    assert [process.exitcode for process in first] == [0, 0, -signal.SIGKILL]
    assert len(list(parts_of(out).glob("log-*-of-3.jsonl"))) == 3
    sweep(out=out, job="3/3")
    refuse_missing(out)
    return sweep(out=out, resume=True)


def share_without_shared_files(sweep, out):
    """One of the jobs is measured where they are merged."""
    others = [out.parent / f"machine{i}" / "out" for i in (1, 2)]
    for i, other in enumerate(others):
        sweep(out=other, job=(i + 1, 3))
    copy_parts(out, [parts_of(other) for other in others])
    return sweep(out=out, resume=True)


def with_ray(sweep, out):
    return sweep(out=out, executor=RayExecutor(workers=2))


def kill_a_ray_worker(sweep, out):
    def kill():
        ours = [
            one
            for one in psutil.process_iter(["cmdline"])
            if "ray::RayWorker" in " ".join(one.info["cmdline"] or [])
        ]
        ours[0].kill()

    patch = interrupt(2, kill)
    done = sweep(out=out, executor=RayExecutor(workers=2))
    patch.undo()
    return done


def stop_ray_and_resume_without(sweep, out):
    stopped(sweep, out, executor=RayExecutor(workers=2))
    return sweep(out=out, resume=True)


LOCAL = (stop_and_resume, share_in_turn, share_without_shared_files)
FORKED = (kill_and_resume, share_at_once)
RAY = (with_ray, kill_a_ray_worker, stop_ray_and_resume_without)
WAYS = {way.__name__: way for way in (*LOCAL, *FORKED, *RAY)}
FAST = [
    *(f"swap {way.__name__}" for way in (*LOCAL, *FORKED)),
    "knockout stop_and_resume",
    "patch stop_and_resume",
]


@pytest.fixture(scope="module")
def cluster():
    """A cluster of Ray in which the workers cut plans into small shards too."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'anchorlens[ray]'")

    def small_shards():
        from anchorlens.protocols import base

        base.SHARD_FLOPS = 1.0

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"worker_process_setup_hook": small_shards},
    )
    yield
    ray.shutdown()


# Protocols differ in how a unit is measured, which any of Ray's ways shows.
RAY_CASES = [
    *(f"{name} with_ray" for name in SWEEPS),
    *(f"{name} kill_a_ray_worker" for name in ("swap", "patch_tokens")),
    *(f"{name} stop_ray_and_resume_without" for name in ("knockout", "patch")),
]
CASES = [f"{name} {way.__name__}" for name in SWEEPS for way in (*LOCAL, *FORKED)]
SLOW = [
    *(f"{name} stop_and_resume" for name in SWEEPS),
    "swap with_ray",
    *("swap kill_a_ray_worker", "knockout stop_ray_and_resume_without"),
]


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("case", choose_cases(FAST, [*CASES, *RAY_CASES], slow=SLOW))
def test_the_bytes_are_those_of_one_process(case, whole, tiny, tiny_model, tmp_path, request):
    name, way = case.split()
    if WAYS[way] in FORKED and sys.platform != "linux":
        pytest.skip("children are forked")
    if WAYS[way] in RAY:
        request.getfixturevalue("cluster")
    model = str(tiny("llama")) if WAYS[way] in RAY else tiny_model("llama")
    out = tmp_path / "out"
    result = WAYS[way](lambda **more: SWEEPS[name](model, **more), out)
    one, folder = whole(name)
    assert hashes(out) == hashes(folder)
    assert not parts_of(out).exists()
    assert result.run_id == one.run_id
    for part in ("plan", "checks", "noise", "counts"):
        assert result.record[part] == one.record[part], part


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="children are forked")
def test_a_sweep_that_is_killed_at_random_moments(tiny_model, tmp_path):
    seed = random.randrange(10**6)
    there, finished, differing = kills(tiny_model("llama"), tmp_path, 3, seed)
    assert len(there) == 3
    assert finished >= 1, seed
    assert not differing, (seed, there)


@pytest.mark.skipif(sys.platform != "linux", reason="children are forked")
@pytest.mark.parametrize("kind", choose_cases((), WRITES, slow=("replaced",)))
def test_a_final_write_that_is_killed_before_a_file_operation(tiny_model, tmp_path, kind):
    """A tenth of them; ``python -m tests.running.kills`` takes all."""
    seed = random.randrange(10**6)
    found = write_kills(tiny_model("llama"), tmp_path, kind, 0.1, seed)
    assert set(found) <= {"parts" if kind == "new" else "old", "new"}, seed


@pytest.mark.skipif(sys.platform != "linux", reason="children are forked and traced")
@pytest.mark.parametrize("kind", choose_cases((), COMMANDS, slow=("resumed",)))
def test_a_command_that_is_killed_at_random_system_calls(tiny_model, tmp_path, kind):
    """Three times; ``python -m tests.running.kills`` does it fifty times."""
    seed = random.randrange(10**6)
    total, found = system_call_kills(tiny_model("llama"), tmp_path, kind, 3, seed)
    assert total > 300
    assert set(found) <= {"old", "new"}, seed


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_one_run_in_two_namespaces_of_process_ids(tiny_model, tmp_path):
    """As in two containers: their processes have the same numbers, and neither sees the other."""
    seed = random.randrange(10**6)
    try:
        ends, _ = one_run_in_two_namespaces(tiny_model("llama"), tmp_path, 15, seed)
    except PermissionError as why:
        pytest.skip(str(why))
    assert sum(ends.values()) == 15, seed


# --- options of workers
# --------------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch):
    """Ray counts as installed, for what is checked before it is imported."""
    monkeypatch.setattr(executors, "find_spec", lambda name: name)


def test_executors_by_name(installed):
    mine = al.RayExecutor(workers=2, address="auto", gpus_per_worker=0.5)
    assert [executor_of(given) for given in (None, "ray", mine)] == [None, RayExecutor(), mine]


@pytest.mark.parametrize(
    ("make", "given"),
    [
        *((RayExecutor, {name: value}) for name, value in (("workers", 0), ("workers", True))),
        *(
            (RayExecutor, {"address": value})
            for value in ("", "::::", "host", "host:port", "local", " a:1", "a:123456", 3)
        ),
        *((RayExecutor, {"gpus_per_worker": value}) for value in (-1, 1.5)),
        *(
            (lambda executor: executor_of(executor), {"executor": value})
            for value in ("dask", 2, ["ray"])
        ),
    ],
)
def test_executors_and_options_that_do_not_exist(make, given, installed, unchecked):
    with pytest.raises(InputError, match=f"^{next(iter(given))}=.* must be"):
        make(**given)


@pytest.mark.parametrize(
    "address", ["auto", "10.0.0.1:6379", "node-1.cluster:6379", "[::1]:6379", "ray://head:10001"]
)
def test_addresses_of_clusters(address, installed):
    assert RayExecutor(address=address).address == address


def test_the_token_of_ray_is_readable_by_its_owner_only(tmp_path):
    file = tmp_path / ".ray" / "auth_token"
    ray_network._create_token(file)
    token = file.read_text()
    assert len(token) == 64
    file.chmod(0o644)  # as Ray leaves it
    ray_network._create_token(file)
    assert (file.read_text(), file.stat().st_mode & 0o777) == (token, 0o600)
    assert list(file.parent.iterdir()) == [file]


def test_without_ray_the_message_names_the_extra(monkeypatch, tmp_path, tiny):
    monkeypatch.setattr(executors, "find_spec", lambda name: None)
    with raises(InputError, "executor", word="anchorlens[ray]"):
        al.swap_sweep(str(tiny("llama")), capitals(), executor="ray", out=tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_live_model_is_refused_before_any_worker_is_made(tiny_model, installed, tmp_path):
    model = tiny_model("llama")
    study = al.Study([model], [capitals()], [al.Swap()])
    for refused in (partial(al.swap_sweep, model, capitals()), partial(al.run_study, study)):
        with raises(InputError, "executor", word="HookedTran"):
            refused(out=tmp_path / "a", executor="ray")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "loading", "wanted"),
    [
        ({}, Loading(), (3, 1.0)),
        ({}, Loading(device="cpu"), (8, 0.0)),
        ({}, Loading(device="cuda", n_devices=2), (1, 2.0)),
        ({"gpus_per_worker": 0.5}, Loading(), (4, 0.5)),
        ({"workers": 2}, Loading(), (2, 1.0)),
    ],
)
def test_workers_and_their_gpus(given, loading, wanted, installed, monkeypatch):
    """Two machines with 5 and 13 CPUs and with 2 and 1 GPUs; two threads to a worker."""

    class Ray:
        def nodes(self):
            rooms = [{"CPU": 5.0, "GPU": 2.0}, {"CPU": 13.0, "GPU": 1.0}]
            return [{"Alive": True, "Resources": room} for room in rooms] + [
                {"Alive": False, "Resources": {"CPU": 99.0}}
            ]

    monkeypatch.setattr(executors, "_ray", Ray)
    assert executors._workers_and_gpus(RayExecutor(**given), loading, 2) == wanted
    with raises(InputError, "workers"):
        executors._workers_and_gpus(RayExecutor(**given | {"workers": 9}), loading, 2)


# --- with Ray
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cluster_that_is_not_there(tiny):
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'anchorlens[ray]'")
    code = (
        f"import anchorlens as al; al.swap_sweep({str(tiny('llama'))!r}, al.load_qa('popqa-sample',"
        " limit=3), executor="
    )
    code += "al.RayExecutor(address='127.0.0.1:1'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "InputError: address='127.0.0.1:1': no Ray cluster answers" in done.stderr


_LISTENS = """
import os, psutil, ray
from anchorlens.running.executors import RayExecutor, open_executor

with open_executor(RayExecutor(workers=1)):
    for process in psutil.Process().children(recursive=True):
        print(*{one.laddr.ip for one in process.net_connections() if one.status == "LISTEN"}, sep="\\n")
print(oct(os.stat(os.path.expanduser("~/.ray/auth_token")).st_mode & 0o777))
"""


@pytest.mark.slow
def test_a_local_cluster_listens_on_this_machine_only(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'anchorlens[ray]'")
    env = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _LISTENS], capture_output=True, text=True, env=env, cwd=ROOT
    )
    *listens, mode = done.stdout.split()
    assert {one.removeprefix("::ffff:") for one in listens} == {"127.0.0.1"}, done.stderr[-1000:]
    assert mode == "0o600"


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_study_of_two_models(tiny, tmp_path):
    """The same workers load one model after the other."""
    study = al.Study(
        [str(tiny("llama")), str(tiny("gpt2"))], [capitals()], [al.Swap(**OPTIONS)], device="cpu"
    )
    one = al.run_study(study, tmp_path / "whole")
    other = al.run_study(study, tmp_path / "out", executor=RayExecutor(workers=2))
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")
    for mine, theirs in zip(one.results, other.results, strict=True):
        for part in ("config", "model", "data", "environment"):
            assert mine.record[part] == theirs.record[part], part


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_functions_of_your_own_reach_the_workers(tiny):
    more = OPTIONS | {"donors": lambda base, pool: [one for one in pool if one is not base][:1]}
    alone = al.swap_sweep(str(tiny("llama")), capitals(), **more)
    shared = al.swap_sweep(str(tiny("llama")), capitals(), executor=RayExecutor(workers=2), **more)
    assert alone.run_id == shared.run_id
    assert alone.samples().equals(shared.samples())


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_errors_of_workers_are_raised_here(tiny, tmp_path, monkeypatch):
    model = str(tiny("llama"))
    with pytest.raises(InputError, match="-3 to 2") as found:
        al.swap_sweep(
            model,
            capitals(),
            out=tmp_path / "a",
            executor=RayExecutor(workers=2),
            layers=[7],
            progress=False,
        )
    assert type(found.value) is InputError
    with pytest.raises(InputError, match="room for 2"):
        al.swap_sweep(
            model, capitals(), out=tmp_path / "a", executor=RayExecutor(workers=3), progress=False
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_shard_that_costs_worker_after_worker_stops_the_run(tiny, tmp_path):
    options = OPTIONS | {"donors": _die}
    with pytest.raises(al.AnchorlensError, match="3 times"):
        al.swap_sweep(
            str(tiny("llama")),
            capitals(),
            out=tmp_path / "a",
            executor=RayExecutor(workers=1),
            **options,
        )


def _die(base, pool):
    os.kill(os.getpid(), signal.SIGKILL)
