"""Where a result comes from: versions, hashes, device, threads."""

import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from anchorlens.models.card import ModelCard
from anchorlens.questions.datasets import QAData

PACKAGES = ("anchorlens", "torch", "transformer-lens", "transformers", "datasets", "numpy", "pandas", "pyarrow")


def versions() -> dict[str, str]:
    """Installed versions of the packages that can change a number or a file."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a package"
    return found


@cache
def code_sha256() -> str:
    """A hash of this package's own code: two versions of one number may differ."""
    digest, home = hashlib.sha256(), Path(__file__).parents[1]
    for file in sorted(home.rglob("*.py")):
        digest.update(f"{file.relative_to(home).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def command_line() -> str:
    """What this process was started as."""
    return " ".join([sys.argv[0].rsplit("/", 1)[-1], *sys.argv[1:]])


def environment(devices: Sequence[torch.device], command: str) -> dict[str, object]:
    """What the numbers were computed with, and what began the run.

    Args:
        devices: Those that the model lies on, in the order of its layers.
        command: What began the run.
    """
    record: dict[str, object] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": ", ".join(map(str, devices)),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "code_sha256": code_sha256(),
        "command": command,
    }
    cards = [torch.cuda.get_device_name(device) for device in devices if device.type == "cuda"]
    if cards:
        record["gpu"] = ", ".join(dict.fromkeys(cards))
    return record


def model_record(card: ModelCard) -> dict[str, object]:
    """A model as run.json keeps it."""
    return {
        key: value if isinstance(value, (int, float, bool, type(None))) else str(value) for key, value in asdict(card).items()
    }


def data_record(data: QAData) -> dict[str, object]:
    """A data set as run.json keeps it."""
    return {
        "name": data.name, "source": data.source, "sha256": data.sha256, "limit": data.limit, "seed": data.seed,
        "spans": data.spans,
        "examples": len(data.examples), "pool": len(data.pool), "pool_dropped": dict(data.pool_dropped),
    }  # fmt: skip


def no_nan(values: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers as JSON has them: what is not a number is null."""
    return {key: None if value != value else float(value) for key, value in values.items()}


def run_id_of(*parts: Mapping[str, object]) -> str:
    """A short name of configuration, model and data: the same inputs give the same id."""
    text = json.dumps(parts, sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf8")).hexdigest()[:12]
