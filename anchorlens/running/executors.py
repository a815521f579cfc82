"""Executors: run the sweeps of a run in this process, or in Ray workers (the extra ``[ray]``).

Every worker draws and plans a sweep from the same inputs, so that all workers plan the same shards.
One worker also computes the result. Ray restarts a dead worker and repeats its call; every call has
the whole task as its argument.
"""

import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from anchorlens.display import as_int, short_repr, warn
from anchorlens.errors import InputError, RunError, WorkerError
from anchorlens.models.load import load_model
from anchorlens.progress import Progress
from anchorlens.prompts.dataset import PromptDataset
from anchorlens.protocols.base import Measurement
from anchorlens.protocols.specification import Specification
from anchorlens.results.sweep import SweepResult
from anchorlens.running.ray_network import connect
from anchorlens.running.runner import LocalRunner, Planned, Runner
from anchorlens.runs.journal import Shard, differences
from anchorlens.runs.provenance import command_line

_RETRIES = 2  # repetitions of a call after its worker died
_ADDRESS = re.compile(r"auto|(\w+://)?([\w.-]+|\[[\da-fA-F:.]+\]):\d{1,5}")


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Options for models given by name, as in :func:`anchorlens.load_model`."""

    device: str | None = None
    dtype: str | None = None
    stream: bool = False
    n_devices: int = 1
    backend: str | None = None


@dataclass(frozen=True)
class RayExecutor:
    """Options of Ray workers, each with its own copy of the model.

    A worker uses as many threads as this process (``OMP_NUM_THREADS``, ``torch.set_num_threads``),
    since results depend on them.

    Examples:
        >>> import anchorlens as al
        >>> workers = al.RayExecutor(workers=2)  # doctest: +SKIP
        >>> sweep = al.swap_sweep(  # doctest: +SKIP
        ...     "smollm2-135m-instruct", "popqa-sample", layers=(0, 24), executor=workers
        ... )

    Attributes:
        workers: Number of workers. If None, as many as CPUs and GPUs allow.
        address: Address of a running Ray cluster (``"auto"`` finds one). If None, a cluster is
            started on this machine for the run.
        gpus_per_worker: Number of GPUs, or a fraction of one. If None, ``n_devices`` if there are
            GPUs and no other device is requested.

    Raises:
        InputError: If a value is invalid, or Ray is not installed.
    """

    workers: int | None = None
    address: str | None = None
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and (as_int(self.workers) or 0) < 1:
            raise InputError(
                f"workers={short_repr(self.workers)} must be a whole number of at least 1.",
                argument="workers",
            )
        if self.address is not None and not (
            isinstance(self.address, str) and _ADDRESS.fullmatch(self.address)
        ):
            raise InputError(
                f"address={short_repr(self.address)} must be 'auto' or 'host:port'.",
                argument="address",
            )
        gpus = self.gpus_per_worker
        is_number = isinstance(gpus, (int, float)) and not isinstance(gpus, bool)
        if gpus is not None and not (
            is_number and (0 <= gpus <= 1 or (gpus > 1 and float(gpus).is_integer()))
        ):
            problem = (
                f"gpus_per_worker={short_repr(gpus)} must be a whole number of GPUs or a fraction"
                " of one."
            )
            raise InputError(problem, argument="gpus_per_worker")
        if find_spec("ray") is None:
            raise InputError(
                "executor='ray': Ray is not installed. Run pip install 'anchorlens[ray]'.",
                argument="executor",
            )


def executor_of(given: Any) -> RayExecutor | None:
    """Return the worker options of an ``executor=`` argument; None for this process."""
    if given is None or isinstance(given, RayExecutor):
        return given
    if isinstance(given, str) and given == "ray":
        return RayExecutor()
    raise InputError(
        f"executor={short_repr(given)} must be 'ray' or an al.RayExecutor.", argument="executor"
    )


def refuse_live(executor: RayExecutor | None, models: Sequence[Any]) -> None:
    """Raise InputError if workers would get a live model instead of a name."""
    live = [short_repr(model) for model in models if not isinstance(model, (str, os.PathLike))]
    if executor is not None and live:
        raise InputError(
            f"executor='ray': workers load models by name or path, not {live[0]}. Give a name.",
            argument="executor",
        )


class Executor(ABC):
    """Measures sweeps one by one and keeps the model for the next sweep."""

    @abstractmethod
    def make_runner(
        self,
        protocol: Measurement[Any, Any, Any],
        model: Any,
        data: PromptDataset,
        spec: Specification,
    ) -> Runner:
        """Load the model if needed, and return the runner of one sweep."""


class LocalExecutor(Executor):
    """Measures sweeps in this process."""

    def __init__(self, loading: Loading | None = None, command: str | None = None) -> None:
        self._loading = loading or Loading()
        self._command = command
        self._given: Any = None
        self._model: Any = None

    @override
    def make_runner(
        self,
        protocol: Measurement[Any, Any, Any],
        model: Any,
        data: PromptDataset,
        spec: Specification,
    ) -> LocalRunner:
        if model is not self._given and model != self._given:
            self._given = self._model = None  # free the memory before the next model is loaded
            named = isinstance(model, (str, os.PathLike))
            if named:
                self._model = load_model(model, **asdict(self._loading), progress=spec.progress)
            else:
                self._model = model
            self._given = model
        return LocalRunner(protocol, self._model, data, spec, self._command)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A sweep; sent with every call, because a restarted worker has no state."""

    number: int
    protocol: Measurement[Any, Any, Any]
    model: Any
    data: Any  # Ray reference to the data set
    spec: Specification
    own_code: Mapping[str, str]  # fingerprints of the user's functions
    free: int | None = None  # bytes to plan for, set after all workers are open
    plan: Mapping[str, Any] | None = None  # plan of the first worker, set after planning


class RayWorker:
    """Ray actor of one worker: holds a model and a sweep."""

    def __init__(
        self, loading: Loading, command: str, gpus: float, threads: int, folder: str
    ) -> None:
        torch.set_num_threads(threads)
        if Path(folder).is_dir():  # so that relative paths resolve as in the calling process
            os.chdir(folder)
        if loading.device is None and not gpus and torch.cuda.is_available():
            loading = replace(loading, device="cpu")  # GPUs that Ray did not assign
        self._executor = LocalExecutor(loading, command)
        self._task: Task | None = None
        self._runner: LocalRunner | None = None
        self._planned: Planned | None = None

    def call(self, method: str, *given: Any) -> tuple[Any, list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            value = getattr(self, method)(*given)
        return value, [str(one.message) for one in caught if one.category is UserWarning]

    def open(self, task: Task) -> tuple[Mapping[str, object], int, str]:
        """Return the record of the model, the free bytes of its device, and the id of the
        Ray node.
        """
        runner = self._open(task)
        return runner.card, runner.free, _ray().get_runtime_context().get_node_id()

    def plan(self, task: Task) -> Planned:
        """Draw and plan the sweep.

        Raise RunError if the plan differs from that of other workers.
        """
        runner = self._open(task)
        if self._planned is None:
            assert task.free is not None  # set before any worker plans
            self._planned = runner.plan(task.free)
        if task.plan is not None:
            _refuse_other_plan(task.plan, self._planned.record())
        return self._planned

    def shard(self, task: Task, number: int) -> tuple[int, Shard]:
        self.plan(task)
        bar = Progress("", 1.0, "", show=False)
        return next(self._open(task).measure_shards([number], bar))

    def finish(self, task: Task, shards: Sequence[Shard]) -> SweepResult:
        self.plan(task)
        return self._open(task).finish(shards, Progress("", 1.0, "", show=False))

    def _open(self, task: Task) -> LocalRunner:
        if self._runner is None or self._task is None or self._task.number != task.number:
            if task.spec.own_code() != task.own_code:
                raise InputError(
                    "A function of yours (readout, donors, site, prompt) differs in the workers."
                    " Define it in a file that they can import, and use the same Python version."
                )
            self._runner = self._planned = None  # free the memory before the next model is loaded
            self._runner = self._executor.make_runner(
                task.protocol, task.model, _ray().get(task.data), task.spec
            )
            self._task = task
        return self._runner


def _refuse_other_plan(was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if changes := "; ".join(differences({"plan": was}, {"plan": now})):
        raise RunError(
            f"Workers plan the same sweep differently: {changes}. Use machines of one kind, or give"
            " batch_size=."
        )


class WorkerPool(Executor):
    """Measures sweeps in Ray workers; each keeps its model for the next sweep."""

    def __init__(self, actors: Sequence[Any], gpus: float) -> None:
        self.actors = actors
        self.gpus = gpus
        self._n_sweeps = 0
        self._warned: set[str] = set()
        self._data: dict[int, tuple[PromptDataset, Any]] = {}

    @override
    def make_runner(
        self,
        protocol: Measurement[Any, Any, Any],
        model: Any,
        data: PromptDataset,
        spec: Specification,
    ) -> "RayRunner":
        if id(data) not in self._data:
            self._data[id(data)] = data, _ray().put(data)
        quiet = spec.replace(progress=False, on_plan=None)
        task = Task(
            number=self._n_sweeps,
            protocol=protocol,
            model=model,
            data=self._data[id(data)][1],
            spec=quiet,
            own_code=quiet.own_code(),
        )
        self._n_sweeps += 1
        return RayRunner(self, task)

    def call(self, actors: Sequence[Any], method: str, *given: Any) -> list[Any]:
        with _errors_of_workers():
            found = _ray().get([actor.call.remote(method, *given) for actor in actors])
        return [self._value(*one) for one in found]

    def map_shards(self, task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, Shard]]:
        pool = import_module("ray.util").ActorPool(self.actors)
        replies = pool.map_unordered(
            lambda actor, number: actor.call.remote("shard", task, number), numbers
        )
        while True:
            with _errors_of_workers():
                reply = next(replies, None)
            if reply is None:
                return
            yield self._value(*reply)

    def _value(self, value: Any, warned: Sequence[str]) -> Any:
        for text in dict.fromkeys(warned):
            if text not in self._warned:
                self._warned.add(text)
                warn(text)
        return value


@contextmanager
def _errors_of_workers() -> Iterator[None]:
    """Re-raise an error of a worker. Raise WorkerError if a call repeatedly kills its worker."""
    ray = _ray()
    try:
        yield
    except ray.exceptions.RayTaskError as why:
        raise why.cause from why
    except ray.exceptions.RayError as why:
        raise WorkerError(
            f"Workers died {_RETRIES + 1} times at the same call ({type(why).__name__}), usually"
            " because memory ran out. Finished shards are kept. Try fewer workers=, a smaller"
            " batch_size= or max_memory=, and continue with resume=True."
        ) from why


class RayRunner(Runner):
    """Measures one sweep in Ray workers."""

    def __init__(self, pool: WorkerPool, task: Task) -> None:
        self._pool = pool
        self._task = task
        replies = pool.call(pool.actors, "open", task)
        self._card: Mapping[str, object] = replies[0][0]
        same = dict(self._card)
        for name in ("device", "parity"):
            same.pop(name, None)
        for card, _, _ in replies[1:]:
            if changes := differences(
                {"model": same}, {"model": {name: card[name] for name in same}}
            ):
                raise RunError(
                    f"Workers have different models: {'; '.join(changes)}. Give all of them the"
                    " same files."
                )
        nodes = [node for _, _, node in replies]
        on_gpu = pool.gpus and str(self._card["device"]).startswith("cuda")
        # Workers on one node share its memory; workers with a fraction of a GPU share the memory of
        # the GPU.
        shares: list[int] = []
        for _, free, node in replies:
            n_workers = max(1, int(1 / pool.gpus)) if on_gpu else nodes.count(node)
            shares.append(free // n_workers)
        self.free = min(shares)

    @property
    @override
    def card(self) -> Mapping[str, object]:
        return self._card

    @override
    def plan(self, free: int) -> Planned:
        self._task = replace(self._task, free=free)
        first, *others = self._pool.call(self._pool.actors, "plan", self._task)
        for other in others:
            _refuse_other_plan(first.record(), other.record())
            if changes := differences(dict(first.environment), dict(other.environment)):
                warn(
                    f"Workers differ: {'; '.join(changes)}. Numbers may differ in their last digits"
                    " from shard to shard."
                )
        self._task = replace(self._task, plan=first.record())
        self._planned = first
        return first

    @override
    def measure_shards(
        self, numbers: Sequence[int], bar: Progress
    ) -> Generator[tuple[int, Shard], None, None]:
        for i, (number, shard) in enumerate(self._pool.map_shards(self._task, numbers)):
            bar.advance(
                self._planned.shard_work[number] + (self._planned.before if i == 0 else 0.0)
            )
            yield number, shard

    @override
    def finish(self, shards: Sequence[Shard], bar: Progress) -> SweepResult:
        bar.enter("checks")
        (result,) = self._pool.call(self._pool.actors[:1], "finish", self._task, shards)
        bar.enter("")
        return result


@contextmanager
def open_executor(
    executor: RayExecutor | None, loading: Loading | None = None
) -> Iterator[Executor]:
    """Open an executor for the sweeps of a ``with`` block; workers end with the block."""
    loading = loading or Loading()
    if executor is None:
        yield LocalExecutor(loading)
        return
    # No usage statistics, no change of visible devices, and workers with the priority of this
    # process.
    for name in (
        "RAY_USAGE_STATS_ENABLED",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
        "RAY_worker_niceness",
    ):
        os.environ.setdefault(name, "0")
    ray = _ray()
    threads = torch.get_num_threads()
    started = not ray.is_initialized()
    try:
        if started:
            connect(executor.address, executor.workers or 1, threads)
        workers, gpus = _workers_and_gpus(executor, loading, threads)
        made = ray.remote(RayWorker).options(
            num_cpus=threads, num_gpus=gpus, max_restarts=-1, max_task_retries=_RETRIES
        )
        command = command_line()
        folder = str(Path.cwd())
        actors = [made.remote(loading, command, gpus, threads, folder) for _ in range(workers)]
        try:
            yield WorkerPool(actors, gpus)
        finally:
            for actor in actors:
                ray.kill(actor)
    finally:
        if started:
            ray.shutdown()


def _ray() -> Any:
    return import_module("ray")  # here, because it is optional and slow to import


def _workers_and_gpus(executor: RayExecutor, loading: Loading, threads: int) -> tuple[int, float]:
    nodes = [node["Resources"] for node in _ray().nodes() if node["Alive"]]
    gpus = executor.gpus_per_worker
    if gpus is None:
        use_gpu = any(node.get("GPU") for node in nodes) and str(
            loading.device or "cuda"
        ).startswith("cuda")
        gpus = float(loading.n_devices) if use_gpu or loading.n_devices > 1 else 0.0
    room = 0
    for node in nodes:
        by_cpu = int(node.get("CPU", 0) // threads)
        room += min(by_cpu, int(node.get("GPU", 0) / gpus)) if gpus else by_cpu
    workers = executor.workers or room
    if not 1 <= workers <= room:
        each = f"{threads} CPU{'s' * (threads > 1)}" + (
            f" and {gpus:g} GPU{'s' * (gpus > 1)}" if gpus else ""
        )
        raise InputError(
            f"workers={workers or 1} of {each} each: there is room for {room}. Give fewer workers,"
            " another gpus_per_worker=, or fewer threads (OMP_NUM_THREADS).",
            argument="workers",
        )
    return workers, gpus
