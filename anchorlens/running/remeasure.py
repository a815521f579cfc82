"""Measure random cells of a run again with the reference engine, from the inputs in the run directory."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd

from anchorlens.constants import METRIC_UNITS
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.errors import InputError
from anchorlens.missing_values import without_nulls
from anchorlens.models.adapt import adapt
from anchorlens.models.adapter import Adapter
from anchorlens.models.backend import HAS_HOOKED
from anchorlens.models.card import model_card
from anchorlens.models.load import as_lens_model, load_model
from anchorlens.models.memory import free_memory
from anchorlens.progress import progress
from anchorlens.protocols.base import Recheckable, StepMetrics
from anchorlens.protocols.registry import measurement_of, specification_of
from anchorlens.protocols.specification import Specification
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.results.sweep import SweepResult
from anchorlens.running.loading import load_run
from anchorlens.running.spot_checks import add_reference_values, format_cell, tolerance
from anchorlens.runs.schema import POINTS, leading_metric

# Functions of the user that are needed even if all inputs are stored.
_NEEDED = ("readout", "site", "metric")

Found = tuple[str, str, str]
"""Name, status and detail of a check."""


def remeasure_cells(
    folder: Path, n_cells: int, seed: int, model: Any, loading: Mapping[str, Any], callables: Mapping[str, Callable[..., Any]],
    *, show_progress: bool,
) -> tuple[list[Found], pd.DataFrame]:  # fmt: skip
    """Compare the models of a run, measure random cells again, and return the checks and the rows of these cells.

    Arguments as in :func:`anchorlens.verify_run`; ``loading`` has the options of :func:`anchorlens.load_model`.
    """
    results = load_run(folder)
    drawn = _draw_cells(results, n_cells, seed)
    checks: list[Found] = []
    frames: list[pd.DataFrame] = []
    with progress(f"verify {folder.name}", max(1, sum(map(len, drawn))), "cell", show=show_progress and n_cells > 0) as bar:
        for name in dict.fromkeys(result.model for result in results):
            group = [(result, cells) for result, cells in zip(results, drawn, strict=True) if result.model == name]
            adapter, hashes = _load(name, group[0][0].record["model"], model, loading)
            checks += hashes
            if any(outcome == "mismatch" for _, outcome, _ in hashes):
                checks.append((f"cells: {name}", "not checked", "the model differs"))
                continue
            for result, cells in group:
                what = f"cells: {result.protocol.name} {name} {result.dataset}"
                if not isinstance(measurement_of(result.protocol.name), Recheckable):
                    checks.append((what, "not checked", "this protocol cannot measure cells again"))
                elif len(cells):
                    again = _measure_again(adapter, result, cells, callables)
                    bar.advance(len(cells))
                    frames.append(again)
                    checks.append(
                        (what, *_compare(again, len(cells), tolerance(adapter, str(again["unit"].iloc[0]), result.samples())))
                    )
    return checks, pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _draw_cells(results: Sequence[SweepResult], n_cells: int, seed: int) -> list[pd.DataFrame]:
    """Draw random cells from all sweeps in turn."""
    rng = Random(f"{seed}:verify")
    samples = [without_nulls(result.samples(all_columns=True)) for result in results]
    cells = [frame[frame["metric"] == leading_metric(frame)] for frame in samples]
    takes = [0] * len(results)
    order = rng.sample(range(len(results)), len(results))
    for i in range(min(n_cells, sum(map(len, cells)))):
        free = [k for k in order if takes[k] < len(cells[k])]
        takes[free[i % len(free)]] += 1
    return [frame.iloc[sorted(rng.sample(range(len(frame)), n))] for frame, n in zip(cells, takes, strict=True)]


def _load(name: str, record: Mapping[str, Any], model: Any, loading: Mapping[str, Any]) -> tuple[Adapter, list[Found]]:
    given = model.get(name) if isinstance(model, Mapping) else model
    if given is None:
        if record["source"] not in ("packaged", "hub"):
            raise InputError(
                f"{name} cannot be loaded by its name ({record['source']}). Give it with model= as a directory, a file or a live "
                "model.",
                argument="model",
            )
        given = name
    if isinstance(given, (str, os.PathLike)):
        revision = record["revision"] if given == name and record["source"] == "hub" else None
        then = str(record["backend"]) if HAS_HOOKED else None
        chosen = {**loading, "backend": loading["backend"] or then}
        lens_model = load_model(given, **chosen, dtype=record["dtype"], revision=revision)
    else:
        lens_model = as_lens_model(given)
    card, checks = model_card(lens_model), list[Found]()
    hashes = {"weights": card.weights_sha256, "tokenizer": card.tokenizer_sha256}
    if card.backend != record["backend"]:  # the same weights have other names there
        checks.append((f"weights: {name}", "not checked", f"not comparable: {record['backend']} then, {card.backend} now"))
        del hashes["weights"]
    for what, now in hashes.items():
        then, now = str(record[f"{what}_sha256"]), str(now)
        text = now[:12] if then == now else f"{then[:12]} then, {now[:12]} now"
        checks.append((f"{what}: {name}", "match" if then == now else "mismatch", text))
    return adapt(lens_model), checks


def _specification(result: SweepResult, callables: Mapping[str, Callable[..., Any]]) -> Specification:
    """Return the specification without user functions that only chose inputs, because inputs are stored."""
    config = dict(result.record["config"])
    code = config.pop("own_code", {})
    names = {*code, *(n for n, v in config.items() if isinstance(v, str) and v.startswith("callable:"))}
    needed = sorted(names & set(_NEEDED) - callables.keys())
    if needed:
        raise InputError(
            f"This run was made with functions of yours ({', '.join(needed)}), which are not stored. Verify it in Python with "
            f"callables={{{needed[0]!r}: ...}}, or set cells=0."
        )
    kept = {name: value for name, value in config.items() if name not in names and name != "probes"}
    given = {name: value for name, value in callables.items() if name in names}
    spec = specification_of(result.protocol.name).from_config(kept | given)
    other = [name for name, digest in spec.own_code().items() if code.get(name) not in (None, digest)]
    if other:
        raise InputError(f"callables=: {', '.join(other)} differs from the code that the run was made with.", argument="callables")
    return spec


def _measure_again(
    adapter: Adapter, result: SweepResult, cells: pd.DataFrame, callables: Mapping[str, Callable[..., Any]]
) -> pd.DataFrame:
    protocol, spec = measurement_of(result.protocol.name), _specification(result, callables)
    assert isinstance(protocol, Recheckable)  # checked by the caller
    ready = protocol.from_run(adapter, spec, StoredInputs(result))
    budget = free_memory(adapter.devices) // 2
    both = add_reference_values(
        protocol, ready, spec, ReferenceEngine(adapter), without_nulls(result.samples(all_columns=True)), cells, budget
    )
    scale = 100 if both["unit"].iloc[0] == POINTS else 1
    gaps = [scale * (both[f"value_{when}"] - both[f"value_{when}_again"]).abs() for when in ("before", "after")]
    gaps.append((both["effect"] - both["effect_again"]).abs())
    both = both.assign(max_abs_diff=pd.concat(gaps, axis=1).max(axis=1, skipna=False))
    if both["unit"].iloc[0] != METRIC_UNITS or not isinstance(protocol, StepMetrics):
        return both
    # A metric may move in steps where the logits differ in their last digits.
    allowed = tolerance(adapter, METRIC_UNITS, result.samples())
    for row, cell in both[~(both["max_abs_diff"] <= allowed)].iterrows():
        if protocol.differs_by_rounding(adapter, ready, spec, cell.to_dict(), allowed):
            both.loc[row, "max_abs_diff"] = 0.0
    return both


def _compare(again: pd.DataFrame, n: int, allowed: float) -> tuple[str, str]:
    unit = str(again["unit"].iloc[0]).removeprefix("percentage ")
    off = again[~(again["max_abs_diff"] <= allowed)]  # NaN too
    if off.empty:
        largest = f"differ by at most {again['max_abs_diff'].max():.2g} {unit} (allowed: {allowed:.2g})"
        return "match", f"{n} drawn, {len(again)} measured again, {largest}"
    worst = off.loc[off["max_abs_diff"].idxmax() if off["max_abs_diff"].notna().any() else off.index[0]].to_dict()
    largest = f"by {worst['max_abs_diff']:.2g} {unit} (allowed: {allowed:.2g}) at {format_cell(worst)}"
    return "mismatch", f"{len(off)} of {len(again)} differ, {largest}"
