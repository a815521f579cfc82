"""What every measuring command takes beside its protocol's own arguments: models, data, where to write."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from anchorlens.errors import InputError, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]


def read_config(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001
    """Put a TOML file's values under the flags: a flag on the command line wins."""
    if value is None:
        return None
    try:
        values = tomllib.loads(Path(value).read_text(encoding="utf8"))
    except OSError as why:
        raise InputError(f"Cannot read {value}: {why.strerror}.") from why
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as why:
        raise InputError(f"{value} is not TOML: {why}.") from why
    known = {p.name: p for p in ctx.command.params if p.name not in (None, "config", "help")}
    flags = {p.opts[0].lstrip("-").replace("-", "_"): name for name, p in known.items()}
    defaults: dict[str, Any] = {}
    for key, item in values.items():
        name = key.replace("-", "_")
        name = name if name in known else flags.get(name, name)
        if name not in known:
            raise InputError(f"{value}: unknown key '{key}'. {did_you_mean(str(name), [k for k in known if k])}")
        defaults[name] = _config_value(value, key, item, multiple=bool(getattr(known[name], "multiple", False)))
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return value


def _config_value(file: str, key: str, item: object, *, multiple: bool) -> object:
    if isinstance(item, Mapping):
        raise InputError(f"{file}: '{key}' must be a value or a list, not a table.")
    if isinstance(item, list):
        return [str(v) for v in item] if multiple else ",".join(str(v) for v in item)
    return [str(item)] if multiple else item


def data_files(datasets: Sequence[str], files: Sequence[str]) -> dict[str, str]:
    """Which file belongs to which data set.

    Raises:
        InputError: A name is not among the data sets, or there are more files than data sets.
    """
    out: dict[str, str] = {}
    unnamed: list[str] = []
    for entry in files:
        name, sign, path = entry.partition("=")
        if sign and name in datasets:
            out[name] = path
        elif sign and not Path(entry).exists():
            raise InputError(f"--data-file {entry}: no --dataset is called '{name}'. {did_you_mean(name, datasets)}")
        else:
            unnamed.append(entry)
    free = [name for name in datasets if name not in out]
    if len(unnamed) > len(free):
        raise InputError(f"{len(files)} --data-file for {len(datasets)} --dataset. Give one for each, in order, or NAME=FILE.")
    return out | dict(zip(free, unnamed, strict=False))


__all__ = ["data_files", "read_config"]
