"""Cache directory of the user, and directories in it that are built once and checked by hash."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs
from filelock import FileLock

from anchorlens.display import warn

MANIFEST = "anchorlens.json"
CHUNK = 1 << 22


def cache_dir() -> Path:
    """Return the cache directory: ``$ANCHORLENS_CACHE``, else the platform's cache directory for
    anchorlens.
    """
    override = os.environ.get("ANCHORLENS_CACHE")
    return (
        Path(override).expanduser() if override else Path(platformdirs.user_cache_dir("anchorlens"))
    )


def file_sha256(path: Path) -> str:
    """Compute the hex sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def build_once(target: Path, build: Callable[[Path], dict[str, str]]) -> Path:
    """Build a directory once, also if several processes need it at the same time.

    Args:
        target: Directory to build. If its files differ from its manifest, it is built again, with a
            warning.
        build: Function that writes files into an empty directory and returns their origin, which is
            recorded.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f"{target.name}.lock"):
        if target.is_dir():
            if is_intact(target):
                return target
            warn(f"The cached files in {target} are damaged and are built again.")
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            fresh = scratch / "new"
            fresh.mkdir()
            origin = build(fresh)
            files: dict[str, dict[str, str | int]] = {}
            for path in sorted(fresh.iterdir()):
                sha256 = file_sha256(path)
                files[path.name] = {"sha256": sha256, **_stamp(path)}
            record = json.dumps({"origin": origin, "files": files}, indent=2, sort_keys=True)
            (fresh / MANIFEST).write_text(record + "\n", encoding="utf8")
            if target.exists():
                target.rename(scratch / "damaged")
            fresh.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def is_intact(directory: Path) -> bool:
    """Return whether the files of a built directory are those of its manifest; only files with a
    new size or mtime are hashed.
    """
    try:
        files = json.loads((directory / MANIFEST).read_text(encoding="utf8"))["files"]
        changed: list[tuple[Path, str]] = []
        for name, entry in files.items():
            if not entry.items() >= _stamp(directory / name).items():
                changed.append((directory / name, entry["sha256"]))
        return all(file_sha256(path) == digest for path, digest in changed)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _stamp(path: Path) -> dict[str, int]:
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
