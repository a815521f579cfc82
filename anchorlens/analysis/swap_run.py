"""Measuring a prepared swap sweep: batches, spot checks against the oracle, the noise floor, and the record of it all."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from tqdm.auto import tqdm

from anchorlens.analysis.checks import check_gap, check_sample, noise_record, noise_sample, oracle_of
from anchorlens.analysis.pairs import Pair, Pairs, build_batch
from anchorlens.analysis.readings import Reading
from anchorlens.analysis.rows import Rows, tick
from anchorlens.analysis.stream_statistics import StreamStatistics
from anchorlens.analysis.swap_config import SwapConfig
from anchorlens.analysis.swap_plan import Batch, SwapSweepPlan, plan_swaps
from anchorlens.analysis.truth import TruthRows, text_only
from anchorlens.engine.plan import RunOptions, out_of_memory, warn_of_split
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.select import Engine, choose_engine
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.models.card import card_of
from anchorlens.questions.datasets import QAData
from anchorlens.questions.example import Dropped
from anchorlens.questions.tokens import TokenRow
from anchorlens.results.provenance import data_record, environment, model_record, no_nan, run_id_of
from anchorlens.results.sweep import SweepResult, examples_frame, samples_frame

_CELL = ["example_id", "donor_id", "anchor", "control", "layer"]


@dataclass(frozen=True)
class PreparedSweep:
    """A sweep that is ready to run."""

    config: SwapConfig
    data: QAData
    rows: Rows
    pairs: Pairs
    dropped: tuple[Dropped, ...]
    statistics: StreamStatistics | None
    reading: Reading


def run_sweep(adapter: Adapter, sweep: PreparedSweep, *, site: SiteLike, options: RunOptions) -> SweepResult:
    """Measure every cell. See :func:`anchorlens.analysis.swap.swap_sweep`.

    Raises:
        InputError: No cell can reach what is read, or nothing fits into the memory that was given.
        CheckError: A cell that was measured again by the oracle came out differently.
    """
    config, reading, pairs = sweep.config, sweep.reading, sweep.pairs.pairs
    layers = tuple(
        layer
        for layer in config.layers
        if any(_reached(config, reading, anchor, "none", layer, site) for anchor in config.anchors)
    )
    if not layers:
        raise InputError(
            f"The probe reads layer {reading.k_star}, and no change at layers {config.layers} of {config.site} can reach it. "
            "Take lower layers."
        )
    card, reader = card_of(adapter.model), reading.make(pairs)
    read_at = [reader.where[0]] if reader.where is not None else []
    engine = choose_engine(adapter, options.engine, pairs[0].target.ids, [site, *read_at])
    plan = plan_swaps(
        engine, pairs, reader, layers, window=config.window, batch_size=options.batch_size, max_memory=options.max_memory
    )
    if options.on_plan is not None:
        options.on_plan(plan)
    ids = {"model": card.name, "dataset": sweep.data.name}
    run_id = run_id_of(asdict(config), model_record(card), data_record(sweep.data))
    keys = {**_keys(config), **ids, "run_id": run_id}
    run = _Run(adapter, engine, sweep, keys, site)
    label = f"swap {card.name} {sweep.data.name}"
    with tqdm(
        total=plan.cells, desc=label, unit="cell", unit_scale=True, disable=not options.progress, dynamic_ncols=True
    ) as bar:
        frames = [run.measured(batch, partial(tick, bar)) for batch in plan.batches]
        bar.set_postfix_str("noise floor")
        samples = pd.concat(frames, ignore_index=True)
        noise = run.noise(plan, samples)
        bar.set_postfix_str("checks")
        checks = run.checked(samples, options.check_cells, noise)
        bar.set_postfix_str("")
    record = {
        "config": asdict(config),
        "model": model_record(card),
        "data": data_record(sweep.data),
        "environment": environment(adapter.device),
        "plan": {**plan.to_dict(), "split": run.splits},
        "noise": noise_record(noise, checks),
        "checks": checks,
        "counts": {
            "evaluated": len({p.base.row_id for p in pairs}),
            "dropped": dict(Counter(d.reason for d in sweep.dropped).most_common()),
            "null_shortfall": sweep.pairs.null_shortfall,
            "failed_pairs": sweep.pairs.failed_pairs,
        },
    }
    if reading.truth is not None:
        record["probe"] = _probe_record(config, reading, reading.truth)
        record["counts"]["rows"] = reading.truth.sizes
    return SweepResult.make(samples, _examples(sweep, run_id), record, run_id).with_probes(reading.probes)


class _Run:
    """Measures batches of a sweep, and some of them again.

    Attributes:
        splits: How many batches had to be split because memory ran out.
    """

    def __init__(
        self, adapter: Adapter, engine: Engine, sweep: PreparedSweep, keys: dict[str, object], site: SiteLike
    ) -> None:
        self.adapter, self.engine, self.sweep, self.keys, self.site = adapter, engine, sweep, keys, site
        self.splits = 0

    def measured(self, batch: Batch, on_cells: Callable[[float], object]) -> pd.DataFrame:
        """Rows of ``samples.parquet`` of a batch; of its micro-batches where memory runs out."""
        try:
            cells = len(batch.pairs) * len(batch.pairs[0].placements) * len(batch.layers)
            return self._frame(self.engine, batch, lambda share: on_cells(share * cells))
        except (RuntimeError, MemoryError) as why:
            parts = batch.split()
            if not out_of_memory(why) or not parts:
                raise
        # Outside the handler, so that the failed pass is let go of before its parts begin.
        self.splits += 1
        if self.adapter.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.splits == 1:
            warn_of_split()
        return pd.concat([self.measured(part, on_cells) for part in parts], ignore_index=True)

    def _frame(self, engine: Engine, batch: Batch, on_share: Callable[[float], object] | None = None) -> pd.DataFrame:
        config, reading = self.sweep.config, self.sweep.reading
        made = build_batch(
            self.adapter,
            batch.pairs,
            site=self.site,
            rule=config.donors,
            statistics=self.sweep.statistics,
            make_reader=reading.make,
        )
        before, after = engine.run_swaps(
            made, site=self.site, layers=batch.layers, window=config.window, on_share=on_share or (lambda _: None)
        )
        return samples_frame(
            self.keys, batch.layers, *_columns(config, reading, self.site, batch.layers, batch.pairs, before, after)
        )

    def noise(self, plan: SwapSweepPlan, samples: pd.DataFrame) -> dict[str, object]:
        """How far ΔP of a cell moves when nothing changes but its company: other batch sizes, another order.

        Some pairs are measured once more, each alone; where one was alone already, in parts.
        """
        some = noise_sample(self.sweep.pairs.pairs, self.engine, self.sweep.config.seed)
        alone = {id(b.pairs[0]): b for b in plan.batches if len(b.pairs) == 1}
        batches: list[Batch] = []
        for pair in some:
            whole = alone.get(id(pair), Batch((pair,), plan.batches[0].layers))
            parts = whole.split() or [Batch((pair, pair), whole.layers)]
            batches += parts if id(pair) in alone else [whole]
        again = pd.concat([self.measured(b, lambda _: None) for b in batches], ignore_index=True)
        gaps = _gaps(samples, again)
        return {"floor": float(gaps.max()) if len(gaps) else 0.0, "rows": len(some), "cells": len(gaps)}

    def checked(self, samples: pd.DataFrame, k: int, noise: dict[str, object]) -> dict[str, object]:
        """Random cells, measured again by the oracle.

        Raises:
            CheckError: One came out differently.
        """
        if self.engine.cone is None or not k:
            return {"cells": 0, "largest_difference": None}
        chosen = check_sample(range(len(samples)), k, self.sweep.config.seed)
        pairs = {(p.base.row_id, p.donor_id): p for p in self.sweep.pairs.pairs}
        oracle = oracle_of(self.engine)
        largest = 0.0
        for cell in samples.iloc[sorted(chosen)].itertuples():
            pair = pairs[str(cell.example_id), str(cell.donor_id)]
            place = next(p for p in pair.placements if (p.anchor, p.control) == (cell.anchor, cell.control))
            again = self._frame(oracle, Batch((replace(pair, placements=(place,)),), (int(str(cell.layer)),)))
            gap = float(_gaps(samples, again).max())
            where = f"example {cell.example_id}, donor {cell.donor_id}, anchor {cell.anchor}, layer {cell.layer}"
            check_gap(gap, self.adapter, float(str(noise["floor"])), where)
            largest = max(largest, gap)
        return {"cells": len(chosen), "largest_difference": largest}


def _gaps(samples: pd.DataFrame, again: pd.DataFrame) -> pd.Series:
    """|Difference of ΔP| of the cells that are in both."""
    both = samples.merge(again.drop_duplicates(_CELL), on=_CELL, suffixes=("", "_again"))
    return (both["delta_p"] - both["delta_p_again"]).abs()


def _probe_record(config: SwapConfig, reading: Reading, truth: TruthRows) -> dict[str, object]:
    """k*, the probes' validation AUC, and what the answers' text alone tells."""
    aucs = {} if reading.probes is None else {str(k): p.validation_auc_ for k, p in reading.probes.probes.items()}
    readable = all(len({truth.rows[i].answer.label for i in truth.of(name)}) == 2 for name in ("train", "test"))
    alone = text_only(truth, n_resamples=config.n_resamples, seed=config.seed) if readable else None
    return {"k_star": reading.k_star, "validation_auc": no_nan(aucs), "text_only": alone}


def _keys(config: SwapConfig) -> dict[str, object]:
    return {
        "protocol": "swap", "pathway": "", "site": config.site, "window": config.window, "direction": config.direction,
        "mode": config.mode, "readout": config.readout, "delta_kind": config.delta_kind, "seed": config.seed,
    }  # fmt: skip


def _columns(
    config: SwapConfig,
    reading: Reading,
    site: SiteLike,
    layers: Sequence[int],
    pairs: Sequence[Pair],
    before: Metrics,
    after: Sequence[Metrics],
) -> tuple[pd.DataFrame, list[tuple[dict[str, object], Metrics]], Metrics]:
    """One frame row for each pair, one entry for each anchor and control, and the clean metrics."""
    rows = pd.DataFrame(
        {
            "example_id": [p.base.row_id for p in pairs],
            "question_id": [p.base.example.question_id for p in pairs],
            "donor_id": [p.donor_id for p in pairs],
            "event": [reading.event(p.base) for p in pairs],
        }
    )
    cells: list[tuple[dict[str, object], Metrics]] = []
    for place, metrics in zip(pairs[0].placements, after, strict=True):
        trivial = [place.control == "none" and _is_trivial(config, reading, place.anchor, layer) for layer in layers]
        reached = [_reached(config, reading, place.anchor, place.control, layer, site) for layer in layers]
        own = {"anchor": place.anchor, "control": place.control, "trivial": np.array(trivial), "reached": np.array(reached)}
        cells.append((own, metrics))
    return rows, cells, before


def _reached(config: SwapConfig, reading: Reading, anchor: str, control: str, layer: int, site: SiteLike) -> bool:
    """Whether a cell can reach what is read."""
    first = max(0, layer - (config.window - 1) // 2)
    return reading.reaches(first, site, at_answer=anchor == "answer" and control == "none")


def _is_trivial(config: SwapConfig, reading: Reading, anchor: str, layer: int) -> bool:
    """Whether a cell's value says nothing: it follows from how the cell is made.

    The donor's answer tokens come in as inputs at layer 0 of ``answer_site_all``; and where the probe's own state at k* is put
    there, the probe reads the donor.
    """
    first = layer - (config.window - 1) // 2
    if anchor == "answer_site_all" and config.site == "resid_pre" and first <= 0:
        return True
    return anchor == "answer" and reading.k_star is not None and first <= reading.k_star < first + config.window


def _examples(plan: PreparedSweep, run_id: str) -> pd.DataFrame:
    """Base rows, donors, corrupt inputs and dropped rows of a sweep."""
    donors: dict[str, TokenRow] = {}
    donor_ids: dict[str, list[str]] = {}
    nulls: dict[str, dict[str, list[int]]] = {}
    corrupt: dict[str, TokenRow] = {}
    for pair in plan.pairs.pairs:
        donor_ids.setdefault(pair.base.row_id, []).append(pair.donor_id)
        if pair.donor is not None:
            donors[pair.donor.row_id] = pair.donor
        if pair.target is not pair.base:
            corrupt[pair.target.row_id] = pair.target
        for place in pair.placements:
            if place.control == "null":
                nulls.setdefault(pair.target.row_id, {})[f"null:{place.anchor}:{pair.donor_id}"] = list(place.target)
    if plan.statistics is not None:
        donors = {row.row_id: row for row in plan.statistics.reference} if plan.config.donors == "mean" else {}
    base = [row for row in plan.rows.rows if row.row_id in donor_ids]
    truth, measured = plan.reading.truth, plan.reading.rows or ()
    fitted: dict[str, list[TokenRow]] = {}
    if truth is not None and len(measured) < len(truth.rows):  # p_true measures every row
        fitted = {name: [truth.rows[i] for i in truth.of(name)] for name in ("train", "validation")}
    inputs = {"base": base, **fitted, "donor": list(donors.values()), "corrupt": list(corrupt.values())}
    return examples_frame(
        run_id, plan.data.name, plan.config.prompt, inputs=inputs, dropped=plan.dropped, donor_ids=donor_ids, positions=nulls
    )


__all__ = ["PreparedSweep", "run_sweep"]
