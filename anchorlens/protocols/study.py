"""Several models, data sets and protocols: one record, one figure.

Every name, path and argument that needs no model is looked at before the first model is loaded. Each finished sweep is written at
once, and stays when a later one fails or is stopped.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from anchorlens.errors import EmptySweepError, InputError, did_you_mean
from anchorlens.kinds import described
from anchorlens.models.source import check_model
from anchorlens.protocols.costing import SweepPlan
from anchorlens.protocols.driver import carried_out
from anchorlens.protocols.hands import Hands, Here, Loading
from anchorlens.protocols.keeping import Kept, check_keeping, finished, identity, keeping, model_name
from anchorlens.protocols.loading import load_run
from anchorlens.protocols.registry import PROTOCOLS, protocol_of, specification_of
from anchorlens.protocols.specification import Specification, tomllib
from anchorlens.protocols.spread import at_work, refuse_live
from anchorlens.questions.datasets import QAData, load_qa
from anchorlens.questions.prompts import make_prompt
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.journal import parts_of, shards_in
from anchorlens.runs.shares import Share, share_of
from anchorlens.runs.store import check_target
from anchorlens.runs.workers import RayExecutor, executor_of

_DATA_KEYS = ("name", "path", "limit", "seed", "columns", "spans", "dataset_name")


@dataclass(frozen=True)
class DataRequest:
    """A question set that is yet to be loaded; see :func:`anchorlens.load_qa`.

    Attributes:
        name: A known set's, or one's own with ``path``.
        path: A file.
        limit: Questions that are drawn.
        seed: Of the draw.
        columns: Our field -> the file's column.
        spans: Where segments come from.
        dataset_name: What outputs call it.
    """

    name: str | None
    path: str | None = None
    limit: int | None = None
    seed: int = 0
    columns: Mapping[str, str] | None = None
    spans: str = "auto"
    dataset_name: str | None = None

    def load(self) -> QAData:
        """The set."""
        return load_qa(
            self.name, self.path, limit=self.limit, seed=self.seed, columns=self.columns, spans=self.spans,
            dataset_name=self.dataset_name,
        )  # fmt: skip


@dataclass(frozen=True)
class Study:
    """What is measured: every specification on every model and data set.

    Attributes:
        models: Names, paths or live models; a tuple, whatever was given.
        data: Question sets: names, files, :class:`DataRequest` or :class:`QAData`.
        specifications: Of the protocols: ``al.Swap()``, ...
        device: Where models run; the best one where it is None.
        dtype: Their number type; their own where it is None.
        stream: Whether the weights of named models are read layer by layer.
        n_devices: Over how many devices named models are spread.
    """

    models: Any
    data: Any
    specifications: Any
    device: str | None = None
    dtype: str | None = None
    stream: bool = False
    n_devices: int = 1

    def __post_init__(self) -> None:
        for name, single, what in (
            ("models", (str, os.PathLike), "names, paths or models"),
            ("data", (str, os.PathLike, DataRequest, QAData), "names, files, DataRequest or QAData"),
            ("specifications", (Specification,), "specifications such as al.Swap()"),
        ):
            given = getattr(self, name)
            listed = [given] if isinstance(given, single) else list(given) if isinstance(given, Sequence) else None
            if listed is None or (name != "models" and not all(isinstance(one, single) for one in listed)):
                raise InputError(f"{name} of a study takes {what}, in a list; got {described(given)}.")
            if name == "data":
                listed = [DataRequest(str(one)) if isinstance(one, (str, os.PathLike)) else one for one in listed]
            object.__setattr__(self, name, tuple(listed))

    @classmethod
    def from_toml(cls, path: "str | os.PathLike[str]") -> "Study":
        """Read a study's file: ``models``, ``device``, ``n_devices``, ``dtype``, ``stream``, tables ``[[data]]``, ``[[protocol]]``.

        Raises:
            InputError: It cannot be read, or a key or value in it is wrong.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise InputError(f"Study.from_toml takes the path of a file, got {described(path)}.")
        file = Path(path)
        try:
            values = tomllib.loads(file.read_text(encoding="utf8"))
        except OSError as why:
            raise InputError(f"Cannot read {file}: {why.strerror}.") from why
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as why:
            raise InputError(f"{file} is not TOML: {why}.") from why
        return _study(cls, values, str(file), file.parent)

    @property
    def loading(self) -> Loading:
        """How its models are loaded."""
        return Loading(self.device, self.dtype, self.stream, self.n_devices)

    def check(self) -> list[QAData]:
        """Look at everything that needs no model, and load the data.

        Raises:
            InputError: A name, path or argument is wrong.
            DownloadError: The hub has no such model or set, or cannot be reached.
        """
        for what, given in (("model", self.models), ("data set", self.data), ("protocol", self.specifications)):
            if not given:
                raise InputError(f"A study needs at least one {what}.")
        twice = next((m for m in self.models if isinstance(m, str) and list(self.models).count(m) > 1), None)
        if twice is not None:
            raise InputError(f"The model {twice!r} is named twice. Name each model once.")
        same = [(spec.NAME, spec.identity(), spec.own_code()) for spec in self.specifications]
        if any(one in same[:i] for i, one in enumerate(same)):
            raise InputError(
                "A specification stands twice in this study: each needs an argument that differs, and engine, batch_size, "
                "max_memory and check_cells decide no number."
            )
        for model in self.models:
            named = isinstance(model, (str, os.PathLike))
            how = {"stream": self.stream and named, "n_devices": self.n_devices}
            check_model(model, device=self.device, dtype=self.dtype, **how)
        loaded = [data.load() if isinstance(data, DataRequest) else data for data in self.data]
        names = [data.name for data in loaded]
        again = next((name for name in names if names.count(name) > 1), None)
        if again is not None:
            raise InputError(f"Two data sets are called {again!r}. Give each a name of its own (dataset_name=).")
        for data in loaded:
            for spec in self.specifications:
                make_prompt(spec.prompt, data.examples, data.pool, spec.seed)
        return loaded


@dataclass
class Outcome:
    """What came of a study so far.

    Attributes:
        results: Finished sweeps.
        empty: What was said of sweeps that had no row.
        total: Sweeps of the study.
        out: The run directory; None where nothing is written.
        share: What of it was measured here, where that is not all; who has all shards finishes the sweeps.
    """

    total: int
    out: Path | None
    share: Share | None = field(default=None, kw_only=True)
    results: list[SweepResult] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    @property
    def kept(self) -> str:
        """What is on disk, for a message."""
        n, parts = len(self.results), None if self.out is None else parts_of(self.out)
        shards = 0 if parts is None else shards_in(parts, n + len(self.empty))
        said: list[str] = []
        if n and self.out is not None:
            said.append(f"{n} of {self.total} sweeps {'is' if n == 1 else 'are'} finished and kept in {self.out}.")
        if shards:
            also = "Of the next one what" if n else "What"
            how = "continue with resume=True" if self.share is None else f"job {self.share} goes on with the same command"
            said.append(f"{also} was measured is kept in {parts} ({shards} shard{'s' * (shards != 1)}): {how}.")
        return " ".join(said) or "Nothing was written."


def run_study(
    study: Study,
    out: "str | os.PathLike[str] | None" = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    force_new: bool = False,
    shard: "str | tuple[int, int] | Share | None" = None,
    executor: "str | RayExecutor | None" = None,
    command: Mapping[str, Any] | None = None,
    outcome: Outcome | None = None,
    on_result: Callable[[SweepResult, Outcome], object] = lambda result, outcome: None,  # noqa: ARG005
    on_empty: Callable[[str], object] = lambda said: None,  # noqa: ARG005
) -> Outcome:
    """Measure everything; each finished sweep is written to ``out`` at once, and what is measured of the next one beside it.

    Until the last sweep is finished ``OUT.parts`` holds what was measured so far, shard by shard, so that a study that was stopped
    in whatever way can go on: with the same arguments and ``resume=True``. Its tables are then, byte for byte, those of a study that
    was never stopped.

    Args:
        study: What.
        out: Run directory.
        overwrite: Replace a run that is there (when the first sweep has been measured, not before).
        resume: Continue what was stopped; begin where there is nothing yet, and do nothing where all is done.
        force_new: Throw away what was stopped, and begin again.
        shard: ``"2/8"`` or ``(2, 8)``: measure the second of eight shares and keep it in ``OUT.parts``; when all are there,
            ``resume=True`` finishes the run. The outcome has no results then.
        executor: ``"ray"`` or a :class:`~anchorlens.RayExecutor`: workers measure; models have to be names or paths.
        command: How a shell began the run, for who will finish it.
        outcome: Filled as the study goes on, so that the caller has it when an error or an interrupt ends it.
        on_result: Told of each finished sweep, after it was written.
        on_empty: Told of each sweep without a row; the others go on.

    Raises:
        InputError: Something is wrong with a name, path or argument: before the first model is loaded where it needs none.
        EmptySweepError: No sweep had a row.
        RunError: What was stopped was another study, another process measures it, or the place cannot be written.
        AnchorlensError: A sweep failed; what was finished before is kept.
    """
    if not isinstance(study, Study):
        raise InputError(f"run_study takes an anchorlens.Study, got {described(study)}. Study.from_toml(path) reads one.")
    share, who = share_of(shard), executor_of(executor)
    check_keeping(out, overwrite=overwrite, resume=resume, force_new=force_new, share=share)
    refuse_live(who, study.models)
    done = outcome if outcome is not None else Outcome(0, None)
    done.share, told = share, _Told(on_result, on_empty)
    if out is None:
        with at_work(who, study.loading) as measuring:
            _measured(_every(study, study.check()), measuring, done, told, None)
        return done
    resume = resume or share is not None
    target = check_target(out, overwrite=overwrite or resume or force_new or parts_of(Path(out)).exists())
    steps = _every(study, study.check())
    sweeps = [identity(*step) for step in steps]
    if resume and finished(target, sweeps):
        done.results += load_run(target)
        done.total, done.out = len(done.results), target
        return done
    how: dict[str, Any] = {
        "overwrite": overwrite,
        "resume": resume,
        "force_new": force_new,
        "share": share,
        "command": command,
    }
    with keeping(target, sweeps, **how) as kept, at_work(who, study.loading) as measuring:
        done.out = target
        _measured(steps, measuring, done, told, kept)
    return done


@dataclass(frozen=True)
class Planning:
    """What one sweep of a study would take.

    Attributes:
        model: Its name.
        dataset: Its name.
        protocol: Its name.
        plan: Cells, batches, predicted FLOPs, seconds and bytes; None where no row can be measured.
        why: Why not.
    """

    model: str
    dataset: str
    protocol: str
    plan: SweepPlan | None
    why: str = ""


def study_plans(study: Study) -> Iterator[Planning]:
    """What every sweep of a study would take; models are loaded, nothing is measured or written.

    Args:
        study: What.

    Yields:
        One for each model, data set and specification, as soon as it is known.

    Raises:
        InputError: See :func:`run_study`.
    """
    here = Here(study.loading)
    for model, qa, spec in _every(study, study.check()):
        names = (model_name(model), qa.name, spec.NAME)
        try:
            station = here.station(protocol_of(spec.NAME), model, qa, spec)
            yield Planning(*names, station.plan(station.free).cost)
        except EmptySweepError as why:
            yield Planning(*names, None, str(why))


@dataclass(frozen=True)
class _Told:
    """Who hears of finished and of empty sweeps."""

    result: Callable[[SweepResult, Outcome], object]
    empty: Callable[[str], object]


def _every(study: Study, data: Sequence[QAData]) -> list[tuple[Any, QAData, Specification]]:
    return [(m, qa, spec) for m in study.models for qa in data for spec in study.specifications]


def _measured(
    steps: Sequence[tuple[Any, QAData, Specification]],
    measuring: Hands,
    done: Outcome,
    told: _Told,
    kept: Kept | None,
) -> None:
    """Every sweep in its turn.

    Raises:
        EmptySweepError: No sweep had a row.
    """
    done.total = len(steps)
    pending = [f"{s.NAME}: {model_name(m)} on {d.name}" for m, d, s in steps]

    def write(more: Sequence[SweepResult]) -> None:
        if kept is not None and (done.results or more):
            kept.write([*done.results, *more], pending)

    for number, (name, qa, spec) in enumerate(steps):
        said = f"{model_name(name)} on {qa.name}"
        make = partial(measuring.station, protocol_of(spec.NAME), name, qa, spec)
        try:
            result = carried_out(make, spec, None if kept is None else kept.journal.sweep(number))
        except EmptySweepError as why:
            done.empty.append(str(why))
            if len(steps) > 1:  # a study of one sweep ends with what is said of it
                told.empty(f"{said}: {why}")
            del pending[0]
            continue
        del pending[0]
        if result is None:  # its share is kept
            continue
        if any(result.run_id == other.run_id for other in done.results):
            told.empty(
                f"{said}: {spec.NAME} came out as a sweep that is there already (run_id {result.run_id}); it is kept once."
            )
            done.total -= 1
            continue
        write([result])  # first on disk, then counted as kept
        done.results.append(result)
        told.result(result, done)
    if not done.results and (done.share is None or len(done.empty) == len(steps)):
        raise EmptySweepError(" ".join(dict.fromkeys(done.empty)))
    if done.empty and done.share is None:
        write([])  # nothing is pending any more


def _study(cls: type[Study], values: Mapping[str, Any], file: str, folder: Path) -> Study:
    known = ("models", "device", "n_devices", "dtype", "stream", "data", "protocol")
    for key in values:
        if key not in known:
            raise InputError(f"{file}: unknown key '{key}'. {did_you_mean(key, known)}")
    models, tables, protocols = (_list(values, key, file) for key in ("models", "data", "protocol"))
    data: list[DataRequest | QAData] = []
    for one in tables:
        entry = _table(one, "data", file)
        for key in entry:
            if key not in _DATA_KEYS:
                raise InputError(f"{file}: unknown key '{key}' of [[data]]. {did_you_mean(key, _DATA_KEYS)}")
        if "path" not in entry and (folder / str(entry.get("name"))).is_file():
            entry["path"] = entry.pop("name")
        if "path" in entry:  # as the study's file means it, wherever the shell stands
            entry["path"] = str(folder / Path(str(entry["path"])).expanduser())
        filled: dict[str, Any] = {"name": None} | entry
        data.append(DataRequest(**filled))
    specifications: list[Specification] = []
    for one in protocols:
        entry = _table(one, "protocol", file)
        name = entry.pop("name", None)
        if not isinstance(name, str):
            raise InputError(f"{file}: a [[protocol]] needs a name. {did_you_mean('', PROTOCOLS)}")
        specifications.append(specification_of(name).of(entry))
    how = {name: values[name] for name in ("device", "n_devices", "dtype", "stream") if name in values}
    return cls(tuple(models), tuple(data), tuple(specifications), **how)


def _table(one: Any, key: str, file: str) -> dict[str, Any]:
    """A name alone, or a table."""
    if isinstance(one, str):
        return {"name": one}
    if isinstance(one, Mapping):
        return dict(one)
    raise InputError(f"{file}: [[{key}]] takes a table or a name, got {described(one)}.")


def _list(values: Mapping[str, Any], key: str, file: str) -> list[Any]:
    found = values.get(key, [])
    found = [found] if isinstance(found, (str, dict)) else found
    if not isinstance(found, list) or not found:
        heading = "models = ['smollm2-135m-instruct']" if key == "models" else f"[[{key}]]\nname = ..."
        raise InputError(f"{file} names no {key}. Write for example:\n{heading}")
    return found


__all__ = ["DataRequest", "Outcome", "Planning", "Study", "run_study", "study_plans"]
