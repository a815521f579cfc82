"""A run under way: what is measured is on disk at once, so that nothing is measured twice after a crash.

Beside the run directory ``OUT`` stands ``OUT.parts`` until the run is finished: a record of what is measured, a lock, a log, and
for each sweep a folder of shards. A shard is a parquet file that is named by its number and by the hash of its bytes; it is written
beside its place and renamed, so that it is there as a whole or not at all.
"""

import hashlib
import io
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from anchorlens.errors import RunError
from anchorlens.notices import warn
from anchorlens.runs.locks import LOCK, alive, opening, taken
from anchorlens.runs.shares import Share

_VERSION = 2
# Where notes on a shard stand in its file.
_NOTES = b"anchorlens"
_DIGITS = 20
_MISSING = object()


def parts_of(target: Path) -> Path:
    """Where a run is kept until it is finished."""
    return target.with_name(f"{target.name}.parts")


class Journal:
    """The parts of one run.

    Args:
        folder: ``OUT.parts``; it has to be locked (:func:`opened`).
        sweeps: What is measured, one entry a sweep.
        share: What this process measures of it; None for all.
    """

    def __init__(self, folder: Path, sweeps: Sequence[Mapping[str, Any]], share: Share | None = None) -> None:
        self.folder, self.sweeps, self.share = folder, [as_json(one) for one in sweeps], share

    def sweep(self, number: int) -> "SweepJournal":
        """The shards of one sweep."""
        log = "log.jsonl" if self.share is None else f"log-{self.share.name}.jsonl"
        return SweepJournal(self.folder / f"{number:03d}", self.folder / log, number, self.share)

    def finished(self) -> None:
        """The run stands in its directory: the parts are not needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def opened(
    target: Path, sweeps: Sequence[Mapping[str, Any]], *, resume: bool, force_new: bool, share: Share | None = None,
    command: Mapping[str, Any] | None = None,
) -> Iterator[Journal]:  # fmt: skip
    """The journal of a run, locked for this process.

    Args:
        target: The run directory.
        sweeps: What will be measured, in its order, as far as it is known without a model.
        resume: Continue what is there; a share always does.
        force_new: Throw it away.
        share: What this process measures; others may measure other shares at the same time.
        command: How a shell began the run, for who will finish it.

    Raises:
        RunError: Another process has it, parts of a run are there and neither ``resume`` nor ``force_new`` is given, or something
            else was being measured.
    """
    folder = parts_of(target)
    if folder.exists() and not is_ours(folder):
        raise RunError(
            f"{folder} is there and holds no parts of a run; a run of {target} needs that place. Choose another path."
        )
    journal = Journal(folder, sweeps, share)
    with opening(folder, target, share):
        if share is None:
            _compared(journal, target, command, resume=resume, force_new=force_new)
            try:
                yield journal
            finally:
                _left(folder)  # nothing was measured, or all is done
            return
        own = taken(folder, target, share)
        try:
            _compared(journal, target, command, resume=True, force_new=force_new, others=bool(alive(folder, besides=share)))
        except BaseException:
            own.release()
            raise
    try:
        yield journal
    finally:
        own.release()
        with suppress(RunError), opening(folder, target, None):  # the last job that has nothing leaves nothing
            _left(folder)


def _left(folder: Path) -> None:
    """Parts without a shard are of no use."""
    if not shards_in(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _compared(
    journal: Journal, target: Path, command: Mapping[str, Any] | None, *, resume: bool, force_new: bool, others: bool = False
) -> None:
    """What was being measured has to be what is asked for now."""
    file = journal.folder / "run.json"
    done = shards_in(journal.folder)
    if file.exists() and (force_new or not done) and not others:
        for one in journal.folder.iterdir():
            if one.is_dir():
                shutil.rmtree(one)
            elif not one.name.startswith(LOCK):
                one.unlink()
    if not file.exists():
        run = {"version": _VERSION, "target": target.name, "command": command, "sweeps": journal.sweeps}
        write_whole(file, _text(run))
        return
    if not resume:
        raise RunError(
            f"{journal.folder} holds an unfinished run ({done} shard{'s' * (done != 1)} done). Continue it with resume=True, or "
            "throw it away with force_new=True."
        )
    was = read_json(file)
    if was.get("version") != _VERSION:
        raise RunError(f"{file} was written by another version of anchorlens. Start over with force_new=True.")
    refuse(differences({"sweeps": was["sweeps"]}, {"sweeps": journal.sweeps}), journal.folder)


def is_ours(folder: Path) -> bool:
    """Whether nothing is lost where it is removed, but what a run left there."""
    first = re.compile(rf"{LOCK}(-\d+-of-\d+)?$|\.run\.json\.")  # what stands there before the record does
    try:
        there = [one.name for one in folder.iterdir()]
    except FileNotFoundError:  # gone meanwhile: a job that had nothing was the last one
        return True
    except NotADirectoryError:
        return False
    return all(map(first.match, there)) or (folder / "run.json").is_file()  # in this order: another job may just be writing it


def shards_in(folder: Path, first: int = 0) -> int:
    """How many shards ``OUT.parts`` holds, from a sweep on."""
    return sum(len(shard_files(one)) for one in folder.glob("[0-9][0-9][0-9]") if int(one.name) >= first)


def shard_files(folder: Path) -> dict[int, Path]:
    """The shards of one sweep by their numbers; of two that go by one number (of two machines) the same one always."""
    found = ((file.name.partition("-")[0], file) for file in sorted(folder.glob("*.parquet")))
    return {int(number): file for number, file in found if number.isdigit()}


class SweepJournal:
    """The shards of one sweep.

    Args:
        folder: Where they are.
        log: Gets a line for each shard.
        number: Of the sweep in its run.
        share: What this process measures of it; None for all.
    """

    def __init__(self, folder: Path, log: Path, number: int, share: Share | None = None) -> None:
        self.folder, self.log, self.number, self.share = folder, log, number, share
        self._found: dict[int, Path] = {}
        self._since = time.monotonic()

    def mine(self, number: int) -> bool:
        """Whether this process measures a shard."""
        return self.share is None or self.share.holds(self.number, number)

    def begun(self, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Note what decides the numbers, or compare it with what was noted before.

        Returns:
            What was noted first.

        Raises:
            RunError: It differs; the message names the differences.
        """
        was = self.kept(name, value)
        refuse(differences({name: was}, {name: as_json(value)}), self.folder.parent)
        return was

    def kept(self, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """What was noted under this name before; ``value`` where nothing was, which is noted now."""
        file = self.folder / f"{name}.json"
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_first(file, _text(as_json(value)))
        return read_json(file)

    def find(self, n_shards: int) -> None:
        """Look for the shards that are there."""
        self._found = {number: file for number, file in shard_files(self.folder).items() if number < n_shards}
        if self.share is None:
            for file in self.folder.glob("*.tmp"):  # of a process that is gone: this one holds the lock
                file.unlink(missing_ok=True)
        self._tell(event="begin", shards=n_shards, found=len(self._found))

    def read(self, number: int) -> tuple[pd.DataFrame, dict[str, Any]] | None:
        """A shard and its notes; None where it is not there. A damaged one is put aside, with a warning, and measured again."""
        file = self._found.get(number)
        if file is None:
            return None
        data = file.read_bytes()
        if file.name != shard_name(number, data):
            aside = file.with_suffix(".damaged")
            file.replace(aside)
            del self._found[number]
            warn(f"Shard {file} is damaged: its bytes are not those that were written. It is measured again; see {aside}.")
            self._tell(event="damaged", shard=number)
            return None
        return _frame(data)

    def write(self, number: int, frame: pd.DataFrame, notes: Mapping[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Keep a shard.

        Returns:
            It and its notes as they will be read, so that a run that was never stopped has the same bytes as one that was.

        Raises:
            RunError: It cannot be written. What is there stays.
        """
        table = pa.Table.from_pandas(frame, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), _NOTES: json.dumps(notes).encode()})
        into = io.BytesIO()
        pq.write_table(table, into)
        data = into.getvalue()
        file = self.folder / shard_name(number, data)
        try:
            write_whole(file, data)
            self._tell(event="shard", shard=number, rows=len(frame), **{k: v for k, v in notes.items() if k == "work"})
        except OSError as why:
            raise RunError(
                f"Shard {number} cannot be written to {self.folder} ({why.strerror}). {len(self._found)} shards are kept there: "
                "make room and continue with resume=True."
            ) from why
        self._found[number] = file
        return _frame(data)

    def _tell(self, **what: Any) -> None:
        """A line of the log: time stamp, seconds since the last line, and what happened."""
        now = time.monotonic()
        line = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"), "sweep": self.number, **what,
            "seconds": round(now - self._since, 3), "rss_mb": round(psutil.Process().memory_info().rss / 1e6), "pid": os.getpid(),
        }  # fmt: skip
        self._since = now
        with self.log.open("a", encoding="utf8") as file:
            file.write(json.dumps(line) + "\n")


def differences(was: Any, now: Any, name: str = "") -> list[str]:
    """What differs between two JSON values, by its dotted name."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        keys = [*was, *(key for key in now if key not in was)]
        return [
            said
            for key in keys
            for said in differences(was.get(key, _MISSING), now.get(key, _MISSING), f"{name}.{key}" if name else str(key))
        ]
    lists = isinstance(was, list) and isinstance(now, list)
    if lists and len(was) == len(now) and any(isinstance(one, (Mapping, list)) for one in was):
        return [said for i, pair in enumerate(zip(was, now, strict=True)) for said in differences(*pair, f"{name}[{i}]")]
    return [] if was == now else [f"{name}: {_short(was)} before, {_short(now)} now"]


def refuse(found: Sequence[str], folder: Path) -> None:
    """Stop where something differs.

    Raises:
        RunError: With what differs.
    """
    if not found:
        return
    more = f"; and {len(found) - 6} more" if len(found) > 6 else ""
    raise RunError(
        f"{folder} holds another run. {'; '.join(found[:6])}{more}. Give what it was begun with, or throw it away with "
        "force_new=True."
    )


def write_whole(file: Path, data: bytes) -> None:
    """A file that is there as a whole or not at all, on the disk before this returns."""
    with _written(file, data) as work:
        work.replace(file)


def write_first(file: Path, data: bytes) -> None:
    """The same, where of several processes that write it the first one counts; the others find its file."""
    with _written(file, data) as work:
        try:
            file.hardlink_to(work)
        except FileExistsError:
            return
        except OSError:  # a file system without links: who comes later finds the file, but for the moment in between
            if not file.exists():
                work.replace(file)


@contextmanager
def _written(file: Path, data: bytes) -> Iterator[Path]:
    """The bytes under another name, which no other process has, not on any machine."""
    work = file.with_name(f".{file.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with work.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        yield work
    finally:
        work.unlink(missing_ok=True)


def _frame(data: bytes) -> tuple[pd.DataFrame, dict[str, Any]]:
    table = pq.read_table(io.BytesIO(data))
    return table.to_pandas(), json.loads((table.schema.metadata or {})[_NOTES])


def shard_name(number: int, data: bytes) -> str:
    """Its number and the hash of its bytes."""
    return f"{number:05d}-{hashlib.sha256(data).hexdigest()[:_DIGITS]}.parquet"


def read_json(file: Path) -> dict[str, Any]:
    """A note.

    Raises:
        RunError: It is damaged.
    """
    try:
        return json.loads(file.read_text(encoding="utf8"))
    except (OSError, ValueError) as why:
        raise RunError(f"{file} is damaged ({why}). Start over with force_new=True.") from why


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def as_json(value: Any) -> Any:
    """As it will be read again."""
    return json.loads(json.dumps(value, default=str))


def _short(value: Any) -> str:
    said = "nothing" if value is _MISSING else json.dumps(value, ensure_ascii=False)
    return said if len(said) <= 60 else f"{said[:28]} … {said[-28:]}"


__all__ = [
    "Journal",
    "SweepJournal",
    "as_json",
    "differences",
    "is_ours",
    "opened",
    "parts_of",
    "read_json",
    "refuse",
    "shard_files",
    "shard_name",
    "shards_in",
    "write_whole",
]
