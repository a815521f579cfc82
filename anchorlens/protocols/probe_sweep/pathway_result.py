"""The result of a protocol that reads a truth probe: rows in two pathways, and what each costs under every control (METHOD 5)."""

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import override

from anchorlens.missing_values import without_nulls
from anchorlens.results.estimates import Fact, facts_at
from anchorlens.results.sweep import Analysis, SweepResult
from anchorlens.runs.schema import CURVE_COLUMNS, CURVE_KEYS, CURVE_TYPES, P
from anchorlens.statistics.bands import band
from anchorlens.statistics.contrasts import (
    Arm,
    Estimate,
    auc_difference,
    auc_of,
    delta_p_vs_placebo,
    flip_rate,
    row_specific_effect,
)
from anchorlens.statistics.delta import support
from anchorlens.statistics.pathways import ALL, CROSS_FOLD, SHUFFLED, A, Group, Q, group_curves, quantity_frame
from anchorlens.statistics.resamples import Resamples

Array = npt.NDArray[np.float64]
_GROUPS = {"q": Q, "a": A, "all": ALL}


@dataclass(frozen=True)
class ControlArrays:
    """Samples of one control and metric as arrays, [layer row], averaged over donors; NaN where there is no sample."""

    before: Array
    after: Array
    delta: Array
    q: npt.NDArray[np.bool_]


class GroupMean(NamedTuple):
    """Mean change of a group of rows at one layer, in points, and its number of questions."""

    mean: float
    n: int


@dataclass(frozen=True, repr=False)
class PathwayResult(SweepResult):
    """What a sweep measured whose rows fall into pathways; frozen."""

    @property
    def probe_layer(self) -> int | None:
        """k*: the lowest layer within one standard error of the best validation AUC; None for ``p_true``."""
        return self.record["probe"]["probe_layer"]

    @property
    def shown_layer(self) -> int:
        """The layer that summary and verdict speak of: k*, else the nearest measured one below or above; the last for ``p_true``."""
        table = self.tables()["none"].after
        measured = [layer for layer, row in zip(self.layers, table, strict=True) if not np.isnan(row).all()]
        below = [layer for layer in measured if self.probe_layer is None or layer <= self.probe_layer]
        return (below or measured)[-1]

    @property
    def answer_text_auc(self) -> dict[str, float]:
        """AUC of a classifier that sees the answer's text alone, with its interval: ``auc``, ``ci_low``, ``ci_high``."""
        return dict(self.record["probe"]["answer_text_auc"])

    @property
    def qa_text_auc(self) -> dict[str, float] | None:
        """The same of a classifier that sees question and answer; None in runs of before it was measured."""
        found = self.record["probe"].get("qa_text_auc")
        return None if found is None else dict(found)

    @property
    def labels(self) -> Array:
        """1 where what P speaks of is the case, in the order of :attr:`example_ids`."""
        base = self._examples[self._examples["role"] == "base"]
        labels = base["label"].to_numpy(dtype=np.float64)
        return 1 - labels if self.record["config"]["readout"] == "p_true" else labels

    @property
    def draws(self) -> Resamples:
        """The resamples of questions that serve every curve, gap and AUC of the sweep."""
        if "draws" not in self._memo:
            base = self._examples[self._examples["role"] == "base"]
            config = self.record["config"]
            ids = base["question_id"].to_numpy()
            self._memo["draws"] = Resamples.of(ids, n_resamples=config["n_resamples"], seed=config["seed"])
        return self._memo["draws"]

    def tables(self, metric: str = P) -> dict[str, ControlArrays]:
        """Control -> samples as arrays, ``none`` first; averaged over donors and, for a placebo probe, over its draws."""
        if (key := f"tables {metric}") not in self._memo:
            self._memo[key] = {name: self._table(group) for name, group in self._by_control(metric)}
        return self._memo[key]

    def _by_control(self, metric: str) -> list[tuple[str, pd.DataFrame]]:
        own = self._samples[self._samples["metric"] == metric]
        return [(str(name), group) for name, group in own.groupby("control", sort=False)]

    def _table(self, group: pd.DataFrame) -> ControlArrays:
        numbers = group.assign(_q=(group["pathway"] == Q).astype(np.float64))
        means = numbers.groupby(["layer", "example_id"], sort=False)[["value_before", "value_after", "effect", "_q"]].mean()

        def wide(column: str) -> Array:
            table = means[column].unstack("example_id")
            return table.reindex(index=list(self.layers), columns=list(self.example_ids)).to_numpy(dtype=np.float64)

        return ControlArrays(wide("value_before"), wide("value_after"), wide("effect"), wide("_q") == 1)

    def groups(self, metric: str = P) -> dict[str, dict[str, Group]]:
        """Control -> pathway -> mean change with its draws."""
        if (key := f"groups {metric}") not in self._memo:
            self._memo[key] = {name: self._group_curves(group, name, metric) for name, group in self._by_control(metric)}
        return self._memo[key]

    def _group_curves(self, samples: pd.DataFrame, control: str, metric: str) -> dict[str, Group]:
        kind = self.record["config"]["delta_kind"]
        # A row flips under one placebo probe and not under another: each draw has its own pathways.
        draws = [group for _, group in samples.groupby("donor_id", sort=False)] if control == SHUFFLED else [samples]
        found: list[dict[str, Group]] = []
        for draw in draws:
            t = self._table(draw)
            before = support(t.before, t.before, self.labels, kind) if metric == P else t.before
            found.append(group_curves(t.delta, before, t.q, self.draws))
        return {pathway: _average_draws([groups[pathway] for groups in found]) for pathway in (Q, A, ALL)}

    def estimates(self) -> list[tuple[str, str, Estimate]]:
        """Quantity, control, estimate: ``auc`` of the clean probe, ``auc_after`` under every control, ``auc_beyond_text``."""
        found: list[tuple[str, str, Estimate]] = []
        for name, group in self._by_control(P):
            parts = [d for _, d in group.groupby("donor_id", sort=False)] if name == SHUFFLED else [group]
            draws = [self._table(part) for part in parts]
            # Other cuts are read by the same probe: they have the clean AUC of `none`.
            if name in ("none", SHUFFLED, CROSS_FOLD):
                found.append(("auc", name, _mix_draws([auc_of(t.before, self.labels, self.draws) for t in draws])))
            found.append(("auc_after", name, _mix_draws([auc_of(t.after, self.labels, self.draws) for t in draws])))
        scores = self._pair_scores()
        if scores is not None:
            clean = self.tables()["none"].before
            beyond = auc_difference(clean, np.broadcast_to(scores, clean.shape), self.labels, self.draws)
            found.append(("auc_beyond_text", "none", beyond))
        return found

    def _pair_scores(self) -> Array | None:
        """What question and answer as text say of each row, on the side of P; None where that was not measured."""
        base = self._examples[self._examples["role"] == "base"]
        if "qa_text_score" not in base or base["qa_text_score"].isna().all():
            return None
        scores = base["qa_text_score"].to_numpy(dtype=np.float64)
        return 1 - scores if self.record["config"]["readout"] == "p_true" else scores

    def contrast(self, quantity: str, own: str, other: str) -> Estimate:
        """``delta_p_vs_placebo``, ``flip_rate`` or ``auc_drop`` of one control against another, paired by row."""
        cut, placebo = (Arm(table.before, table.after) for table in (self.tables()[name] for name in (own, other)))
        if quantity == "delta_p_vs_placebo":
            return delta_p_vs_placebo(cut, placebo, self.labels, self.record["config"]["delta_kind"], self.draws)
        if quantity == "flip_rate":
            return flip_rate(cut, placebo, self.draws)
        return auc_difference(cut.after, placebo.after, self.labels, self.draws)

    def row_specific_effect(self, control: str) -> Estimate:
        """``row_specific_effect`` under a control."""
        table, config = self.tables()[control], self.record["config"]
        return row_specific_effect(
            Arm(table.before, table.after), self.labels, config["delta_kind"], self.draws, config["seed"]
        )

    def group_means(self, metric: str = P) -> dict[tuple[str, str], GroupMean]:
        """Return (control, pathway) -> mean change and number of questions of the curves at :attr:`shown_layer`."""
        curves = self.curves(controls=True, metric=metric)
        here = curves[curves["layer"] == self.shown_layer]
        columns = (here[name].tolist() for name in ("control", "pathway", "effect", "n"))
        return {(control, pathway): GroupMean(mean, n) for control, pathway, mean, n in zip(*columns, strict=True)}

    def facts(self, layer: int) -> dict[tuple[str, str], Fact]:
        """What :meth:`effects` says at a layer."""
        return dict(facts_at(self.contrasts(), layer))


def _average_draws(groups: Sequence[Group]) -> Group:
    """A curve over several draws of a placebo: their mean, and resamples that take the draws in turn, so that draws vary too."""
    if len(groups) == 1:
        return groups[0]
    mixed = _mix_draws([Estimate(group.mean, group.draws, group.n) for group in groups])
    return Group(mixed.value, mixed.draws, mixed.n, np.mean([group.before for group in groups], axis=0))


def _mix_draws(estimates: Sequence[Estimate]) -> Estimate:
    if len(estimates) == 1:
        return estimates[0]
    draws = np.array(estimates[0].draws)
    for i, one in enumerate(estimates):
        draws[i :: len(estimates)] = one.draws[i :: len(estimates)]
    n = np.min([one.n for one in estimates], axis=0)
    return Estimate(np.mean([one.value for one in estimates], axis=0), draws, n)


class ProbeAnalysis(Analysis):
    """Base class of analyses of probe sweeps: curves by pathway, contrasts, and one row of numbers at the shown layer.

    Attributes:
        shown_values: Column of the summary, quantity and control of its value.
        shown_contrasts: The same of values with their intervals.
        shown_means: Prefix and suffix of the columns ``q``, ``a`` and ``all``, metric and control of the mean change by pathway.
        shown_settings: Format of the settings, over the specification.
        table_title: Title of the table of several sweeps.
        table_columns: Head of each column and format of its cells, over the summary; what was not measured is shown as ``-``.
    """

    result = PathwayResult
    shown_values: ClassVar[tuple[tuple[str, str, str], ...]]
    shown_contrasts: ClassVar[tuple[tuple[str, str, str], ...]]
    shown_means: ClassVar[tuple[tuple[str, str, str, str], ...]] = (("", "", P, "none"),)
    shown_settings: ClassVar[str]
    table_title: ClassVar[str]
    table_columns: ClassVar[tuple[tuple[str, str], ...]]

    @override
    def curves(self, result: PathwayResult) -> pd.DataFrame:
        return pathway_curves(result)

    @abstractmethod
    def estimates(self, result: PathwayResult) -> list[tuple[str, str, Estimate]]:
        """Return quantity, control and estimate of every contrast but the AUCs."""

    def auc_frames(self, result: PathwayResult) -> list[pd.DataFrame]:
        """Return :meth:`PathwayResult.estimates` with both bands."""
        return [quantity_frame(result.layers, *one, auc=one[0] != "auc_beyond_text") for one in result.estimates()]

    @override
    def contrasts(self, result: PathwayResult) -> pd.DataFrame:
        frames = [quantity_frame(result.layers, *one, rate=one[0] == "flip_rate") for one in self.estimates(result)]
        return pd.concat([*frames, *self.auc_frames(result)], ignore_index=True).assign(anchor=result.anchors[0])

    @override
    def summary(self, result: PathwayResult) -> pd.DataFrame:
        return pd.DataFrame([self.numbers(result)])

    def numbers(self, result: PathwayResult) -> dict[str, Any]:
        """Return the numbers at :attr:`~PathwayResult.shown_layer`; NaN if something was not measured."""
        layer = result.shown_layer
        facts, missing = result.facts(layer), Fact(np.nan, np.nan, np.nan, np.nan, np.nan, 0)
        record: dict[str, Any] = {"model": result.model, "dataset": result.dataset, "layer": layer}
        record |= {name: facts.get((quantity, control), missing).value for name, quantity, control in self.shown_values}
        for name, quantity, control in self.shown_contrasts:
            fact = facts.get((quantity, control), missing)
            record |= {name: fact.value, f"{name}_low": fact.low, f"{name}_high": fact.high}
        record |= {f"n_{short}": result.group_means()["none", name].n for short, name in _GROUPS.items()}
        for prefix, suffix, metric, control in self.shown_means:
            groups = result.group_means(metric)
            for short, name in _GROUPS.items():
                record[f"{prefix}{short}{suffix}"] = groups[control, name].mean if (control, name) in groups else np.nan
        return record

    @override
    def settings(self, result: PathwayResult) -> str:
        counts = result.record["counts"]
        rows = ", ".join(f"{name} {n}" for name, n in counts["rows"].items())
        return f"{self.shown_settings.format_map(result.record['config'])}\nrows: {rows}; measured {counts['evaluated']}"

    @override
    def table(self, results: Sequence[PathwayResult]) -> tuple[str, pd.DataFrame]:
        found = pd.concat([self.summary(result) for result in results], ignore_index=True)
        cells = {
            head: [re.sub(r"\+?nan", "-", form.format_map(row)) for row in found.to_dict("records")]
            for head, form in self.table_columns
        }
        return self.table_title, found[["model", "dataset", "layer"]].rename(columns={"dataset": "data set"}).assign(**cells)


def pathway_curves(result: PathwayResult) -> pd.DataFrame:
    """Mean change by metric, control and pathway, with bands and the probe's clean AUC."""
    contrasts = result.contrasts()
    first = without_nulls(result.samples().head(1)).iloc[0]
    varied = ("layer", "pathway", "control", "metric")
    shared: dict[str, Any] = {key: first[key] for key in CURVE_KEYS if key not in varied}
    aucs = contrasts[contrasts["quantity"] == "auc"].set_index(["control", "layer"])
    known = set(aucs.index.get_level_values("control"))
    frames: list[pd.DataFrame] = []
    for metric in result.samples()["metric"].unique():
        for control, groups in result.groups(metric).items():
            read = aucs.loc[control if control in known else "none"].reindex(list(result.layers))
            low = read["ci_low"].to_numpy()
            signal = pd.Series(low > 0.5, dtype="boolean").mask(pd.Series(np.isnan(low)))
            for pathway, group in groups.items():
                made = band(group.mean, group.draws, group.n)
                frame = pd.DataFrame(
                    {
                        "layer": result.layers, "effect": made.value, "ci_low": made.low, "ci_high": made.high,
                        "sim_low": made.sim_low, "sim_high": made.sim_high, "p_before": group.before, "n": group.n,
                        "auc": read["value"].to_numpy(), "auc_low": low, "auc_high": read["ci_high"].to_numpy(),
                        "probe_above_chance": signal, "noise_floor": result.noise_floor, "frac_null_incomplete": np.nan,
                    }
                )  # fmt: skip
                frames.append(frame.assign(**shared, control=control, pathway=pathway, metric=metric, by_construction=False))
    return pd.concat(frames, ignore_index=True).reindex(columns=list(CURVE_COLUMNS)).astype(CURVE_TYPES)
