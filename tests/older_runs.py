"""A run directory as an older version of the schema wrote it."""

import json
from pathlib import Path

import pandas as pd

from anchorlens.runs.schema import SETTINGS, SLOT_TYPES, TEXT_AUCS

_BANDS = ("sim_low", "sim_high")


def aged(path: Path, version: int) -> Path:
    """Turn a run of today into one of version 2 to 5, in place: columns renamed back, what was not there yet taken away."""
    for name, added in (
        ("samples", (*SETTINGS, *SLOT_TYPES)), ("curves", (*SETTINGS, *_BANDS, "null_short", *TEXT_AUCS)),
        ("effects", (*SETTINGS, *_BANDS, "anchor")), ("examples", ("pair_text", "tokens")),
    ) if version < 5 else (("examples", ("tokens",)),):  # fmt: skip
        if (path / f"{name}.parquet").is_file():
            frame = pd.read_parquet(path / f"{name}.parquet").drop(columns=list(added))
            frame.to_parquet(path / f"{name}.parquet", index=False)
    record = json.loads((path / "run.json").read_text())
    record["schema_version"] = version
    for sweep in record["sweeps"] if version < 5 else ():
        sweep.get("probe", {}).pop("pair_text", None)
    (path / "run.json").write_text(json.dumps(record))
    return path if version > 3 else _before_quantities(path, version)


def _before_quantities(path: Path, version: int) -> Path:
    for name in ("samples", "curves"):
        frame = pd.read_parquet(path / f"{name}.parquet")
        cut = frame["protocol"] == "knockout"
        # The site of a knockout was where its probe reads, and stood where a swap's site stands.
        frame["site"] = frame["site"].where(~cut, frame["probe_site"])
        frame = frame[frame["quantity"] == "p"].drop(columns=["quantity", "probe_site"])
        if name == "samples":
            frame = frame.rename(columns={"value_before": "p_before", "value_after": "p_after"})
        elif version == 2:
            frame = frame.drop(columns="noise_floor")
        frame.to_parquet(path / f"{name}.parquet", index=False)
    record = json.loads((path / "run.json").read_text())
    del record["pending"]
    for sweep in record["sweeps"]:
        config = sweep["config"]
        if config["protocol"] == "knockout":
            config["site"] = "" if config["readout"] == "p_true" else config["probe_site"]
            del config["probe_site"]
            config["window"] = config["window"] or 0
        else:
            (path / "effects.parquet").unlink(missing_ok=True)  # it held those of knockouts alone
        if version == 2:
            del sweep["noise"], sweep["checks"]
    (path / "run.json").write_text(json.dumps(record))
    return path
