"""How far a run is: read from its directory and its parts, whoever measures it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from anchorlens.errors import RunError
from anchorlens.runs.journal import parts_of
from anchorlens.runs.store import read_record

# Lines of the log from which the rate is taken.
_RECENT = 20


@dataclass(frozen=True)
class SweepStatus:
    """One sweep of a run.

    Attributes:
        name: Protocol, model and data set.
        shards: What it consists of; None while that is not known.
        done: Shards that are kept.
        finished: Whether it stands in the run directory.
        seconds_left: From the last shards' rate; None where there is none.
        told: When its last shard was kept, in UTC.
    """

    name: str
    shards: int | None
    done: int
    finished: bool
    seconds_left: float | None
    told: str


@dataclass(frozen=True)
class RunStatus:
    """A run.

    Attributes:
        state: ``finished``, ``running`` or ``stopped``.
        sweeps: Its sweeps.
        rss_mb: Memory of the process at the last shard, in MB; None where nothing was kept yet.
    """

    state: str
    sweeps: tuple[SweepStatus, ...]
    rss_mb: int | None = None


def status_of(path: "str | Path") -> RunStatus:
    """How far a run is.

    Raises:
        RunError: There is neither a run nor the parts of one.
    """
    target = Path(path)
    parts = parts_of(target)
    has_run = (target / "run.json").is_file()
    if not (parts / "run.json").is_file():
        if not has_run:
            raise RunError(f"{target} is not a run, and {parts} holds no parts of one.")
        record = read_record(target)
        return RunStatus("finished", tuple(_whole(sweep["config"]["protocol"], sweep) for sweep in record["sweeps"]))
    plan = json.loads((parts / "run.json").read_text(encoding="utf8"))["sweeps"]
    done = {_name(s["config"]["protocol"], s) for s in read_record(target)["sweeps"]} if has_run else set()
    log = _log(parts / "log.jsonl")
    sweeps = tuple(_part(parts / f"{i:03d}", i, one, log, done) for i, one in enumerate(plan))
    return RunStatus("running" if _locked(parts / "lock") else "stopped", sweeps, log[-1]["rss_mb"] if log else None)


def _name(protocol: str, sweep: Mapping[str, Any]) -> str:
    model = sweep["model"] if isinstance(sweep["model"], str) else sweep["model"]["name"]
    return f"{protocol}: {Path(model).name} on {sweep['data']['name']}"


def _whole(protocol: str, sweep: Mapping[str, Any]) -> SweepStatus:
    return SweepStatus(_name(protocol, sweep), None, 0, True, None, "")


def _part(folder: Path, number: int, sweep: Mapping[str, Any], log: list[dict[str, Any]], done: set[str]) -> SweepStatus:
    name = _name(sweep["protocol"], sweep)
    plan = folder / "plan.json"
    shards = json.loads(plan.read_text(encoding="utf8"))["shards"] if plan.is_file() else None
    kept = len(list(folder.glob("*.parquet"))) if folder.is_dir() else 0
    mine = [line for line in log if line["sweep"] == number and line["event"] == "shard"]
    recent = mine[-_RECENT:]
    left = None
    if shards is not None and recent:
        left = (shards - kept) * sum(line["seconds"] for line in recent) / len(recent)
    return SweepStatus(name, shards, kept, name in done and kept == shards, left, mine[-1]["time"] if mine else "")


def _log(file: Path) -> list[dict[str, Any]]:
    """Lines of the log; a line that a crash cut off is left out."""
    found: list[dict[str, Any]] = []
    for line in file.read_text(encoding="utf8").splitlines() if file.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _locked(file: Path) -> bool:
    """Whether a process holds the run now."""
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return True
    lock.release()
    return False


def ago(told: str, now: datetime | None = None) -> str:
    """How long something is past: ``12 s ago``."""
    if not told:
        return ""
    seconds = ((now or datetime.now(timezone.utc)) - datetime.fromisoformat(told)).total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


__all__ = ["RunStatus", "SweepStatus", "ago", "status_of"]
