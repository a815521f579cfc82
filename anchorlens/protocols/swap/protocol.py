"""The swap protocol: activation patching of residual streams, layer by layer (METHOD 4).

Scope: one model, one data set, one site, one readout in each call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from anchorlens.callables import callable_name
from anchorlens.engine.engine import Engine
from anchorlens.engine.interventions import SwapBatch
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.reference import Oracle
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.plug import Bench, OnWork, Plan, SweepProtocol
from anchorlens.protocols.swap.batching import Batch, plan_swaps
from anchorlens.protocols.swap.findings import swap_contrasts, swap_words
from anchorlens.protocols.swap.pairing import NULL, Pair, build_batch
from anchorlens.protocols.swap.preparing import PreparedSwap, prepared_swap, reached, swap_inputs, trivial
from anchorlens.protocols.swap.restoring import restored_swap
from anchorlens.protocols.swap.spec import Swap
from anchorlens.protocols.sweeps import short_way
from anchorlens.protocols.written import Written
from anchorlens.results.curves import curves_frame, summary_of
from anchorlens.results.sweep import SweepResult
from anchorlens.results.tables import delta_of, samples_frame
from anchorlens.runs.provenance import no_nan
from anchorlens.runs.schema import CELL, CURVE_TYPES
from anchorlens.statistics.bands import auc_band
from anchorlens.statistics.resamples import Resamples
from anchorlens.vocabulary import STATISTIC_RULES, TRUTH_READOUTS

# A share of rows above which a null is called weaker than its anchor's swap.
_MOST = 0.5


def _resolved(spec: Swap) -> dict[str, Any]:
    """What the specification's arguments come to, where that is not what was asked for."""
    rows = spec.donors not in STATISTIC_RULES
    found: dict[str, Any] = {} if rows else {"n_donors": 1}
    # Which answers are true or false is no part of a sweep that reads the answer's own probability.
    return found | ({"donor_label": "same" if rows else "both"} if spec.of_truth else {"answers": "", "distractor": ""})


class SwapProtocol(SweepProtocol[Swap, PreparedSwap]):
    """Streams at an anchor are replaced by a donor's."""

    name, title, spec = "swap", "activation swap", Swap

    def fit_to(self, spec: Swap, adapter: Adapter) -> None:
        """See :class:`SweepProtocol`."""
        adapter.hook_name(spec.site, spec.layers_of(adapter.n_layers)[0])
        if spec.probes is not None and max(spec.probes.layers) >= adapter.n_layers:
            raise InputError(f"These probes read layers {spec.probes.layers}, and the model has {adapter.n_layers}.")

    def prepare(self, bench: Bench, spec: Swap) -> PreparedSwap:
        """See :class:`SweepProtocol`."""
        return prepared_swap(bench, spec)

    def plan(self, engine: Engine, ready: PreparedSwap, spec: Swap) -> Plan:
        """See :class:`SweepProtocol`."""
        reader = ready.reading.make(ready.pairs.pairs)
        cost = plan_swaps(
            engine,
            ready.pairs.pairs,
            reader,
            ready.layers,
            site=spec.site,
            window=spec.window,
            batch_size=spec.batch_size,
            max_memory=spec.max_memory,
            checks=spec.check_cells,
        )
        return Plan(cost.batches, cost, "cell", engine.adapter.device)

    def measure(self, engine: Engine, ready: PreparedSwap, spec: Swap, unit: Batch, on_work: OnWork) -> pd.DataFrame:
        """See :class:`SweepProtocol`."""
        made = self._batch(engine, ready, spec, unit)
        before, after = engine.run_swaps(
            made, site=spec.site, layers=unit.layers, window=spec.window, on_share=lambda share: on_work(share * unit.work)
        )
        pairs = unit.pairs
        rows = pd.DataFrame(
            {
                "example_id": [p.base.row_id for p in pairs],
                "question_id": [p.base.example.question_id for p in pairs],
                "donor_id": [p.donor_id for p in pairs],
                "event": [ready.reading.event(p.base) for p in pairs],
                "site_differs": pd.array([p.site_differs for p in pairs], dtype="boolean"),
            }
        )
        cells: list[tuple[dict[str, object], Metrics]] = []
        for place, metrics in zip(unit.pairs[0].placements, after, strict=True):
            anchor, control = place.anchor, place.control
            own: dict[str, object] = {
                "anchor": anchor, "control": control,
                "trivial": [
                    [control == "none" and trivial(spec, ready.reading, p, anchor, k) for p in pairs] for k in unit.layers
                ],
                "reached": [reached(spec, ready.reading, anchor, control, k) for k in unit.layers],
                "slots": pd.array([p.slots(anchor, "none") for p in pairs], dtype="Int64"),
                "null_slots": pd.array([p.slots(anchor, NULL) for p in pairs], dtype="Int64"),
            }  # fmt: skip
            cells.append((own, metrics))
        return samples_frame(spec.kind, unit.layers, rows, cells, before)

    def longest(self, ready: PreparedSwap) -> int:
        """See :class:`SweepProtocol`."""
        return max(len(row.ids) for p in ready.pairs.pairs for row in (p.target, p.source) if row is not None)

    def cells(self, ready: PreparedSwap, samples: Sequence[Mapping[str, Any]]) -> tuple[PreparedSwap, Batch]:
        """A pair with a single placement for each; their layers, one by one."""
        by_key = {(p.base.row_id, p.donor_id): p for p in ready.pairs.pairs}
        chosen: list[Pair] = []
        for cell in samples:
            pair = by_key[cell["example_id"], cell["donor_id"]]
            place = next(p for p in pair.placements if (p.anchor, p.control) == (cell["anchor"], cell["control"]))
            chosen.append(replace(pair, placements=(place,)))
        return ready, Batch(tuple(chosen), tuple(int(cell["layer"]) for cell in samples))

    def measured_again(
        self, oracle: Oracle, ready: PreparedSwap, spec: Swap, samples: Sequence[Mapping[str, Any]]
    ) -> pd.DataFrame:
        """Each cell is a row of one batch, changed at its own layer."""
        _, unit = self.cells(ready, samples)
        made = self._batch(oracle, ready, spec, unit)
        before, after = oracle.run_cells(made, site=spec.site, layers=unit.layers, window=spec.window)
        events = np.array([ready.reading.event(p.base) for p in unit.pairs], dtype=np.float64)
        pair = before.p.double().numpy(), after.p.double().numpy()
        delta = delta_of(spec.kind, *pair, events)
        measured = {"value_before": pair[0], "value_after": pair[1], "delta_p": delta}
        return pd.DataFrame([{name: cell[name] for name in CELL} for cell in samples]).assign(**measured)

    def restored(self, adapter: Adapter, spec: Swap, written: Written) -> PreparedSwap:
        """See :class:`SweepProtocol`."""
        return restored_swap(adapter, spec, written)

    def _batch(self, engine: Engine, ready: PreparedSwap, spec: Swap, unit: Batch) -> SwapBatch:
        return build_batch(
            engine.adapter,
            unit.pairs,
            site=spec.site,
            rule="" if ready.statistics is None else spec.donors,
            statistics=ready.statistics,
            make_reader=ready.reading.make,
        )

    def keys(self, spec: Swap) -> dict[str, object]:
        """See :class:`SweepProtocol`."""
        site, readout = (one if isinstance(one, str) else callable_name(one) for one in (spec.site, spec.readout))
        return {
            "pathway": "", "site": site, "probe_site": spec.probe_site if readout == "probe" else "", "window": spec.window,
            "direction": spec.direction, "mode": spec.mode, "readout": readout, "delta_kind": spec.kind,
        }  # fmt: skip

    def record(self, ready: PreparedSwap, spec: Swap) -> dict[str, Any]:
        """See :class:`SweepProtocol`."""
        reading = ready.reading
        found: dict[str, Any] = {
            "config": {"delta_kind": spec.kind, **_resolved(spec)},
            "counts": {
                "evaluated": len({p.base.row_id for p in ready.pairs.pairs}), "null_shortfall": ready.pairs.null_shortfall,
                "failed_pairs": ready.pairs.failed_pairs,
                "site_differs": len({p.base.row_id for p in ready.pairs.pairs if p.site_differs}),
            },
        }  # fmt: skip
        if reading.truth is None:
            return found
        found["counts"]["rows"] = reading.truth.sizes
        if reading.probes is not None:
            found["config"] |= {
                "probe_site": reading.probes.site,
                **({"probes": spec.probes.fingerprint} if spec.probes else {}),
            }
        aucs = {} if reading.probes is None else {str(k): p.validation_auc_ for k, p in reading.probes.probes.items()}
        told = {name: {"auc": one.auc, "ci_low": one.ci_low, "ci_high": one.ci_high} for name, one in ready.texts.items()}
        found["probe"] = {
            "k_star": reading.k_star,
            "validation_auc": no_nan(aucs),
            "k_star_over_seeds": [] if reading.probes is None else list(reading.probes.k_star_over_seeds),
            "text_only": None,
            "pair_text": None,
        } | told
        return found

    def inputs(self, ready: PreparedSwap) -> dict[str, Any]:
        """See :class:`SweepProtocol`."""
        return swap_inputs(ready)

    def text_scores(self, ready: PreparedSwap) -> Mapping[str, float]:
        """See :class:`SweepProtocol`."""
        if "pair_text" not in ready.texts or ready.reading.truth is None:
            return {}
        scores = zip(ready.reading.truth.rows, ready.texts["pair_text"].scores.tolist(), strict=True)
        return {row.row_id: score for row, score in scores if score == score}

    def probes(self, ready: PreparedSwap) -> tuple[Any, Mapping[str, Any]]:
        """See :class:`SweepProtocol`."""
        return ready.reading.probes, {}

    def curves(self, result: SweepResult) -> pd.DataFrame:
        """See :class:`SweepProtocol`."""
        config, events = result.record["config"], _events(result)
        curves = curves_frame(result.samples(), n_resamples=config["n_resamples"], seed=config["seed"], event=events)
        return curves.assign(**_auc(result, events), noise_floor=result.noise_floor).astype(CURVE_TYPES)

    def contrasts(self, result: SweepResult) -> pd.DataFrame:
        """Each anchor's curve less its null, and anchors less each other, paired by question."""
        return swap_contrasts(result)

    def summary(self, result: SweepResult) -> pd.DataFrame:
        """One row an anchor: ``max_layer``, where |ΔP| is largest, ΔP with the band over all layers, the null there, P before, n."""
        return summary_of(result.curves(controls=True))

    def words(self, result: SweepResult) -> str:
        """Where an anchor's curve lies off its null, by the band over all anchors and layers."""
        return swap_words(result)

    def settings(self, result: SweepResult) -> str:
        """See :class:`SweepProtocol`."""
        config = result.record["config"]
        label = f", donor label {config['donor_label']}" if config.get("donor_label") else ""
        null = f", null {config['null']}" if config["null_donors"] and "null" in config else ""
        weaker = [f"{anchor} {100 * share:.0f} % of rows" for anchor, share in _weaker(result.curves()).items()]
        said = (
            f"readout {config['readout']}, site {config['site']}, window {config['window']}, {config['direction']}, "
            f"donors {config['donors']} (up to {config['n_donors']}){label}, align {config['align']}, prompt {config['prompt']}, "
            f"known_only {config['known_only']}{null}, seed {config['seed']}"
        )
        return f"{said}\nnull weaker (fewer slots than the anchor): {', '.join(weaker)}" if weaker else said

    def table(self, results: Sequence[SweepResult]) -> tuple[str, pd.DataFrame]:
        """Of every curve the layer of the largest |ΔP|, with the band over all layers."""
        found = pd.concat([self.summary(result) for result in results], ignore_index=True)
        band = [f"[{low:+.1f}, {high:+.1f}]" for low, high in zip(found["sim_low"], found["sim_high"], strict=True)]
        null = [_null_said(*both) for both in zip(found["null"], found["null_short"], strict=True)]
        shown = pd.DataFrame(
            {
                "model": found["model"], "data set": found["dataset"], "anchor": found["anchor"], "max layer": found["max_layer"],
                "ΔP": found["delta_p"].map("{:+.1f}".format), "95 % band over all layers": band, "null": null,
                "P before": found["p_before"].map("{:.2f}".format), "n": found["n"],
            }
        )  # fmt: skip
        return "Largest |ΔP| of each curve (percentage points)", shown


def _weaker(curves: pd.DataFrame) -> dict[str, float]:
    """Anchor -> share of rows whose null has fewer slots, where it is most of them."""
    shares = curves.groupby("anchor", sort=False)["null_short"].first()
    return {str(anchor): float(share) for anchor, share in shares.items() if share > _MOST}


def _null_said(value: float, short: float) -> str:
    """ΔP of the null, and that it is weaker than its anchor's swap where it is in most rows."""
    if np.isnan(value):
        return "-"
    return f"{value:+.1f}" + (f" (weaker: {100 * short:.0f} % of rows have fewer slots)" if short > _MOST else "")


def _events(result: SweepResult) -> dict[str, float] | None:
    """Row id -> 1 where what P speaks of is the case; None for readouts of the answer."""
    readout = result.record["config"]["readout"]
    if readout not in TRUTH_READOUTS:
        return None
    examples = result.examples()
    base = examples[examples["role"] == "base"]
    false = base["label"].to_numpy(dtype=np.float64)
    return dict(zip(base["example_id"], 1 - false if readout == "p_true" else false, strict=True))


def _auc(result: SweepResult, events: Mapping[str, float] | None) -> dict[str, Any]:
    """Clean AUC of a truth readout over the measured rows, with its interval; nothing for other readouts."""
    config = result.record["config"]
    if events is None or config.get("direction") == "denoising":  # there P before is that of the corrupt input
        return {}
    before = result.samples().drop_duplicates("example_id")
    draws = Resamples.of(before["question_id"], n_resamples=config["n_resamples"], seed=config["seed"])
    auc, many = draws.aucs(before["value_before"].to_numpy(), before["example_id"].map(events).to_numpy(dtype=np.float64))
    found = auc_band(np.array([auc]), many[:, None], np.array([before["question_id"].nunique()]))
    low, high = float(found.low[0]), float(found.high[0])
    return {"auc": auc, "auc_low": low, "auc_high": high, "signal": pd.NA if np.isnan(low) else low > 0.5}


PROTOCOL = SwapProtocol()
swap_sweep = short_way(PROTOCOL, Swap, SweepResult)

__all__ = ["PROTOCOL", "SwapProtocol", "swap_sweep"]
