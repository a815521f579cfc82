"""Merge the shards of several jobs: which are missing, and copies from machines that share no files."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anchorlens.display import join_words
from anchorlens.errors import RunError
from anchorlens.runs.files import holds_only_parts, parts_of, remove_parts, write_whole
from anchorlens.runs.journal import differences, read_json, refuse, shard_files, shard_name, shards_in
from anchorlens.runs.locks import lock_run
from anchorlens.warn import warn

# Note of a sweep without a row, which has no shards.
EMPTY = "empty"
# Notes that decide the numbers; another environment changes only the last digits, and free memory only the plan.
_DECIDES = ("model", "plan", EMPTY)


def missing_in(target: Path) -> dict[int, tuple[int | None, list[int]]]:
    """Return what is missing: sweep -> number of shards (None if not planned), and those that are missing or damaged."""
    folder = parts_of(target)
    found: dict[int, tuple[int | None, list[int]]] = {}
    for i in range(len(_record(folder)["sweeps"])):
        home = folder / f"{i:03d}"
        if (home / f"{EMPTY}.json").is_file():
            continue
        if not (home / "plan.json").is_file():
            found[i] = None, []
            continue
        shards, files = read_json(home / "plan.json")["shards"], shard_files(home)
        gone = [n for n in range(shards) if n not in files or files[n].name != shard_name(n, files[n].read_bytes())]
        if gone:
            found[i] = shards, gone
    return found


def refuse_missing(target: Path) -> None:
    folder, found = parts_of(target), missing_in(target)
    if not found:
        return
    several, lacks = len(_record(folder)["sweeps"]) > 1, list[str]()
    for sweep, (shards, gone) in found.items():
        of = f" of sweep {sweep}" if several else ""
        planned = f"{len(gone)} of {shards} shards{of} ({join_words(gone)})"
        lacks.append(f"every shard{of}: no job has planned it" if shards is None else planned)
    names = (re.fullmatch(r"log-\d+-of-(\d+)", file.stem) for file in folder.glob("log-*.jsonl"))
    n_jobs, jobs = {int(name[1]) for name in names if name}, "the jobs"
    if len(n_jobs) == 1 and any(gone for _, gone in found.values()):
        (n,) = n_jobs
        who = sorted({(sweep + number) % n + 1 for sweep, (_, gone) in found.items() for number in gone})
        jobs = f"job{'s' * (len(who) > 1)} {join_words(f'{i}/{n}' for i in who)}"
    raise RunError(f"{folder} lacks {'; '.join(lacks)}. Run {jobs} again, or measure here what is missing with --run-missing.")


def command_of(target: Path) -> Mapping[str, Any]:
    """Return the command of the shell that began a run."""
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


def copy_parts(target: Path, others: Sequence[Path]) -> int:
    """Copy shards of the same run from other folders into its parts, and return how many are new."""
    home = parts_of(target)
    if not holds_only_parts(home):
        raise RunError(f"{home} is there and holds no parts of a run. Choose another path.")
    with lock_run(home, target, None):
        try:
            return sum(_copy(home, other) for other in others)
        finally:
            if not shards_in(home):
                remove_parts(home)


def _copy(home: Path, other: Path) -> int:
    now = _record(other)
    if (home / "run.json").is_file():
        refuse(differences({"sweeps": _record(home)["sweeps"]}, {"sweeps": now["sweeps"]}), home)
    copies: list[tuple[Path, bytes]] = []
    for i in range(len(now["sweeps"])):
        sweep, own = other / f"{i:03d}", home / f"{i:03d}"
        copies += _new_notes(own, sweep)
        there = shard_files(own)
        for number, file in shard_files(sweep).items():
            data = file.read_bytes()
            if file.name != shard_name(number, data):
                raise RunError(f"Shard {file} is damaged: its bytes are not those that were written. Copy it again.")
            if number not in there:
                copies.append((own / file.name, data))
    copies += [(home / log.name, log.read_bytes()) for log in other.glob("log*.jsonl") if not (home / log.name).exists()]
    for file, data in copies:
        file.parent.mkdir(exist_ok=True)
        write_whole(file, data)
    if not (home / "run.json").is_file():  # last: from now on the folder is a run's
        write_whole(home / "run.json", (other / "run.json").read_bytes())
    return sum(file.suffix == ".parquet" for file, _ in copies)


def _new_notes(home: Path, sweep: Path) -> list[tuple[Path, bytes]]:
    """Return the notes of a sweep that are not there yet; raise if one that decides the numbers differs."""
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
