"""SHA256SUMS of a run directory: whether every file is, byte for byte, what was written."""

import hashlib
import re
from pathlib import Path

SUMS = "SHA256SUMS"
# As the command sha256sum writes and reads it.
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


def write_sums(folder: Path) -> None:
    """Write the hash of every file of a run directory."""
    (folder / SUMS).write_text("".join(f"{_hash(folder / name)}  {name}\n" for name in _names(folder)), encoding="utf8")


def changed_files(folder: Path) -> tuple[list[str], list[str]]:
    """What is not as it was written, and what is there besides.

    Returns:
        A line for each file that differs or is missing (of SHA256SUMS itself, too), and the names of files that are no part of
        the run: nobody reads them.
    """
    try:
        text = (folder / SUMS).read_bytes().decode("ascii")
    except FileNotFoundError:
        return [f"{SUMS} is missing: it was taken away, or an older anchorlens wrote this run"], []
    except UnicodeDecodeError:
        return [f"{SUMS} is damaged"], []
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


__all__ = ["SUMS", "changed_files", "write_sums"]
