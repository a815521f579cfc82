"""SHA256SUMS of a run directory, in the format of the command ``sha256sum``."""

import hashlib
import re
from pathlib import Path

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


def write_sums(folder: Path) -> None:
    (folder / SUMS).write_text("".join(f"{_hash(folder / name)}  {name}\n" for name in _names(folder)), encoding="utf8")


def find_changed_files(folder: Path) -> tuple[list[str], list[str]]:
    """Return a line for each file that differs from SHA256SUMS or is missing, and the names of files that are not in it."""
    if not (folder / SUMS).is_file():
        return [f"{SUMS} is missing"], []
    text = (folder / SUMS).read_bytes().decode("ascii", errors="replace")
    lines = [_LINE.fullmatch(line) for line in text.split("\n")[:-1]]
    known = {line[2]: line[1] for line in lines if line is not None}
    if not text.endswith("\n") or len(known) < len(lines) or list(known) != sorted(known):
        return [f"{SUMS} is damaged"], []
    there = _names(folder)
    found = [f"{name} is missing" for name in known if name not in there]
    found += [f"{name} has other bytes" for name in there if name in known and _hash(folder / name) != known[name]]
    return found, [name for name in there if name not in known]


def _names(folder: Path) -> list[str]:
    files = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return sorted(name for name in files if name != SUMS)


def _hash(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
