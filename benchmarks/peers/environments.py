"""An environment of its own for each library that is compared, so that no peer can change what anchorlens is tested with.

Peers that anchorlens needs anyway (TransformerLens, Hugging Face transformers) run in the project's environment. For the others
two sets are tried in this order: the peer with the project's exact versions, so that all libraries share torch and transformers;
then the peer with the newest versions that it accepts itself. Where neither resolves, the resolver's words are what is reported.
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
# A Hugging Face model of each peer's environment has to be loadable: an import alone would find that out too late.
_CHECK = "import torch, transformers, {peer}"
_NOISE = re.compile(r" \(from versions: [^)]*\)|(?:file|https?)://\S+")


@dataclass(frozen=True)
class Environment:
    """What a peer runs in.

    Attributes:
        name: The peer.
        python: Its interpreter; empty where no environment could be made.
        pins: ``project`` (the project's exact versions), ``own`` (the newest that the peer accepts), or ``none``.
        refused: What was tried before and why it failed, as pip or Python said it.
    """

    name: str
    python: str
    pins: str
    refused: tuple[str, ...] = ()

    @property
    def works(self) -> bool:
        """Whether there is an interpreter."""
        return bool(self.python)


def project_environment(name: str) -> Environment:
    """The environment that runs this very process."""
    return Environment(name, sys.executable, "project")


def peer_environment(name: str) -> Environment:
    """The environment of a peer: the one that is there, or a new one.

    A failure is kept as well, so that a run does not try the same downloads each time; remove the folder to try again.
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
    note.write_text(json.dumps({k: v for k, v in asdict(made).items() if k != "python"}, indent=2) + "\n")
    return made


def _make(name: str, home: Path) -> Environment:
    refused: list[str] = []
    wanted = [*_BASE, name]
    for pins, extra in (("project", ["-c", str(ROOT / "constraints.txt")]), ("own", [])):
        _say(f"making an environment for {name} ({pins} versions; some minutes the first time)")
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        why = _failure([str(_python(home)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *extra, *wanted])
        why = why or _failure([str(_python(home)), "-c", _CHECK.format(peer=name)])
        if not why:
            return Environment(name, str(_python(home)), pins, tuple(refused))
        refused.append(f"{pins} versions: {why}")
        _say(f"{name} with {refused[-1]}")
    shutil.rmtree(home, ignore_errors=True)
    return Environment(name, "", "none", tuple(refused))


def _failure(command: list[str]) -> str:
    """What a command complains about; empty where it succeeds."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HOME, env=clean_environment())
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "Error" in line] or lines
    words = " ".join(errors[-3:]).replace(str(ROOT), ".")
    # All versions that there are help nobody, and where an index lies differs everywhere.
    return _NOISE.sub("", words) or f"exit code {done.returncode}, no message"


def clean_environment() -> dict[str, str]:
    """The variables of this process without those that would lead another interpreter into this one's packages."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def _python(home: Path) -> Path:
    return home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
