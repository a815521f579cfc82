"""Status of a run, read from its directory and its parts."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ValidationError

from anchorlens.errors import RunError
from anchorlens.paths import resolve_path
from anchorlens.runs.files import LOCK, parts_of, shard_files
from anchorlens.runs.journal import read_json
from anchorlens.runs.locks import is_held, running_jobs
from anchorlens.runs.storage_errors import name_storage_errors
from anchorlens.runs.store import open_for_reading, read_record

# Number of log lines that the rate is computed from.
_RECENT = 20


def _check_time(text: str) -> str:
    """Raise ValueError unless a text is a time with its zone."""
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time zone is missing")
    return text


class _Event(BaseModel):
    """Line of a log; other keys are not read."""

    time: Annotated[str, AfterValidator(_check_time)]
    sweep: int
    event: str
    seconds: float
    rss_mb: int


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """Status of one sweep.

    Attributes:
        name: Protocol, model and data set.
        shards: Number of shards; None before planning.
        done: Number of stored shards.
        finished: Whether the run directory holds the sweep.
        seconds_left: Estimate from the rate of the last shards; None before the first shard.
        updated: UTC time of the last shard; empty before the first.
    """

    name: str
    shards: int | None
    done: int
    finished: bool
    seconds_left: float | None
    updated: str


@dataclass(frozen=True)
class RunStatus:
    """Status of a run.

    Attributes:
        state: ``finished``, ``running`` or ``stopped``.
        sweeps: Status of each sweep.
        rss_mb: Memory of the process at the last shard, in MB; None before the first shard.
        jobs: Running jobs, such as ``2/8``; empty if one process measures all shards.
    """

    state: str
    sweeps: tuple[SweepStatus, ...]
    rss_mb: int | None = None
    jobs: tuple[str, ...] = ()


def status_of(path: "str | Path") -> RunStatus:
    """Return the status of a run; nothing is changed.

    Raise RunError if neither a run nor parts of one exist.
    """
    target = resolve_path(path, "path")
    if not target.name:
        raise RunError(f"{target} is not a run. Give the path of a run directory.")
    parts = parts_of(target)
    with name_storage_errors(target, action="read"):
        has_parts = (parts / "run.json").is_file()
        try:
            with open_for_reading(target) as run:
                return _read_status(target, run, parts)
        except RunError:
            if not has_parts or (parts / "run.json").is_file():
                raise
            with open_for_reading(target) as run:  # it was finished while its parts were read
                return _read_status(target, run, parts)


def _read_status(target: Path, run: Path, parts: Path) -> RunStatus:
    """Return the status of the run at ``target``, which is in the folder ``run``."""
    has_run = (run / "run.json").is_file()
    if not (parts / "run.json").is_file():
        if not has_run:
            raise RunError(
                f"{target} is not a run, and {parts} holds no parts of one."
                " Give the path of a run directory."
            )
        names = [_name(sweep["config"]["protocol"], sweep) for sweep in read_record(run)["sweeps"]]
        finished = SweepStatus(
            name="", shards=None, done=0, finished=True, seconds_left=None, updated=""
        )
        return RunStatus("finished", tuple(replace(finished, name=name) for name in names))
    plan = read_json(parts / "run.json")["sweeps"]
    done: set[str] = set()
    if has_run:
        done = {_name(one["config"]["protocol"], one) for one in read_record(run)["sweeps"]}
    jobs = running_jobs(parts)
    files = [parts / f"log-{job.name}.jsonl" for job in jobs] or sorted(parts.glob("log*.jsonl"))
    logs = [_log(file) for file in files]
    sweeps = tuple(_part(parts / f"{i:03d}", i, one, logs, done) for i, one in enumerate(plan))
    last = max((log[-1] for log in logs if log), key=lambda line: line["time"], default=None)
    running = bool(jobs) or is_held(parts / LOCK)
    rss_mb = None if last is None else last["rss_mb"]
    return RunStatus("running" if running else "stopped", sweeps, rss_mb, tuple(map(str, jobs)))


def _name(protocol: str, sweep: Mapping[str, Any]) -> str:
    model = sweep["model"] if isinstance(sweep["model"], str) else sweep["model"]["name"]
    return f"{protocol}: {Path(model).name} on {sweep['data']['name']}"


def _model_of(folder: Path, sweep: Mapping[str, Any]) -> str:
    """Return the name of a sweep's model: that of its card once the sweep has begun, else that of
    the request, which is the class of a live model.
    """
    card = folder / "model.json"
    name = read_json(card).get("name") if card.is_file() else None
    return name if isinstance(name, str) else sweep["model"]


def _part(
    folder: Path,
    number: int,
    sweep: Mapping[str, Any],
    logs: Sequence[Sequence[Mapping[str, Any]]],
    done: set[str],
) -> SweepStatus:
    name = _name(sweep["protocol"], {**sweep, "model": _model_of(folder, sweep)})
    plan = folder / "plan.json"
    shards = read_json(plan)["shards"] if plan.is_file() else None
    kept = len(shard_files(folder))
    rate = 0.0
    updated = ""
    for log in logs:  # one log per measuring process
        of_sweep = [line for line in log if line["sweep"] == number]
        of_shards = [line for line in of_sweep if line["event"] == "shard"]
        recent = of_shards[-_RECENT:]
        if recent:
            seconds = sum(line["seconds"] for line in recent)
            rate += len(recent) / max(seconds, 1e-3)
            updated = max(updated, recent[-1]["time"])
    left = (shards - kept) / rate if shards is not None and rate else None
    return SweepStatus(
        name=name,
        shards=shards,
        done=kept,
        finished=name in done and kept == shards,
        seconds_left=left,
        updated=updated,
    )


def _log(file: Path) -> list[dict[str, Any]]:
    """Read the lines of a log; incomplete and damaged lines are skipped."""
    events: list[dict[str, Any]] = []
    for line in (
        file.read_text(encoding="utf8", errors="replace").splitlines() if file.is_file() else ()
    ):
        with suppress(ValidationError):
            events.append(_Event.model_validate_json(line).model_dump())
    return events


def ago(updated: str, now: datetime | None = None) -> str:
    """Return the time since an event, such as ``12 s ago``."""
    if not updated:
        return ""
    seconds = (
        (now or datetime.now(timezone.utc)) - datetime.fromisoformat(updated)
    ).total_seconds()
    seconds = max(seconds, 0)  # the clock was moved back
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
