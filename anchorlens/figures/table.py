"""Collect curve points and contrasts from results of any kind into checked tables.

Ambiguous results (two readouts under one label, the same point twice) raise an error.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from anchorlens.constants import LOGIT_DIFF, MIN_QUESTIONS_FOR_CLAIM, NULL_CONTROLS, SETTINGS, P
from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures.labels import CURVE, PATHWAYS, leading_control
from anchorlens.figures.palette import display_dataset
from anchorlens.results.both_directions import BothDirections
from anchorlens.results.comparison import Comparison
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.schema import without_nulls

_TEXT = ("model", "dataset", "protocol", "anchor", "control")
_NUMBERS = ("layer", "effect", "ci_low", "ci_high", "value_before", "n")
# Columns that a frame may lack.
_TEXT_IF_KNOWN = {"metric": P} | dict.fromkeys(
    (
        "pathway",
        "site",
        "direction",
        "donor_rule",
        "knockout_mode",
        "readout",
        "delta_kind",
        "unit",
        "probe_site",
        *SETTINGS,
    ),
    "",
)
_NUMBERS_IF_KNOWN = (
    "window",
    "sim_low",
    "sim_high",
    "n_clusters",
    "n_effective",
    "auc",
    "auc_low",
    "auc_high",
    "noise_floor",
    "frac_null_incomplete",
    "qa_text_auc",
    "qa_text_auc_low",
    "position",
)
_LABELLED = "plot_curves({'first': a, 'second': b}), in a shell --label first --label second"
REQUIRED = (*_TEXT, *_NUMBERS)
CURVE_KEYS = [*CURVE, "control"]
# Columns that change the meaning of ΔP; one y axis cannot show two values of them.
_ONE_PER_PROTOCOL = (
    "readout",
    "delta_kind",
    "direction",
    "donor_rule",
    "knockout_mode",
    "site",
    "probe_site",
)
ENDS = ["ci_low", "ci_high", "sim_low", "sim_high"]
OWNER = ["model", "part", "dataset", "protocol", "anchor", *SETTINGS]


Result: TypeAlias = (
    pd.DataFrame | SweepResult | BothDirections | Comparison | str | os.PathLike[str]
)
Results: TypeAlias = Result | Sequence[Result] | Mapping[str, Result | Sequence[Result]]
"""Argument of the functions that plot curves; a path is a run directory, and the keys of a mapping
are labels, each with its own panels.
"""


def gather(
    results: object,
    controls: bool | Sequence[str],
    metric: str | None = None,
    anchors: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Collect all points of ``results`` into one table.

    Args:
        results: A curves frame, a sweep, a comparison, a sequence of these, or a mapping from
            labels to these.
        controls: If True, keep the leading control of each protocol and its strongest null. Or
            names of the controls to keep.
        metric: Metric of the rows to keep. If None, ``p`` if available, else the first.
        anchors: Anchors to keep. If None, all.

    Returns:
        Columns ``REQUIRED``, the optional columns, ``part`` (label), ``no_signal`` (bool:
        ``probe_above_chance`` is False) and ``is_noise`` (bool: the value is within the noise
        floor), in order of appearance. Unknown texts are ``""``, unknown numbers and intervals of
        fewer than ten questions NaN; ``frac_null_incomplete`` is set for nulls only. Duplicate rows
        are dropped.

    Raises:
        InputError: If there is no point, or the results are incomplete or ambiguous.
    """
    given: list[tuple[str, pd.DataFrame]] = []
    for label, own in by_label(results).items():
        frames = [_frame_of(one, controls is not False, metric) for one in flatten(own)]
        given += [(label, frame) for frame in frames]
    tables: list[pd.DataFrame] = []
    for label, frame in given:
        if len(frame):
            tables.append(_checked(frame).assign(part=label))
    if not tables:
        raise InputError(
            "plot_curves got no point: every frame is empty. Pass a sweep, or frames from its"
            " curves()."
        )
    table = without_nulls(pd.concat(tables, ignore_index=True)).drop_duplicates(ignore_index=True)
    there = table["metric"].unique().tolist()
    if metric is None:
        metric = P if P in there else there[0]
    if metric not in there:
        raise InputError(
            f"metric={metric!r}: not in these results. {did_you_mean(str(metric), there)}",
            argument="metric",
        )
    table = table[table["metric"] == metric]
    if anchors is not None:
        table = table[_named_in(table["anchor"], anchors, "anchors")]
    table = table[_is_kept_control(table, controls)].reset_index(drop=True)
    _refuse_mixtures(table)
    _refuse_repeats(table)
    _refuse_orphans(table)
    frac_null_incomplete = table.groupby([*CURVE, "layer"], sort=False)[
        "frac_null_incomplete"
    ].transform("max")
    return table.assign(
        frac_null_incomplete=frac_null_incomplete.where(
            table["control"].isin(list(NULL_CONTROLS.values()))
        )
    )


def without_unsplit(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the unsplit curves (pathway ``All``) of results whose pathways are drawn; contrasts are
    over all rows too.
    """
    keys = pd.MultiIndex.from_frame(table[OWNER])
    return table[
        (table["pathway"] != "All") | ~keys.isin(keys[table["pathway"].isin(PATHWAYS)])
    ].reset_index(drop=True)


def by_label(results: object) -> Mapping[str, object]:
    """Return results by label; without a mapping the label is ""."""
    if not isinstance(results, Mapping):
        return {"": results}
    for label in results:
        if not isinstance(label, str) or not label.strip():
            raise InputError(
                f"label {label!r}: must be a text that is not empty. Use, for example, {{'qa':"
                " first}."
            )
    return results


def label_directions(results: object) -> object:
    """Return results with the direction as a label where sweeps have several, so that noising and
    denoising curves have their own panels.

    Args:
        results: Argument of ``plot_curves``, with results instead of paths.

    Returns:
        A mapping of labels; ``results`` themselves if no label has sweeps of two directions.
    """
    labelled: dict[str, list[object]] = {}
    has_several = False
    for label, own in by_label(results).items():
        parts: dict[str, list[object]] = {}
        for one in flatten(own):
            sweep = isinstance(one, SweepResult)
            direction = one.record["config"].get("direction", "noising") if sweep else ""
            parts.setdefault(direction, []).append(one)
        if len(set(parts) - {""}) < 2 or "" in parts:
            labelled[label] = flatten(own)
            continue
        has_several = True
        for direction, sweeps in parts.items():
            labelled[f"{label}: {direction}" if label else direction] = sweeps
    return labelled if has_several else results


def by_dataset(table: pd.DataFrame) -> pd.DataFrame:
    """Return ``table`` with a panel for each data set."""
    shown = table["dataset"].map(display_dataset)
    return table.assign(part=shown.where(table["part"] == "", table["part"] + ": " + shown))


def flatten(results: object) -> list[object]:
    """Return the single results of a result, or of nested sequences of results."""
    if isinstance(results, Sequence) and not isinstance(results, str | bytes):
        parts: list[object] = []
        for one in results:
            parts += flatten(one)
        return parts
    if isinstance(results, BothDirections):
        return list(results.results)
    return [results]


def _frame_of(result: object, controls: bool, metric: str | None) -> pd.DataFrame:
    if metric == LOGIT_DIFF and isinstance(result, SweepResult):
        return result.curves(controls=controls, metric=metric)
    if isinstance(result, pd.DataFrame):
        return result
    if isinstance(result, SweepResult | Comparison):
        return result.curves(controls=controls)
    raise InputError(
        "results: takes sweeps, comparisons and curves frames, not"
        f" {type(result).__name__}. Pass a sweep, its curves(controls=True), or a list of these."
    )


def _checked(frame: pd.DataFrame) -> pd.DataFrame:
    require_columns(frame, REQUIRED, "curves")
    table = pd.DataFrame({name: _texts(frame[name]) for name in _TEXT})
    for name in _TEXT:
        if (table[name] == "").any():
            raise InputError(
                f"The column '{name}' of the curves frame has missing values. Read a CSV file with"
                " keep_default_na=False for the text columns, because pandas reads the word 'null'"
                " as a missing value."
            )
    nothing = pd.Series(None, index=frame.index, dtype=object)
    for name, unknown in _TEXT_IF_KNOWN.items():
        table[name] = _texts(frame.get(name, nothing), unknown)
    for name in (*_NUMBERS, *_NUMBERS_IF_KNOWN):
        table[name] = numbers(frame[name]) if name in frame.columns else float("nan")
    # A frame of one's own names no clusters: its questions are drawn.
    table["n_clusters"] = table["n_clusters"].fillna(table["n"])
    if not bool(((table["layer"] >= 0) & (table["layer"] % 1 == 0)).all()):
        raise InputError(
            "The column 'layer' of the curves frame must hold whole numbers from 0. Correct or drop"
            " the other rows."
        )
    table["layer"] = table["layer"].astype(int)
    for name in ("run_id", "seed"):  # as objects, because messages quote the values of the frame
        column = frame.get(name, nothing)
        table[name] = column.astype(object).where(column.notna(), "")
    by_construction = frame.get("by_construction", nothing)
    table["by_construction"] = (
        by_construction.where(by_construction.notna(), other=False).map(bool).astype(bool)
    )
    table["noise_floor"] = table["noise_floor"].where(table["metric"] == P)
    table["is_noise"] = table["effect"].abs() <= table["noise_floor"]
    # As text, because CSV files hold the words True and False.
    table["no_signal"] = frame.get("probe_above_chance", nothing).map(str) == "False"
    return with_intervals(table)


def _texts(column: pd.Series, unknown: str = "") -> pd.Series:
    # Grouping and comparing is faster for object columns than for arrow strings.
    return column.astype(object).where(column.notna(), unknown).map(str).astype(object)


def require_columns(frame: pd.DataFrame, names: Sequence[str], kind: str) -> None:
    """Raise if a frame of a kind (``curves`` or ``contrasts``) lacks columns."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise InputError(
            f"The {kind} frame lacks the column{'s' if len(missing) > 1 else ''}"
            f" {', '.join(missing)}. Pass the frame that {kind}() returns, or the table"
            f" {kind}.parquet of a run."
        )


def numbers(column: pd.Series, frame: str = "curves") -> pd.Series:
    """Return a column as floats; raise for infinite values and texts."""
    try:
        found = pd.to_numeric(column).astype(float)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The column '{column.name}' of the {frame} frame must hold numbers: {error}. Convert"
            " it first."
        ) from error
    if bool(np.isinf(found).any()):
        raise InputError(
            f"The column '{column.name}' of the {frame} frame holds an infinite value. Use NaN for"
            " a missing one."
        )
    return found


def _named_in(column: pd.Series, names: str | Sequence[str], argument: str) -> pd.Series:
    """Return whether each value is one of ``names``; raise if one of them is no value of ``column``
    (null: no value).
    """
    wanted = [names] if isinstance(names, str) else list(names)
    present = list(column.dropna().unique())
    for name in wanted:
        if name not in present:
            hint = did_you_mean(name, present) if present else "These results have none."
            raise InputError(
                f"{argument}={name!r}: not in these results. {hint}", argument=argument
            )
    return column.isin(wanted)


def _is_kept_control(table: pd.DataFrame, controls: bool | Sequence[str]) -> pd.Series:
    """Return which rows are curves, or controls to draw."""
    names = table["control"].mask(table["control"] == "none")
    if isinstance(controls, bool):
        kept = names.isna()
        for _, rows in table[names.notna() & controls].groupby(["part", "protocol"], sort=False):
            shown = [leading_control(list(rows["control"].unique())), *_strongest_null(rows)]
            kept[rows.index] |= rows["control"].isin(shown)
        return kept
    return names.isna() | _named_in(names, controls, "controls")


def _strongest_null(controls: pd.DataFrame) -> list[str]:
    """Return the null that moves the metric most, which a reader would ask for; none without
    nulls.
    """
    nulls = controls[controls["control"].isin(list(NULL_CONTROLS.values()))]
    sizes = nulls["effect"].abs().groupby(nulls["control"], sort=False).mean().dropna()
    return [str(sizes.idxmax())] if len(sizes) else []


def _refuse_mixtures(table: pd.DataFrame) -> None:
    """Raise if one protocol has two meanings of ΔP, or one protocol and model two windows."""
    curves = table[table["control"] == "none"]
    for (protocol, _), rows in curves.groupby(["protocol", "part"], sort=False):
        for column in _ONE_PER_PROTOCOL:
            _refuse_several(rows[column].unique().tolist(), column, f"the {protocol} curves")
        for model, own in rows.groupby("model", sort=False):
            windows = own["window"].dropna().astype(int).unique().tolist()
            _refuse_several(windows, "window", f"the {protocol} curves of {model}")


def _refuse_several(values: list[Any], column: str, among: str) -> None:
    if len(values) > 1:
        raise InputError(
            f"The column '{column}' has {len(values)} values among {among}:"
            f" {', '.join(map(repr, values))}. Their "
            f'curves would overlap. Draw one at a time, plot_curves(frame[frame["{column}"] =='
            f" {values[0]!r}]), or each with a "
            f"label, {_LABELLED}."
        )


def _refuse_repeats(table: pd.DataFrame) -> None:
    place = [*CURVE_KEYS, "layer"]
    repeated = table[table.duplicated(place, keep=False)]
    if repeated.empty:
        return
    first = repeated.iloc[0]
    rows = repeated[(repeated[place] == first[place]).all(axis=1)]
    where = "{anchor} of {dataset} with {model}, layer {layer}, control {control}".format(**first)
    for column in ("window", "seed", "run_id"):
        _refuse_several(rows[column].unique().tolist(), column, f"the rows of one point ({where})")
    raise InputError(
        f"One point has {len(rows)} different values ({where}). Keep one row per point, or give"
        f" each run a label, {_LABELLED}."
    )


def _refuse_orphans(table: pd.DataFrame) -> None:
    """Raise if a control has no curve."""
    is_curve = table["control"] == "none"
    curves = pd.MultiIndex.from_frame(table.loc[is_curve, CURVE].drop_duplicates())
    orphans = table[~is_curve & ~pd.MultiIndex.from_frame(table[CURVE]).isin(curves)]
    if len(orphans):
        first = orphans.iloc[0]
        raise InputError(
            f"The control '{first['control']}' of {first['pathway'] or first['anchor']},"
            f" {first['dataset']}, {first['model']} has no curve (no row with control 'none'). Add"
            " the rows of the curve, or pass controls=False."
        )


def with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without the intervals of fewer than ten questions."""
    return table.assign(
        **{name: table[name].where(table["n"] >= MIN_QUESTIONS_FOR_CLAIM) for name in ENDS}
    )
