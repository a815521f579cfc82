"""Workers in processes of their own, on this machine or on others, with Ray: the extra ``[ray]``.

A :class:`Crew` knows nothing of what is measured: each worker holds an object, and the crew calls its methods. A worker that dies is
replaced, and what it was asked is asked again.
"""

import os
import platform
import shutil
import signal
import socket
import tempfile
import threading
import warnings
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from anchorlens.errors import InputError, WorkerError
from anchorlens.kinds import as_whole, described
from anchorlens.notices import warn

# Calls that a worker has before it: the next one waits beside the one at work, so that nobody is idle and nothing piles up.
_IN_FLIGHT = 2
# Workers that one call may cost.
_DEATHS = 3
# Seconds in which a cluster has to answer, and in which there has to be room for who takes another's place, where nobody else works.
_PATIENCE, _ARRIVAL = 20.0, 600.0
_NO_ROOM = (
    f"There has been no room for a worker for {_ARRIVAL:.0f} s: others use the cluster, or a part of it is gone. What was measured "
    "is kept: continue with resume=True, and fewer workers=."
)
# Of a folder for sockets: longer names do not fit where their names go, and Ray then fails.
_LONGEST_FOLDER = 40


@dataclass(frozen=True)
class RayExecutor:
    """Workers that Ray runs, each with a model of its own.

    A worker has as many threads as this process (``OMP_NUM_THREADS``, ``torch.set_num_threads``), because bytes hang on them.

    Attributes:
        workers: How many; None: as many as there is room for.
        address: Of a Ray cluster that runs (``"auto"`` finds one); None starts one on this machine, which ends with the run.
        gpus_per_worker: Whole numbers, or a part of one GPU; None: one where there are any and no other device is asked for,
            or as many as models are spread over.

    Raises:
        InputError: A value is of another kind, or Ray is not installed.
    """

    workers: int | None = None
    address: str | None = None
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and (as_whole(self.workers) or 0) < 1:
            raise InputError(f"workers takes a whole number from 1 on, got {described(self.workers)}.")
        if self.address is not None and not (isinstance(self.address, str) and self.address):
            raise InputError(
                f"address takes that of a Ray cluster, such as 'auto' or 'host:6379', got {described(self.address)}."
            )
        gpus = self.gpus_per_worker
        if gpus is not None and (not isinstance(gpus, (int, float)) or isinstance(gpus, bool) or not gpus >= 0):
            raise InputError(f"gpus_per_worker takes a number from 0 on, got {described(gpus)}.")
        if gpus is not None and gpus > 1 and gpus != int(gpus):
            raise InputError(f"gpus_per_worker takes a part of one GPU or a whole number of them, got {gpus}.")
        if find_spec("ray") is None:
            raise InputError("executor='ray' needs Ray, which is not installed: pip install 'anchorlens[ray]'.")


def executor_of(given: Any) -> RayExecutor | None:
    """``"ray"`` or an executor; None where this process measures.

    Raises:
        InputError: It is neither, or Ray is not installed.
    """
    if given is None or isinstance(given, RayExecutor):
        return given
    if isinstance(given, str) and given == "ray":
        return RayExecutor()
    raise InputError(f"executor takes 'ray' or an al.RayExecutor, got {described(given)}.")


@dataclass(frozen=True)
class Place:
    """Where a worker is.

    Attributes:
        host: Name of its machine.
        node: Ray's name of it.
        pid: Process.
    """

    host: str
    node: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Call:
    """Something to be done by a worker.

    Attributes:
        key: Told with what comes of it.
        what: For a message: ``shard 3``.
        method: Of the worker's object.
        given: Arguments.
        seat: Of the worker that has to do it; None: anyone.
    """

    key: Any
    what: str
    method: str
    given: tuple[Any, ...]
    seat: int | None = None


class _Worker:
    """The process of a worker; Ray makes it."""

    def __init__(self, role: Any, gpus: float, threads: int, folder: str) -> None:
        torch.set_num_threads(threads)
        if Path(folder).is_dir():  # relative names mean what they mean to who began the run
            os.chdir(folder)
        self._object = role(gpus)

    def place(self) -> Place:
        return Place(platform.node(), _ray().get_runtime_context().get_node_id(), os.getpid())

    def call(self, method: str, given: tuple[Any, ...]) -> tuple[Any, list[str]]:
        """What a method gives, and what it warned of."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", UserWarning)
            value = getattr(self._object, method)(*given)
        return value, [str(one.message) for one in told if one.category is UserWarning]


class Crew:
    """Workers that hold an object each; made by :func:`crew`.

    Attributes:
        gpus: Of each.
        places: Where they are.
    """

    def __init__(self, role: Any, workers: int, threads: int, gpus: float) -> None:
        self._ray = ray = _ray()
        self.gpus, self._told = gpus, set[str]()
        made: Any = ray.remote(_Worker)
        self._made = made.options(num_cpus=threads, num_gpus=gpus, max_restarts=0, max_task_retries=0)
        self._given = (role, gpus, threads, str(Path.cwd()))
        self._dead = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.WorkerCrashedError)
        self._actors = [self._made.remote(*self._given) for _ in range(workers)]
        self._arriving: dict[Any, int] = {}
        try:
            self.places: list[Place] = ray.get([actor.place.remote() for actor in self._actors], timeout=_ARRIVAL)
        except ray.exceptions.GetTimeoutError as why:
            raise WorkerError(_NO_ROOM) from why

    def everywhere(self, what: str, method: str, *given: Any) -> list[Any]:
        """What a method gives, of every worker.

        Raises:
            WorkerError: A worker died again and again.
            AnchorlensError: What the method raises.
        """
        calls = [Call(seat, what, method, given, seat) for seat in range(len(self._actors))]
        found = dict(self.done(calls))
        return [found[seat] for seat in range(len(self._actors))]

    def once(self, what: str, method: str, *given: Any) -> Any:
        """What a method gives, of any worker; raises as :meth:`everywhere` does."""
        return next(value for _, value in self.done([Call(0, what, method, given)]))

    def done(self, calls: Sequence[Call]) -> Generator[tuple[Any, Any], None, None]:
        """Keys of calls and what they gave, as they come; raises as :meth:`everywhere` does."""
        queue, flying, deaths = deque(calls), dict[Any, tuple[int, Call]](), Counter[Any]()
        while queue or flying:
            for seat in set(range(len(self._actors))) - set(self._arriving.values()):
                while (call := _next(queue, flying, seat)) is not None:
                    flying[self._actors[seat].call.remote(call.method, call.given)] = seat, call
            ready, _ = self._ray.wait([*flying, *self._arriving], num_returns=1, timeout=None if flying else _ARRIVAL)
            if not ready:
                raise WorkerError(_NO_ROOM)
            if ready[0] in self._arriving:
                self._arrived(ready[0], deaths)
                continue
            seat, call = flying[ready[0]]
            try:
                value, told = self._ray.get(ready[0])
            except self._dead:
                # What it was at is the first of its calls; the others had not begun.
                lost = [(ref, one) for ref, (where, one) in flying.items() if where == seat]
                for ref, one in reversed(lost):
                    del flying[ref]
                    queue.appendleft(one)
                self._replace(seat, lost[0][1].what, deaths)
                continue
            except self._ray.exceptions.RayTaskError as why:
                raise why.cause from why
            del flying[ready[0]]
            for said in told:
                if said not in self._told:
                    self._told.add(said)
                    warn(said)
            yield call.key, value

    def _replace(self, seat: int, what: str, deaths: Counter[Any]) -> None:
        """Another worker for one that died; the others go on until it is there."""
        deaths[what] += 1
        place = self.places[seat]
        self._ray.kill(self._actors[seat])
        self._actors[seat] = self._made.remote(*self._given)
        self._arriving[self._actors[seat].place.remote()] = seat
        if deaths[what] >= _DEATHS:
            raise WorkerError(
                f"{_DEATHS} workers died at {what}, the last one as {place}: most often memory has run out. What was measured "
                "is kept. Try fewer workers=, a smaller batch_size= or max_memory=, and continue with resume=True."
            )
        warn(f"A worker ({place}) died at {what}: another one takes its place and begins it again.")

    def _arrived(self, ref: Any, deaths: Counter[Any]) -> None:
        seat = self._arriving.pop(ref)
        try:
            self.places[seat] = self._ray.get(ref)
        except self._dead:
            self._replace(seat, "its start", deaths)

    def sent(self, value: Any) -> Any:
        """What is kept for all workers, to be :func:`fetched` by each."""
        return self._ray.put(value)

    def ended(self) -> None:
        """No worker is left."""
        for actor in self._actors:
            self._ray.kill(actor)


def _next(queue: deque[Call], flying: Mapping[Any, tuple[int, Call]], seat: int) -> Call | None:
    """The next call for a worker, taken out of the queue; None where it has enough."""
    if sum(where == seat for where, _ in flying.values()) >= _IN_FLIGHT:
        return None
    for call in queue:
        if call.seat in (None, seat):
            queue.remove(call)
            return call
    return None


def fetched(sent: Any) -> Any:
    """In a worker: what :meth:`Crew.sent` was given."""
    return _ray().get(sent)


def _ray() -> Any:
    """Imported where workers are asked for, and nowhere else."""
    return import_module("ray")


@contextmanager
def crew(executor: RayExecutor, role: Any, device: str | None) -> Iterator[Crew]:
    """Workers for a ``with`` block, and no process of theirs after it.

    Args:
        executor: How many, and where.
        role: Makes what each of them holds, in its process, of the GPUs that it has.
        device: Where models are asked to run.

    Raises:
        InputError: There is no such cluster, or no room for so many workers.
    """
    # Nothing is sent to anybody, who asks for no GPU is asked by us to use the CPU, and workers are as important as this process.
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_worker_niceness"):
        os.environ.setdefault(name, "0")
    ray = _ray()
    threads = torch.get_num_threads()
    own = None if ray.is_initialized() or executor.address is not None else _own_folder()
    began, quiet = not ray.is_initialized(), ExitStack()
    quiet.enter_context(_signal_kept())
    try:
        if began:
            with _signal_kept() if callable(signal.getsignal(signal.SIGTERM)) else nullcontext():
                _begin(ray, executor, own, threads, device)
            quiet.enter_context(_nothing_printed())
        room, gpus = _room(ray, executor, threads, device)
        workers = executor.workers or max(room, 1)
        if workers > room:
            each = f"{threads} CPU{'s' * (threads > 1)}" + (f" and {gpus:g} GPU{'s' * (gpus > 1)}" if gpus else "")
            raise InputError(
                f"workers={workers} of {each} each were asked for, and there is room for {room}. Give fewer, another "
                "gpus_per_worker=, or fewer threads (OMP_NUM_THREADS)."
            )
        made = Crew(role, workers, threads, gpus)
        try:
            yield made
        finally:
            made.ended()
    finally:
        if began:
            ray.shutdown()
        quiet.close()
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)


def _begin(ray: Any, executor: RayExecutor, folder: str | None, threads: int, device: str | None) -> None:
    """Reach the cluster, or begin one on this machine that has a CPU for every thread that is asked for."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if executor.address is not None:
        try:
            _answers(executor.address)
            ray.init(address=executor.address, **quiet)
        except (OSError, ValueError, RuntimeError) as why:
            raise InputError(
                f"No Ray cluster answers at address={executor.address!r} ({str(why).splitlines()[0]}). Start one with `ray start "
                "--head`, or leave it out: one is started on this machine."
            ) from why
        return
    workers, cores = executor.workers or _most_here(executor, threads, device), os.cpu_count() or 1
    if workers * threads > cores:
        warn(
            f"{workers} workers of {threads} threads share {cores} cores and will wait for each other: set "
            f"OMP_NUM_THREADS={max(1, cores // workers)}."
        )
    ray.init(address="local", num_cpus=workers * threads, include_dashboard=False, _temp_dir=folder, **quiet)


def _answers(address: str) -> None:
    """Ray itself waits for minutes where nobody listens.

    Raises:
        OSError: Nobody does.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()


@contextmanager
def _nothing_printed() -> Iterator[None]:
    """Ray tells of a worker's death on standard output, which is for results; a crew warns of it."""
    worker: Any = import_module("ray._private.worker")
    before = getattr(worker, "print_to_stdstream", None)
    if before is not None:
        worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        if before is not None:
            worker.print_to_stdstream = before


def _most_here(executor: RayExecutor, threads: int, device: str | None) -> int:
    """Workers that this machine has room for."""
    gpus = _gpus(executor, torch.cuda.device_count(), device)
    return max(1, int(torch.cuda.device_count() / gpus) if gpus else (os.cpu_count() or 1) // threads)


def _gpus(executor: RayExecutor, there: float, device: str | None) -> float:
    """GPUs of a worker."""
    if executor.gpus_per_worker is not None:
        return executor.gpus_per_worker
    return 1.0 if there and (device is None or str(device).startswith("cuda")) else 0.0


def _room(ray: Any, executor: RayExecutor, threads: int, device: str | None) -> tuple[int, float]:
    """Workers that the cluster has room for, and GPUs of each."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = _gpus(executor, sum(node.get("GPU", 0.0) for node in nodes), device)
    by_cpu = [int(node.get("CPU", 0.0) // threads) for node in nodes]
    by_gpu = [int(node.get("GPU", 0.0) / gpus) if gpus else most for node, most in zip(nodes, by_cpu, strict=True)]
    return sum(map(min, by_cpu, by_gpu)), gpus


def _own_folder() -> str:
    """A folder for Ray's sockets and logs, which goes with the run."""
    base = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="al-ray-", dir=base if len(base) + 16 <= _LONGEST_FOLDER else "/tmp")


@contextmanager
def _signal_kept() -> Iterator[None]:
    """Ray sets a handler of its own for SIGTERM; the one that was there (of a shell's command: stop as with Ctrl-C) comes back."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


__all__ = ["Call", "Crew", "Place", "RayExecutor", "crew", "executor_of", "fetched"]
