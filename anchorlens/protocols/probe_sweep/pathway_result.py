"""Result and analysis of probe sweeps: effects by pathway under every control (METHOD 5)."""

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import override

from anchorlens.missing_values import without_nulls
from anchorlens.results.estimates import LayerEstimate, LayerEstimates, estimates_at
from anchorlens.results.sweep import Analysis, SweepResult
from anchorlens.runs.schema import CURVE_COLUMNS, CURVE_KEYS, CURVE_TYPES, FLIP, P
from anchorlens.statistics.bands import band
from anchorlens.statistics.contrasts import Arm, delta_p_vs_placebo, flip_rate, mean_of, row_specific_changes
from anchorlens.statistics.delta import support
from anchorlens.statistics.pathways import ALL, CROSS_FOLD, SHUFFLED, A, GroupCurve, Q, group_curves, quantity_frame
from anchorlens.statistics.resamples import Estimate, Resamples

Array = npt.NDArray[np.float64]
_GROUPS = {"q": Q, "a": A, "all": ALL}


@dataclass(frozen=True)
class ControlArrays:
    """Samples of one control and metric as arrays, [layer row], averaged over donors; NaN without a sample."""

    before: Array
    after: Array
    delta: Array
    q: npt.NDArray[np.bool_]


class GroupMean(NamedTuple):
    """Mean effect of a group of rows at one layer, in points, and its number of questions."""

    mean: float
    n: int


@dataclass(frozen=True, repr=False)
class PathwayResult(SweepResult):
    """Result of a sweep whose rows are split into pathways; frozen."""

    @property
    def probe_layer(self) -> int | None:
        """Layer k*: lowest layer within one standard error of the best validation AUC; None for ``p_true``."""
        return self.record["probe"]["probe_layer"]

    @property
    def shown_layer(self) -> int:
        """Layer of summary and verdict: k*, else the nearest measured layer below or above; the last one for ``p_true``."""
        table = self.tables()["none"].after
        measured = [layer for layer, row in zip(self.layers, table, strict=True) if not np.isnan(row).all()]
        below = [layer for layer in measured if self.probe_layer is None or layer <= self.probe_layer]
        return (below or measured)[-1]

    @property
    def answer_text_auc(self) -> dict[str, float]:
        """AUC of a classifier on the answer's text: ``auc``, ``ci_low``, ``ci_high``."""
        return dict(self.record["probe"]["answer_text_auc"])

    @property
    def qa_text_auc(self) -> dict[str, float] | None:
        """AUC of a classifier on the text of question and answer: ``auc``, ``ci_low``, ``ci_high``; None if not measured."""
        auc = self.record["probe"].get("qa_text_auc")
        return None if auc is None else dict(auc)

    @property
    def labels(self) -> Array:
        """Labels of the event of P (1 if it is the case), in the order of :attr:`example_ids`."""
        base = self._examples[self._examples["role"] == "base"]
        labels = base["label"].to_numpy(dtype=np.float64)
        return 1 - labels if self.record["config"]["readout"] == "p_true" else labels

    @property
    def draws(self) -> Resamples:
        """Bootstrap resamples of questions, shared by all curves, gaps and AUCs of the sweep."""
        if "draws" not in self._memo:
            base = self._examples[self._examples["role"] == "base"]
            config = self.record["config"]
            ids = base["question_id"].to_numpy()
            self._memo["draws"] = Resamples.of(ids, n_resamples=config["n_resamples"], seed=config["seed"])
        return self._memo["draws"]

    def tables(self, metric: str = P) -> dict[str, ControlArrays]:
        """Return control -> arrays, ``none`` first; averaged over donors and over the draws of a placebo probe."""
        if (key := f"tables {metric}") not in self._memo:
            self._memo[key] = {name: self._table(group) for name, group in self._by_control(metric)}
        return self._memo[key]

    def _by_control(self, metric: str) -> list[tuple[str, pd.DataFrame]]:
        samples = self._samples[self._samples["metric"] == metric]
        if metric == FLIP and self.noise_floor > 0:
            samples = self._beyond_floor(samples)
        return [(str(name), group) for name, group in samples.groupby("control", sort=False)]

    def _beyond_floor(self, flips: pd.DataFrame) -> pd.DataFrame:
        """Return samples of flips; those at which P moves by the noise floor or less are no flips."""
        key = ["control", "anchor", "example_id", "donor_id", "layer"]
        p = self._samples[self._samples["metric"] == P].set_index(key)
        moved = 100 * (p["value_after"] - p["value_before"]).abs()
        within = moved.reindex(pd.MultiIndex.from_frame(flips[key])).le(self.noise_floor).to_numpy()
        return flips.assign(**{name: flips[name].mask(within, 0.0) for name in ("value_after", "effect")})

    def _table(self, group: pd.DataFrame) -> ControlArrays:
        numbers = group.assign(_q=(group["pathway"] == Q).astype(np.float64))
        means = numbers.groupby(["layer", "example_id"], sort=False)[["value_before", "value_after", "effect", "_q"]].mean()

        def wide(column: str) -> Array:
            table = means[column].unstack("example_id")
            return table.reindex(index=list(self.layers), columns=list(self.example_ids)).to_numpy(dtype=np.float64)

        return ControlArrays(wide("value_before"), wide("value_after"), wide("effect"), wide("_q") == 1)

    def groups(self, metric: str = P) -> dict[str, dict[str, GroupCurve]]:
        """Return control -> pathway -> mean effect with its draws."""
        if (key := f"groups {metric}") not in self._memo:
            self._memo[key] = {name: self._group_curves(group, name, metric) for name, group in self._by_control(metric)}
        return self._memo[key]

    def _group_curves(self, samples: pd.DataFrame, control: str, metric: str) -> dict[str, GroupCurve]:
        kind = self.record["config"]["delta_kind"]
        # Each draw of a placebo probe has its own flips, and so its own pathways.
        draws = [group for _, group in samples.groupby("donor_id", sort=False)] if control == SHUFFLED else [samples]
        draws_by_pathway: list[dict[str, GroupCurve]] = []
        for draw in draws:
            t = self._table(draw)
            before = support(t.before, t.before, self.labels, kind) if metric == P else t.before
            draws_by_pathway.append(group_curves(t.delta, before, t.q, self.draws))
        return {pathway: _average_draws([groups[pathway] for groups in draws_by_pathway]) for pathway in (Q, A, ALL)}

    def estimates(self) -> list[tuple[str, str, Estimate]]:
        """Return quantity, control and estimate of ``auc`` (clean), ``auc_after`` (every control) and ``auc_beyond_text``."""
        estimates: list[tuple[str, str, Estimate]] = []
        for name, group in self._by_control(P):
            parts = [d for _, d in group.groupby("donor_id", sort=False)] if name == SHUFFLED else [group]
            draws = [self._table(part) for part in parts]
            # Other controls are read by the probe of `none` and share its clean AUC.
            if name in ("none", SHUFFLED, CROSS_FOLD):
                estimates.append(("auc", name, _mix_draws([self.draws.aucs(t.before, self.labels) for t in draws])))
            estimates.append(("auc_after", name, _mix_draws([self.draws.aucs(t.after, self.labels) for t in draws])))
        scores = self._qa_text_scores()
        if scores is not None:
            clean = self.tables()["none"].before
            beyond = self.draws.aucs(clean, self.labels, minus=np.broadcast_to(scores, clean.shape))
            estimates.append(("auc_beyond_text", "none", beyond))
        return estimates

    def _qa_text_scores(self) -> Array | None:
        """Return the text score of each row's question and answer, as a score of the event of P; None if not measured."""
        base = self._examples[self._examples["role"] == "base"]
        if "qa_text_score" not in base or base["qa_text_score"].isna().all():
            return None
        scores = base["qa_text_score"].to_numpy(dtype=np.float64)
        return 1 - scores if self.record["config"]["readout"] == "p_true" else scores

    @property
    def probe_layers(self) -> tuple[int, ...]:
        """Layer k* of each split; empty for ``p_true``."""
        return tuple(self.record["probe"].get("probe_layers", ()))

    @property
    def is_cross_fitted(self) -> bool:
        """True if the probes were fitted in several splits."""
        return len(self.probe_layers) > 1

    @property
    def parts(self) -> "tuple[PathwayResult, ...]":
        """Rows of each split at :attr:`shown_layer`, for their values (two resamples); empty for one split."""
        base, layer = self._examples[self._examples["role"] == "base"], self.shown_layer
        here = self._samples[self._samples["layer"] == layer]
        config = self.record["config"] | {"layers": [layer], "n_resamples": 2}
        parts: list[PathwayResult] = []
        for _, rows in base.groupby("test_split") if self.is_cross_fitted else ():
            ids = tuple(rows["example_id"])
            own = {"_samples": here[here["example_id"].isin(ids)], "_examples": rows, "_memo": {}}
            parts.append(replace(self, record=self.record | {"config": config}, layers=(layer,), example_ids=ids, **own))
        return tuple(parts)

    def contrast(self, quantity: str, control: str, placebo_control: str, *, layer: int | None = None) -> Estimate:
        """Compute ``delta_p_vs_placebo``, ``flip_rate`` or ``auc_drop`` between two controls by row; ``layer``: only there."""
        rows = slice(None) if layer is None else [self.layers.index(layer)]
        cut, placebo = (Arm(t.before[rows], t.after[rows]) for t in (self.tables()[name] for name in (control, placebo_control)))
        if quantity == "delta_p_vs_placebo":
            return delta_p_vs_placebo(cut, placebo, self.labels, self.record["config"]["delta_kind"], self.draws)
        if quantity == "flip_rate":
            return flip_rate(cut, placebo, self.draws, 0.0 if np.isnan(self.noise_floor) else self.noise_floor)
        return self.draws.aucs(cut.after, self.labels, minus=placebo.after)

    def row_specific_effects(self, control: str, placebo_control: str) -> dict[tuple[str, str], Estimate]:
        """Compute ``row_specific_effect`` under two controls and ``row_specific_vs_placebo``, by (quantity, control)."""
        config = self.record["config"]
        changes = {
            name: row_specific_changes(Arm(t.before, t.after), self.labels, config["delta_kind"], self.draws.cluster, config["seed"])
            for name, t in self.tables().items()
            if name in (control, placebo_control)
        }
        found = {("row_specific_effect", name): mean_of(one, self.draws) for name, one in changes.items()}
        if len(changes) == 2:
            difference = changes[control] - changes[placebo_control]
            found["row_specific_vs_placebo", placebo_control] = mean_of(difference, self.draws)
        return found

    def group_means(self, metric: str = P) -> dict[tuple[str, str], GroupMean]:
        """Return (control, pathway) -> mean effect and number of questions at :attr:`shown_layer`."""
        if (key := f"group means {metric}") not in self._memo:
            curves = self.curves(controls=True, metric=metric, all_columns=True)
            here = curves[curves["layer"] == self.shown_layer]
            columns = (here[name].tolist() for name in ("control", "pathway", "effect", "n"))
            self._memo[key] = {(control, pathway): GroupMean(mean, n) for control, pathway, mean, n in zip(*columns, strict=True)}
        return self._memo[key]

    def facts(self, layer: int) -> LayerEstimates:
        """Return (quantity, control) -> fact of the contrasts at a layer."""
        return estimates_at(self.contrasts(all_columns=True), layer)


def _average_draws(groups: Sequence[GroupCurve]) -> GroupCurve:
    """Average a curve over draws of a placebo; each resample uses one draw in turn, to include the variance between draws."""
    if len(groups) == 1:
        return groups[0]
    mixed, before = _mix_draws(groups), np.mean([group.before for group in groups], axis=0)
    return GroupCurve(**vars(mixed), before=before)


def _mix_draws(estimates: Sequence[Estimate]) -> Estimate:
    if len(estimates) == 1:
        return estimates[0]
    values = np.array([one.value for one in estimates])
    draws, errors = np.array(estimates[0].draws), np.array(estimates[0].errors)
    for i, one in enumerate(estimates):
        draws[i :: len(estimates)] = one.draws[i :: len(estimates)]
        errors[i :: len(estimates)] = np.hypot(one.errors[i :: len(estimates)], values.std(0))
    error = np.hypot(np.sqrt(np.mean([one.error**2 for one in estimates], axis=0)), values.std(0))
    far = np.stack([np.min([one.far[0] for one in estimates], axis=0), np.max([one.far[1] for one in estimates], axis=0)])
    n = np.min([one.n for one in estimates], axis=0)
    return Estimate(values.mean(0), error, draws, errors, n, far, estimates[0].effects)


class ProbeAnalysis(Analysis):
    """Base class of the analyses of probe sweeps: curves by pathway, contrasts, and numbers at the shown layer.

    Attributes:
        shown_values: Columns of the summary: name, quantity and control.
        shown_contrasts: Columns of the summary with intervals: name, quantity and control.
        shown_means: Means by pathway: prefix and suffix of the columns ``q``, ``a`` and ``all``, metric and control.
        shown_settings: Format string of the settings, with arguments of the specification.
        table_title: Title of the table of several sweeps.
        table_columns: Head and format string of each column, with columns of the summary; ``-`` for missing values.
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
        """Return quantity, control and estimate of every contrast, without the AUCs."""

    def auc_frames(self, result: PathwayResult) -> list[pd.DataFrame]:
        """Return the AUCs of :meth:`PathwayResult.estimates` with both bands."""
        return [
            quantity_frame(result.layers, *one, auc=one[0] != "auc_beyond_text", cross_fitted=result.is_cross_fitted)
            for one in result.estimates()
        ]

    def split_values(self, result: PathwayResult) -> dict[tuple[str, str], tuple[float, ...]]:
        """Return the value of every contrast in each split at the shown layer, by (quantity, control); empty for one split."""
        values = [{(name, control): float(one.value[0]) for name, control, one in self.estimates(part)} for part in result.parts]
        return {key: tuple(part.get(key, np.nan) for part in values) for key in (values[0] if values else {})}

    @override
    def contrasts(self, result: PathwayResult) -> pd.DataFrame:
        frames = [quantity_frame(result.layers, *one, rate=one[0] == "flip_rate") for one in self.estimates(result)]
        return pd.concat([*frames, *self.auc_frames(result)], ignore_index=True).assign(anchor=result.anchors[0])

    @override
    def summary(self, result: PathwayResult) -> pd.DataFrame:
        return pd.DataFrame([self.numbers(result)])

    def numbers(self, result: PathwayResult) -> dict[str, Any]:
        """Return the numbers at :attr:`~PathwayResult.shown_layer`; NaN for missing values."""
        layer = result.shown_layer
        facts, missing = result.facts(layer), LayerEstimate(np.nan, np.nan, np.nan, np.nan, np.nan, 0)
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
        each = f"at least, in each of {len(result.probe_layers)} splits: " if result.is_cross_fitted else ""
        return f"{self.shown_settings.format_map(result.record['config'])}\nrows: {each}{rows}; measured {counts['evaluated']}"

    @override
    def table(self, results: Sequence[PathwayResult]) -> tuple[str, pd.DataFrame]:
        summaries = pd.concat([self.summary(result) for result in results], ignore_index=True)
        cells = {
            head: [re.sub(r"\+?nan", "-", form.format_map(row)) for row in summaries.to_dict("records")]
            for head, form in self.table_columns
        }
        return self.table_title, summaries[["model", "dataset", "layer"]].rename(columns={"dataset": "data set"}).assign(**cells)


def pathway_curves(result: PathwayResult) -> pd.DataFrame:
    """Compute mean effects by metric, control and pathway, with bands and the clean AUC of the probe."""
    contrasts = result.contrasts(all_columns=True)
    first = without_nulls(result.samples(all_columns=True).head(1)).iloc[0]
    varied = ("layer", "pathway", "control", "metric")
    shared: dict[str, Any] = {key: first[key] for key in CURVE_KEYS if key not in varied}
    aucs = contrasts[contrasts["quantity"] == "auc"].set_index(["control", "layer"])
    known = set(aucs.index.get_level_values("control"))
    frames: list[pd.DataFrame] = []
    for metric in result.samples(all_columns=True)["metric"].unique():
        for control, groups in result.groups(metric).items():
            read = aucs.loc[control if control in known else "none"].reindex(list(result.layers))
            low = read["ci_low"].to_numpy()
            signal = pd.Series(low > 0.5, dtype="boolean").mask(pd.Series(np.isnan(low)))
            for pathway, group in groups.items():
                made = band(group, limit=100)
                frame = pd.DataFrame(
                    {
                        "layer": result.layers, "effect": made.value, "ci_low": made.low, "ci_high": made.high,
                        "sim_low": made.sim_low, "sim_high": made.sim_high, "p_before": group.before, "n": group.n,
                        "n_effective": made.n_effective,
                        "auc": read["value"].to_numpy(), "auc_low": low, "auc_high": read["ci_high"].to_numpy(),
                        "probe_above_chance": signal, "noise_floor": result.noise_floor, "frac_null_incomplete": np.nan,
                    }
                )  # fmt: skip
                frames.append(frame.assign(**shared, control=control, pathway=pathway, metric=metric, by_construction=False))
    return pd.concat(frames, ignore_index=True).reindex(columns=list(CURVE_COLUMNS)).astype(CURVE_TYPES)
