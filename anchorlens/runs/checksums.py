"""SHA256SUMS of a run directory, in the format of the command ``sha256sum``."""

import hashlib
import re
from pathlib import Path

from anchorlens.errors import RunError

SUMS = "SHA256SUMS"
_CURE = (
    f"Copy the run again or make it again; after an edit of yours, update {SUMS} with `sha256sum`."
)
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS of all files in a folder."""
    lines = [f"{_hash(folder / name)}  {name}\n" for name in _names(folder)]
    (folder / SUMS).write_text("".join(lines), encoding="utf8")


def find_changed_files(folder: Path) -> tuple[list[str], list[str]]:
    """Return a line per file that is missing or differs from SHA256SUMS, and the names of unlisted
    files.
    """
    try:
        known = _read_sums(folder)
    except RunError as why:
        return [str(why)], []
    names = _names(folder)
    changes = [f"{name} is missing" for name in known if name not in names]
    unlisted: list[str] = []
    for name in names:
        if name not in known:
            unlisted.append(name)
        elif _hash(folder / name) != known[name]:
            changes.append(f"{name} has other bytes")
    return changes, unlisted


def check_file(folder: Path, name: str) -> None:
    """Raise RunError unless a file has the bytes that SHA256SUMS lists."""
    file = folder / name
    try:
        known = _read_sums(folder)
        changed = name in known and file.is_file() and _hash(file) != known[name]
    except RunError as why:
        raise RunError(f"{folder} cannot be checked: {why}. {_CURE}") from None
    except OSError as why:
        raise RunError(
            f"{folder} cannot be read ({why.strerror})."
            " Check its permissions, and that no process replaces it."
        ) from why
    if name not in known:
        raise RunError(f"{file} is not listed in {SUMS}, so it is not part of the run. {_CURE}")
    if changed:
        raise RunError(
            f"{file} has other bytes than {SUMS} lists:"
            f" one of the two is damaged or was edited. {_CURE}"
        )


def list_files(folder: Path) -> set[str]:
    """Return the files of a run by its SHA256SUMS, with the list itself; nothing if the list is
    missing or damaged.
    """
    try:
        return {*_read_sums(folder), SUMS}
    except RunError:
        return set()


def _read_sums(folder: Path) -> dict[str, str]:
    """Return name -> hash. Raise RunError if the list is missing or damaged."""
    if not (folder / SUMS).is_file():
        raise RunError(f"{SUMS} is missing")
    text = (folder / SUMS).read_bytes().decode("ascii", errors="replace")
    lines = [_LINE.fullmatch(line) for line in text.split("\n")[:-1]]
    known = {line[2]: line[1] for line in lines if line is not None}
    if not text.endswith("\n") or len(known) < len(lines) or list(known) != sorted(known):
        raise RunError(f"{SUMS} is damaged")
    return known


def _names(folder: Path) -> list[str]:
    """Return the files of a folder and its subfolders, without the list of sums."""
    names: list[str] = []
    for file in folder.rglob("*"):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and name != SUMS:
            names.append(name)
    return sorted(names)


def _hash(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
