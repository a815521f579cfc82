"""The user's cache directory, and directories in it that are built once, checked by hash and safe between processes."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs
from filelock import FileLock

from anchorlens.notices import warn

MANIFEST = "anchorlens.json"
CHUNK = 1 << 22


def cache_dir() -> Path:
    """Where converted models are kept: ``$ANCHORLENS_CACHE``, else the platform's cache directory for anchorlens."""
    override = os.environ.get("ANCHORLENS_CACHE")
    return Path(override).expanduser() if override else Path(platformdirs.user_cache_dir("anchorlens"))


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _record(path: Path) -> dict[str, str | int]:
    """A file's hash, with the size and time by which a later call sees that nothing has touched it."""
    stat = path.stat()
    return {"sha256": file_sha256(path), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def fault_of(directory: Path) -> str | None:
    """What is wrong with a built directory, or None where every file is the one that its manifest records.

    A file whose size and time of change are the recorded ones is taken to be untouched; any other is hashed. (Hashing half a
    gigabyte at every load would take longer than loading it.)
    """
    manifest = directory / MANIFEST
    if not manifest.is_file():
        return f"{MANIFEST} is missing"
    try:
        files = json.loads(manifest.read_text(encoding="utf8"))["files"]
        recorded = {str(name): (entry["sha256"], entry["size"], entry["mtime_ns"]) for name, entry in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    for name, (digest, size, changed) in sorted(recorded.items()):
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        stat = path.stat()
        if (stat.st_size, stat.st_mtime_ns) != (size, changed) and file_sha256(path) != digest:
            return f"{name} has another hash than {MANIFEST} records"
    return None


def built_once(target: Path, build: Callable[[Path], dict[str, str]]) -> Path:
    """Build a directory once, however many processes ask for it at the same time.

    The files are written beside ``target`` and renamed into place, so a process that is killed leaves nothing that looks
    complete. Every call checks the files against what was recorded when they were built (:func:`fault_of`); a damaged directory is
    built again, with a warning.

    Args:
        target: The directory to have.
        build: Writes the files into an empty directory and returns what to record about their origin.

    Returns:
        ``target``, complete and checked.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f"{target.name}.lock"):
        if target.is_dir():
            fault = fault_of(target)
            if fault is None:
                return target
            warn(f"The cached files in {target} are damaged ({fault}); they are built again.")
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            fresh = scratch / "new"
            fresh.mkdir()
            origin = build(fresh)
            hashes = {path.name: _record(path) for path in sorted(fresh.iterdir())}
            record = json.dumps({"origin": origin, "files": hashes}, indent=2, sort_keys=True)
            (fresh / MANIFEST).write_text(record + "\n", encoding="utf8")
            if target.exists():
                target.rename(scratch / "damaged")
            fresh.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target
