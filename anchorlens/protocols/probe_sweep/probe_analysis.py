"""Base class of the analyses of probe sweeps: curves by pathway, contrasts and summary (METHOD
5).
"""

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from typing_extensions import override

from anchorlens.constants import FLIP, P
from anchorlens.display import drop_zero_signs
from anchorlens.protocols.probe_sweep.pathway_result import Array, PathwayResult
from anchorlens.results.clusters_text import cluster_note
from anchorlens.results.estimates import LayerEstimate
from anchorlens.results.sweep import Analysis
from anchorlens.runs.schema import CURVE_COLUMNS, CURVE_KEYS, CURVE_TYPES, without_nulls
from anchorlens.statistics.bands import RATE, band, within_share
from anchorlens.statistics.pathways import ALL, A, Q, quantity_frame
from anchorlens.statistics.resamples import Estimate
from anchorlens.statistics.sign_flips import sign_flip_p

_GROUPS = {"q": Q, "a": A, "all": ALL}


class ProbeAnalysis(Analysis):
    """Base class of the analyses of probe sweeps: curves by pathway, contrasts, and numbers at the
    shown layer.

    Attributes:
        shown_values: Columns of the summary: name, quantity and control.
        shown_contrasts: Columns of the summary with intervals: name, quantity and control.
        shown_means: Means by pathway: prefix and suffix of the columns ``q``, ``a`` and ``all``,
            metric and control.
        shown_settings: Format string of the settings, with arguments of the specification.
        table_title: Title of the table of several sweeps.
        table_columns: Head and format string of each column, with columns of the summary; ``-`` for
            missing values.
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
        frames: list[pd.DataFrame] = []
        for quantity, control, estimate in result.estimates():
            frame = quantity_frame(
                result.layers,
                quantity,
                control,
                estimate,
                auc=quantity != "auc_beyond_text",
                cross_fitted=result.is_cross_fitted,
            )
            frames.append(frame)
        return frames

    def split_values(self, result: PathwayResult) -> dict[tuple[str, str], tuple[float, ...]]:
        """Return the value of every contrast in each split at the shown layer, by (quantity,
        control); empty for one split.
        """
        values: list[dict[tuple[str, str], float]] = []
        for part in result.parts:
            own: dict[tuple[str, str], float] = {}
            for quantity, control, estimate in self.estimates(part):
                own[quantity, control] = float(estimate.value[0])
            values.append(own)
        if not values:
            return {}
        by_contrast: dict[tuple[str, str], tuple[float, ...]] = {}
        for key in values[0]:
            by_contrast[key] = tuple(own.get(key, np.nan) for own in values)
        return by_contrast

    @abstractmethod
    def differences(self, result: PathwayResult) -> dict[tuple[str, str], Array]:
        """Return (quantity, control) -> differences of the two arms of the contrasts that have a
        p-value, [row layer].
        """

    def p_values(self, result: PathwayResult) -> dict[str, float]:
        """Return quantity -> p-value of the sign-flip test at the shown layer alone, which is named
        beforehand.
        """
        at = result.layers.index(result.shown_layer)
        p: dict[str, float] = {}
        for (quantity, _), values in self.differences(result).items():
            (p[quantity],) = _flip(result, values[:, [at]])
        return p

    def cluster_note(self, result: PathwayResult, quantity: str, control: str) -> str:
        """Return the sentence on the clusters, with the intraclass correlation of a contrast; empty
        where questions are drawn and the data name no relation.
        """
        facts = result.facts(result.shown_layer)
        if (quantity, control) not in facts:
            return ""
        values = self.differences(result)[quantity, control]
        return cluster_note(
            result.clusters,
            facts[quantity, control].n,
            leading=(quantity, result.correlation_of(values)),
        )

    @override
    def contrasts(self, result: PathwayResult) -> pd.DataFrame:
        frames: list[pd.DataFrame] = []
        differences = self.differences(result)
        for quantity, control, estimate in self.estimates(result):
            is_rate = quantity == "flip_rate"
            frame = quantity_frame(result.layers, quantity, control, estimate, rate=is_rate)
            if (quantity, control) in differences:
                # Adjusted over layers by the step-down maximum.
                frame["p"] = _flip(result, differences[quantity, control])
            frames.append(frame)
        frames += self.auc_frames(result)
        whole = pd.concat(frames, ignore_index=True).assign(anchor=result.anchors[0])
        return whole if "p" in whole else whole.assign(p=np.nan)

    @override
    def summary(self, result: PathwayResult) -> pd.DataFrame:
        return pd.DataFrame([self.numbers(result)])

    def numbers(self, result: PathwayResult) -> dict[str, Any]:
        """Return the numbers at :attr:`~PathwayResult.shown_layer`; NaN for missing values."""
        layer = result.shown_layer
        facts = result.facts(layer)
        missing = LayerEstimate(*[np.nan] * 5, n=0, n_clusters=0)
        record: dict[str, Any] = {"model": result.model, "dataset": result.dataset, "layer": layer}
        for name, quantity, control in self.shown_values:
            record[name] = facts.get((quantity, control), missing).value
        for name, quantity, control in self.shown_contrasts:
            fact = facts.get((quantity, control), missing)
            record |= {name: fact.value, f"{name}_low": fact.low, f"{name}_high": fact.high}
        for short, pathway in _GROUPS.items():
            record[f"n_{short}"] = result.group_means()["none", pathway].n
        for prefix, suffix, metric, control in self.shown_means:
            groups = result.group_means(metric)
            for short, pathway in _GROUPS.items():
                group = groups.get((control, pathway))
                record[f"{prefix}{short}{suffix}"] = np.nan if group is None else group.mean
        return record

    @override
    def settings(self, result: PathwayResult) -> str:
        counts = result.record["counts"]
        rows = ", ".join(f"{name} {n}" for name, n in counts["rows"].items())
        each = ""
        if result.is_cross_fitted:
            each = f"at least, in each of {len(result.probe_layers)} splits: "
        return (
            f"{self.shown_settings.format_map(result.record['config'])}\nrows: {each}{rows};"
            f" measured {counts['evaluated']}"
        )

    @override
    def table(self, results: Sequence[PathwayResult]) -> tuple[str, pd.DataFrame]:
        summaries = pd.concat([self.summary(result) for result in results], ignore_index=True)
        shown = summaries[["model", "dataset", "layer"]].rename(columns={"dataset": "data set"})
        records = summaries.to_dict("records")
        for head, form in self.table_columns:
            texts = [drop_zero_signs(form.format_map(record)) for record in records]
            missing = [re.sub(r"\+?nan", "-", text) for text in texts]
            shown[head] = [text.replace("- [-, -]", "-") for text in missing]
        return self.table_title, shown


def _flip(result: PathwayResult, values: Array) -> Array:
    """Return the p-value of each layer, with whole clusters flipped."""
    return sign_flip_p(values, result.draws.cluster, seed=result.record["config"]["seed"])


def pathway_curves(result: PathwayResult) -> pd.DataFrame:
    """Compute mean effects by metric, control and pathway, with bands and the clean AUC of the
    probe.
    """
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
                is_rate = metric == FLIP
                made = band(group, limit=100, span=RATE if is_rate else 0.0)
                if is_rate:
                    made = within_share(made)
                frame = pd.DataFrame(
                    {
                        "layer": result.layers,
                        "effect": made.value,
                        "ci_low": made.low,
                        "ci_high": made.high,
                        "sim_low": made.sim_low,
                        "sim_high": made.sim_high,
                        "value_before": group.before,
                        "n": made.n,
                        "n_clusters": made.n_clusters,
                        "n_effective": made.n_effective,
                        "auc": read["value"].to_numpy(),
                        "auc_low": low,
                        "auc_high": read["ci_high"].to_numpy(),
                        "probe_above_chance": signal,
                        "noise_floor": result.noise_floor,
                        "frac_null_incomplete": np.nan,
                    }
                )
                frames.append(
                    frame.assign(
                        **shared,
                        control=control,
                        pathway=pathway,
                        metric=metric,
                        by_construction=False,
                    )
                )
    return (
        pd.concat(frames, ignore_index=True)
        .reindex(columns=list(CURVE_COLUMNS))
        .astype(CURVE_TYPES)
    )
