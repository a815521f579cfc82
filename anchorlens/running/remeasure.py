"""Measure random cells of a run again with the reference engine, from the inputs in the run
directory.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pandas as pd

from anchorlens.constants import LOGIT_DIFF, METRIC_UNITS, POINTS
from anchorlens.display import join_words, one_line
from anchorlens.engine.reference import ReferenceEngine
from anchorlens.engine.rounding_noise import N_DRAWS, TIMES_NOISE
from anchorlens.errors import InputError, RunError
from anchorlens.models.adapter import HAS_HOOKED, Adapter, hook_fingerprints
from anchorlens.models.card import model_card
from anchorlens.models.devices import free_memory
from anchorlens.models.load import adapt, as_lens_model, load_model
from anchorlens.progress import Progress
from anchorlens.protocols.base import Measurement, Recheckable, StepMetrics
from anchorlens.protocols.registry import measurement_of, specification_of
from anchorlens.protocols.specification import Specification
from anchorlens.protocols.stored_inputs import StoredInputs
from anchorlens.results.sweep import SweepResult
from anchorlens.running.recompute import compare_values
from anchorlens.running.spot_checks import add_reference_values, measure_noise, tolerance
from anchorlens.running.stored_rows import compare_cells, compare_rows, compare_tokens
from anchorlens.runs.schema import LOGITS, format_cell, leading_metric, without_nulls

# Functions of the user that are needed even if all inputs are stored.
_NEEDED = ("readout", "site", "metric")

# Entries of a model's record that follow from its weights and tokenizer.
_DESCRIBED = (
    "architecture",
    "n_layers",
    "d_model",
    "n_heads",
    "n_params",
    "dtype",
    "adds_bos",
    "weights_processed",
)

_DRAW = ("limit", "seed", "spans", "examples", "pool", "pool_dropped")

Found = tuple[str, str, str]
"""Name, status and detail of a check."""
# Errors of values that no check names, in a run whose checksums were written again.
_DAMAGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def remeasure_cells(
    results: Sequence[SweepResult],
    data: Mapping[str, Any],
    *,
    n_cells: int | None,
    seed: int,
    model: Any,
    loading: Mapping[str, Any],
    callables: Mapping[str, Callable[..., Any]],
    bar: Progress,
) -> tuple[list[Found], pd.DataFrame]:
    """Compare the models and inputs of a run, measure random cells again, and return the checks and
    the rows of these cells.

    Arguments as in :func:`anchorlens.verify_run`; ``data``: data sets that are here, by name;
    ``n_cells``: None for all; ``loading``: options of :func:`anchorlens.load_model`.
    """
    drawn = _draw_cells(results, n_cells, seed)
    pairs = list(zip(results, drawn, strict=True))
    checks: list[Found] = []
    frames: list[pd.DataFrame] = []
    for name in dict.fromkeys(result.model for result in results):
        group = [pair for pair in pairs if pair[0].model == name]
        adapter, hashes = _load(name, group[0][0].record["model"], model, loading)
        checks += hashes
        if any(outcome == "mismatch" for _, outcome, _ in hashes):
            checks.append((f"cells: {name}", "not checked", "the model differs"))
            continue
        for result, cells in group:
            what = f"{result.protocol.name} {name} {result.dataset}"
            if not isinstance(measurement_of(result.protocol.name), Recheckable):
                checks.append(
                    (f"cells: {what}", "not checked", "this protocol cannot measure cells again")
                )
                continue
            try:
                sweep = _Stored.of(adapter, result, callables)
                found = sweep.compare_inputs(data.get(result.dataset), cells)
                checks.append((f"inputs: {what}", *found))
                if found[0] == "mismatch":
                    checks.append((f"cells: {what}", "not checked", "the inputs differ"))
                elif len(cells):
                    again = sweep.measure_again(cells)
                    frames.append(again)
                    checks.append((f"cells: {what}", *_compare(again, len(cells), sweep.allowed)))
            except (RunError, *_DAMAGE) as why:
                if callables and not isinstance(
                    why, RunError
                ):  # it may be an error of these functions
                    raise
                problem = (
                    str(why)
                    if isinstance(why, RunError)
                    else f"cannot be built again ({type(why).__name__}: {one_line(why)})"
                )
                checks.append((f"inputs: {what}", "mismatch", problem))
                checks.append((f"cells: {what}", "not checked", "the inputs differ"))
            bar.advance(len(cells))
    return checks, pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def count_cells(results: Sequence[SweepResult]) -> int:
    """Return the number of cells of the sweeps that can be drawn: samples of the leading metric."""
    return sum(map(len, _cells_of(results)))


def _cells_of(results: Sequence[SweepResult]) -> list[pd.DataFrame]:
    samples = [without_nulls(result.samples(all_columns=True)) for result in results]
    return [frame[frame["metric"] == leading_metric(frame)] for frame in samples]


def _draw_cells(
    results: Sequence[SweepResult], n_cells: int | None, seed: int
) -> list[pd.DataFrame]:
    """Draw random cells from all sweeps in turn; all cells if ``n_cells`` is None."""
    rng = Random(f"{seed}:verify")
    cells = _cells_of(results)
    if n_cells is None:
        return cells
    takes = [0] * len(results)
    order = rng.sample(range(len(results)), len(results))
    for i in range(min(n_cells, sum(map(len, cells)))):
        free = [k for k in order if takes[k] < len(cells[k])]
        takes[free[i % len(free)]] += 1
    drawn: list[pd.DataFrame] = []
    for frame, n in zip(cells, takes, strict=True):
        rows = rng.sample(range(len(frame)), n)
        drawn.append(frame.iloc[sorted(rows)])
    return drawn


def _load(
    name: str, record: Mapping[str, Any], model: Any, loading: Mapping[str, Any]
) -> tuple[Adapter, list[Found]]:
    given = model.get(name) if isinstance(model, Mapping) else model
    if given is None:
        if record["source"] not in ("packaged", "hub"):
            raise InputError(
                f"{name} cannot be loaded by its name ({record['source']}). Give it with model= as"
                " a directory, a file or a live model.",
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
    card = model_card(lens_model)
    checks: list[Found] = []
    hashes = {"weights": card.weights_sha256, "tokenizer": card.tokenizer_sha256}
    if card.backend != record["backend"]:  # the same weights have other names there
        checks.append(
            (
                f"weights: {name}",
                "not checked",
                f"not comparable: {record['backend']} then, {card.backend} now",
            )
        )
        del hashes["weights"]
    for what, now in hashes.items():
        then, now = str(record[f"{what}_sha256"]), str(now)
        text = now[:12] if then == now else f"{then[:12]} then, {now[:12]} now"
        checks.append((f"{what}: {name}", "match" if then == now else "mismatch", text))
    adapter = adapt(lens_model)
    hooks_then = record.get("hooks", {})
    hooks_now = hook_fingerprints(adapter)
    if hooks_then != hooks_now:
        text = f"hooks at {_list_hooks(hooks_then)} then, at {_list_hooks(hooks_now)} now"
        checks.append((f"hooks: {name}", "mismatch", text))
    described = {key: value for key, value in card.to_dict().items() if key in _DESCRIBED}
    if problem := compare_values("model", record, described, subset=1):
        checks.append((f"model: {name}", "mismatch", problem))
    return adapter, checks


def _list_hooks(hooks: Mapping[str, str]) -> str:
    return join_words(name or "the model" for name in hooks) if hooks else "no place"


def restore_specification(
    result: SweepResult, callables: Mapping[str, Callable[..., Any]]
) -> Specification:
    """Return the specification without user functions that only chose inputs, because inputs are
    stored.
    """
    config = dict(result.record["config"])
    code = config.pop("own_code", {})
    names = {
        *code,
        *(n for n, v in config.items() if isinstance(v, str) and v.startswith("callable:")),
    }
    needed = sorted(names & set(_NEEDED) - callables.keys())
    if needed:
        raise InputError(
            f"This run was made with functions of yours ({', '.join(needed)}), which are not"
            f" stored. Verify it in Python with callables={{{needed[0]!r}: ...}}, or set cells=0."
        )
    kept = {name: value for name, value in config.items() if name not in names and name != "probes"}
    given = {name: value for name, value in callables.items() if name in names}
    spec = specification_of(result.protocol.name).from_config(kept | given)
    other: list[str] = []
    for name, digest in spec.own_code().items():
        stored = code.get(name)
        if stored not in (None, digest):
            other.append(name)
    if other:
        raise InputError(
            f"callables=: {', '.join(other)} differs from the code that the run was made with.",
            argument="callables",
        )
    return spec


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """Stored sweep whose inputs are rebuilt from the run directory.

    Attributes:
        adapter: Model of the sweep.
        result: Tables and record.
        protocol: Measurement of the protocol.
        spec: Arguments, without functions that only chose inputs.
        inputs: Inputs of the measurement.
        allowed: Allowed difference of a cell that is measured again, in the unit of the effect.
    """

    adapter: Adapter
    result: SweepResult
    protocol: Measurement[Any, Any, Any]
    spec: Specification
    inputs: Any
    allowed: float

    @classmethod
    def of(
        cls, adapter: Adapter, result: SweepResult, callables: Mapping[str, Callable[..., Any]]
    ) -> "_Stored":
        """Rebuild the inputs of a sweep.

        Raise RunError if the run directory lacks one of them or has a wrong token.
        """
        protocol = measurement_of(result.protocol.name)
        spec = restore_specification(result, callables)
        if "clock" in result.record:
            spec = spec.fix_clock(result.record["clock"])
        if problem := compare_tokens(adapter, protocol, result):
            raise RunError(problem)
        assert isinstance(protocol, Recheckable)  # checked by the caller
        inputs = protocol.from_run(adapter, spec, StoredInputs(result))
        samples = result.samples()
        return cls(
            adapter=adapter,
            result=result,
            protocol=protocol,
            spec=spec,
            inputs=inputs,
            allowed=tolerance(adapter, str(samples["unit"].iloc[0]), samples),
        )

    def compare_inputs(self, data: Any, cells: pd.DataFrame) -> tuple[str, str]:
        """Compare tokens, cells, record and, if the data set is here, all rows with those that are
        built again.
        """
        problem = compare_cells(
            self.adapter, self.protocol, self.spec, self.inputs, self.result
        ) or self._compare_record(cells)
        if problem:
            return "mismatch", problem
        config = self.result.record["config"]
        why_not = ""
        if data is None:
            why_not = "the data set is not here"
        elif other := compare_values(
            "data", self.result.record["data"], _draw_of(data.record()), subset=1
        ):
            why_not = f"the data set was loaded otherwise ({other})"
        elif _has_own_functions(config):
            why_not = "functions of yours chose them"
        elif config.get("known_only") or config.get("answers") == "generated":
            why_not = "generated answers differ between machines"
        text = "texts, tokens, positions and planned cells"
        if why_not:
            return "match", f"{text}; rows not drawn again: {why_not}"
        problem = compare_rows(self.adapter, self.protocol, self.spec, data, self.result)
        return (
            ("mismatch", problem)
            if problem
            else ("match", f"{text}; rows, donors and counts drawn again")
        )

    def _compare_record(self, cells: pd.DataFrame) -> str:
        """Return the first difference of the record from values that are computed again for the
        drawn rows; empty if none.
        """
        record = self.result.record
        unit = str(self.result.samples()["unit"].iloc[0])
        checks = record["checks"]
        floor = record["noise"]["floor"]
        if (
            unit != METRIC_UNITS
            # In half precision a sweep allows the noise of each cell.
            and not self.adapter.shape.is_half
            and checks["cells"]
            and not checks["failed"]
            and floor > self.allowed
        ):
            return (
                f"noise.floor={floor:.2g}: above {self.allowed:.2g}, but checks.failed names no"
                " cell"
            )
        rows = set(cells["example_id"])
        again = self.protocol.record_again(
            self.adapter, self.inputs, self.spec, StoredInputs(self.result), rows
        )
        return compare_values(
            "run.json",
            record,
            again,
            allowed=self.allowed / (100 if unit == POINTS else 1),
            subset=3,
        )

    def measure_again(self, cells: pd.DataFrame) -> pd.DataFrame:
        """Measure cells with the reference engine; return their rows with the values of both
        measurements.
        """
        budget = free_memory(self.adapter.devices) // 2
        samples = without_nulls(self.result.samples(all_columns=True))
        reference = ReferenceEngine(self.adapter)
        both = add_reference_values(
            protocol=self.protocol,
            inputs=self.inputs,
            spec=self.spec,
            reference=reference,
            samples=samples,
            cells=cells,
            budget=budget,
        )
        scale = 100 if both["unit"].iloc[0] == POINTS else 1
        # Logits have another tolerance than the effect.
        per_logit = self.allowed / tolerance(self.adapter, LOGIT_DIFF, samples)
        both = both.assign(max_abs_diff=_largest_gaps(both, scale, per_logit))
        if self.adapter.shape.is_half and not (both["max_abs_diff"] <= self.allowed).all():
            noise = measure_noise(
                protocol=self.protocol,
                inputs=self.inputs,
                spec=self.spec,
                adapter=self.adapter,
                samples=samples,
                cells=both,
                budget=budget,
                scale=scale,
                n_draws=N_DRAWS[1],
            )
            is_noise = both["max_abs_diff"] <= self.allowed + TIMES_NOISE * noise
            both["max_abs_diff"] = both["max_abs_diff"].mask(
                is_noise, both["max_abs_diff"].clip(upper=self.allowed)
            )
        if both["unit"].iloc[0] != METRIC_UNITS or not isinstance(self.protocol, StepMetrics):
            return both
        # A metric may move in steps where the logits differ in their last digits.
        for row, cell in both[~(both["max_abs_diff"] <= self.allowed)].iterrows():
            if self.protocol.differs_by_rounding(
                self.adapter, self.inputs, self.spec, cell.to_dict(), self.allowed
            ):
                both.loc[row, "max_abs_diff"] = 0.0
        return both


def _largest_gaps(both: pd.DataFrame, scale: float, per_logit: float) -> pd.Series:
    """Return the largest difference between both measurements of each cell, in the unit of the
    effect.
    """
    gaps: list[pd.Series] = []
    for when in ("before", "after"):
        change = both[f"value_{when}"] - both[f"value_{when}_again"]
        gaps.append(scale * change.abs())
    gaps.append((both["effect"] - both["effect_again"]).abs())
    for name in (name for name in LOGITS if f"{name}_again" in both):
        same = (both[name] == both[f"{name}_again"]) | (
            both[name].isna() & both[f"{name}_again"].isna()
        )
        gaps.append((per_logit * (both[name] - both[f"{name}_again"]).abs()).mask(same, 0.0))
    return pd.concat(gaps, axis=1).max(axis=1, skipna=False)


def _has_own_functions(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration has code or a function of the user."""
    if config.get("own_code"):
        return True
    return any(str(one).startswith("callable:") for one in config.values())


def _draw_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a data set's record that say which rows were taken."""
    return {name: one for name, one in record.items() if name in _DRAW}


def _compare(again: pd.DataFrame, n: int, allowed: float) -> tuple[str, str]:
    unit = str(again["unit"].iloc[0]).removeprefix("percentage ")
    off = again[~(again["max_abs_diff"] <= allowed)]  # NaN too
    if off.empty:
        largest = (
            f"differ by at most {again['max_abs_diff'].max():.2g} {unit} (allowed: {allowed:.2g})"
        )
        return "match", f"{n} drawn, {len(again)} measured again, {largest}"
    worst = off.loc[
        off["max_abs_diff"].idxmax() if off["max_abs_diff"].notna().any() else off.index[0]
    ].to_dict()
    largest = (
        f"by {worst['max_abs_diff']:.2g} {unit} (allowed: {allowed:.2g}) at {format_cell(worst)}"
    )
    return "mismatch", f"{len(off)} of {len(again)} differ, {largest}"
