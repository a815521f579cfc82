"""A run directory becomes results again: what each is, its protocol's name in the registry says."""

import os
from pathlib import Path

from anchorlens.protocols.registry import protocol_of
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import settings_of
from anchorlens.runs.store import read_record, read_table
from anchorlens.truth.probes import LayerProbes


def load_run(path: "str | os.PathLike[str]") -> list[SweepResult]:
    """Read every sweep of a run directory.

    Raises:
        RunError: See :func:`anchorlens.runs.store.read_record`.
    """
    record = read_record(path)
    samples, examples = read_table(path, "samples"), read_table(path, "examples")
    results: list[SweepResult] = []
    for sweep in record["sweeps"]:
        run_id = sweep["run_id"]
        protocol = protocol_of(sweep["config"]["protocol"])
        own = {key: value for key, value in sweep.items() if key not in ("run_id", "verdict")}
        mine = samples[samples["run_id"] == run_id].assign(**settings_of(sweep["config"]))
        result = protocol.result.make(protocol, mine, examples[examples["run_id"] == run_id], own, run_id)
        folder = Path(path) / "probes" / run_id
        if folder.is_dir():
            placebos = {sub.name: LayerProbes.load(sub) for sub in sorted(folder.iterdir()) if sub.is_dir()}
            result = result.with_probes(LayerProbes.load(folder), placebos)
        results.append(result)
    return results


__all__ = ["load_run"]
