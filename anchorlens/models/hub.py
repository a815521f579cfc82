"""Files of a model on the Hugging Face hub, in the hub's own cache, with one clear error for each way to fail."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import huggingface_hub
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

from anchorlens.errors import CheckpointError, DownloadError, ModelNotFoundError
from anchorlens.models.names import nearest_names
from anchorlens.models.network import offline

SMALL_FILES = ["*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken"]
SAFETENSORS = ["model*.safetensors"]
TORCH_FILES = ["pytorch_model*.bin"]


class _Silent(tqdm):
    """A progress bar that is never drawn."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs["disable"] = True
        super().__init__(*args, **kwargs)  # pyright: ignore[reportArgumentType, reportCallIssue]


def fetch_config(repo: str, revision: str | None, token: str | None) -> Path:
    """``config.json`` of a repository: small, and enough to refuse a model before its weights are fetched.

    Raises:
        ModelNotFoundError, DownloadError, CheckpointError: See :func:`hub_errors`.
    """
    with hub_errors(repo, revision):
        return Path(huggingface_hub.hf_hub_download(repo, "config.json", revision=revision, token=token))


def fetch_model(repo: str, revision: str | None, token: str | None, progress: bool) -> Path:
    """Config, tokenizer and weights of a repository as a local directory, named after the commit.

    Safetensors if the repository has them, else PyTorch files (which transformers reads without running code).

    Raises:
        ModelNotFoundError, DownloadError, CheckpointError: See :func:`hub_errors`.
    """

    def snapshot(patterns: list[str]) -> Path:
        bar = None if progress else _Silent
        path = huggingface_hub.snapshot_download(
            repo, revision=revision, token=token, allow_patterns=patterns, ignore_patterns=["*/*"], tqdm_class=bar
        )
        return Path(path)

    with hub_errors(repo, revision):
        directory = snapshot([*SMALL_FILES, *SAFETENSORS])
        if not any(directory.glob(SAFETENSORS[0])):
            directory = snapshot([*SMALL_FILES, *TORCH_FILES])
    if not any(directory.glob(SAFETENSORS[0])) and not any(directory.glob(TORCH_FILES[0])):
        raise CheckpointError(
            f"The repository {repo!r} holds no weights that transformers reads (model*.safetensors or pytorch_model*.bin)"
            + (", or they are not in the cache and HF_HUB_OFFLINE forbids fetching them." if offline() else ".")
        )
    return directory


def fetch_gguf(repo: str, filename: str, revision: str | None, token: str | None) -> Path:
    """One GGUF file of a repository.

    Raises:
        ModelNotFoundError, DownloadError, CheckpointError: See :func:`hub_errors`.
    """
    with hub_errors(repo, revision):
        return Path(huggingface_hub.hf_hub_download(repo, filename, revision=revision, token=token))


def cached_gguf(repo: str, filename: str, revision: str | None, token: str | None) -> Path | None:
    """Whether one GGUF file of a repository can be had, without fetching it: its path if it is in the cache, else None.

    Raises:
        ModelNotFoundError, DownloadError, CheckpointError: See :func:`hub_errors`.
    """
    with hub_errors(repo, revision):
        seen = huggingface_hub.hf_hub_download(repo, filename, revision=revision, token=token, dry_run=True)
    return Path(seen.local_path) if seen.is_cached else None


@contextmanager
def hub_errors(repo: str, revision: str | None) -> Iterator[None]:
    """The hub's errors as this package's, each with its cure.

    Raises:
        ModelNotFoundError: No such repository or revision; quotes the nearest known names.
        CheckpointError: The repository lacks a file that is needed.
        DownloadError: Gated, offline, or the network failed.
    """
    at = f" at revision {revision!r}" if revision else ""
    try:
        yield
    except GatedRepoError as error:
        raise DownloadError(
            f"{repo!r} is gated: accept its terms on the model's page of the Hugging Face hub, create a read token there and "
            "set HF_TOKEN to it (or pass token=)."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            _sentences(
                f"The Hugging Face hub has no model {repo!r} that you may see.",
                nearest_names(repo),
                "If it is private, set HF_TOKEN or pass token=.",
            )
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFoundError(
            f"{repo!r} has no revision {revision!r}. Give a branch, a tag or a full commit hash."
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise DownloadError(_unreachable(repo, at)) from error
    except EntryNotFoundError as error:
        raise CheckpointError(f"The repository {repo!r}{at} lacks a file that is needed: {error}") from error
    except HFValidationError as error:
        raise ModelNotFoundError(
            _sentences(f"{repo!r} is neither a path that exists nor a name on the hub.", nearest_names(repo))
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        if status in (401, 403):
            raise DownloadError(
                f"The hub refused {repo!r} (HTTP {status}): accept its terms on the model's page and set HF_TOKEN to a token "
                "that may read it (or pass token=)."
            ) from error
        raise DownloadError(f"The download of {repo!r}{at} failed (HTTP {status}). Try again later.") from error
    except (httpx.HTTPError, ConnectionError, TimeoutError) as error:
        raise DownloadError(f"The download of {repo!r}{at} failed ({error}). Check the network and try again.") from error


def _unreachable(repo: str, at: str) -> str:
    if offline():
        return (
            f"{repo!r}{at} is not in the local Hugging Face cache, and HF_HUB_OFFLINE forbids fetching it. "
            "Unset HF_HUB_OFFLINE for the first load, or give a local directory."
        )
    return _sentences(
        f"{repo!r}{at} is not in the local Hugging Face cache, and the hub cannot be reached.",
        nearest_names(repo),
        "Check the network, or give a local directory.",
    )


def _sentences(*parts: str) -> str:
    """Those that say something, one after the other."""
    return " ".join(part for part in parts if part)
