"""The user's cache directory, and directories in it that are built once and checked by hash."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs
from filelock import FileLock

from anchorlens.warn import warn

MANIFEST = "anchorlens.json"
CHUNK = 1 << 22


def cache_dir() -> Path:
    """Return where converted models are kept: ``$ANCHORLENS_CACHE``, else the platform's cache directory for anchorlens."""
    override = os.environ.get("ANCHORLENS_CACHE")
    return Path(override).expanduser() if override else Path(platformdirs.user_cache_dir("anchorlens"))


def file_sha256(path: Path) -> str:
    """Compute the hex sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def build_once(target: Path, build: Callable[[Path], dict[str, str]]) -> Path:
    """Build a directory once, however many processes need it at the same time.

    The files are renamed into place at the end. A directory whose files are not those of its manifest is built again, with a
    warning. ``build`` writes files into an empty directory and returns their origin, which is recorded.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f"{target.name}.lock"):
        if target.is_dir():
            if is_intact(target):
                return target
            warn(f"The cached files in {target} are damaged; they are built again.")
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            fresh = scratch / "new"
            fresh.mkdir()
            origin = build(fresh)
            files = {path.name: {"sha256": file_sha256(path), **_stamp(path)} for path in sorted(fresh.iterdir())}
            record = json.dumps({"origin": origin, "files": files}, indent=2, sort_keys=True)
            (fresh / MANIFEST).write_text(record + "\n", encoding="utf8")
            if target.exists():
                target.rename(scratch / "damaged")
            fresh.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def is_intact(directory: Path) -> bool:
    """Whether every file of a built directory is the one that its manifest records.

    Only files with another size or time of change are hashed: hashing all takes longer than loading.
    """
    try:
        files = json.loads((directory / MANIFEST).read_text(encoding="utf8"))["files"]
        changed = [
            (directory / name, entry["sha256"])
            for name, entry in files.items()
            if not entry.items() >= _stamp(directory / name).items()
        ]
        return all(file_sha256(path) == digest for path, digest in changed)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _stamp(path: Path) -> dict[str, int]:
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
