"""Download the files of a model from the Hugging Face hub into the hub's cache."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.auto import tqdm

from anchorlens.errors import AnchorlensError, CheckpointError, DownloadError, ModelNotFoundError
from anchorlens.models.names import nearest_names

SMALL_FILES = ["*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken"]
SAFETENSORS = "model*.safetensors"
TORCH_FILES = "pytorch_model*.bin"


class _SilentBar(tqdm):
    """Progress bar that is never shown."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **(kwargs | {"disable": True}))


def fetch_file(repo: str, filename: str, revision: str | None, token: str | None) -> Path:
    """Return the local path of a file of a repository; it is downloaded if it is not in the
    cache.
    """
    with hub_errors(repo, revision):
        found = huggingface_hub.hf_hub_download(
            repo, filename, revision=revision, token=token, local_files_only=_has_no_address()
        )
    return Path(found)


def find_cached_file(
    repo: str, filename: str, revision: str | None, token: str | None
) -> Path | None:
    """Return the path of a file in the cache; None if it would have to be downloaded."""
    with hub_errors(repo, revision):
        if _has_no_address():
            return Path(
                huggingface_hub.hf_hub_download(
                    repo, filename, revision=revision, token=token, local_files_only=True
                )
            )
        seen = huggingface_hub.hf_hub_download(
            repo, filename, revision=revision, token=token, dry_run=True
        )
    return Path(seen.local_path) if seen.is_cached else None


def fetch_model(repo: str, revision: str | None, token: str | None, progress: bool) -> Path:
    """Return a local directory with configuration, tokenizer and weights of a repository,
    downloaded if needed.

    Weights are safetensors if the repository has them, else PyTorch files, which transformers reads
    without running code.
    """
    for weights in (SAFETENSORS, TORCH_FILES):
        with hub_errors(repo, revision):
            snapshot = huggingface_hub.snapshot_download(
                repo,
                revision=revision,
                token=token,
                allow_patterns=[*SMALL_FILES, weights],
                ignore_patterns=["*/*"],
                tqdm_class=None if progress else _SilentBar,
                local_files_only=_has_no_address(),
            )
        directory = Path(snapshot)
        if any(directory.glob(weights)):
            return directory
    raise CheckpointError(
        f"The repository {repo!r} holds no weights that transformers reads ({SAFETENSORS} or"
        f" {TORCH_FILES}), or they are not in the cache while HF_HUB_OFFLINE is set."
    )


def _has_no_address() -> bool:
    """Return whether the hub's name has no address, so that only the cache can be read.

    The hub's client would try again for 23 seconds, also where the file is in the cache.
    """
    for wait in (1.0, 0.0):
        try:
            if not getproxies():  # a proxy looks the name up
                socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
        except socket.gaierror as error:
            if error.errno != socket.EAI_AGAIN or not wait:
                return True
            time.sleep(wait)
        else:
            break
    return False


@contextmanager
def hub_errors(repo: str, revision: str | None) -> Iterator[None]:
    """Raise errors of the hub as errors of this package."""
    try:
        yield
    except (
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        EntryNotFoundError,
        httpx.HTTPError,
        OSError,
    ) as error:
        raise _translate(
            error, repo, f"{repo!r} at revision {revision!r}" if revision else repr(repo)
        ) from error


# A name such as models/tiny may be meant as a path, in a study file as one beside the file.
_PATHS = "A path of a model is relative to the current folder."


def _translate(error: Exception, repo: str, shown: str) -> AnchorlensError:
    # Subclasses come before their bases.
    match error:
        case GatedRepoError():
            return DownloadError(
                f"{shown} is gated: accept its terms on the hub and set HF_TOKEN (or pass token=)."
            )
        case RepositoryNotFoundError() | HFValidationError():
            fix = f"{nearest_names(repo)} If it is private, set HF_TOKEN or pass token=."
            return ModelNotFoundError(
                f"The hub has no model {shown} that you may see. {fix} {_PATHS}"
            )
        case RevisionNotFoundError():
            return ModelNotFoundError(
                f"There is no {shown}. Give a branch, a tag or a full commit hash."
            )
        case LocalEntryNotFoundError() | OfflineModeIsEnabled():
            fix = f"{nearest_names(repo)} Check the network".lstrip()
            if constants.HF_HUB_OFFLINE:
                fix = "Unset HF_HUB_OFFLINE"
            return DownloadError(
                f"{shown} is not in the hub's cache, and the hub cannot be reached."
                f" {fix}, or give a directory. {_PATHS}"
            )
        case EntryNotFoundError():
            return CheckpointError(f"The repository {shown} lacks a file that is needed: {error}")
        case _:
            return DownloadError(
                f"The download of {shown} failed ({error})."
                " Check the network and HF_TOKEN, or try later."
            )
