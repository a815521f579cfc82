"""Versions of other packages: above security fixes, bounded, and constrained on every Python."""

from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from anchorlens.protocols.specification import tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
# Package -> last version with a published fault, first version without it.
FIXES = {
    "torch": ("2.9.1", "2.10.0"),  # CVE-2026-24747
    "transformers": ("5.2.0", "5.9.0"),  # CVE-2026-4372, fixed in 5.3.0
    "jinja2": ("3.1.5", "3.1.6"),  # CVE-2025-27516
    "tqdm": ("4.66.2", "4.66.3"),  # CVE-2024-34062
    "filelock": ("3.20.2", "3.20.3"),  # CVE-2026-22701
    "pillow": ("12.1.1", "12.2.0"),  # GHSA-wjx4-4jcj-g98j
    "pyarrow": ("23.0.0", "23.0.1"),  # CVE-2026-25087
    "scikit-learn": ("1.4.2", "1.5.0"),  # CVE-2024-5206
    "accelerate": ("1.11.0", "1.12.0"),  # CVE-2025-14925
    "datasets": ("5.0.0", "5.0.1"),  # PYSEC-2026-3716
}
# Packages of which a major version has changed what is used here.
BOUNDED = [
    "transformer-lens",
    "transformers",
    "datasets",
    "plotly",
    "pandas",
    "numpy",
    "scipy",
    "scikit-learn",
    "huggingface-hub",
    "jinja2",
    "rich",
    "tqdm",
    "filelock",
    "pydantic",
    "click",
]


def requirements() -> dict[str, Requirement]:
    """Requirements of the package and of its extras by name."""
    lines = [*PROJECT["dependencies"]]
    for extra in PROJECT["optional-dependencies"].values():
        lines += extra
    found = map(Requirement, lines)
    return {canonicalize_name(one.name): one for one in found if one.name != "anchorlens"}


def test_floors_are_above_security_fixes():
    for name, (faulty, fixed) in FIXES.items():
        wanted = requirements()[name].specifier
        assert not wanted.contains(faulty) and wanted.contains(fixed), name


def test_functions_with_a_fault_that_no_version_fixes_are_not_used():
    """accelerate opens the files that an index of weights names, also outside its folder
    (CVE-2026-69112).
    """
    for file in sorted((ROOT / "anchorlens").rglob("*.py")):
        text = file.read_text(encoding="utf8")
        assert "load_checkpoint" not in text and "infer_auto_device_map" not in text, file


def test_next_major_versions_are_tried_before_users_get_them():
    for name in BOUNDED:
        bounds = [one for one in requirements()[name].specifier if one.operator == "<"]
        assert len(bounds) == 1, name
    workflow = (ROOT / ".github/workflows/newest.yml").read_text(encoding="utf8")
    assert "schedule:" in workflow and "make test-newest" in workflow
    assert "test-newest:" in (ROOT / "Makefile").read_text(encoding="utf8")


@pytest.mark.parametrize("python", PYTHONS)
def test_constraints_bind_on_every_python(python):
    lines = (ROOT / "constraints.txt").read_text(encoding="utf8").splitlines()
    own: dict[str, Any] = {**default_environment()} | {
        "python_version": python,
        "python_full_version": f"{python}.9",
    }
    pinned: dict[str, Version] = {}
    for line in map(Requirement, [one for one in lines if not one.startswith("#")]):
        if line.marker is None or line.marker.evaluate(own):
            (pin,) = line.specifier
            assert canonicalize_name(line.name) not in pinned, line
            pinned[canonicalize_name(line.name)] = Version(pin.version)
    for extra in (*PROJECT["optional-dependencies"]["dev"], *PROJECT["dependencies"]):
        wanted = Requirement(extra)
        is_used = wanted.marker is None or wanted.marker.evaluate(own)
        if is_used and wanted.name != "anchorlens":
            assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), wanted
