"""Journal of an unfinished run: every shard is written to disk as soon as it is measured.

Until the run is finished, ``OUT.parts`` holds its record, locks, logs, and a folder of shards for
each sweep. A shard is a parquet file named by its number and the hash of its bytes.
"""

import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import RootModel

from anchorlens.display import warn
from anchorlens.errors import RunError
from anchorlens.runs.files import (
    is_abandoned,
    parts_of,
    remove_parts,
    shard_files,
    shards_in,
    temporary_tag,
    write_first,
    write_whole,
)
from anchorlens.runs.jobs import Job
from anchorlens.runs.locks import RunLock, lock_run
from anchorlens.runs.provenance import start_time
from anchorlens.runs.storage_errors import name_storage_errors
from anchorlens.runs.validation import NOTES, PARTS, check_form

_VERSION = 3
# Key of the notes in the metadata of a shard's file.
_NOTES = b"anchorlens"
# Hash of the code among the hashes of a shard.
_CODE = "code_sha256"
_MISSING = object()
_CURE = "Start over with restart=True."


class Shard(NamedTuple):
    """Share of a sweep that is measured and stored together.

    Attributes:
        samples: Rows of the samples.
        notes: :class:`ShardNotes` as JSON values, as they are stored.
    """

    samples: pd.DataFrame
    notes: dict[str, Any]


@dataclass(kw_only=True)
class ShardNotes:
    """Notes of a shard beside its rows.

    Attributes:
        inputs: Hash of the inputs that were drawn.
        first: Number of rows of the first batch, which are checked with it; 0 in other shards.
        gaps: Differences of its checked cells from full forward passes.
        checked: Number of cells that were checked.
        known: Number of cells that were compared with a value that is known beforehand.
        steps: Number of checked cells whose metric moved by a step.
        splits: Number of units that were split for memory.
        work: Work of the shard.
    """

    inputs: str
    first: int = 0
    gaps: list[float] = field(default_factory=list)
    checked: int = 0
    known: int = 0
    steps: int = 0
    splits: int = 0
    work: float = 0.0


class Journal:
    """Parts of a run that is being measured.

    This process measures one job of them, or all if ``job`` is None.

    Attributes:
        started: Local time when the run was first started, the clock of its chat templates.
    """

    def __init__(
        self, lock: RunLock, sweeps: Sequence[Mapping[str, Any]], job: Job | None = None
    ) -> None:
        self.lock = lock
        self.folder = parts_of(lock.target)
        self.sweeps = [as_json(one) for one in sweeps]
        self.job = job
        self.started = start_time()

    def sweep(self, number: int) -> "SweepJournal":
        """Return the journal of one sweep."""
        log = "log.jsonl" if self.job is None else f"log-{self.job.name}.jsonl"
        identity = hashlib.sha256(_text(self.sweeps[number])).hexdigest()
        return SweepJournal(self.lock, number, self.folder / log, self.job, identity)


@contextmanager
def open_journal(
    target: Path,
    sweeps: Sequence[Mapping[str, Any]],
    *,
    resume: bool,
    restart: bool,
    job: Job | None = None,
    command: Mapping[str, Any] | None = None,
    prepare: Callable[[RunLock], object] = lambda lock: None,  # noqa: ARG005
) -> Iterator[Journal]:
    """Open the journal of a run and lock it; a job always continues existing parts.

    ``prepare`` is called before parts are read or discarded, while no other process can write the
    run.
    """
    folder = parts_of(target)
    try:
        with lock_run(target, job, prepare) as lock:
            journal = Journal(lock, sweeps, job)
            _begin(journal, command, resume=resume or job is not None, restart=restart)
            try:
                yield journal
            finally:
                # Nothing was measured, or the run is finished. lock_run removes its lock itself:
                # once it is gone, another process may begin here and has a lock of the same name.
                if job is None and not shards_in(folder):
                    with name_storage_errors(target, folder, "removed"):
                        remove_parts(folder, keep_locks=True)
    finally:
        if job is not None and folder.is_dir():
            with suppress(RunError), lock_run(target):  # the last job removes an empty folder
                if not shards_in(folder):
                    remove_parts(folder, keep_locks=True)


def _begin(
    journal: Journal, command: Mapping[str, Any] | None, *, resume: bool, restart: bool
) -> None:
    file = journal.folder / "run.json"
    done = shards_in(journal.folder)
    target = journal.lock.target
    with name_storage_errors(target, journal.folder):
        if journal.job is None and (restart or not done):
            remove_parts(journal.folder, keep_locks=True)
        is_new = not file.exists()
        if is_new:
            record = {
                "version": _VERSION,
                "target": target.name,
                "command": command,
                "started": journal.started,
                "sweeps": journal.sweeps,
            }
            write_first(file, _text(record))
    if not is_new and not resume:
        raise RunError(
            f"{journal.folder} holds an unfinished run ({done} shard{'s' * (done != 1)} done)."
            " Continue it with resume=True, or discard it with restart=True."
        )
    was = read_json(file)
    if was.get("version") != _VERSION:
        raise RunError(
            f"{file} was written by another version of anchorlens. Start over with restart=True."
        )
    refuse(differences({"sweeps": was["sweeps"]}, {"sweeps": journal.sweeps}), journal.folder)
    journal.started = was["started"]


class SweepJournal:
    """Shards of one sweep, and a log with a line for each."""

    def __init__(
        self, lock: RunLock, number: int, log: Path, job: Job | None = None, identity: str = ""
    ) -> None:
        self._lock = lock
        self.folder = parts_of(lock.target) / f"{number:03d}"
        self.number = number
        self.log = log
        self.job = job
        self._files: dict[int, Path] = {}
        self._origin: dict[str, Any] = {"sweep_sha256": identity}
        self._environment: Any = None
        self._since = time.monotonic()

    def is_mine(self, number: int) -> bool:
        """Return whether this process measures a shard."""
        return self.job is None or self.job.holds(self.number, number)

    def note_and_check(self, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Store a value and return it.

        Raise RunError if another value is stored under this name.
        """
        was = self.note_once(name, value)
        refuse(differences({name: was}, {name: as_json(value)}), self.folder.parent)
        return was

    def note_once(self, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value stored under a name; if there is none, store this one."""
        file = self.folder / f"{name}.json"
        with name_storage_errors(self._lock.target, file):
            if not file.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                write_first(file, _text(as_json(value)))
        return read_json(file)

    def find_shards(
        self, n_shards: int, origin: Mapping[str, Any] | None = None, environment: Any = None
    ) -> None:
        """Find the stored shards and log the start of the sweep.

        Args:
            n_shards: Number of shards of the sweep.
            origin: Hashes that decide about the values. They are stored in each shard with that of
                the arguments; a shard with others is refused.
            environment: Environment of this process, the note ``environment`` of each shard that it
                writes.
        """
        self._origin |= as_json(origin or {})
        self._environment = environment
        with name_storage_errors(self._lock.target, self.folder):
            files = shard_files(self.folder)
            self._files = {number: file for number, file in files.items() if number < n_shards}
            if self.job is None:
                self._remove_temporary_files()
        self._log(event="begin", shards=n_shards, found=len(self._files))

    def read(self, number: int) -> Shard | None:
        """Return a shard and its notes; None if it is missing or damaged (renamed with a
        warning).
        """
        file = self._files.get(number)
        if file is None:
            return None
        with name_storage_errors(self._lock.target, f"Shard {file}", "read"):
            data = file.read_bytes()
        if file.name != shard_name(number, data):
            aside = file.with_suffix(".damaged")
            with name_storage_errors(self._lock.target, f"The damaged shard {file}", "renamed"):
                file.replace(aside)
            del self._files[number]
            warn(
                f"Shard {file} is damaged: its hash does not match."
                f" It was renamed to {aside} and is measured again."
            )
            self._log(event="damaged", shard=number)
            return None
        shard = _parse_shard(data)
        origin = shard.notes.pop("origin")
        _refuse_shard(origin, self._origin, self.folder.parent)
        return shard

    def write(self, number: int, frame: pd.DataFrame, notes: Mapping[str, Any]) -> Shard:
        """Write a shard and return it as read back, so that resumed and uninterrupted runs have
        identical bytes.
        """
        notes = as_json({**notes, "environment": self._environment})
        stored = {**notes, "origin": self._origin}
        table = pa.Table.from_pandas(frame, preserve_index=False)
        table = table.replace_schema_metadata(
            {**(table.schema.metadata or {}), _NOTES: json.dumps(stored).encode()}
        )
        into = io.BytesIO()
        pq.write_table(table, into)
        data = into.getvalue()
        file = self.folder / shard_name(number, data)
        with name_storage_errors(self._lock.target, f"Shard {number} of {self.folder}"):
            write_whole(file, data)
        self._files[number] = file
        self._log(
            event="shard",
            shard=number,
            rows=len(frame),
            **{k: v for k, v in notes.items() if k == "work"},
        )
        return Shard(_parse_shard(data).samples, dict(notes))

    def _remove_temporary_files(self) -> None:
        for file in self.folder.glob(".*.tmp"):
            tag = temporary_tag(file.name)
            if tag and is_abandoned(tag, locked=self._lock.is_exclusive):
                file.unlink(missing_ok=True)

    def _log(self, **event: Any) -> None:
        now = time.monotonic()
        line = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "sweep": self.number,
            **event,
            "seconds": round(now - self._since, 3),
            "rss_mb": round(psutil.Process().memory_info().rss / 1e6),
            "pid": os.getpid(),
        }
        self._since = now
        with name_storage_errors(self._lock.target, self.log), self.log.open("a") as file:
            file.write(json.dumps(line) + "\n")


def differences(was: Any, now: Any, name: str = "") -> list[str]:
    """Return the differences between two JSON values, one line per dotted name."""
    found: list[str] = []
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*was, *now]):
            path = f"{name}.{key}" if name else str(key)
            found += differences(was.get(key, _MISSING), now.get(key, _MISSING), path)
        return found
    lists = isinstance(was, list) and isinstance(now, list)
    if lists and len(was) == len(now) and any(isinstance(one, (Mapping, list)) for one in was):
        for i, (old, new) in enumerate(zip(was, now, strict=True)):
            found += differences(old, new, f"{name}[{i}]")
        return found
    return [] if was == now else [f"{name}: {_short(was)} before, {_short(now)} now"]


def refuse(changes: Sequence[str], folder: Path) -> None:
    """Raise RunError if there are differences to the run in ``folder``."""
    if changes:
        raise RunError(
            f"{folder} holds another run. {list_changes(changes)} Give the arguments that it was"
            " started with, choose another path, or discard it with restart=True."
        )


def list_changes(changes: Sequence[str]) -> str:
    """Return differences as one sentence, at most six of them."""
    more = f"; and {len(changes) - 6} more" if len(changes) > 6 else ""
    return f"{'; '.join(changes[:6])}{more}."


def _refuse_shard(was: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Raise RunError if a stored shard was measured with other hashes than this process has."""
    changes = differences({"shard": was}, {"shard": now})
    if was.get(_CODE) != now.get(_CODE):
        raise RunError(
            f"{folder} was measured by another version of anchorlens's code."
            f" {list_changes(changes)} Continue it with the version that it was started with,"
            " choose another path, or discard it with restart=True."
        )
    refuse(changes, folder)


def _parse_shard(data: bytes) -> Shard:
    table = pq.read_table(io.BytesIO(data))
    return Shard(table.to_pandas(), json.loads((table.schema.metadata or {})[_NOTES]))


def shard_name(number: int, data: bytes) -> str:
    """Return the file name of a shard: its number and the hash of its bytes."""
    return f"{number:05d}-{hashlib.sha256(data).hexdigest()[:20]}.parquet"


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON file of the parts. Raise RunError if it is damaged."""
    try:
        value = json.loads(file.read_bytes())
    except OSError as why:
        raise RunError(
            f"{file} cannot be read ({why.strerror}). Check its permissions. {_CURE}"
        ) from why
    except (ValueError, RecursionError) as why:
        raise RunError(f"{file} is damaged ({why}). {_CURE}") from why
    form = PARTS if file.name == "run.json" else NOTES.get(file.name, RootModel[dict[str, Any]])
    check_form(file, value, form, _CURE)
    return value


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def as_json(value: Any) -> Any:
    """Return a value as it would be read back from JSON."""
    return json.loads(json.dumps(value, default=str))


def _short(value: Any) -> str:
    text = "nothing" if value is _MISSING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:28]} … {text[-28:]}"
