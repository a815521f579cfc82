"""The result of a protocol that reads a truth probe: rows in two pathways, and what each costs under every control (METHOD 5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.questions.tokens import TokenRow
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import CURVE_COLUMNS, CURVE_KEYS, CURVE_TYPES, FLIP, P
from anchorlens.statistics.delta import delta_p, flipped, support
from anchorlens.statistics.pathways import (
    ALL,
    MATCHED,
    PLACEBOS,
    A,
    Group,
    Measured,
    Q,
    effects_frame,
    group_curves,
    quantity_frame,
)
from anchorlens.statistics.resamples import Resamples, interval

Array = npt.NDArray[np.float64]


def pathway_samples(
    anchor: str, kind: str, layers: Sequence[int], rows: Sequence[TokenRow], measured: Sequence[Measured], *, event_is_true: bool,
    flips: bool = False,
) -> pd.DataFrame:  # fmt: skip
    """The rows of ``samples.parquet`` of some rows, without the columns that are the same for the whole sweep.

    Args:
        anchor: What is changed or cut off.
        kind: What ΔP is taken on, see :func:`~anchorlens.statistics.delta.support`.
        layers: Layers of the curve.
        rows: The rows, in the order of the measured arrays.
        measured: P before and after, and the split, for each control and donor.
        event_is_true: P is that of the answer being true (``p_true``), not false (``probe``).
        flips: Add the quantity ``flip``: 1 where the prediction changed.
    """
    labels = np.array([row.answer.label for row in rows], dtype=np.float64)
    event = 1 - labels if event_is_true else labels
    names = {
        "example_id": np.array([r.row_id for r in rows]),
        "question_id": np.array([r.example.question_id for r in rows]),
    }
    frames: list[pd.DataFrame] = []
    for one in measured:
        layer, row = np.nonzero(~np.isnan(one.after))
        before, after = one.before[layer, row], one.after[layer, row]
        columns: dict[str, object] = {
            **{name: values[row] for name, values in names.items()}, "anchor": anchor,
            "pathway": np.where(one.q[layer, row], Q, A), "layer": np.asarray(layers)[layer],
            "donor_id": np.array(one.donors)[row] if one.donors else "", "control": one.control, "trivial": False,
        }  # fmt: skip
        delta = delta_p(before, after, event[row], kind)
        own = {"quantity": P, "value_before": before, "value_after": after, "delta_p": delta}
        with np.errstate(divide="ignore"):
            for when, p in (("before", before), ("after", after)):
                own |= {f"logp_{when}": np.log(p), f"logit_diff_{when}": np.log(p) - np.log1p(-p)}
        frames.append(pd.DataFrame({**columns, **own}))
        if flips:
            changed = flipped(before, after).astype(np.float64)
            flip = {"quantity": FLIP, "value_before": 0.0, "value_after": changed, "delta_p": 100 * changed}
            frames.append(pd.DataFrame({**columns, **flip}).reindex(columns=frames[-1].columns))
    return pd.concat(frames, ignore_index=True)


@dataclass(frozen=True)
class Table:
    """Samples of one control and quantity as arrays, [layer row], averaged over donors; NaN where there is no sample."""

    before: Array
    after: Array
    delta: Array
    q: npt.NDArray[np.bool_]


@dataclass(frozen=True, repr=False)
class PathwayResult(SweepResult):
    """What a sweep measured whose rows fall into pathways; frozen."""

    @property
    def k_star(self) -> int | None:
        """k*: the layer with the best validation AUC; None for ``p_true``."""
        return self.record["probe"]["k_star"]

    @property
    def shown_layer(self) -> int:
        """The layer that summary and verdict speak of: k*, or the nearest measured layer below; the last one for ``p_true``."""
        table = self.tables()["none"].after
        measured = [layer for layer, row in zip(self.layers, table, strict=True) if not np.isnan(row).all()]
        below = [layer for layer in measured if self.k_star is None or layer <= self.k_star]
        return (below or measured)[-1]

    @property
    def text_only(self) -> dict[str, float]:
        """AUC of a classifier that sees the answer's text alone, with its interval: ``auc``, ``ci_low``, ``ci_high``."""
        return dict(self.record["probe"]["text_only"])

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

    def tables(self, quantity: str = P) -> dict[str, Table]:
        """Control -> samples as arrays, ``none`` first."""
        if (key := f"tables {quantity}") not in self._memo:
            own = self._samples[self._samples["quantity"] == quantity]
            self._memo[key] = {str(name): self._table(group) for name, group in own.groupby("control", sort=False)}
        return self._memo[key]

    def _table(self, group: pd.DataFrame) -> Table:
        numbers = group.assign(_q=(group["pathway"] == Q).astype(np.float64))
        means = numbers.groupby(["layer", "example_id"], sort=False)[["value_before", "value_after", "delta_p", "_q"]].mean()

        def wide(column: str) -> Array:
            table = means[column].unstack("example_id")
            return table.reindex(index=list(self.layers), columns=list(self.example_ids)).to_numpy(dtype=np.float64)

        return Table(wide("value_before"), wide("value_after"), wide("delta_p"), wide("_q") == 1)

    def groups(self, quantity: str = P) -> dict[str, dict[str, Group]]:
        """Control -> pathway -> mean change with its draws."""
        if (key := f"groups {quantity}") not in self._memo:
            kind = self.record["config"]["delta_kind"]

            def before(table: Table) -> Array:
                return support(table.before, table.before, self.labels, kind) if quantity == P else table.before

            self._memo[key] = {
                name: group_curves(t.delta, before(t), t.q, self.draws) for name, t in self.tables(quantity).items()
            }
        return self._memo[key]

    def aucs(self, p: Array) -> tuple[Array, Array]:
        """AUC at each layer over the rows that have a P there, with its draws."""
        found: list[tuple[float, Array]] = []
        empty = np.full(len(self.draws.weights), np.nan)
        for scores in p:
            there = ~np.isnan(scores)
            some = Resamples(self.draws.cluster[there], self.draws.weights)
            found.append(some.aucs(scores[there], self.labels[there]) if there.any() else (np.nan, empty))
        return np.array([auc for auc, _ in found]), np.stack([draws for _, draws in found], axis=1)

    def auc_frames(self) -> list[pd.DataFrame]:
        """``auc`` of the clean probe and ``auc_knocked_out`` under every control that changes the probe or the input."""
        frames: list[pd.DataFrame] = []
        for name, table in self.tables().items():
            # Placebos that read the same probe have the AUC of `none`.
            for quantity, p in (("auc", table.before), ("auc_knocked_out", table.after)):
                if quantity == "auc" and name in (MATCHED, "random_tokens"):
                    continue
                auc, draws = self.aucs(p)
                n = np.array([len(np.unique(self.draws.cluster[~np.isnan(row)])) for row in p], dtype=np.int64)
                frames.append(quantity_frame(self.layers, quantity, name, auc, draws, n))
        return frames

    def named(self, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """Frames of quantities as one."""
        return pd.concat(list(frames), ignore_index=True)


def pathway_curves(result: PathwayResult) -> pd.DataFrame:
    """Mean change by quantity, control and pathway, with bands and the probe's clean AUC."""
    effects = result.effects()
    first = result.samples().iloc[0]
    varied = ("layer", "pathway", "control", "quantity")
    shared: dict[str, Any] = {key: first[key] for key in CURVE_KEYS if key not in varied}
    aucs = effects[effects["quantity"] == "auc"].set_index(["control", "layer"])
    known = set(aucs.index.get_level_values("control"))
    frames: list[pd.DataFrame] = []
    for quantity in result.samples()["quantity"].unique():
        for control, groups in result.groups(quantity).items():
            read = aucs.loc[control if control in known else "none"].reindex(list(result.layers))
            low = read["ci_low"].to_numpy()
            signal = pd.Series(low > 0.5, dtype="boolean").mask(pd.Series(np.isnan(low)))
            for pathway, group in groups.items():
                ends = interval(group.draws, group.n > 1)
                frame = pd.DataFrame(
                    {
                        "layer": result.layers, "delta_p": group.mean, "ci_low": ends[0], "ci_high": ends[1],
                        "p_before": group.before, "n": group.n, "auc": read["value"].to_numpy(), "auc_low": low,
                        "auc_high": read["ci_high"].to_numpy(), "signal": signal, "noise_floor": result.noise_floor,
                    }
                )  # fmt: skip
                frames.append(frame.assign(**shared, control=control, pathway=pathway, quantity=quantity, trivial=False))
    return pd.concat(frames, ignore_index=True)[list(CURVE_COLUMNS)].astype(CURVE_TYPES)


def gap_contrasts(result: PathwayResult) -> pd.DataFrame:
    """AUCs, and the gap between the pathways beside that of every placebo."""
    return result.named([effects_frame(result.groups(), result.layers), *result.auc_frames()])


def pathway_summary(result: PathwayResult) -> pd.DataFrame:
    """One row: at k* (at the last layer for ``p_true``) AUC, group sizes, Q, A and All, gap, and the effects beyond placebos."""
    layer = result.shown_layer
    effects = result.effects()
    at = result.layers.index(layer)
    here = effects[effects["layer"] == layer]
    there = {(q, c): float(v) for q, c, v in here[["quantity", "control", "value"]].itertuples(index=False)}
    record: dict[str, object] = {
        "model": result.model, "dataset": result.dataset, "layer": layer, "auc": there["auc", "none"],
        "auc_knocked_out": there.get(("auc_knocked_out", "none"), np.nan), "text_only_auc": result.text_only["auc"],
    }  # fmt: skip
    for name, short in ((Q, "q"), (A, "a"), (ALL, "all")):
        group = result.groups()["none"][name]
        record |= {f"n_{short}": int(group.n[at]), short: float(group.mean[at])}
    record |= {"gap": there.get(("gap", "none"), np.nan), "gap_matched": there.get(("gap", "matched"), np.nan)}
    for placebo in (p for p in PLACEBOS if p in result.groups()):
        record |= {f"gap_{placebo}": there["placebo_gap", placebo], f"effect_{placebo}": there["effect", placebo]}
    return pd.DataFrame([record])


__all__ = ["PathwayResult", "Table", "gap_contrasts", "pathway_curves", "pathway_samples", "pathway_summary"]
