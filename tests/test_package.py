"""What a user installs: a wheel that builds, holds the samples, and works in an empty
environment.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(out),
            str(ROOT),
        ],
        check=True,
        capture_output=True,
    )
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_wheel_holds_types_samples_and_licence_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "anchorlens/py.typed",
        *(
            f"anchorlens/questions/samples/{s}.jsonl"
            for s in ("popqa", "triviaqa", "hotpotqa", "nq")
        ),
        *(f"anchorlens/prompts/samples/{s}-pairs.csv" for s in ("facts", "ioi", "induction")),
    ):
        assert wanted in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert all(name.startswith(("anchorlens/", "anchorlens-")) for name in names)


@pytest.mark.slow
def test_wheel_works_in_an_empty_environment(wheel, tmp_path):
    """A new virtual environment, the wheel and its requirements; then a whole sweep on an embedded
    set.
    """
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "-q",
        "-c",
        str(ROOT / "constraints.txt"),
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    code = (
        "import anchorlens as al, anchorlens, pathlib, sys\nassert 'site-packages' in"
        " anchorlens.__file__\nmodel = al.load_model('smollm2-135m-instruct', device='cpu')\nsweep"
        " = al.swap_sweep(model, al.load_qa('popqa-sample', limit=3), layers=(0, 29), n_donors=1,"
        " progress=False)\nsweep.save('run'); (again,) = al.load_run('run');"
        " print(len(again.curves()))\n"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["4"]
    listed = subprocess.run(
        [str(tmp_path / "venv" / "bin" / "anchorlens"), "datasets"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "popqa-sample" in listed.stdout
    shutil.rmtree(tmp_path / "venv")


def test_nothing_private_is_tracked():
    """No path of a build machine, no model weights, no data of others."""
    tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT)
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    names = tracked.stdout.split("\n")
    assert not [
        n for n in names if n.endswith((".safetensors", ".gguf", ".parquet", ".pt", ".bin", ".pkl"))
    ]
    ours = (
        "anchorlens/questions/samples/",
        "tests/questions/labelled_spans.jsonl",
    )  # written for this project
    assert not [n for n in names if n.endswith(".jsonl") and not n.startswith(ours)]
