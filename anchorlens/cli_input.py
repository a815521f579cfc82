"""What the command line reads: a TOML file under the flags, layer lists, and which file belongs to which data set."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from anchorlens.errors import InputError, did_you_mean


def read_config(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001
    """Put a TOML file's values under the flags: a flag on the command line wins."""
    if value is None:
        return None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # pyright: ignore[reportMissingImports]
    try:
        values = tomllib.loads(Path(value).read_text(encoding="utf8"))
    except OSError as why:
        raise InputError(f"Cannot read {value}: {why.strerror}.") from why
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as why:
        raise InputError(f"{value} is not TOML: {why}.") from why
    known = {p.name for p in ctx.command.params if p.name not in (None, "config", "help")}
    defaults: dict[str, Any] = {}
    for key, item in values.items():
        name = key.replace("-", "_")
        if name not in known:
            raise InputError(f"{value}: unknown key '{key}'. {did_you_mean(name, [k for k in known if k])}")
        multiple = next(p for p in ctx.command.params if p.name == name).multiple  # pyright: ignore
        defaults[name] = _config_value(value, key, item, multiple=multiple)
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return value


def _config_value(file: str, key: str, item: object, *, multiple: bool) -> object:
    if isinstance(item, Mapping):
        raise InputError(f"{file}: '{key}' must be a value or a list, not a table.")
    if isinstance(item, list):
        return [str(v) for v in item] if multiple else ",".join(str(v) for v in item)
    return [str(item)] if multiple else item


def parse_layers(spec: str | None, flag: str = "--layers") -> list[int] | None:
    """``0-11``, ``0,4,8``, ``0-28:4``, or nothing for all.

    Raises:
        InputError: The text is not of this form.
    """
    if spec is None or spec.strip().lower() in ("", "all"):
        return None
    chosen: list[int] = []
    for part in spec.split(","):
        body, _, step = part.strip().partition(":")
        first, dash, last = body.partition("-")
        numbers = [first, last if dash else first, step or "1"]
        if not all(n.isdecimal() for n in numbers) or int(numbers[2]) < 1:
            raise InputError(f"{flag} {spec!r} is not understood. Write 0-11, or 0,4,8, or 0-28:4.")
        chosen += range(int(numbers[0]), int(numbers[1]) + 1, int(numbers[2]))
    if not chosen:
        raise InputError(f"{flag} {spec!r} names nothing.")
    return chosen


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
