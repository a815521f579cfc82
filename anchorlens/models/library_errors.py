"""Errors of the libraries that read a checkpoint, as CheckpointError with a cure.

This is the one place that catches every exception: a damaged or hostile file can raise any of them
in transformers, tokenizers, safetensors, gguf or torch.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anchorlens.display import one_line
from anchorlens.errors import AnchorlensError, CheckpointError

# Largest JSON file of a checkpoint; tokenizers of 256,000 tokens have 40 MB.
_MOST_JSON_BYTES = 1 << 28
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Parts of errors by which torch refuses to run code of a pickled file.
_CODE = re.compile(r"GLOBAL|Unsupported (operand|class)|Trying to (call|instantiate)")
# Advice of other libraries to run code of a checkpoint.
_ADVICE = re.compile(r"weights_only|trust_remote_code|remote code|kernels", re.IGNORECASE)


@contextmanager
def checkpoint_errors(subject: str, cure: str) -> Iterator[None]:
    """Raise every error of a library during a ``with`` statement as CheckpointError.

    Args:
        subject: Name of the files, such as ``The weights in smollm2``.
        cure: Sentence with the cure.
    """
    try:
        yield
    except AnchorlensError:
        raise
    except Exception as error:
        raise _translate(error, subject, cure) from error
    except BaseException as error:
        # A panic of a library in Rust is no Exception; Ctrl-C is none either, and stays as it is.
        if type(error).__name__ != "PanicException":
            raise
        raise _translate(error, subject, cure) from error


def _translate(error: BaseException, subject: str, cure: str) -> CheckpointError:
    text = " ".join(_COLOUR.sub("", str(error)).split())
    kind = type(error).__name__
    if "weights_only" in text and _CODE.search(text):
        return CheckpointError(
            f"{subject} cannot be read: the file holds Python code, which is not run. Convert it to"
            " safetensors where you trust it, or fetch a version in safetensors."
        )
    if "trust_remote_code" in text:
        return CheckpointError(
            f"{subject} cannot be read: it needs Python code of its own, which is not run. {cure}"
        )
    if isinstance(error, MemoryError):
        return CheckpointError(
            f"{subject} cannot be read: memory ran out. Free memory, or load a smaller model. If"
            " the files are small, they are damaged: fetch them again."
        )
    reason = kind if not text or _ADVICE.search(text) else f"{kind}: {one_line(text)}"
    return CheckpointError(f"{subject} cannot be read ({reason}). {cure}")


def check_json_file(path: Path) -> None:
    """Raise CheckpointError if a JSON file of a checkpoint is too large to be one."""
    size = path.stat().st_size
    if size > _MOST_JSON_BYTES:
        raise CheckpointError(
            f"{path} has {size:,} bytes, more than any checkpoint needs. Fetch it again."
        )


def check_regular_files(directory: Path) -> None:
    """Raise CheckpointError if a directory holds a pipe, a device or a socket, which a library
    would open as a file and read for ever.
    """
    for path in sorted(directory.iterdir()):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise CheckpointError(f"{path} is no regular file. Remove it, or fetch the file again.")
