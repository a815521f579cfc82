"""Two runs compared question by question: the difference of their curves, with intervals.

Both measured the same questions, so what a question does in one run is set beside what it does in the other, and whole questions are
drawn again. Two curves whose bands overlap may differ all the same; the difference of paired questions says so. Rows that only one
run has are left out and counted. No pathway is compared, as each run splits its rows by itself and the groups would be of different
rows: the curves compared are those of all rows.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pandas as pd

from anchorlens.errors import InputError, did_you_mean
from anchorlens.kinds import as_whole, described
from anchorlens.protocols.loading import load_run
from anchorlens.runs.schema import CURVE_COLUMNS, CURVE_KEYS, CURVE_TYPES, P, answer_first, summary_order
from anchorlens.statistics.bands import bootstrap_mean
from anchorlens.vocabulary import DIFFERENCE


@runtime_checkable
class Measured(Protocol):
    """What a result must have to be compared."""

    @property
    def model(self) -> str: ...
    @property
    def dataset(self) -> str: ...
    def samples(self) -> pd.DataFrame: ...


Run: TypeAlias = Measured | Sequence[Measured] | str | os.PathLike[str]

_ROW = ["anchor", "example_id", "question_id", "layer"]


@dataclass(frozen=True, repr=False)
class Comparison:
    """The difference of two runs at every layer; frozen.

    Attributes:
        labels: What the first and the second run are called.
    """

    labels: tuple[str, str]
    _table: pd.DataFrame
    _curves: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """The difference at every layer.

        Returns:
            ``anchor layer difference ci_low ci_high n``, ``first second``, ``sim_low sim_high``, ``only_first only_second``, and
            ``model dataset protocol``: the second less the first with both 95 % intervals (points), shared questions, mean ΔP of
            the shared rows in either run, and rows that only one of them has.
        """
        return self._table[summary_order(self._table)].copy()

    def curves(self, *, controls: bool = False) -> pd.DataFrame:  # noqa: ARG002
        """The differences as curves: ``plot_curves(comparison, quantity="difference")`` draws them."""
        return self._curves[answer_first(self._curves)].copy()

    def __repr__(self) -> str:
        table = self._table
        best = table.loc[table.groupby(["model", "dataset", "protocol", "anchor"])["difference"].apply(_largest)]
        shown = best[["model", "dataset", "protocol", "anchor", "layer", "difference", "sim_low", "sim_high", "n"]]
        head = (
            f"Comparison: {self.labels[1]} less {self.labels[0]}, ΔP in points; largest difference, band of all layers at once"
        )
        return f"{head}\n{shown.to_string(index=False, float_format=lambda value: f'{value:.2f}')}"


def _largest(values: pd.Series) -> Any:
    return values.abs().idxmax() if values.notna().any() else values.index[0]


def compare(
    first: Run,
    second: Run,
    *,
    labels: tuple[str, str] = ("first", "second"),
    quantity: str = P,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """How far the curves of one run lie from those of another, paired by row.

    Args:
        first: The result of a sweep, several of them, or the directory of a run.
        second: The same; its sweeps are matched by protocol, data set and model, or, where both hold one sweep, with each other.
        labels: What to call them.
        quantity: Whose change is compared: ``p``, or another one that both measured, such as ``flip``.
        n_resamples: Number of bootstrap resamples of questions.
        seed: Of the resamples.

    Returns:
        The differences, second less first. Donors are averaged first; controls are not compared.

    Raises:
        InputError: Nothing to compare: no sweep of one in the other, no shared row, or no such quantity.
    """
    least = as_whole(n_resamples)
    if least is None or least < 2:
        raise InputError(f"n_resamples={described(n_resamples)} must be a whole number of at least 2.")
    pairs = _paired(_sweeps(first), _sweeps(second))
    made = [_difference(a, b, quantity, least, seed) for a, b in pairs]
    tables, curves = (pd.concat(parts, ignore_index=True) for parts in zip(*made, strict=True))
    return Comparison(labels, tables, curves.reindex(columns=list(CURVE_COLUMNS)).astype(CURVE_TYPES))


def _sweeps(run: object) -> list[Measured]:
    if isinstance(run, str | os.PathLike):
        return list(load_run(run))
    found = [run] if isinstance(run, Measured) else list(run) if isinstance(run, Sequence) else []
    if not found or not all(isinstance(one, Measured) for one in found):
        raise InputError(f"compare takes the results of sweeps, or directories of runs; got {described(run)}.")
    return found


def _named(sweep: Measured) -> tuple[str, str, str]:
    return str(sweep.samples()["protocol"].iloc[0]), sweep.dataset, sweep.model


def _paired(first: list[Measured], second: list[Measured]) -> list[tuple[Measured, Measured]]:
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    theirs = {_named(sweep): sweep for sweep in second}
    pairs = [(sweep, theirs[name]) for sweep in first if (name := _named(sweep)) in theirs]
    if not pairs:
        raise InputError(
            "The two runs share no sweep: none has protocol, data set and model of the other. Give one sweep of each."
        )
    return pairs


def _means(sweep: Measured, quantity: str) -> pd.Series:
    """ΔP of every row and layer, averaged over donors."""
    samples = sweep.samples()
    own = samples[samples["control"] == "none"]
    there = own["quantity"].unique().tolist()
    if quantity not in there:
        raise InputError(f"A run has no quantity={quantity!r}. {did_you_mean(str(quantity), there)}")
    return own[own["quantity"] == quantity].groupby(_ROW, sort=True)["delta_p"].mean()


def _difference(a: Measured, b: Measured, quantity: str, n_resamples: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = pd.concat({"first": _means(a, quantity), "second": _means(b, quantity)}, axis=1)
    frames: list[pd.DataFrame] = []
    for anchor, own in rows.groupby("anchor", sort=False):
        both = own.dropna()
        if both.empty:
            continue
        wide = both.reset_index("anchor", drop=True).unstack("layer")
        change = wide["second"] - wide["first"]
        ids = change.index.get_level_values("question_id")
        made = bootstrap_mean(change.to_numpy(), ids, n_resamples=n_resamples, seed=seed)
        alone = {name: own[own[other].isna()].index for name, other in (("first", "second"), ("second", "first"))}
        frames.append(
            pd.DataFrame(
                {
                    "anchor": anchor, "layer": change.columns.astype(int), "first": wide["first"].mean().to_numpy(),
                    "second": wide["second"].mean().to_numpy(), "difference": made.value, "ci_low": made.low,
                    "ci_high": made.high, "sim_low": made.sim_low, "sim_high": made.sim_high, "n": made.n,
                    **{f"only_{name}": index.get_level_values("example_id").nunique() for name, index in alone.items()},
                }
            )
        )  # fmt: skip
    if not frames:
        raise InputError(
            "The two runs share no row: no example_id with an anchor and a layer is in both. Compare runs of the same questions."
        )
    samples = b.samples()
    model = a.model if a.model == b.model else f"{b.model} less {a.model}"
    dataset = a.dataset if a.dataset == b.dataset else f"{b.dataset} less {a.dataset}"
    table = pd.concat(frames, ignore_index=True)
    table.insert(0, "protocol", samples["protocol"].iloc[0])
    table.insert(0, "dataset", dataset)
    table.insert(0, "model", model)
    own, theirs = (one[one["control"] == "none"].iloc[0] for one in (a.samples(), samples))
    varied = {"layer", "anchor", "model", "dataset", "protocol", "quantity", "pathway"}
    keys = [key for key in CURVE_KEYS if key not in varied]
    shared = {
        key: f"{theirs[key]} less {own[key]}" if isinstance(own[key], str) and own[key] != theirs[key] else theirs[key]
        for key in keys
    }
    pathway = "All" if theirs["pathway"] else ""
    curves = table.assign(**shared, pathway=pathway, quantity=DIFFERENCE, delta_p=table["difference"], trivial=False)
    return table, curves


__all__ = ["Comparison", "compare"]
