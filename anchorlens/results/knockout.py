"""The result of a knockout sweep: curves by pathway, placebos, effects, the probes, and a verdict in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.analysis.pathways import (
    ALL,
    MATCHED,
    PLACEBOS,
    A,
    Group,
    Measured,
    Q,
    delta_p,
    effects_frame,
    group_curves,
    quantity_frame,
    support,
)
from anchorlens.analysis.probes import LayerProbes
from anchorlens.analysis.stats import Resamples, interval
from anchorlens.questions.tokens import TokenRow
from anchorlens.results.sweep import CURVE_COLUMNS, CURVE_KEYS, CURVE_TYPES, SAMPLE_COLUMNS, SweepResult
from anchorlens.results.verdict import knockout_verdict

Array = npt.NDArray[np.float64]


def knockout_samples(
    keys: Mapping[str, object], layers: Sequence[int], rows: Sequence[TokenRow], measured: Sequence[Measured], *,
    event_is_true: bool,
) -> pd.DataFrame:  # fmt: skip
    """The rows of ``samples.parquet`` of a knockout sweep.

    Args:
        keys: Columns that are the same for the whole sweep.
        layers: Layers of the curve.
        rows: The rows that were cut, in the order of the measured arrays.
        measured: P before and after, and the split, for each control.
        event_is_true: P is that of the answer being true (``p_true``), not false (``probe``).
    """
    labels = np.array([row.answer.label for row in rows], dtype=np.float64)
    event = 1 - labels if event_is_true else labels
    frames: list[pd.DataFrame] = []
    for one in measured:
        layer, row = np.nonzero(~np.isnan(one.after))
        before, after = one.before[layer, row], one.after[layer, row]
        columns: dict[str, object] = {
            "example_id": np.array([r.row_id for r in rows])[row],
            "question_id": np.array([r.example.question_id for r in rows])[row],
            "pathway": np.where(one.q[layer, row], Q, A), "layer": np.asarray(layers)[layer], "donor_id": "",
            "control": one.control, "p_before": before, "p_after": after,
            "delta_p": delta_p(before, after, event[row], str(keys["delta_kind"])), "trivial": False,
        }  # fmt: skip
        with np.errstate(divide="ignore"):
            for when, p in (("before", before), ("after", after)):
                columns |= {f"logp_{when}": np.log(p), f"logit_diff_{when}": np.log(p) - np.log1p(-p)}
        frames.append(pd.DataFrame({**columns, **keys})[list(SAMPLE_COLUMNS)])
    return pd.concat(frames, ignore_index=True)


@dataclass(frozen=True)
class _Tables:
    """Samples of one control as arrays, [layer row]; NaN where there is no sample."""

    before: Array
    after: Array
    delta: Array
    q: npt.NDArray[np.bool_]


@dataclass(frozen=True, repr=False)
class KnockoutResult(SweepResult):
    """What a knockout sweep measured; frozen.

    Attributes:
        placebo_probes: The probes of the placebos: ``shuffled_labels``, ``fold_a`` (splits) and ``fold_b`` (is read).
    """

    placebo_probes: Mapping[str, LayerProbes] = field(default_factory=dict)
    _memo: dict[str, Any] = field(default_factory=dict, compare=False)

    def with_probes(
        self, probes: LayerProbes | None, placebo_probes: Mapping[str, LayerProbes] | None = None
    ) -> "KnockoutResult":
        """The same result with its probes beside it."""
        return replace(self, probes=probes, placebo_probes=dict(placebo_probes or {}), _memo={}, _cache={})

    @property
    def shown_layer(self) -> int:
        """The layer that summary and verdict speak of: k*, or the nearest measured layer below; the last one for ``p_true``."""
        measured = [
            layer for layer, row in zip(self.layers, self._tables["none"].after, strict=True) if not np.isnan(row).all()
        ]
        below = [layer for layer in measured if self.k_star is None or layer <= self.k_star]
        return (below or measured)[-1]

    @property
    def k_star(self) -> int | None:
        """k*: the layer with the best validation AUC; None for ``p_true``."""
        return self.record["probe"]["k_star"]

    @property
    def text_only(self) -> dict[str, float]:
        """AUC of a classifier that sees the answer's text alone, with its interval: ``auc``, ``ci_low``, ``ci_high``."""
        return dict(self.record["probe"]["text_only"])

    @property
    def verdict(self) -> str:
        """One paragraph in words: what stands beyond the controls, and what does not."""
        return knockout_verdict(self.record, self.shown_layer, self.curves(controls=True), self.effects())

    def curves(self, *, controls: bool = False) -> pd.DataFrame:
        """Mean ΔP by pathway and layer with its 95 % band, n questions, mean π before, and the probe's clean AUC.

        ``signal`` is False where the lower end of the AUC's interval does not exceed 0.5.

        Args:
            controls: Take in the placebos' curves too.
        """
        if "curves" not in self._cache:
            self._cache["curves"] = self._curves_frame()
        frame = self._cache["curves"]
        return (frame if controls else frame[frame["control"] == "none"]).reset_index(drop=True)

    def effects(self) -> pd.DataFrame:
        """At each layer: ``auc`` and ``auc_knocked_out``, ``gap``, ``placebo_gap`` and ``effect`` (gap less placebo gap).

        Returns:
            ``model dataset layer quantity control value ci_low ci_high n``; ``control`` names the placebo, or ``none``.
        """
        if "effects" not in self._cache:
            frames = [effects_frame(self._groups, self.layers), *self._auc_frames()]
            named = pd.concat(frames, ignore_index=True).assign(model=self.model, dataset=self.dataset)
            columns = ["model", "dataset", "layer", "quantity", "control", "value", "ci_low", "ci_high", "n"]
            self._cache["effects"] = named[columns]
        return self._cache["effects"].copy()

    def summary(self) -> pd.DataFrame:
        """One row: at k* (at the last layer for ``p_true``) AUC, group sizes, Q, A and All, gap, and the effects beyond placebos."""
        layer = self.shown_layer
        effects = self.effects()
        at = self.layers.index(layer)
        here = effects[effects["layer"] == layer]
        there = {(q, c): float(v) for q, c, v in here[["quantity", "control", "value"]].itertuples(index=False)}
        record: dict[str, object] = {
            "model": self.model, "dataset": self.dataset, "layer": layer, "auc": there["auc", "none"],
            "auc_knocked_out": there.get(("auc_knocked_out", "none"), np.nan), "text_only_auc": self.text_only["auc"],
        }  # fmt: skip
        for name, short in ((Q, "q"), (A, "a"), (ALL, "all")):
            group = self._groups["none"][name]
            record |= {f"n_{short}": int(group.n[at]), short: float(group.mean[at])}
        record |= {"gap": there.get(("gap", "none"), np.nan), "gap_matched": there.get(("gap", "matched"), np.nan)}
        for placebo in (p for p in PLACEBOS if p in self._groups):
            record |= {f"gap_{placebo}": there["placebo_gap", placebo], f"effect_{placebo}": there["effect", placebo]}
        return pd.DataFrame([record])

    @property
    def _labels(self) -> Array:
        """1 where what P speaks of is the case, in the order of :attr:`example_ids`."""
        base = self._examples[self._examples["role"] == "base"]
        labels = base["label"].to_numpy(dtype=np.float64)
        return 1 - labels if self.record["config"]["readout"] == "p_true" else labels

    @property
    def _draws(self) -> Resamples:
        if "draws" not in self._memo:
            base = self._examples[self._examples["role"] == "base"]
            config = self.record["config"]
            ids = base["question_id"].to_numpy()
            self._memo["draws"] = Resamples.of(ids, n_resamples=config["n_resamples"], seed=config["seed"])
        return self._memo["draws"]

    @property
    def _tables(self) -> dict[str, _Tables]:
        if "tables" not in self._memo:
            self._memo["tables"] = {
                str(name): self._table(group) for name, group in self._samples.groupby("control", sort=False)
            }
        return self._memo["tables"]

    def _table(self, group: pd.DataFrame) -> _Tables:
        def wide(column: str) -> Array:
            table = group.pivot(index="layer", columns="example_id", values=column)
            return table.reindex(index=list(self.layers), columns=list(self.example_ids)).to_numpy(dtype=np.float64)

        group = group.assign(_q=(group["pathway"] == Q).astype(np.float64))
        return _Tables(wide("p_before"), wide("p_after"), wide("delta_p"), wide("_q") == 1)

    @property
    def _groups(self) -> dict[str, dict[str, Group]]:
        if "groups" not in self._memo:
            kind = self.record["config"]["delta_kind"]
            self._memo["groups"] = {
                name: group_curves(t.delta, support(t.before, t.before, self._labels, kind), t.q, self._draws)
                for name, t in self._tables.items()
            }
        return self._memo["groups"]

    def _aucs(self, p: Array) -> tuple[Array, Array]:
        """AUC at each layer over the rows that have a P there, with its draws."""
        found: list[tuple[float, Array]] = []
        empty = np.full(len(self._draws.weights), np.nan)
        for scores in p:
            there = ~np.isnan(scores)
            some = Resamples(self._draws.cluster[there], self._draws.weights)
            found.append(some.aucs(scores[there], self._labels[there]) if there.any() else (np.nan, empty))
        return np.array([auc for auc, _ in found]), np.stack([draws for _, draws in found], axis=1)

    def _auc_frames(self) -> list[pd.DataFrame]:
        frames: list[pd.DataFrame] = []
        for name, table in self._tables.items():
            # Placebos that read the same probe have the AUC of `none`.
            for quantity, p in (("auc", table.before), ("auc_knocked_out", table.after)):
                if quantity == "auc" and name in (MATCHED, "random_tokens"):
                    continue
                auc, draws = self._aucs(p)
                n = np.array([len(np.unique(self._draws.cluster[~np.isnan(row)])) for row in p], dtype=np.int64)
                frames.append(quantity_frame(self.layers, quantity, name, auc, draws, n))
        return frames

    def _curves_frame(self) -> pd.DataFrame:
        effects = self.effects()
        first = self._samples.iloc[0]
        shared: dict[str, Any] = {key: first[key] for key in CURVE_KEYS if key not in ("layer", "pathway", "control")}
        aucs = effects[effects["quantity"] == "auc"].set_index(["control", "layer"])
        frames: list[pd.DataFrame] = []
        for control, groups in self._groups.items():
            read = aucs.loc["none" if control in (MATCHED, "random_tokens") else control].reindex(list(self.layers))
            low = read["ci_low"].to_numpy()
            signal = pd.Series(low > 0.5, dtype="boolean").mask(pd.Series(np.isnan(low)))
            for pathway, group in groups.items():
                ends = interval(group.draws, group.n > 1)
                frame = pd.DataFrame(
                    {
                        "layer": self.layers, "delta_p": group.mean, "ci_low": ends[0], "ci_high": ends[1],
                        "p_before": group.before, "n": group.n, "auc": read["value"].to_numpy(), "auc_low": low,
                        "auc_high": read["ci_high"].to_numpy(), "signal": signal, "noise_floor": self.noise_floor,
                    }
                )  # fmt: skip
                frames.append(frame.assign(**shared, control=control, pathway=pathway, trivial=False))
        return pd.concat(frames, ignore_index=True)[list(CURVE_COLUMNS)].astype(CURVE_TYPES)

    def __repr__(self) -> str:
        config = self.record["config"]
        rows = self.record["counts"]["rows"]
        gone = ", ".join(f"{reason} {n}" for reason, n in self.dropped().items()) or "none"
        head = (
            f"KnockoutResult: {self.model} on {self.dataset}; delta_p [anchor 1, layer {len(self.layers)}, "
            f"example {len(self.example_ids)}]\n"
            f"  cut {config['edges']}, mode {config['mode']}, readout {config['readout']}, {config['answers']} answers, "
            f"distractor {config['distractor']}, split {config['split']}, prompt {config['prompt']}, seed {config['seed']}\n"
            f"  rows: {', '.join(f'{name} {n}' for name, n in rows.items())}; dropped: {gone}\n"
        )
        return head + self.summary().T.to_string(header=False, float_format=lambda v: f"{v:.2f}") + "\n" + self.verdict

    def _repr_html_(self) -> str:
        title = (
            f"<b>Knockout sweep</b>: {self.model} on {self.dataset}, n = {len(self.example_ids)} rows, ΔP in percentage points"
        )
        table = self.summary().to_html(index=False, float_format=lambda v: f"{v:.2f}")
        return f"<p>{title}</p>{table}<p>{self.verdict}</p>"


__all__ = ["KnockoutResult", "knockout_samples"]
