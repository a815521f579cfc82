"""Read the bytes of a data file, unpack them and decode their text; no more of them than fit into
memory.
"""

import codecs
import gzip
import io
import os
import stat
import zlib
from collections.abc import Collection
from pathlib import Path

import psutil

from anchorlens.display import one_line
from anchorlens.errors import DataError, did_you_mean

GZIP = ".gz"
# Most bytes of a file without its compression: a small file can hold any number of them.
_MOST_BYTES = 4 << 30
# Bytes of memory per byte of a file while its rows are read (measured: 7 for a csv file of short
# cells).
_BYTES_PER_BYTE = 8
# Bytes that are unpacked at once.
_STEP = 1 << 24
# Flags of the operating system for opening a file without waiting (Windows: for its bytes).
_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
# Test of a file's mode -> kind of file that is no regular file.
_NO_FILES = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
# First bytes of a file -> encoding; UTF-32 first, because its mark begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# First bytes of other kinds of files -> kind, and the cure.
_OTHER_KINDS = {
    b"\x1f\x8b": ("is compressed by gzip", "Name it {name}.gz"),
    b"PK\x03\x04": ("is a zip archive or a workbook", "Unpack it, or save its sheet as csv"),
    b"BZh": ("is compressed by bzip2", "Unpack it, or compress it by gzip"),
    b"\xfd7zXZ": ("is compressed by xz", "Unpack it, or compress it by gzip"),
    b"(\xb5/\xfd": ("is compressed by zstandard", "Unpack it, or compress it by gzip"),
    b"PAR1": ("is a parquet file", "Name it .parquet"),
}


def most_bytes() -> int:
    """Return the largest number of bytes of data that can be read into the free memory."""
    free = int(psutil.virtual_memory().available)
    try:
        import resource
    except ImportError:  # Windows
        return min(free // _BYTES_PER_BYTE, _MOST_BYTES)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        free = min(free, max(limit - psutil.Process().memory_info().vms, 0))
    return min(free // _BYTES_PER_BYTE, _MOST_BYTES)


def check_size(n_bytes: int, name: str) -> None:
    """Raise DataError if so many bytes of data do not fit into the free memory."""
    most = most_bytes()
    if n_bytes > most:
        raise DataError(
            f"{name} has {n_bytes / 1e9:,.2f} GB of data, but at most {most / 1e9:,.2f} GB can be"
            " read into the free memory. Keep the rows and columns that you need, or free memory."
        )


def read_bytes(path: Path, extensions: Collection[str]) -> bytes:
    """Read a regular file; raise DataError if it is missing, no regular file, larger than memory or
    cannot be read.
    """
    shown = one_line(path)
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise DataError(f"{shown} is a directory. Pass one file ({', '.join(extensions)}).")
        if not stat.S_ISREG(found.st_mode):
            kinds = [kind for is_kind, kind in _NO_FILES if is_kind(found.st_mode)]
            kind = kinds[0] if kinds else "no regular file"
            raise DataError(f"{shown} is {kind}. Write its content to a file, and pass that file.")
        check_size(found.st_size, shown)
        if not found.st_size:  # a file of /proc may wait for content that it has not got
            return b""
        # The file may have been replaced by a pipe, which would wait for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | _WITHOUT_WAITING), "rb") as file:
            return file.read(found.st_size)
    except FileNotFoundError as error:
        near: list[str] = []
        if path.parent.is_dir():
            near = [other.name for other in path.parent.iterdir() if other.suffix in extensions]
        fix = did_you_mean(path.name, map(one_line, near)) if near else "Check the path."
        raise DataError(f"No such file: {shown}. {fix}") from error
    except (OSError, ValueError) as error:  # ValueError: a null character or half of a character
        reason = getattr(error, "strerror", None) or one_line(error)
        raise DataError(f"{shown} cannot be read ({reason}). Check the path.") from error


def decompress(content: bytes, name: str) -> bytes:
    """Unpack a gzip file; raise DataError if it is damaged or too large."""
    most = most_bytes()
    parts: list[bytes] = []
    n_bytes = 0
    try:
        with gzip.open(io.BytesIO(content)) as file:
            while n_bytes <= most and (part := file.read(_STEP)):
                parts.append(part)
                n_bytes += len(part)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{name} is not a readable gzip file ({one_line(error)}). Copy it again."
        ) from error
    if n_bytes > most:
        raise DataError(
            f"{name} has more than {most / 1e9:,.2f} GB without compression, which do not fit into"
            " the free memory. Unpack it, and keep the rows you need."
        )
    return b"".join(parts)


def decode(content: bytes, name: str) -> tuple[str, str]:
    """Return a text and its encoding: UTF-8, or UTF-16 or UTF-32 with a byte order mark, as Excel's
    "Unicode text" has it.
    """
    for start, (kind, fix) in _OTHER_KINDS.items():
        if content.startswith(start):
            raise DataError(f"{name} {kind}. {fix.format(name=name)}.")
    encoding = "utf-8"
    for mark, wide in _MARKS.items():
        if content.startswith(mark):
            encoding = wide
            break
    try:
        text = content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} is not {encoding.upper()} (byte {error.start}). Save it as UTF-8."
        ) from error
    if "\0" in text[:2]:
        raise DataError(
            f"{name} has null characters, as UTF-16 without a byte order mark. Save it as UTF-8."
        )
    return text, encoding
