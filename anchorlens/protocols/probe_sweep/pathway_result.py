"""Result of probe sweeps: effects by pathway under every control (METHOD 5)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.constants import FLIP, P
from anchorlens.results.estimates import LayerEstimates, estimates_at
from anchorlens.results.sweep import SweepResult
from anchorlens.statistics.clusters import (
    Clusters,
    find_clusters,
    intraclass_correlation,
)
from anchorlens.statistics.contrasts import (
    Arm,
    delta_p_vs_placebo,
    flip_rate,
    mean_of,
    row_specific_changes,
)
from anchorlens.statistics.delta import support
from anchorlens.statistics.exchanged_arms import arm_differences, effects_of_cut
from anchorlens.statistics.pathways import (
    ALL,
    CROSS_FOLD,
    SHUFFLED,
    A,
    GroupCurve,
    Q,
    group_curves,
)
from anchorlens.statistics.resamples import Estimate, Resamples

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ControlArrays:
    """Samples of one control and metric as arrays, [layer row], averaged over donors; NaN without a
    sample.
    """

    before: Array
    after: Array
    delta: Array
    q: npt.NDArray[np.bool_]


class GroupMean(NamedTuple):
    """Mean effect of a group of rows at one layer, in points, and its number of questions."""

    mean: float
    n: int


@dataclass(frozen=True, repr=False, eq=False)
class PathwayResult(SweepResult):
    """Result of a sweep whose rows are split into pathways; frozen.

    Examples:
        >>> import anchorlens as al
        >>> (sweep,) = al.load_run("runs/knockout")  # doctest: +SKIP
        >>> sweep.probe_layer  # layer k*  # doctest: +SKIP
        >>> sweep.answer_text_auc["auc"]  # doctest: +SKIP
    """

    @property
    def probe_layer(self) -> int | None:
        """Layer k*: lowest layer within one standard error of the best validation AUC; None for
        ``p_true``.
        """
        return self.record["probe"]["probe_layer"]

    @property
    def shown_layer(self) -> int:
        """Layer of summary and verdict: k*, else the nearest measured layer below or above; the
        last one for ``p_true``.
        """
        after = self.tables()["none"].after
        measured = np.array(self.layers)[~np.isnan(after).all(axis=1)]
        below = measured
        if self.probe_layer is not None:
            below = measured[measured <= self.probe_layer]
        return int((below if len(below) else measured)[-1])

    @property
    def answer_text_auc(self) -> dict[str, float]:
        """AUC of a classifier on the answer's text: ``auc``, ``ci_low``, ``ci_high``."""
        return dict(self.record["probe"]["answer_text_auc"])

    @property
    def qa_text_auc(self) -> dict[str, float] | None:
        """AUC of a classifier on the text of question and answer: ``auc``, ``ci_low``, ``ci_high``;
        None if not measured.
        """
        auc = self.record["probe"].get("qa_text_auc")
        return None if auc is None else dict(auc)

    @property
    def labels(self) -> Array:
        """Labels of the event of P (1 if it is the case), in the order of :attr:`example_ids`."""
        labels = self._base["label"].to_numpy(dtype=np.float64)
        return 1 - labels if self.record["config"]["readout"] == "p_true" else labels

    @property
    def _base(self) -> pd.DataFrame:
        """Measured rows."""
        return self._examples[self._examples["role"] == "base"]

    @property
    def clusters(self) -> Clusters:
        """Clusters of the questions, which are drawn."""
        if "clusters" not in self._memo:
            self._memo["clusters"] = find_clusters(self._samples)
        return self._memo["clusters"]

    @property
    def draws(self) -> Resamples:
        """Bootstrap resamples of clusters, shared by all curves, gaps and AUCs after a change."""
        if "draws" not in self._memo:
            self._memo["draws"] = self._draws_of_clusters(self.clusters)
        return self._memo["draws"]

    @property
    def clean_draws(self) -> Resamples:
        """Bootstrap resamples for values in which no donor takes part, such as the AUC of the clean
        probe: rows that share a donor are not drawn together.
        """
        if not self.clusters.is_by_donor:
            return self.draws
        if "clean_draws" not in self._memo:
            clusters = find_clusters(self._samples.assign(donor_id=""))
            self._memo["clean_draws"] = self._draws_of_clusters(clusters)
        return self._memo["clean_draws"]

    def _draws_of_clusters(self, clusters: Clusters) -> Resamples:
        """Return resamples of clusters of the measured rows."""
        config = self.record["config"]
        ids = self._base["question_id"].to_numpy()
        return Resamples.of(
            ids,
            clusters=clusters.of(ids),
            n_resamples=config["n_resamples"],
            seed=config["seed"],
        )

    def tables(self, metric: str = P) -> dict[str, ControlArrays]:
        """Return control -> arrays, ``none`` first; averaged over donors and over the draws of a
        placebo probe.
        """
        if (key := f"tables {metric}") not in self._memo:
            self._memo[key] = {name: self._table(group) for name, group in self._by_control(metric)}
        return self._memo[key]

    def _by_control(self, metric: str) -> list[tuple[str, pd.DataFrame]]:
        samples = self._samples[self._samples["metric"] == metric]
        if metric == FLIP and self.noise_floor > 0:
            samples = self._beyond_floor(samples)
        return [(str(name), group) for name, group in samples.groupby("control", sort=False)]

    def _beyond_floor(self, flips: pd.DataFrame) -> pd.DataFrame:
        """Return samples of flips; those at which P moves by the noise floor or less are no
        flips.
        """
        key = ["control", "anchor", "example_id", "donor_id", "layer"]
        p = self._samples[self._samples["metric"] == P].set_index(key)
        moved = 100 * (p["value_after"] - p["value_before"]).abs()
        within = moved.reindex(pd.MultiIndex.from_frame(flips[key])).le(self.noise_floor).to_numpy()
        return flips.assign(
            value_after=flips["value_after"].mask(within, 0.0),
            effect=flips["effect"].mask(within, 0.0),
        )

    def _table(self, group: pd.DataFrame) -> ControlArrays:
        numbers = group.assign(_q=(group["pathway"] == Q).astype(np.float64))
        means = numbers.groupby(["layer", "example_id"], sort=False)[
            ["value_before", "value_after", "effect", "_q"]
        ].mean()

        def wide(column: str) -> Array:
            table = means[column].unstack("example_id")
            table = table.reindex(index=list(self.layers), columns=list(self.example_ids))
            return table.to_numpy(dtype=np.float64)

        return ControlArrays(
            before=wide("value_before"),
            after=wide("value_after"),
            delta=wide("effect"),
            q=wide("_q") == 1,
        )

    def groups(self, metric: str = P) -> dict[str, dict[str, GroupCurve]]:
        """Return control -> pathway -> mean effect with its draws."""
        if (key := f"groups {metric}") not in self._memo:
            groups: dict[str, dict[str, GroupCurve]] = {}
            for name, samples in self._by_control(metric):
                groups[name] = self._group_curves(samples, name, metric)
            self._memo[key] = groups
        return self._memo[key]

    def _group_curves(
        self, samples: pd.DataFrame, control: str, metric: str
    ) -> dict[str, GroupCurve]:
        kind = self.record["config"]["delta_kind"]
        curves: dict[str, list[GroupCurve]] = {Q: [], A: [], ALL: []}
        # Each draw of a placebo probe has its own flips, and so its own pathways.
        for draw in _draws_of(samples, control):
            t = self._table(draw)
            before = support(t.before, t.before, self.labels, kind) if metric == P else t.before
            for pathway, curve in group_curves(t.delta, before, t.q, self.draws).items():
                curves[pathway].append(curve)
        return {pathway: _average_draws(draws) for pathway, draws in curves.items()}

    def estimates(self) -> list[tuple[str, str, Estimate]]:
        """Return quantity, control and estimate of ``auc`` (clean), ``auc_after`` (every control)
        and ``auc_beyond_text``.
        """
        estimates: list[tuple[str, str, Estimate]] = []
        for name, samples in self._by_control(P):
            draws = [self._table(draw) for draw in _draws_of(samples, name)]
            # Other controls are read by the probe of `none` and share its clean AUC.
            if name in ("none", SHUFFLED, CROSS_FOLD):
                clean = [self.clean_draws.aucs(t.before, self.labels) for t in draws]
                estimates.append(("auc", name, _mix_draws(clean)))
            has_donors = bool(samples["donor_id"].fillna("").ne("").any())
            resamples = self.draws if has_donors else self.clean_draws
            after = [resamples.aucs(t.after, self.labels) for t in draws]
            estimates.append(("auc_after", name, _mix_draws(after)))
        scores = self._qa_text_scores()
        if scores is not None:
            clean = self.tables()["none"].before
            text = np.broadcast_to(scores, clean.shape)
            beyond = self.clean_draws.aucs(clean, self.labels, minus=text)
            estimates.append(("auc_beyond_text", "none", beyond))
        return estimates

    def _qa_text_scores(self) -> Array | None:
        """Return the text score of each row's question and answer, as a score of the event of P;
        None if not measured.
        """
        base = self._base
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
        """Rows of each split at :attr:`shown_layer`, for their values (two resamples); empty for
        one split.
        """
        if not self.is_cross_fitted:
            return ()
        layer = self.shown_layer
        here = self._samples[self._samples["layer"] == layer]
        config = self.record["config"] | {"layers": [layer], "n_resamples": 2}
        parts: list[PathwayResult] = []
        for _, rows in self._base.groupby("test_split"):
            ids = tuple(rows["example_id"])
            part = replace(
                self,
                record=self.record | {"config": config},
                layers=(layer,),
                example_ids=ids,
                _samples=here[here["example_id"].isin(ids)],
                _examples=rows,
                _memo={},
            )
            parts.append(part)
        return tuple(parts)

    def contrast(
        self, quantity: str, control: str, placebo_control: str, *, layer: int | None = None
    ) -> Estimate:
        """Compute ``delta_p_vs_placebo``, ``flip_rate`` or ``auc_drop`` between two controls by
        row.

        ``layer``: only there.
        """
        cut = self._arm(control, layer)
        placebo = self._arm(placebo_control, layer)
        if quantity == "delta_p_vs_placebo":
            return delta_p_vs_placebo(
                cut, placebo, self.labels, self.record["config"]["delta_kind"], self.draws
            )
        if quantity == "flip_rate":
            return flip_rate(cut, placebo, self.draws, self._floor)
        return self.draws.aucs(cut.after, self.labels, minus=placebo.after)

    def _arm(self, control: str, layer: int | None = None) -> Arm:
        """Return P before and after under a control, at one layer or at all."""
        rows = slice(None) if layer is None else [self.layers.index(layer)]
        table = self.tables()[control]
        return Arm(table.before[rows], table.after[rows])

    def row_specific_changes(self, control: str) -> Array:
        """Compute the row-specific ΔP of every row under a control, [layer row]."""
        if (key := f"row-specific {control}") not in self._memo:
            config = self.record["config"]
            self._memo[key] = row_specific_changes(
                self._arm(control),
                self.labels,
                config["delta_kind"],
                self.draws.question,
                config["seed"],
            )
        return self._memo[key]

    def row_specific_effects(
        self, control: str, placebo_control: str
    ) -> dict[tuple[str, str], Estimate]:
        """Compute ``row_specific_effect`` under two controls and ``row_specific_vs_placebo``, by
        (quantity, control).
        """
        measured = [name for name in self.tables() if name in (control, placebo_control)]
        found: dict[tuple[str, str], Estimate] = {}
        for name in measured:
            changes = self.row_specific_changes(name)
            found["row_specific_effect", name] = mean_of(changes, self.draws)
        if len(measured) == 2:
            difference = self.row_specific_changes(control) - self.row_specific_changes(
                placebo_control
            )
            found["row_specific_vs_placebo", placebo_control] = mean_of(difference, self.draws)
        return found

    def effects_of_cut(self, control: str, placebo_control: str) -> dict[str, Array]:
        """Compute the effect of a cut alone in every contrast with its placebo, [layer]."""
        return effects_of_cut(
            self._arm(control),
            self._arm(placebo_control),
            self.labels,
            self.record["config"]["delta_kind"],
            self._floor,
        )

    def arm_differences(self, control: str, placebo_control: str) -> dict[str, Array]:
        """Compute the differences of a cut and its placebo, [row layer], whose means are the
        contrasts.
        """
        return arm_differences(
            self._arm(control),
            self._arm(placebo_control),
            self.labels,
            self.record["config"]["delta_kind"],
            self._floor,
        )

    @property
    def _floor(self) -> float:
        """Noise floor in points; 0 if unknown."""
        return 0.0 if np.isnan(self.noise_floor) else self.noise_floor

    def differences_of_one_donor(
        self, control: str, placebo_control: str, metric: str = P
    ) -> Array:
        """Compute the difference of two controls for one donor of each row, [row layer].

        A mean over donors has another shape than one of them, so the sign-flip test uses one.
        """
        samples = dict(self._by_control(metric))
        own = samples[control]
        other = samples[placebo_control]
        key = ["example_id", "donor_id"]
        both = own[key].drop_duplicates().merge(other[key].drop_duplicates(), on=key)
        first = both.drop_duplicates("example_id")
        return (
            self._table(own.merge(first, on=key)).delta
            - self._table(other.merge(first, on=key)).delta
        ).T

    def correlation_of(self, values: Array) -> float:
        """Compute the intraclass correlation of values at :attr:`shown_layer` over relations, of
        the means of questions; NaN if the data name none.

        Args:
            values: Values of the rows, [row layer].
        """
        rows = self._samples.drop_duplicates("question_id").set_index("question_id")
        names = rows["cluster"].fillna("")
        base = self._base["question_id"].to_numpy()
        here = pd.Series(values[:, self.layers.index(self.shown_layer)])
        means = here.groupby(base).mean()
        if names.nunique() < 2:
            return float("nan")
        return intraclass_correlation(
            means.to_numpy(dtype=np.float64), names.reindex(means.index).to_numpy(dtype=str)
        )

    def group_means(self, metric: str = P) -> dict[tuple[str, str], GroupMean]:
        """Return (control, pathway) -> mean effect and number of questions at
        :attr:`shown_layer`.
        """
        if (key := f"group means {metric}") not in self._memo:
            curves = self.curves(controls=True, metric=metric, all_columns=True)
            here = curves[curves["layer"] == self.shown_layer]
            names = ["control", "pathway", "effect", "n"]
            means: dict[tuple[str, str], GroupMean] = {}
            for control, pathway, mean, n in here[names].itertuples(index=False, name=None):
                means[control, pathway] = GroupMean(mean, n)
            self._memo[key] = means
        return self._memo[key]

    def facts(self, layer: int) -> LayerEstimates:
        """Return (quantity, control) -> fact of the contrasts at a layer."""
        return estimates_at(self.contrasts(all_columns=True), layer)


def _draws_of(samples: pd.DataFrame, control: str) -> list[pd.DataFrame]:
    """Return the samples of each draw of the shuffled placebo probe; all together for other
    controls.
    """
    if control != SHUFFLED:
        return [samples]
    return [draw for _, draw in samples.groupby("donor_id", sort=False)]


def _average_draws(groups: Sequence[GroupCurve]) -> GroupCurve:
    """Average a curve over draws of a placebo; each resample uses one draw in turn, to include the
    variance between draws.
    """
    if len(groups) == 1:
        return groups[0]
    before = np.mean([group.before for group in groups], axis=0)
    return GroupCurve(**vars(_mix_draws(groups)), before=before)


def _mix_draws(estimates: Sequence[Estimate]) -> Estimate:
    if len(estimates) == 1:
        return estimates[0]
    values = np.array([one.value for one in estimates])
    between = values.std(0)
    draws = np.array(estimates[0].draws)
    errors = np.array(estimates[0].errors)
    for i, one in enumerate(estimates):
        own = slice(i, None, len(estimates))
        draws[own] = one.draws[own]
        errors[own] = np.hypot(one.errors[own], between)
    within = np.sqrt(np.mean([one.error**2 for one in estimates], axis=0))
    far = np.array([one.far for one in estimates])
    return Estimate(
        value=values.mean(0),
        error=np.hypot(within, between),
        draws=draws,
        errors=errors,
        n=np.min([one.n for one in estimates], axis=0),
        n_questions=np.min([one.n_questions for one in estimates], axis=0),
        far=np.stack([far[:, 0].min(axis=0), far[:, 1].max(axis=0)]),
        effects=estimates[0].effects,
    )
