"""Virtual environments of the compared libraries (peers), so that no peer changes the project's
environment.

Peers that anchorlens depends on (TransformerLens, Hugging Face transformers) run in the project's
environment. For the others two sets of versions are tried in this order: the project's exact
versions, so that all libraries share torch and transformers; then the newest versions that the peer
accepts. If neither resolves, the resolver's message is reported.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".venv-peers"
PEERS = ("nnsight", "pyvene")
_BASE = ("torch", "transformers", "safetensors", "tokenizers", "numpy")
# Checks the imports that are needed to load a Hugging Face model with a peer.
_CHECK = "import torch, transformers, {peer}"
_NOISE = re.compile(r" \(from versions: [^)]*\)|(?:file|https?)://\S+")


@dataclass(frozen=True)
class Environment:
    """Environment of a peer.

    Attributes:
        name: Name of the peer.
        python: Path of its interpreter; empty if no environment could be made.
        pins: ``project`` (the project's exact versions), ``own`` (the newest that the peer
            accepts), or ``none``.
        refused: Failed attempts, with the message of pip or Python.
    """

    name: str
    python: str
    pins: str
    refused: tuple[str, ...] = ()

    @property
    def works(self) -> bool:
        """Return whether there is an interpreter."""
        return bool(self.python)


def project_environment(name: str) -> Environment:
    """Return the environment of this process."""
    return Environment(name, sys.executable, "project")


def peer_environment(name: str) -> Environment:
    """Return the existing environment of a peer, or make one.

    A failure is stored too, so that later runs do not repeat the downloads. Remove the folder to
    try again.
    """
    home = HOME / name
    note = home / "environment.json"
    if note.is_file():
        known = json.loads(note.read_text())
        python = str(_python(home)) if known["pins"] != "none" else ""
        return Environment(name, python, known["pins"], tuple(known["refused"]))
    HOME.mkdir(exist_ok=True)
    (HOME / ".gitignore").write_text("*\n")
    made = _make(name, home)
    home.mkdir(exist_ok=True)
    note.write_text(
        json.dumps({k: v for k, v in asdict(made).items() if k != "python"}, indent=2) + "\n"
    )
    return made


def _make(name: str, home: Path) -> Environment:
    refused: list[str] = []
    wanted = [*_BASE, name]
    for pins, extra in (("project", ["-c", str(ROOT / "constraints.txt")]), ("own", [])):
        _say(f"making an environment for {name} ({pins} versions; some minutes the first time)")
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        why = _failure(
            [
                str(_python(home)),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                *extra,
                *wanted,
            ]
        )
        why = why or _failure([str(_python(home)), "-c", _CHECK.format(peer=name)])
        if not why:
            return Environment(name, str(_python(home)), pins, tuple(refused))
        refused.append(f"{pins} versions: {why}")
        _say(f"{name} with {refused[-1]}")
    shutil.rmtree(home, ignore_errors=True)
    return Environment(name, "", "none", tuple(refused))


def _failure(command: list[str]) -> str:
    """Run a command and return its error message; empty if it succeeds."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=HOME, env=clean_environment()
    )
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "Error" in line] or lines
    words = " ".join(errors[-3:]).replace(str(ROOT), ".")
    # Lists of all versions and addresses of indexes are removed.
    return _NOISE.sub("", words) or f"exit code {done.returncode}, no message"


def clean_environment() -> dict[str, str]:
    """Return the variables of this process without those that point another interpreter to its
    packages.
    """
    return {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }


def _python(home: Path) -> Path:
    return home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
