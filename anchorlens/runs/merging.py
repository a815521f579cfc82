"""Find missing shards of several jobs, and copy shards from machines that share no files."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anchorlens.display import join_words, warn
from anchorlens.errors import RunError
from anchorlens.runs.files import parts_of, remove_parts, shard_files, shards_in, write_whole
from anchorlens.runs.final_write import restore_run
from anchorlens.runs.journal import differences, list_changes, read_json, shard_name
from anchorlens.runs.locks import lock_run
from anchorlens.runs.storage_errors import name_storage_errors

# Name of the note of a sweep without rows, which has no shards.
EMPTY = "empty"
# Notes that must agree; another environment changes only the last digits, and free memory only the
# plan.
_DECIDES = ("model", "plan", EMPTY)


def missing_in(target: Path) -> dict[int, tuple[int | None, list[int]]]:
    """Return sweep -> number of shards (None if not planned), and the numbers of missing or damaged
    shards.
    """
    folder = parts_of(target)
    missing: dict[int, tuple[int | None, list[int]]] = {}
    for i in range(len(_record(folder)["sweeps"])):
        home = folder / f"{i:03d}"
        if (home / f"{EMPTY}.json").is_file():
            continue
        if not (home / "plan.json").is_file():
            missing[i] = None, []
            continue
        shards = read_json(home / "plan.json")["shards"]
        files = shard_files(home)
        numbers: list[int] = []
        for n in range(shards):
            file = files.get(n)
            # A damaged shard has other bytes than its name says.
            if file is None or file.name != shard_name(n, file.read_bytes()):
                numbers.append(n)
        if numbers:
            missing[i] = shards, numbers
    return missing


def refuse_missing(target: Path) -> None:
    """Raise RunError if shards are missing, and name the jobs to run again."""
    folder = parts_of(target)
    with name_storage_errors(target, folder, "read"):
        missing = missing_in(target)
    if not missing:
        return
    several = len(_record(folder)["sweeps"]) > 1
    lacks: list[str] = []
    for sweep, (shards, numbers) in missing.items():
        of = f" of sweep {sweep}" if several else ""
        planned = f"{len(numbers)} of {shards} shards{of} ({join_words(numbers)})"
        lacks.append(f"every shard{of}: no job has planned it" if shards is None else planned)
    names = (re.fullmatch(r"log-\d+-of-(\d+)", file.stem) for file in folder.glob("log-*.jsonl"))
    n_jobs = {int(name[1]) for name in names if name}
    jobs = "the jobs"
    if len(n_jobs) == 1 and any(numbers for _, numbers in missing.values()):
        (n,) = n_jobs
        owners: set[int] = set()
        for sweep, (_, numbers) in missing.items():
            owners |= {(sweep + number) % n + 1 for number in numbers}
        listed = join_words(f"{i}/{n}" for i in sorted(owners))
        jobs = f"jobs {listed}" if len(owners) > 1 else f"job {listed}"
    raise RunError(
        f"{folder} lacks {'; '.join(lacks)}."
        f" Run {jobs} again, or measure missing shards here with --run-missing."
    )


def read_command(target: Path) -> Mapping[str, Any]:
    """Return the shell command that started a run."""
    command = _record(parts_of(target)).get("command")
    if command is None:
        raise RunError(
            f"{target} was started in Python. Finish it there with the same function and arguments,"
            " out= and resume=True."
        )
    return command


def _record(folder: Path) -> dict[str, Any]:
    is_finished = (folder / "samples.parquet").is_file()
    if is_finished or not (folder / "run.json").is_file():
        raise RunError(
            f"{folder} holds no parts of a run to merge. Give the path that the jobs had as out=."
        )
    return read_json(folder / "run.json")


def copy_parts(target: Path, others: Sequence[Path]) -> int:
    """Copy shards of the same run from other folders into its parts, and return how many
    are new.
    """
    home = parts_of(target)
    with lock_run(target, prepare=restore_run):
        try:
            with name_storage_errors(target, home):
                return sum(_copy(home, other) for other in others)
        finally:
            if not shards_in(home):
                remove_parts(home, keep_locks=True)


def _copy(home: Path, other: Path) -> int:
    record = _record(other)
    if (home / "run.json").is_file():
        was = {"sweeps": _record(home)["sweeps"]}
        _refuse_others(differences(was, {"sweeps": record["sweeps"]}), home, other)
        _refuse_other_prompts(home, other)
    copies: list[tuple[Path, bytes]] = []
    for i in range(len(record["sweeps"])):
        source = other / f"{i:03d}"
        target = home / f"{i:03d}"
        copies += _new_notes(target, source)
        existing = shard_files(target)
        for number, file in shard_files(source).items():
            data = _read(file)
            if file.name != shard_name(number, data):
                raise RunError(f"Shard {file} is damaged: its hash does not match. Copy it again.")
            if number not in existing:
                copies.append((target / file.name, data))
    for log in other.glob("log*.jsonl"):
        copy = home / log.name
        if not copy.exists():
            copies.append((copy, _read(log)))
    record_there = _read(other / "run.json")
    # First, because a folder of shards without a record is refused.
    if not (home / "run.json").is_file():
        write_whole(home / "run.json", record_there)
    for file, data in copies:
        file.parent.mkdir(exist_ok=True)
        write_whole(file, data)
    return sum(file.suffix == ".parquet" for file, _ in copies)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as why:
        raise RunError(
            f"{file} cannot be read ({why.strerror}). Nothing was copied. Check the file."
        ) from why


def _refuse_others(changes: Sequence[str], home: Path, other: Path) -> None:
    """Raise RunError if two folders hold parts of different runs."""
    if changes:
        raise RunError(
            f"{other} holds parts of another run. Differences between {home} (before) and these"
            f" parts (now): {list_changes(changes)} Merge only parts of one run, or choose another"
            " path."
        )


def _refuse_other_prompts(home: Path, other: Path) -> None:
    """Raise RunError if the prompts of a sweep were rendered differently in both folders."""
    for file in sorted(home.glob("[0-9][0-9][0-9]/plan.json")):
        there = other / file.relative_to(home)
        if not there.is_file():
            continue
        if read_json(file).get("prompts_sha256") != read_json(there).get("prompts_sha256"):
            was = _record(home)["started"]
            now = _record(other)["started"]
            raise RunError(
                f"{other} was measured with other prompts than {home}: the chat template reads the"
                f" clock, and they were started at {now} and {was}."
                f" Give all jobs one time, such as prompt='chat({was})'."
            )


def _new_notes(target: Path, source: Path) -> list[tuple[Path, bytes]]:
    """Return the notes of a sweep that ``target`` lacks.

    Raise RunError if a note that must agree differs.
    """
    copies: list[tuple[Path, bytes]] = []
    for file in sorted(source.glob("*.json")):
        existing = target / file.name
        if not existing.is_file():
            copies.append((existing, _read(file)))
            continue
        changes = differences({file.stem: read_json(existing)}, {file.stem: read_json(file)})
        if file.stem in _DECIDES:
            _refuse_others(changes, target.parent, source.parent)
        elif changes and file.stem == "environment":
            warn(
                f"{source} was measured in another environment: {'; '.join(changes)}."
                " Its last digits may differ."
            )
    return copies
