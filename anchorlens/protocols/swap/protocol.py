"""The swap protocol: activation patching of residual streams, layer by layer (METHOD 4).

Scope: one model, one data set, one site, one readout in each call.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from anchorlens.callables import callable_name
from anchorlens.engine.readouts import Metrics
from anchorlens.engine.select import Engine
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.driver import short_way
from anchorlens.protocols.plug import Bench, OnWork, Plan, SweepProtocol
from anchorlens.protocols.swap.batching import Batch, plan_swaps
from anchorlens.protocols.swap.pairing import NULL, Pair, build_batch
from anchorlens.protocols.swap.preparing import PreparedSwap, prepared_swap, reached, swap_inputs, trivial
from anchorlens.protocols.swap.spec import Swap
from anchorlens.results.curves import curves_frame, summary_of
from anchorlens.results.sweep import SweepResult
from anchorlens.results.tables import samples_frame
from anchorlens.runs.provenance import no_nan
from anchorlens.runs.schema import CURVE_TYPES, EFFECT_COLUMNS
from anchorlens.statistics.pathways import quantity_frame
from anchorlens.statistics.resamples import Resamples, interval
from anchorlens.truth.text_baseline import text_only


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
            window=spec.window,
            batch_size=spec.batch_size,
            max_memory=spec.max_memory,
        )
        return Plan(cost.batches, cost, "cell")

    def measure(self, engine: Engine, ready: PreparedSwap, spec: Swap, unit: Batch, on_work: OnWork) -> pd.DataFrame:
        """See :class:`SweepProtocol`."""
        made = build_batch(
            engine.adapter,
            unit.pairs,
            site=spec.site,
            rule="" if ready.statistics is None else spec.donors,
            statistics=ready.statistics,
            make_reader=ready.reading.make,
        )
        before, after = engine.run_swaps(
            made, site=spec.site, layers=unit.layers, window=spec.window, on_share=lambda share: on_work(share * unit.work)
        )
        rows = pd.DataFrame(
            {
                "example_id": [p.base.row_id for p in unit.pairs],
                "question_id": [p.base.example.question_id for p in unit.pairs],
                "donor_id": [p.donor_id for p in unit.pairs],
                "event": [ready.reading.event(p.base) for p in unit.pairs],
            }
        )
        cells: list[tuple[dict[str, object], Metrics]] = []
        for place, metrics in zip(unit.pairs[0].placements, after, strict=True):
            marks = [place.control == "none" and trivial(spec, ready.reading, place.anchor, k) for k in unit.layers]
            there = [reached(spec, ready.reading, place.anchor, place.control, k) for k in unit.layers]
            own = {"anchor": place.anchor, "control": place.control, "trivial": np.array(marks), "reached": np.array(there)}
            cells.append((own, metrics))
        return samples_frame(spec.kind, unit.layers, rows, cells, before)

    def rows(self, ready: PreparedSwap) -> Sequence[Pair]:
        """See :class:`SweepProtocol`."""
        return ready.pairs.pairs

    def alone(self, ready: PreparedSwap, plan: Plan, row: Pair) -> Sequence[Batch]:  # noqa: ARG002
        """A pair alone; where it was alone already, in parts."""
        own = next((b for b in plan.units if len(b.pairs) == 1 and b.pairs[0] is row), None)
        whole = own or Batch((row,), plan.units[0].layers)
        parts = whole.split() or (Batch((row, row), whole.layers),)
        return parts if own is not None else (whole,)

    def cell(self, ready: PreparedSwap, sample: Mapping[str, Any]) -> Batch:
        """See :class:`SweepProtocol`."""
        key = (sample["example_id"], sample["donor_id"])
        pair = next(p for p in ready.pairs.pairs if (p.base.row_id, p.donor_id) == key)
        place = next(p for p in pair.placements if (p.anchor, p.control) == (sample["anchor"], sample["control"]))
        return Batch(
            (Pair(pair.base, pair.target, pair.source, pair.donor, pair.donor_id, (place,)),), (int(sample["layer"]),)
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
            "config": {"delta_kind": spec.kind},
            "counts": {
                "evaluated": len({p.base.row_id for p in ready.pairs.pairs}), "null_shortfall": ready.pairs.null_shortfall,
                "failed_pairs": ready.pairs.failed_pairs,
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
        labels = {name: {reading.truth.rows[i].answer.label for i in reading.truth.of(name)} for name in ("train", "test")}
        readable = all(len(both) == 2 for both in labels.values())
        aucs = {} if reading.probes is None else {str(k): p.validation_auc_ for k, p in reading.probes.probes.items()}
        alone = text_only(reading.truth, n_resamples=spec.n_resamples, seed=spec.seed) if readable else None
        found["probe"] = {"k_star": reading.k_star, "validation_auc": no_nan(aucs), "text_only": alone}
        return found

    def inputs(self, ready: PreparedSwap) -> dict[str, Any]:
        """See :class:`SweepProtocol`."""
        # Only the mean of other rows can be made again from their inputs.
        return swap_inputs(ready, mean=ready.pairs.pairs[0].donor_id == "mean")

    def probes(self, ready: PreparedSwap) -> tuple[Any, Mapping[str, Any]]:
        """See :class:`SweepProtocol`."""
        return ready.reading.probes, {}

    def curves(self, result: SweepResult) -> pd.DataFrame:
        """See :class:`SweepProtocol`."""
        config = result.record["config"]
        curves = curves_frame(result.samples(), n_resamples=config["n_resamples"], seed=config["seed"])
        return curves.assign(**_auc(result), noise_floor=result.noise_floor).astype(CURVE_TYPES)

    def contrasts(self, result: SweepResult) -> pd.DataFrame:
        """``less_null``: of each anchor its curve less its null, paired by question; ``control`` is the anchor's name."""
        samples, config = result.samples(), result.record["config"]
        with_null = samples.loc[samples["control"] == NULL, ["example_id", "donor_id", "anchor"]].drop_duplicates()
        # Only donors that measured the null too are compared with it.
        both = samples.merge(with_null, on=["example_id", "donor_id", "anchor"])
        frames: list[pd.DataFrame] = []
        for anchor, own in both.groupby("anchor", sort=False):
            means = own.groupby(["example_id", "question_id", "layer", "control"])["delta_p"].mean().unstack("control")
            if not {"none", NULL} <= set(means.columns):
                continue
            wide = (means["none"] - means[NULL]).unstack("layer").reindex(columns=list(result.layers))
            values = wide.to_numpy(dtype=np.float64)
            ids = wide.index.get_level_values("question_id")
            draws = Resamples.of(ids, n_resamples=config["n_resamples"], seed=config["seed"])
            mean, many, n = draws.means(values, ~np.isnan(values))
            frames.append(quantity_frame(result.layers, "less_null", str(anchor), mean, many, n))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(EFFECT_COLUMNS))

    def summary(self, result: SweepResult) -> pd.DataFrame:
        """One row an anchor: the layer of the strongest effect, ΔP with interval, the null there, P before, n."""
        return summary_of(result.curves(controls=True))

    def words(self, result: SweepResult) -> str:  # noqa: ARG002
        """None yet: a curve's strongest layer is chosen by looking, so its pointwise interval is no finding."""
        return ""

    def settings(self, result: SweepResult) -> str:
        """See :class:`SweepProtocol`."""
        config = result.record["config"]
        return (
            f"readout {config['readout']}, site {config['site']}, window {config['window']}, {config['direction']}, "
            f"donors {config['donors']} (up to {config['n_donors']}), align {config['align']}, prompt {config['prompt']}, "
            f"known_only {config['known_only']}, seed {config['seed']}"
        )

    def table(self, results: Sequence[SweepResult]) -> tuple[str, pd.DataFrame]:
        """The strongest effect of every curve."""
        found = pd.concat([self.summary(result) for result in results], ignore_index=True)
        band = [f"[{low:+.1f}, {high:+.1f}]" for low, high in zip(found["ci_low"], found["ci_high"], strict=True)]
        shown = pd.DataFrame(
            {
                "model": found["model"], "data set": found["dataset"], "anchor": found["anchor"], "layer": found["layer"],
                "ΔP": found["delta_p"].map("{:+.1f}".format), "95 % interval": band,
                "null": found["null"].map(lambda v: "-" if np.isnan(v) else f"{v:+.1f}"),
                "P before": found["p_before"].map("{:.2f}".format), "n": found["n"],
            }
        )  # fmt: skip
        return "Strongest effect of each curve (ΔP in percentage points)", shown


def _auc(result: SweepResult) -> dict[str, Any]:
    """Clean AUC of a truth readout over the measured rows, with its interval; nothing for other readouts."""
    config = result.record["config"]
    if config["readout"] not in ("probe", "p_true"):
        return {}
    examples = result.examples()
    base = examples[examples["role"] == "base"].set_index("example_id")
    before = result.samples().groupby("example_id", sort=False)["value_before"].first()
    labels = base.loc[before.index, "label"].to_numpy(dtype=np.float64)
    event = 1 - labels if config["readout"] == "p_true" else labels
    ids = base.loc[before.index, "question_id"].to_numpy()
    draws = Resamples.of(ids, n_resamples=config["n_resamples"], seed=config["seed"])
    auc, many = draws.aucs(before.to_numpy(), event)
    low, high = interval(many[:, None], np.array([True]))
    known = bool(low[0] == low[0])
    return {"auc": auc, "auc_low": low[0], "auc_high": high[0], "signal": bool(low[0] > 0.5) if known else pd.NA}


PROTOCOL = SwapProtocol()
swap_sweep = short_way(PROTOCOL, Swap, SweepResult)

__all__ = ["PROTOCOL", "SwapProtocol", "swap_sweep"]
