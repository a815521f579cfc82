"""Provenance of a result: versions, hashes, device, threads."""

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PACKAGES = (
    "anchorlens",
    "torch",
    "transformer-lens",
    "transformers",
    "datasets",
    "numpy",
    "pandas",
    "pyarrow",
    "plotly",
)


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that affect numbers or files."""
    installed: dict[str, str] = {}
    for name in PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            installed[name] = "not installed as a package"
    return installed


@cache
def code_sha256() -> str:
    """Return the hash of the source files of this package."""
    digest = hashlib.sha256()
    home = Path(__file__).parents[1]
    for file in sorted(home.rglob("*.py")):
        name = file.relative_to(home).as_posix()
        digest.update(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def command_line() -> str:
    """Return the command of this process, with paths relative to the current folder (``./``) or the
    home folder (``~/``).
    """
    text = " ".join([sys.argv[0].rsplit("/", 1)[-1], *sys.argv[1:]])
    # Path.home raises for a user without a home folder.
    home = os.path.expanduser("~")  # noqa: PTH111
    for folder, short in ((Path.cwd(), "."), (Path(home), "~")):
        if folder != folder.parent:  # not the root, where everything lies
            text = re.sub(rf"(?<![^\s=]){re.escape(str(folder))}(?![^\s/])", short, text)
    return text


def environment(devices: "Sequence[torch.device]", command: str) -> dict[str, object]:
    """Return versions, system, devices and threads for ``run.json``."""
    # Not at the top, because `anchorlens status` and `verify --cells 0` run without torch.
    import torch

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


def start_time() -> str:
    """Return the local time to the second, without a zone: the clock of the chat templates of a run
    that starts now.
    """
    return datetime.now().isoformat(timespec="seconds")


def run_id_of(*parts: Mapping[str, object]) -> str:
    """Return the run id: a short hash of configuration, model and data."""
    text = json.dumps(parts, sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf8", "surrogatepass")).hexdigest()[:12]
