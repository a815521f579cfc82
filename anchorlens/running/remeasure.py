"""Measure random cells of a run again with the reference engine, from the inputs in its directory alone."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd

from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import InputError
from anchorlens.missing_values import without_nulls
from anchorlens.models.adapter import Adapter
from anchorlens.models.card import model_card
from anchorlens.models.load import as_hooked, load_model
from anchorlens.models.memory import free_memory
from anchorlens.progress import progress
from anchorlens.protocols.base import Recheckable
from anchorlens.protocols.registry import measurement_of, specification_of
from anchorlens.protocols.specification import Specification
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.results.sweep import SweepResult
from anchorlens.running.loading import load_run
from anchorlens.running.spot_checks import add_reference_values, format_cell, tolerance
from anchorlens.runs.schema import POINTS, leading_metric

# The user's own code that decides a cell's number even if all inputs are known.
_OWN = ("readout", "site")

Found = tuple[str, str, str]
"""Check, outcome and details."""


def remeasure_cells(
    folder: Path, n_cells: int, seed: int, model: Any, how: Mapping[str, Any], own: Mapping[str, Callable[..., Any]], *,
    show_progress: bool,
) -> tuple[list[Found], pd.DataFrame]:  # fmt: skip
    """Compare the models of a run, measure cells of it again, and return the checks and the rows of these cells.

    Arguments as in :func:`anchorlens.verify_run`; ``how`` are the options with which models are loaded.
    """
    results = load_run(folder)
    drawn = _draw_cells(results, n_cells, seed)
    found: list[Found] = []
    frames: list[pd.DataFrame] = []
    with progress(f"verify {folder.name}", max(1, sum(map(len, drawn))), "cell", show=show_progress and n_cells > 0) as bar:
        for name in dict.fromkeys(result.model for result in results):
            group = [(result, cells) for result, cells in zip(results, drawn, strict=True) if result.model == name]
            adapter, hashes = _load(name, group[0][0].record["model"], model, how)
            found += hashes
            if any(outcome == "mismatch" for _, outcome, _ in hashes):
                found.append((f"cells: {name}", "not checked", "the model is another one"))
                continue
            for result, cells in group:
                if len(cells):
                    again = _measure_again(adapter, result, cells, own)
                    bar.advance(len(cells))
                    frames.append(again)
                    found.append(_compare(result, again, len(cells), tolerance(adapter)))
    return found, pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _draw_cells(results: Sequence[SweepResult], n_cells: int, seed: int) -> list[pd.DataFrame]:
    """Draw random cells, from every sweep in turn as long as it has any."""
    rng = Random(f"{seed}:verify")
    samples = [without_nulls(result.samples()) for result in results]
    cells = [own[own["metric"] == leading_metric(own)] for own in samples]
    takes = [0] * len(results)
    order = rng.sample(range(len(results)), len(results))
    for i in range(min(n_cells, sum(map(len, cells)))):
        free = [k for k in order if takes[k] < len(cells[k])]
        takes[free[i % len(free)]] += 1
    return [own.iloc[sorted(rng.sample(range(len(own)), n))] for own, n in zip(cells, takes, strict=True)]


def _load(name: str, was: Mapping[str, Any], model: Any, how: Mapping[str, Any]) -> tuple[Adapter, list[Found]]:
    given = model.get(name) if isinstance(model, Mapping) else model
    if given is None:
        if was["source"] not in ("packaged", "hub"):
            raise InputError(
                f"{name} was no model that loads by its name ({was['source']}): give it, with --model or model=, as a directory, a "
                "file or a live model."
            )
        given = name
    if isinstance(given, (str, os.PathLike)):
        revision = was["revision"] if given == name and was["source"] == "hub" else None
        hooked = load_model(given, **how, dtype=was["dtype"], revision=revision)
    else:
        hooked = as_hooked(given)
    card, found = model_card(hooked), list[Found]()
    for what, now in (("weights", card.weights_sha256), ("tokenizer", card.tokenizer_sha256)):
        then, now = str(was[f"{what}_sha256"]), str(now)
        text = now[:12] if then == now else f"{then[:12]} then, {now[:12]} now"
        found.append((f"{what}: {name}", "match" if then == now else "mismatch", text))
    return Adapter(hooked), found


def _specification(result: SweepResult, own: Mapping[str, Callable[..., Any]]) -> Specification:
    """Return the specification, without code of the user's own that only chose inputs: these are in the directory."""
    config = dict(result.record["config"])
    code = config.pop("own_code", {})
    theirs = {*code, *(n for n, v in config.items() if isinstance(v, str) and v.startswith("callable:"))}
    needed = sorted(theirs & set(_OWN) - own.keys())
    if needed:
        raise InputError(
            f"This run was made with code of your own ({', '.join(needed)}), which no directory holds: verify it in Python with "
            f"callables={{{needed[0]!r}: ...}}, or take cells=0."
        )
    kept = {name: value for name, value in config.items() if name not in theirs and name != "probes"}
    spec = specification_of(result.protocol.name).from_config(kept | {name: own[name] for name in own if name in theirs})
    other = [name for name, digest in spec.own_code().items() if code.get(name) not in (None, digest)]
    if other:
        raise InputError(f"own: {', '.join(other)} is other code than the run was made with.")
    return spec


def _measure_again(
    adapter: Adapter, result: SweepResult, cells: pd.DataFrame, own: Mapping[str, Callable[..., Any]]
) -> pd.DataFrame:
    protocol, spec = measurement_of(result.protocol.name), _specification(result, own)
    if not isinstance(protocol, Recheckable):
        raise InputError(f"Cells of {result.protocol.name!r} cannot be measured again. Take cells=0.")
    ready = protocol.from_run(adapter, spec, StoredInputs(result))
    budget = free_memory(adapter.devices) // 2
    both = add_reference_values(
        protocol, ready, spec, ReferenceEngine(adapter), without_nulls(result.samples()), cells, budget
    )
    scale = 100 if both["unit"].iloc[0] == POINTS else 1
    gaps = [scale * (both[f"value_{when}"] - both[f"value_{when}_again"]).abs() for when in ("before", "after")]
    gaps.append((both["effect"] - both["effect_again"]).abs())
    return both.assign(max_abs_diff=pd.concat(gaps, axis=1).max(axis=1, skipna=False))


def _compare(result: SweepResult, again: pd.DataFrame, n: int, allowed: float) -> Found:
    what = f"cells: {result.protocol.name} {result.model} {result.dataset}"
    off = again[~(again["max_abs_diff"] <= allowed)]  # NaN too
    if off.empty:
        text = f"{n} drawn, {len(again)} measured again, at most {again['max_abs_diff'].max():.2g} points off (allowed: {allowed:.2g})"
        return what, "match", text
    worst = off.loc[off["max_abs_diff"].idxmax() if off["max_abs_diff"].notna().any() else off.index[0]].to_dict()
    text = f"{len(off)} of {len(again)} differ, by {worst['max_abs_diff']:.2g} points (allowed: {allowed:.2g}) at {format_cell(worst)}"
    return what, "mismatch", text
