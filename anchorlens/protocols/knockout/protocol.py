"""The knockout protocol: attention from the exact question tokens is cut, and a truth probe is read (METHOD 5).

Scope: one model, one data set, one set of edges in each call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from anchorlens.edges import parse_edges
from anchorlens.engine.engine import Engine
from anchorlens.engine.knockout import check_heads
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.knockout.batching import plan_knockout
from anchorlens.protocols.knockout.cut_tokens import RANDOM, RowCuts, named_positions, row_cuts
from anchorlens.protocols.knockout.measuring import PreparedKnockout, RowUnit, measured_rows
from anchorlens.protocols.knockout.spec import Knockout
from anchorlens.protocols.plug import Bench, OnWork, Plan
from anchorlens.protocols.sweeps import short_way
from anchorlens.protocols.truth_probing import TruthPlan, TruthProtocol, fitted_probes, labelled_rows, probe_record
from anchorlens.protocols.written import Written
from anchorlens.questions.example import Dropped
from anchorlens.questions.tokenised import drop
from anchorlens.questions.tokens import TokenRow
from anchorlens.results.pathways import PathwayResult, cut_contrasts, pathway_samples, pathway_summary
from anchorlens.results.verdict import knockout_verdict
from anchorlens.vocabulary import LATER


class KnockoutProtocol(TruthProtocol[Knockout, PreparedKnockout]):
    """Attention edges are cut."""

    name, title, spec = "knockout", "attention knockout", Knockout

    def fit_to(self, spec: Knockout, adapter: Adapter) -> None:
        """See :class:`SweepProtocol`."""
        super().fit_to(spec, adapter)
        last = adapter.n_layers - 1
        if spec.cut_layers is not None and spec.cut_layers[1] > last:
            raise InputError(f"cut_layers must be first and last layer, from 0 to {last}; got {spec.cut_layers}.")
        if spec.heads is not None:
            check_heads(spec.heads, adapter.shape.n_heads)

    def prepare(self, bench: Bench, spec: Knockout) -> PreparedKnockout:
        """See :class:`SweepProtocol`."""
        truth, dropped = labelled_rows(bench, spec)
        test = tuple(range(len(truth.rows)) if spec.readout == "p_true" else truth.of("test"))
        cuts = tuple(
            row_cuts(
                truth.rows[i], spec.edges, spec.seed, placebos=spec.placebos, sides=spec.placebo_sides,
                named=named_positions(truth.rows[i], bench.tokenizer),
            )
            for i in test
        )  # fmt: skip
        uncut = tuple(_no_edge(truth.rows[i]) for i, cut in zip(test, cuts, strict=True) if not cut.sources)
        if len(uncut) == len(cuts):
            raise InputError(
                f"edges={spec.edges!r} cut nothing in any row: no target stands after the source and before the end of the input. "
                "Name a source that comes before its target, for example 'question -> later'."
            )
        n_layers = bench.adapter.n_layers
        return PreparedKnockout(
            (*dropped, *uncut), truth.rows[0].ids, (spec.probe_site,) if spec.readout == "probe" else (), spec.layers_of(n_layers),
            truth, test, bench.model_name, bench.data.name, {}, cuts, spec.cut_layers or (0, n_layers - 1),
        )  # fmt: skip

    def plan(self, engine: Engine, ready: PreparedKnockout, spec: Knockout) -> TruthPlan:
        """See :class:`SweepProtocol`."""
        return plan_knockout(engine, ready, spec)

    def fit(self, engine: Engine, ready: PreparedKnockout, spec: Knockout, plan: Plan, on_work: OnWork) -> PreparedKnockout:
        """See :class:`SweepProtocol`."""
        if spec.readout != "probe":
            return ready
        assert isinstance(plan, TruthPlan)  # what plan() gave
        probes = fitted_probes(engine, ready, spec, plan, on_work, placebos=spec.placebos, allowed=ready.cut_layers)
        return replace(ready, probes=probes)

    def measure(self, engine: Engine, ready: PreparedKnockout, spec: Knockout, unit: RowUnit, on_work: OnWork) -> pd.DataFrame:
        """See :class:`SweepProtocol`."""
        measured = measured_rows(engine, ready, spec, unit, on_work)
        rows = [ready.row(j) for j in unit.tests]
        return pathway_samples(
            spec.anchor, spec.delta_kind, unit.layers, rows, measured, event_is_true=spec.readout == "p_true"
        )

    def nothing(self, ready: PreparedKnockout, spec: Knockout) -> str:
        """See :class:`SweepProtocol`."""
        at = f" and a probe at layer {ready.k_star}" if ready.probes else ""
        return f"No layer of {ready.layers} can be changed by cuts in layers {ready.allowed} with window {spec.window}{at}."

    def cells(self, ready: PreparedKnockout, samples: Sequence[Mapping[str, Any]]) -> tuple[PreparedKnockout, RowUnit]:
        """Their rows with their own variants, at their layers and at k*, where the pathway is decided."""
        number = {ready.row(j).row_id: j for j in range(len(ready.test))}
        layers = {*(int(cell["layer"]) for cell in samples), *([ready.k_star] if ready.k_star is not None else [])}
        wanted: dict[int, set[str]] = {}
        for cell in samples:
            wanted.setdefault(number[cell["example_id"]], set()).add(cell["control"])
        cuts = tuple(cut.only(wanted[j]) if j in wanted else cut for j, cut in enumerate(ready.cuts))
        return replace(ready, cuts=cuts), RowUnit(tuple(sorted(wanted)), tuple(sorted(layers)))

    def restored(self, adapter: Adapter, spec: Knockout, written: Written) -> PreparedKnockout:  # noqa: ARG002
        """See :class:`SweepProtocol`."""
        target = parse_edges(spec.edges)[1]
        cuts = tuple(
            RowCuts(
                {name.removeprefix("cut:"): where for name, where in row.positions.items() if name.startswith("cut:")},
                None if target == LATER else row.positions[target],
            )
            for row in written.of("base")
        )
        first, last = written.config["cut_layers"]
        return PreparedKnockout(**written.truth(spec.probe_site), cuts=cuts, allowed=(first, last))

    def keys(self, spec: Knockout) -> dict[str, object]:
        """See :class:`SweepProtocol`."""
        heads = "" if spec.heads is None else f", heads {','.join(map(str, spec.heads))}"
        return {
            "site": "", "probe_site": spec.probe_site if spec.readout == "probe" else "", "window": spec.window or 0,
            "direction": "noising", "mode": spec.mode + heads, "readout": spec.readout, "delta_kind": spec.delta_kind,
        }  # fmt: skip

    def record(self, ready: PreparedKnockout, spec: Knockout) -> dict[str, Any]:
        """See :class:`SweepProtocol`."""
        without = sum(not cut.sources for cut in ready.cuts)
        return {
            "config": {"anchors": [spec.anchor], "cut_layers": list(ready.allowed)},
            "counts": {
                "evaluated": len(ready.test) - without, "rows": ready.truth.sizes, "without_edge": without,
                "without_placebo": sum(RANDOM not in cut.sources for cut in ready.cuts) - without if spec.placebos else 0,
            },
            "probe": probe_record(ready, spec),
        }  # fmt: skip

    def inputs(self, ready: PreparedKnockout) -> dict[str, Any]:
        """Test rows as ``base``, the rows that probes were fitted on as ``train`` and ``validation``."""
        cut = [(ready.row(j), cuts) for j, cuts in enumerate(ready.cuts) if cuts.sources]
        tested, rows = set(ready.test), ready.truth.rows
        inputs = {"base": [row for row, _ in cut]} | {
            name: [rows[i] for i in ready.truth.of(name) if i not in tested] for name in ("train", "validation")
        }
        where = {row.row_id: {f"cut:{v}": list(p) for v, p in cuts.sources.items()} for row, cuts in cut}
        return {"inputs": inputs, "donor_ids": {}, "positions": where}

    def contrasts(self, result: PathwayResult) -> pd.DataFrame:
        """At each layer the contrasts that are claimed, AUCs and text baselines, and the gaps that describe the picture."""
        return cut_contrasts(result)

    def summary(self, result: PathwayResult) -> pd.DataFrame:
        """What stands at k*, in one row."""
        return pathway_summary(result)

    def words(self, result: PathwayResult) -> str:
        """What stands beyond the controls, and what does not."""
        return knockout_verdict(result.record, result.shown_layer, result.effects())

    def settings(self, result: PathwayResult) -> str:
        """See :class:`SweepProtocol`."""
        config, rows = result.record["config"], result.record["counts"]["rows"]
        return (
            f"cut {config['edges']}, mode {config['mode']}, readout {config['readout']}, {config['answers']} answers, "
            f"distractor {config['distractor']}, split {config['split']}, prompt {config['prompt']}, seed {config['seed']}\n"
            f"rows: {', '.join(f'{name} {n}' for name, n in rows.items())}"
        )

    def table(self, results: Sequence[PathwayResult]) -> tuple[str, pd.DataFrame]:
        """AUCs, contrasts and pathways at k*."""
        found = pd.concat([self.summary(result) for result in results], ignore_index=True)
        empty = pd.Series(float("nan"), index=found.index)

        def shown(name: str, form: str) -> pd.Series:
            return found.get(name, empty).map(lambda v: "-" if pd.isna(v) else form.format(v))

        table = pd.DataFrame(
            {
                "model": found["model"], "data set": found["dataset"], "layer": found["layer"], "AUC": shown("auc", "{:.2f}"),
                "cut": shown("auc_cut", "{:.2f}"), "others cut": shown("auc_placebo", "{:.2f}"),
                "pair text": shown("pair_text_auc", "{:.2f}"), "delta_all": shown("delta_all", "{:+.1f}"),
                "flip_rate": shown("flip_rate", "{:+.1f}"), "auc_drop": shown("auc_drop", "{:+.2f}"),
                "own_change": shown("own_change", "{:+.1f}"),
                "Q (n)": shown("q", "{:+.1f}") + " (" + found["n_q"].map(str) + ")",
                "A (n)": shown("a", "{:+.1f}") + " (" + found["n_a"].map(str) + ")",
            }
        )  # fmt: skip
        title = "Knockout at k*: AUC, contrasts with other question tokens cut, then the pathways (selected)"
        return title, table


def _no_edge(row: TokenRow) -> Dropped:
    """The record of a row in which the edges cut nothing."""
    return replace(drop(row.example, "no_edge", "no target after the source"), example_id=row.row_id)


PROTOCOL = KnockoutProtocol()
knockout_sweep = short_way(PROTOCOL, Knockout, PathwayResult)

__all__ = ["PROTOCOL", "KnockoutProtocol", "knockout_sweep"]
