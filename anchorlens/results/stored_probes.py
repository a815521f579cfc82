"""Load the truth probes of a saved sweep."""

from pathlib import Path
from typing import TYPE_CHECKING

from anchorlens.errors import RunError
from anchorlens.runs.checksums import check_file

if TYPE_CHECKING:
    import anchorlens.probing.cross_fitting


def load_probes(folder: Path) -> "dict[str, anchorlens.probing.cross_fitting.CrossFittedProbes]":
    """Load the probes of a saved sweep, ``RUN/probes/RUN_ID``, by control: ``none`` for the
    readout, else the name of a placebo.

    Raises:
        RunError: If a file is damaged or missing.
    """
    for file in sorted(one for one in folder.rglob("*") if one.is_file()):
        check_file(folder.parents[1], file.relative_to(folder.parents[1]).as_posix())
    from safetensors import SafetensorError

    from anchorlens.probing.cross_fitting import CrossFittedProbes

    homes = {"none": folder, **{sub.name: sub for sub in sorted(folder.iterdir()) if sub.is_dir()}}
    try:
        return {name: CrossFittedProbes.load(home) for name, home in homes.items()}
    except (SafetensorError, OSError, LookupError, ValueError) as why:
        raise RunError(
            f"The probes in {folder} cannot be read ({why}). Make the run again."
        ) from why
