"""Compare two runs by the paired difference of their curves, with intervals over questions."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.constants import DIFFERENCE, POINTS
from anchorlens.display import as_int, short_repr, shorten
from anchorlens.errors import InputError
from anchorlens.loading.load_run import results_of
from anchorlens.protocols.patch.patch_result import PatchResult
from anchorlens.results.claims import level_of
from anchorlens.results.clusters_text import cluster_note
from anchorlens.results.comparison import Comparison
from anchorlens.results.sweep import SweepResult
from anchorlens.results.vocabulary import metric_labels, row_words
from anchorlens.runs.schema import (
    CURVE_COLUMNS,
    CURVE_KEYS,
    CURVE_TYPES,
    leading_metric,
)
from anchorlens.statistics.bands import Band, band
from anchorlens.statistics.clusters import Clusters, find_clusters, intraclass_correlation
from anchorlens.statistics.resamples import Resamples
from anchorlens.statistics.sign_flips import sign_flip_p

Run: TypeAlias = (
    SweepResult | str | os.PathLike[str] | Sequence[SweepResult | str | os.PathLike[str]]
)

_ROW = ["anchor", "example_id", "question_id", "layer"]
# Settings of these types are named where they differ.
_SHOWN = (str, int, float, bool)


def compare(
    first: Run,
    second: Run,
    *,
    labels: tuple[str, str] = ("first", "second"),
    metric: str | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Compute the difference between the curves of two runs, paired by row.

    Examples:
        >>> import anchorlens as al
        >>> found = al.compare("runs/first", "runs/second", labels=("a", "b"))  # doctest: +SKIP
        >>> found.table().head()  # doctest: +SKIP
        >>> al.plot_curves(found, metric="difference")  # doctest: +SKIP

    Args:
        first: Result of a sweep, several results, or a run directory.
        second: As ``first``; sweeps are matched by protocol, data set and model, unless both runs
            have one sweep.
        labels: Names of the two runs.
        metric: Metric of both runs, as in :meth:`SweepResult.curves`. If None, ``p`` if the first
            run has it, else its first.
        n_resamples: Number of bootstrap resamples of questions.
        seed: Random seed of the resamples.

    Returns:
        Differences, second minus first, of effects averaged over donors; without controls.

    Raises:
        InputError: If the runs share no sweep or no row, lack the metric, or one of them has exact
            effects and the other estimates of them.
    """
    least = as_int(n_resamples)
    if least is None or least < 2:
        raise InputError(
            f"n_resamples={short_repr(n_resamples)} must be a whole number of at least 2.",
            argument="n_resamples",
        )
    pairs = _paired(_sweeps(first), _sweeps(second))
    for one, other in pairs:
        _check_methods(one, other)
        _check_rows(one, other)
    metric = metric or leading_metric(pairs[0][0].samples(all_columns=True))
    made = [_difference(a, b, metric, least, seed, level_of(len(pairs))) for a, b in pairs]
    tables = pd.concat([table for table, _, _ in made], ignore_index=True)
    tables["p"] = (len(pairs) * tables["p"]).clip(upper=1.0)  # over sweeps too, as the bands are
    curves = pd.concat([own for _, own, _ in made], ignore_index=True)
    units = tuple(dict.fromkeys(unit for _, _, unit in made if unit))
    curves = curves.reindex(columns=list(CURVE_COLUMNS)).astype(CURVE_TYPES)
    words = metric_labels(curves.assign(metric=metric))
    notes: list[str] = []
    for one, other in pairs:
        notes += _notes(one, other, metric, labels)
    return Comparison(labels, tables, curves, words, units, tuple(dict.fromkeys(notes)))


def _notes(a: SweepResult, b: SweepResult, metric: str, labels: tuple[str, str]) -> Iterator[str]:
    """Yield what two sweeps do not share besides the model and the data: settings, and the metric
    before the intervention, which limits how far it can fall.
    """
    own, theirs = (one.record["config"] for one in (a, b))
    texts: list[str] = []
    for name in own:
        both = own[name], theirs.get(name)
        if name in theirs and both[0] != both[1] and all(isinstance(x, _SHOWN) for x in both):
            texts.append(f"{name} {both[0]} / {both[1]}")
    if texts:
        yield f"Settings that differ ({' / '.join(labels)}): {'; '.join(texts)}."
    quick: list[str] = []
    for label, config in zip(labels, (own, theirs), strict=True):
        is_quick = bool(config.get("quick"))
        if is_quick:
            quick.append(label)
    if quick:
        yield f"A quick look, without nulls and with one donor: {', '.join(quick)}."
    means: list[str] = []
    for one in (a, b):
        before = one.samples(metric=metric, all_columns=True)["value_before"]
        means.append(f"{before.mean():.3g}")
    if means[0] != means[1]:
        yield f"{metric} before the intervention, mean of each run: {' / '.join(means)}."


def _sweeps(run: Run) -> list[SweepResult]:
    loaded = results_of(run)
    found = (
        [loaded]
        if isinstance(loaded, SweepResult)
        else list(loaded)
        if isinstance(loaded, Sequence)
        else []
    )
    if not found or not all(isinstance(one, SweepResult) for one in found):
        raise InputError(
            f"compare takes results of sweeps or run directories; got {short_repr(run)}."
        )
    return found


def _paired(
    first: list[SweepResult], second: list[SweepResult]
) -> list[tuple[SweepResult, SweepResult]]:
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    theirs = {(sweep.protocol.name, sweep.dataset, sweep.model): sweep for sweep in second}
    pairs: list[tuple[SweepResult, SweepResult]] = []
    for one in first:
        key = (one.protocol.name, one.dataset, one.model)
        if key in theirs:
            pairs.append((one, theirs[key]))
    if not pairs:
        raise InputError(
            "The two runs share no sweep with the same protocol, data set and model. Give one sweep"
            " of each."
        )
    return pairs


def _check_methods(first: SweepResult, second: SweepResult) -> None:
    """Raise InputError if one sweep has exact effects and the other estimates of them: their
    difference is the error of the estimate, not an effect.
    """
    both = [one for one in (first, second) if isinstance(one, PatchResult)]
    if len({one.is_estimate for one in both}) > 1:
        methods = " and ".join(repr(one.method) for one in both)
        raise InputError(
            f"compare: the runs have method={methods}, so their difference is the error of an"
            " estimate. Use al.compare_methods(exact, estimate), or compare runs of one method.",
            argument="second",
        )


def _check_rows(first: SweepResult, second: SweepResult) -> None:
    """Raise InputError if rows with the same id have other texts: numbers of rows as ids."""
    hashes = [one.record["data"].get("sha256") for one in (first, second)]
    if None not in hashes and hashes[0] == hashes[1]:
        return
    texts: list[pd.Series] = []
    for one in (first, second):
        rows = one.examples(all_columns=True)
        if rows.empty:
            return
        texts.append(rows[rows["role"] == "base"].set_index("example_id")["question"])
    both = pd.concat(dict(zip(("first", "second"), texts, strict=True)), axis=1, join="inner")
    other = both[both["first"] != both["second"]]
    if len(other):
        row = other.iloc[0]
        raise InputError(
            f"compare: {len(other)} of {len(both)} rows have the same id and other texts:"
            f" {shorten(str(other.index[0]))} is {shorten(row['first'])} and"
            f" {shorten(row['second'])}. Compare runs of the same rows, or give the rows ids of"
            " their own.",
            argument="second",
        )


def _difference(
    a: SweepResult, b: SweepResult, metric: str, n_resamples: int, seed: int, level: float
) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Return table and curves of two sweeps, and the sentence on their clusters.

    ``level``: joint level of the bands over layers and anchors.
    """
    measured: list[pd.DataFrame] = []
    for sweep in (a, b):
        samples = sweep.samples(metric=metric, all_columns=True)
        measured.append(samples.query("control == 'none'"))
    by_anchor = _effects_by_anchor(measured)
    if not by_anchor:
        raise InputError(
            "The two runs share no row with the same example_id, anchor and layer. Compare runs of"
            " the same questions."
        )
    wide: dict[str, Any] = {}
    for anchor, effects in by_anchor.items():
        shared_rows = effects.dropna().droplevel("anchor")
        wide[anchor] = shared_rows.unstack("layer")
    clusters = find_clusters(pd.concat(measured))
    changes = [sides["second"] - sides["first"] for sides in wide.values()]
    limit = 200 if measured[0]["unit"].iloc[0] == POINTS else np.inf
    bands = _bands(changes, clusters, n_resamples, seed, level, limit)
    p_values = _p_values(changes, clusters, seed)
    frames: list[pd.DataFrame] = []
    for (anchor, effects), made, p in zip(by_anchor.items(), bands, p_values, strict=True):
        sides = wide[anchor]
        frames.append(_anchor_table(anchor, effects, sides, made, p))
    table = pd.concat(frames, ignore_index=True)
    names = {name: (getattr(a, name), getattr(b, name)) for name in ("model", "dataset")}
    for at, (name, (one, other)) in enumerate(names.items()):
        table.insert(at, name, one if one == other else f"{other} less {one}")
    own, theirs = (samples.iloc[0] for samples in measured)
    table.insert(2, "protocol", theirs["protocol"])
    pathway = "All" if theirs["pathway"] else ""
    curves = table.assign(
        **_columns_of_both(own, theirs),
        pathway=pathway,
        metric=DIFFERENCE,
        effect=table["difference"],
        by_construction=False,
    )
    curves["position"] = table["anchor"].map(
        measured[1].drop_duplicates("anchor").set_index("anchor")["position"]
    )
    return table, curves, _cluster_sentence(b, clusters, changes, measured[1])


def _effects_by_anchor(measured: Sequence[pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the effect of every row and layer of both sweeps, averaged over donors, of each anchor
    at which they share a row.
    """
    means = [samples.groupby(_ROW, sort=False)["effect"].mean() for samples in measured]
    rows = pd.concat(dict(zip(("first", "second"), means, strict=True)), axis=1)
    by_anchor: dict[str, pd.DataFrame] = {}
    for anchor, effects in rows.groupby("anchor", sort=False):
        n_shared = len(effects.dropna())
        if n_shared:
            by_anchor[str(anchor)] = effects
    return by_anchor


def _anchor_table(
    anchor: str, effects: pd.DataFrame, sides: Any, made: Band, p: npt.NDArray[np.float64]
) -> pd.DataFrame:
    """Return the table of an anchor.

    ``effects``: effects of all rows and layers; ``sides``: those of shared rows, a column per
    sweep and layer.
    """
    n_alone: dict[str, int] = {}
    for name, other in (("first", "second"), ("second", "first")):
        alone = effects[effects[other].isna()].index
        n_alone[f"only_{name}"] = alone.get_level_values("example_id").nunique()
    first, second = (sides[side] for side in ("first", "second"))
    return pd.DataFrame(
        {
            "anchor": anchor,
            "layer": first.columns.astype(int),
            "first": first.mean().to_numpy(),
            "second": second.mean().to_numpy(),
            "difference": made.value,
            "ci_low": made.low,
            "ci_high": made.high,
            "sim_low": made.sim_low,
            "sim_high": made.sim_high,
            "p": p,
            "n": made.n,
            "n_clusters": made.n_clusters,
            "n_effective": made.n_effective,
            **n_alone,
        }
    )


def _columns_of_both(own: pd.Series, theirs: pd.Series) -> dict[str, Any]:
    """Return the columns that the curves of both sweeps have; a text that differs names both."""
    varied = {"layer", "position", "anchor", "model", "dataset", "protocol", "metric", "pathway"}
    shared: dict[str, Any] = {}
    for key in CURVE_KEYS:
        if key in varied:
            continue
        value = theirs[key]
        if isinstance(own[key], str) and own[key] != value:
            value = f"{value} less {own[key]}"
        shared[key] = value
    return shared


def _cluster_sentence(
    sweep: SweepResult,
    clusters: Clusters,
    changes: Sequence[pd.DataFrame],
    samples: pd.DataFrame,
) -> str:
    """Return the sentence on the clusters, with the intraclass correlation of the largest
    difference.
    """
    names = samples.drop_duplicates("question_id").set_index("question_id")["cluster"].fillna("")
    largest = max(changes, key=lambda change: change.mean().abs().max())
    own = largest[largest.mean().abs().idxmax()].dropna().groupby("question_id").mean()
    correlation = float("nan")
    if names.nunique() > 1:
        correlation = intraclass_correlation(
            own.to_numpy(dtype=np.float64), names.reindex(own.index).to_numpy(dtype=str)
        )
    return cluster_note(
        clusters,
        len(own),
        rows=row_words(sweep.protocol.name),
        leading=("the largest difference", correlation),
    )


def _bands(
    changes: Sequence[pd.DataFrame],
    clusters: Clusters,
    n_resamples: int,
    seed: int,
    level: float,
    limit: float,
) -> list[Band]:
    """Return the bands of several curves [row layer]; the simultaneous one covers all curves
    together at ``level``.
    """
    whole = pd.concat(changes, axis=1)
    values = whole.to_numpy(dtype=np.float64)
    questions = whole.index.get_level_values("question_id")
    draws = Resamples.of(
        questions, clusters=clusters.of(questions), n_resamples=n_resamples, seed=seed
    )
    estimate = draws.means(values, ~np.isnan(values))
    joint = band(estimate, level=level, limit=limit)
    both = replace(band(estimate, limit=limit), sim_low=joint.sim_low, sim_high=joint.sim_high)
    return both.parts([change.shape[1] for change in changes])


def _p_values(
    changes: Sequence[pd.DataFrame], clusters: Clusters, seed: int
) -> list[npt.NDArray[np.float64]]:
    """Return the sign-flip p-values of several curves [row layer], adjusted over all curves."""
    whole = pd.concat(changes, axis=1)
    drawn = clusters.of(whole.index.get_level_values("question_id"))
    p = sign_flip_p(whole.to_numpy(dtype=np.float64), drawn, seed=seed)
    ends = np.cumsum([change.shape[1] for change in changes])[:-1]
    return np.split(p, ends)
