"""Shards of several jobs become one run: which are missing, and those from machines that share no files."""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorlens.errors import RunError
from anchorlens.kinds import listed
from anchorlens.notices import warn
from anchorlens.runs.journal import (
    differences,
    is_ours,
    parts_of,
    read_json,
    refuse,
    shard_files,
    shard_name,
    shards_in,
    write_whole,
)
from anchorlens.runs.locks import opening

# A sweep without a row has nothing to keep but this.
EMPTY = "empty"
# What decides the numbers; another environment only the last digits, and free memory only through the plan.
_DECIDES = ("model", "plan", EMPTY)


@dataclass(frozen=True)
class Missing:
    """What is not there of a sweep.

    Attributes:
        sweep: Its number in the run.
        shards: Of how many; None where no job has planned it.
        numbers: Shards that are missing or damaged.
    """

    sweep: int
    shards: int | None
    numbers: tuple[int, ...]


def missing_in(target: Path) -> list[Missing]:
    """What is not there of a run; the bytes of every shard are looked at.

    Raises:
        RunError: There are no parts of it.
    """
    folder = parts_of(target)
    found: list[Missing] = []
    for i in range(len(_record(folder)["sweeps"])):
        home = folder / f"{i:03d}"
        if (home / f"{EMPTY}.json").is_file():
            continue
        if not (home / "plan.json").is_file():
            found.append(Missing(i, None, ()))
            continue
        shards, files = read_json(home / "plan.json")["shards"], shard_files(home)
        gone = tuple(n for n in range(shards) if n not in files or files[n].name != shard_name(n, files[n].read_bytes()))
        if gone:
            found.append(Missing(i, shards, gone))
    return found


def refuse_missing(target: Path) -> None:
    """Stop where shards are missing.

    Raises:
        RunError: With their numbers, and those of the jobs that should have measured them.
    """
    found = missing_in(target)
    if not found:
        return
    several = len(_record(parts_of(target))["sweeps"]) > 1
    said: list[str] = []
    for one in found:
        of = f" of sweep {one.sweep}" if several else ""
        if one.shards is None:
            said.append(f"every shard{of}: no job has planned it")
        else:
            said.append(f"{len(one.numbers)} of {one.shards} shards{of} ({listed(one.numbers)})")
    n = _jobs(parts_of(target))
    jobs = sorted({(one.sweep + number) % n + 1 for one in found for number in one.numbers}) if n else []
    who = (
        f" Run {'job' if len(jobs) == 1 else 'jobs'} {listed(f'{i}/{n}' for i in jobs)} again"
        if jobs
        else " Run the jobs again"
    )
    raise RunError(
        f"{parts_of(target)} lacks {'; '.join(said)}.{who}, or measure here what is missing with --measure-missing."
    )


def _jobs(folder: Path) -> int | None:
    """How many jobs the run was shared by, where their logs agree."""
    found = {int(name[1]) for file in folder.glob("log-*.jsonl") if (name := re.fullmatch(r"log-\d+-of-(\d+)", file.stem))}
    return found.pop() if len(found) == 1 else None


def command_of(target: Path) -> Mapping[str, Any]:
    """How a shell began a run.

    Raises:
        RunError: There are no parts of it, or no shell began it.
    """
    command = _record(parts_of(target)).get("command")
    if command is None:
        raise RunError(
            f"{target} was begun in Python: finish it there, with the function and arguments that began it, out= and resume=True."
        )
    return command


def _record(folder: Path) -> dict[str, Any]:
    if not (folder / "run.json").is_file():
        raise RunError(f"{folder} holds no parts of a run: there is nothing to merge.")
    return read_json(folder / "run.json")


def brought(target: Path, others: Sequence[Path]) -> int:
    """Copy shards into the parts of a run; what is there stays.

    Args:
        target: The run directory; where it has no parts, those that come first become its.
        others: Parts of the same run, from other machines.

    Returns:
        Shards that were not there before.

    Raises:
        RunError: One of them holds parts of another run, or of none, or a shard is damaged. Nothing of it is copied.
    """
    home = parts_of(target)
    if home.exists() and not is_ours(home):
        raise RunError(f"{home} is there and holds no parts of a run. Choose another path.")
    with opening(home, target, None):
        try:
            return sum(_brought(home, other) for other in others)
        finally:
            if not shards_in(home):
                shutil.rmtree(home, ignore_errors=True)


def _brought(home: Path, other: Path) -> int:
    now = _record(other)
    if (home / "run.json").is_file():
        was = _record(home)
        refuse(differences({"sweeps": was["sweeps"]}, {"sweeps": now["sweeps"]}), home)
    sweeps = [other / f"{i:03d}" for i in range(len(now["sweeps"]))]
    copies: list[tuple[Path, bytes]] = []
    for sweep in sweeps:
        copies += _notes(home / sweep.name, sweep)
        for number, file in shard_files(sweep).items():
            data = file.read_bytes()
            if file.name != shard_name(number, data):
                raise RunError(f"Shard {file} is damaged: its bytes are not those that were written. Copy it again.")
            if number not in shard_files(home / sweep.name):
                copies.append((home / sweep.name / file.name, data))
    logs = [
        (home / file.name, file.read_bytes()) for file in sorted(other.glob("log*.jsonl")) if not (home / file.name).exists()
    ]
    for file, data in [*copies, *logs]:
        file.parent.mkdir(exist_ok=True)
        write_whole(file, data)
    if not (home / "run.json").is_file():  # last: from now on it is a run's
        write_whole(home / "run.json", (other / "run.json").read_bytes())
    return sum(file.suffix == ".parquet" for file, _ in copies)


def _notes(home: Path, sweep: Path) -> list[tuple[Path, bytes]]:
    """The notes on a sweep that are not there yet; those that are have to agree."""
    copies: list[tuple[Path, bytes]] = []
    for file in sorted(sweep.glob("*.json")):
        own = home / file.name
        if not own.is_file():
            copies.append((own, file.read_bytes()))
            continue
        found = differences({file.stem: read_json(own)}, {file.stem: read_json(file)})
        if file.stem in _DECIDES:
            refuse(found, home.parent)
        elif found and file.stem == "environment":
            warn(f"{sweep} was measured elsewhere: {'; '.join(found)}. Its numbers may differ in their last digits.")
    return copies


__all__ = ["EMPTY", "Missing", "brought", "command_of", "missing_in", "refuse_missing"]
