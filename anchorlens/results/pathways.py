"""The result of a protocol that reads a truth probe: rows in two pathways, and what each costs under every control (METHOD 5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.questions.tokens import TokenRow
from anchorlens.results.facts import Fact, facts_at
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import CURVE_COLUMNS, CURVE_KEYS, CURVE_TYPES, FLIP, P
from anchorlens.statistics.bands import band
from anchorlens.statistics.contrasts import Arm, Estimate, auc_difference, auc_of, delta_all, flip_rate, own_change
from anchorlens.statistics.delta import delta_p, flipped, support
from anchorlens.statistics.pathways import (
    ALL,
    CROSS_FOLD,
    MATCHED,
    RANDOM,
    SHUFFLED,
    A,
    Group,
    Measured,
    Q,
    gaps,
    group_curves,
    quantity_frame,
)
from anchorlens.statistics.resamples import Resamples

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
        """k*: the lowest layer within one standard error of the best validation AUC; None for ``p_true``."""
        return self.record["probe"]["k_star"]

    @property
    def shown_layer(self) -> int:
        """The layer that summary and verdict speak of: k*, else the nearest measured one below or above; the last for ``p_true``."""
        table = self.tables()["none"].after
        measured = [layer for layer, row in zip(self.layers, table, strict=True) if not np.isnan(row).all()]
        below = [layer for layer in measured if self.k_star is None or layer <= self.k_star]
        return (below or measured)[-1]

    @property
    def text_only(self) -> dict[str, float]:
        """AUC of a classifier that sees the answer's text alone, with its interval: ``auc``, ``ci_low``, ``ci_high``."""
        return dict(self.record["probe"]["text_only"])

    @property
    def pair_text(self) -> dict[str, float] | None:
        """The same of a classifier that sees question and answer; None in runs of before it was measured."""
        found = self.record["probe"].get("pair_text")
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

    def tables(self, quantity: str = P) -> dict[str, Table]:
        """Control -> samples as arrays, ``none`` first; averaged over donors and, for a placebo probe, over its draws."""
        if (key := f"tables {quantity}") not in self._memo:
            self._memo[key] = {name: self._table(group) for name, group in self._by_control(quantity)}
        return self._memo[key]

    def _by_control(self, quantity: str) -> list[tuple[str, pd.DataFrame]]:
        own = self._samples[self._samples["quantity"] == quantity]
        return [(str(name), group) for name, group in own.groupby("control", sort=False)]

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
            self._memo[key] = {name: self._group_curves(group, name, quantity) for name, group in self._by_control(quantity)}
        return self._memo[key]

    def _group_curves(self, samples: pd.DataFrame, control: str, quantity: str) -> dict[str, Group]:
        kind = self.record["config"]["delta_kind"]
        # A row flips under one placebo probe and not under another: each draw has its own pathways.
        draws = [group for _, group in samples.groupby("donor_id", sort=False)] if control == SHUFFLED else [samples]
        found: list[dict[str, Group]] = []
        for draw in draws:
            t = self._table(draw)
            before = support(t.before, t.before, self.labels, kind) if quantity == P else t.before
            found.append(group_curves(t.delta, before, t.q, self.draws))
        return {pathway: _over_draws([groups[pathway] for groups in found]) for pathway in (Q, A, ALL)}

    def estimates(self) -> list[tuple[str, str, Estimate]]:
        """Quantity, control, estimate: ``auc`` of the clean probe, ``auc_knocked_out`` under every control, ``auc_beyond_text``."""
        found: list[tuple[str, str, Estimate]] = []
        for name, group in self._by_control(P):
            parts = [d for _, d in group.groupby("donor_id", sort=False)] if name == SHUFFLED else [group]
            draws = [self._table(part) for part in parts]
            # Other cuts are read by the same probe: they have the clean AUC of `none`.
            if name in ("none", SHUFFLED, CROSS_FOLD):
                found.append(("auc", name, _mixed([auc_of(t.before, self.labels, self.draws) for t in draws])))
            found.append(("auc_knocked_out", name, _mixed([auc_of(t.after, self.labels, self.draws) for t in draws])))
        scores = self._pair_scores()
        if scores is not None:
            clean = self.tables()["none"].before
            beyond = auc_difference(clean, np.broadcast_to(scores, clean.shape), self.labels, self.draws)
            found.append(("auc_beyond_text", "none", beyond))
        return found

    def _pair_scores(self) -> Array | None:
        """What question and answer as text say of each row, on the side of P; None where that was not measured."""
        base = self._examples[self._examples["role"] == "base"]
        if "pair_text" not in base or base["pair_text"].isna().all():
            return None
        scores = base["pair_text"].to_numpy(dtype=np.float64)
        return 1 - scores if self.record["config"]["readout"] == "p_true" else scores

    def contrast(self, quantity: str, own: str, other: str) -> Estimate:
        """``delta_all``, ``flip_rate`` or ``auc_drop`` of one control against another, paired by row."""
        cut, placebo = (Arm(table.before, table.after) for table in (self.tables()[name] for name in (own, other)))
        if quantity == "delta_all":
            return delta_all(cut, placebo, self.labels, self.record["config"]["delta_kind"], self.draws)
        if quantity == "flip_rate":
            return flip_rate(cut, placebo, self.draws)
        return auc_difference(cut.after, placebo.after, self.labels, self.draws)

    def own_change(self, control: str) -> Estimate:
        """``own_change`` under a control."""
        table, config = self.tables()[control], self.record["config"]
        return own_change(Arm(table.before, table.after), self.labels, config["delta_kind"], self.draws, config["seed"])

    def facts(self, layer: int) -> dict[tuple[str, str], Fact]:
        """What :meth:`effects` says at a layer."""
        return dict(facts_at(self.effects(), layer))


def _over_draws(groups: Sequence[Group]) -> Group:
    """A curve over several draws of a placebo: their mean, and resamples that take the draws in turn, so that draws vary too."""
    if len(groups) == 1:
        return groups[0]
    mixed = _mixed([Estimate(group.mean, group.draws, group.n) for group in groups])
    return Group(mixed.value, mixed.draws, mixed.n, np.mean([group.before for group in groups], axis=0))


def _mixed(estimates: Sequence[Estimate]) -> Estimate:
    if len(estimates) == 1:
        return estimates[0]
    draws = np.array(estimates[0].draws)
    for i, one in enumerate(estimates):
        draws[i :: len(estimates)] = one.draws[i :: len(estimates)]
    n = np.min([one.n for one in estimates], axis=0)
    return Estimate(np.mean([one.value for one in estimates], axis=0), draws, n)


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
                made = band(group.mean, group.draws, group.n)
                frame = pd.DataFrame(
                    {
                        "layer": result.layers, "delta_p": made.value, "ci_low": made.low, "ci_high": made.high,
                        "sim_low": made.sim_low, "sim_high": made.sim_high, "p_before": group.before, "n": group.n,
                        "auc": read["value"].to_numpy(), "auc_low": low, "auc_high": read["ci_high"].to_numpy(),
                        "signal": signal, "noise_floor": result.noise_floor, "null_short": np.nan,
                    }
                )  # fmt: skip
                frames.append(frame.assign(**shared, control=control, pathway=pathway, quantity=quantity, trivial=False))
    return pd.concat(frames, ignore_index=True).reindex(columns=list(CURVE_COLUMNS)).astype(CURVE_TYPES)


def auc_frames(result: PathwayResult) -> list[pd.DataFrame]:
    """:meth:`PathwayResult.estimates` with both bands."""
    return [
        quantity_frame(result.layers, name, control, estimate, auc=name != "auc_beyond_text")
        for name, control, estimate in result.estimates()
    ]


def cut_contrasts(result: PathwayResult) -> pd.DataFrame:
    """What is claimed (``delta_all``, ``flip_rate``, ``auc_drop``, ``own_change``), AUCs, and gaps as description."""
    found: list[tuple[str, str, Estimate]] = []
    tables = result.tables()
    if RANDOM in tables:
        found += [(name, RANDOM, result.contrast(name, MATCHED, RANDOM)) for name in ("delta_all", "flip_rate", "auc_drop")]
    if result.record["config"]["readout"] == "probe":  # log-odds of another reader do not add up
        found += [("own_change", name, result.own_change(name)) for name in (MATCHED, RANDOM) if name in tables]
    found += gaps(result.groups())
    frames = [quantity_frame(result.layers, *one, rate=one[0] == "flip_rate") for one in found]
    return pd.concat([*frames, *auc_frames(result)], ignore_index=True).assign(anchor=result.anchors[0])


def pathway_summary(result: PathwayResult) -> pd.DataFrame:
    """One row, at k* (the last layer for ``p_true``): AUCs, text baselines, the contrasts with intervals, then the pathways."""
    layer = result.shown_layer
    at, facts = result.layers.index(layer), result.facts(layer)
    record: dict[str, object] = {"model": result.model, "dataset": result.dataset, "layer": layer}
    for name, key in (
        ("auc", ("auc", "none")), ("auc_cut", ("auc_knocked_out", MATCHED)), ("auc_placebo", ("auc_knocked_out", RANDOM)),
    ):  # fmt: skip
        record[name] = facts[key].value if key in facts else np.nan
    pair = result.pair_text
    record |= {"text_only_auc": result.text_only["auc"], "pair_text_auc": np.nan if pair is None else pair["auc"]}
    for name, control in (("delta_all", RANDOM), ("flip_rate", RANDOM), ("auc_drop", RANDOM), ("own_change", MATCHED)):
        fact = facts.get((name, control))
        ends = [np.nan] * 3 if fact is None else [fact.value, fact.low, fact.high]
        record |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
    for name, short in ((Q, "q"), (A, "a"), (ALL, "all")):
        group = result.groups()["none"][name]
        record |= {f"n_{short}": int(group.n[at]), short: float(group.mean[at])}
    for name, key in (
        ("gap", ("gap", "none")), ("gap_matched", ("gap", MATCHED)), (f"gap_{RANDOM}", ("placebo_gap", RANDOM)),
        (f"gap_{SHUFFLED}", ("placebo_gap", SHUFFLED)), (f"gap_{CROSS_FOLD}", ("cross_fold_gap", CROSS_FOLD)),
    ):  # fmt: skip
        if key in facts:
            record[name] = facts[key].value
    return pd.DataFrame([record])


__all__ = [
    "PathwayResult", "Table", "auc_frames", "cut_contrasts", "pathway_curves", "pathway_samples", "pathway_summary",
]  # fmt: skip
