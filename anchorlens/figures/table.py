"""Results of any kind become one checked table of curve points.

The table has the schema of ``curves.parquet``: one row per point, ``delta_p``, ``ci_low`` and ``ci_high`` in percentage
points, ``p_before`` a mean probability in [0, 1], ``n`` a number of questions. What could be read in two ways (two readouts
under one label, the same point twice) is refused here, so that the drawing code never has to choose.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import pandas as pd

from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures.extras import CUTS
from anchorlens.figures.palette import display_dataset
from anchorlens.vocabulary import SETTINGS, P

_TEXT = (
    "model",
    "dataset",
    "protocol",
    "anchor",
    "pathway",
    "site",
    "direction",
    "mode",
    "readout",
    "delta_kind",
    "control",
)
_NUMBERS = ("layer", "window", "delta_p", "ci_low", "ci_high", "p_before", "n")
# Older frames lack some; an AUC is the probe's, where the readout is one.
_NUMBERS_IF_KNOWN = (
    "sim_low", "sim_high", "auc", "auc_low", "auc_high", "noise_floor", "null_short", "pair_text", "pair_text_low",
)  # fmt: skip
_LABELLED = "plot_curves({'first': a, 'second': b}), in a shell --label first --label second"
REQUIRED = (*_TEXT, *_NUMBERS)
"""Columns that every frame must have; ``quantity``, ``probe_site``, those of ``SETTINGS``, ``run_id``, ``seed``, ``trivial``,
``sim_low``, ``sim_high``, ``auc``, ``auc_low``, ``auc_high``, ``signal``, ``noise_floor``, ``null_short``, ``pair_text`` and
``pair_text_low`` may be absent."""

CURVE_KEYS = ["model", "part", "dataset", "protocol", "anchor", "pathway", *SETTINGS, "control"]
"""What makes two rows points of the same curve."""

_NEVER_EMPTY = ("model", "dataset", "protocol", "anchor", "control")
# Two values of one of these change what ΔP means; under one y axis they would be read as one quantity.
_ONE_PER_PROTOCOL = ("readout", "delta_kind", "direction", "mode", "site", "probe_site")


@runtime_checkable
class CurveSource(Protocol):
    """A result that can give its curves, such as a sweep's."""

    def curves(self, *, controls: bool = ...) -> pd.DataFrame:
        """One row per point; with ``controls`` also the rows of the controls."""
        ...


CurveResult: TypeAlias = pd.DataFrame | CurveSource
CurveResults: TypeAlias = CurveResult | Sequence[CurveResult] | Mapping[str, CurveResult | Sequence[CurveResult]]
"""What ``plot_curves`` takes; the keys of a mapping are labels, each with panels of its own."""


def gather(results: object, controls: bool | Sequence[str], quantity: str = P) -> pd.DataFrame:
    """One table of all points of ``results``.

    Args:
        results: A curves frame, a :class:`CurveSource`, or a sequence of these.
        controls: Whether control rows are kept (all but those that must be named), or the names of those to keep.
        quantity: Whose rows are kept.

    Returns:
        The columns of ``REQUIRED`` plus ``quantity``, ``probe_site``, settings, ``run_id`` and ``seed`` (``""`` where unknown),
        ``trivial`` (bool), ``sim_low``, ``sim_high``, ``auc``, ``auc_low``, ``auc_high``, ``noise_floor``, ``null_short`` (of rows
        of the null alone), ``no_signal`` (bool: the frame's ``signal`` is False) and ``is_noise`` (bool: a value within the noise
        floor), in order of appearance; NaN where a number other than ``layer`` is missing. Exact repeats of a row are dropped.

    Raises:
        InputError: no rows, none of this quantity, missing columns or values, or points that would be drawn over each other.
    """
    tables = [
        _checked(frame).assign(part=label)
        for label, one in labelled(results).items()
        for frame in _frames(one, controls is not False)
        if len(frame)
    ]
    if not tables:
        raise InputError("plot_curves was given no point: every frame is empty. Pass a sweep, or frames from its curves().")
    table = pd.concat(tables, ignore_index=True).drop_duplicates(ignore_index=True)
    there = table["quantity"].unique().tolist()
    if quantity not in there:
        raise InputError(f"There is no quantity called {quantity!r} in these results. {did_you_mean(str(quantity), there)}")
    table = table[table["quantity"] == quantity].reset_index(drop=True)
    table = table[table["control"].isin(["none", *_kept_controls(table, controls)])].reset_index(drop=True)
    _refuse_mixtures(table)
    _refuse_repeats(table)
    _refuse_orphans(table)
    return table.assign(null_short=_null_short(table))


def labelled(results: object) -> Mapping[str, object]:
    """Label -> results; without a label where none was given.

    Raises:
        InputError: A label is empty or no text.
    """
    if not isinstance(results, Mapping):
        return {"": results}
    for label in results:
        if not isinstance(label, str) or not label.strip():
            raise InputError(
                f"A label must be a text that is not empty, such as {{'qa': first, 'fewshot': second}}; got {label!r}."
            )
    return results


def by_dataset(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with a panel for each data set."""
    shown = table["dataset"].map(display_dataset)
    return table.assign(part=shown.where(table["part"] == "", table["part"] + ": " + shown))


def _frames(results: object, controls: bool) -> list[pd.DataFrame]:
    if isinstance(results, pd.DataFrame):
        return [results]
    if isinstance(results, CurveSource):
        return [results.curves(controls=controls)]
    if isinstance(results, Sequence) and not isinstance(results, str | bytes):
        return [frame for one in results for frame in _frames(one, controls)]
    raise InputError(
        f"plot_curves draws curves frames and results with a method curves(), not {type(results).__name__}. "
        "Pass a sweep, its curves(controls=True), or a list of these."
    )


def _checked(frame: pd.DataFrame) -> pd.DataFrame:
    missing = [name for name in REQUIRED if name not in frame.columns]
    if missing:
        raise InputError(
            f"The curves frame lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}. "
            "Pass the frame that curves() gives, or the table curves.parquet of a run."
        )
    table = pd.DataFrame({name: frame[name].astype(object).where(frame[name].notna(), "").map(str) for name in _TEXT})
    for name in _NEVER_EMPTY:
        if (table[name] == "").any():
            raise InputError(
                f"The column '{name}' of the curves frame has missing values. Where the frame comes from a CSV file, read it "
                "with keep_default_na=False for the text columns: pandas takes the word 'null' for a missing value."
            )
    for name, unknown in (("quantity", P), ("probe_site", ""), *((name, "") for name in SETTINGS)):
        column = frame[name] if name in frame.columns else pd.Series(None, index=frame.index, dtype=object)
        table[name] = column.astype(object).where(column.notna(), unknown).map(str)
        if name == "probe_site":
            # Before version 4 of the schema the site of a knockout was where its probe reads.
            old = column.isna() & (table["protocol"] == "knockout")
            table[name], table["site"] = table[name].where(~old, table["site"]), table["site"].where(~old, "")
    for name in _NUMBERS:
        table[name] = numbers(frame[name])
    if not bool(((table["layer"] >= 0) & (table["layer"] % 1 == 0)).all()):
        raise InputError(
            "The column 'layer' of the curves frame must hold whole numbers from 0. Correct or drop the other rows."
        )
    table["layer"] = table["layer"].astype(int)
    for name, unknown in (("run_id", ""), ("seed", ""), ("trivial", False)):
        column = frame[name] if name in frame.columns else pd.Series(unknown, index=frame.index)
        # As objects, so that a message shows a seed as the user's own frame holds it.
        table[name] = column.astype(object).where(column.notna(), unknown)
    table["trivial"] = table["trivial"].map(bool).astype(bool)
    for name in _NUMBERS_IF_KNOWN:
        table[name] = numbers(frame[name]) if name in frame.columns else float("nan")
    # The floor is one of ΔP.
    table["noise_floor"] = table["noise_floor"].where(table["quantity"] == P)
    # As text, because a CSV file that says True, False or nothing is read as text.
    table["is_noise"] = table["delta_p"].abs() <= table["noise_floor"]
    table["no_signal"] = frame["signal"].map(str) == "False" if "signal" in frame.columns else False
    return table


def _null_short(table: pd.DataFrame) -> pd.Series:
    """Of rows of the null, the share of rows whose null has too few slots, whichever row of the point says it."""
    of_point = table.groupby([*CURVE_KEYS[:-1], "layer"], sort=False)["null_short"].transform("max")
    return of_point.where(table["control"] == "null")


def numbers(column: pd.Series, frame: str = "curves") -> pd.Series:
    """A column as floats.

    Raises:
        InputError: a value is no number, or is infinite; the message names column and frame.
    """
    try:
        found = pd.to_numeric(column).astype(float)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The column '{column.name}' of the {frame} frame must hold numbers: {error}. Convert it first."
        ) from error
    if bool(np.isinf(found).any()):
        raise InputError(
            f"The column '{column.name}' of the {frame} frame holds an infinite value. Use NaN for a missing one."
        )
    return found


def _kept_controls(table: pd.DataFrame, controls: bool | Sequence[str]) -> list[str]:
    present = [name for name in table["control"].unique() if name != "none"]
    if isinstance(controls, bool):
        return [name for name in present if controls and name not in CUTS]
    wanted = [controls] if isinstance(controls, str) else list(controls)
    for name in wanted:
        if name not in present:
            hint = did_you_mean(name, present) if present else "These results hold no control."
            raise InputError(f"There is no control called '{name}' in these results. {hint}")
    return wanted


def _refuse_mixtures(table: pd.DataFrame) -> None:
    """One meaning of ΔP per protocol; one window per protocol and model (a share of the depth differs between models)."""
    curves = table[table["control"] == "none"]
    for (protocol, _), rows in curves.groupby(["protocol", "part"], sort=False):
        for column in _ONE_PER_PROTOCOL:
            _refuse_several(rows[column].unique().tolist(), column, f"the {protocol} curves")
        for model, own in rows.groupby("model", sort=False):
            _refuse_several(
                own["window"].dropna().astype(int).unique().tolist(), "window", f"the {protocol} curves of {model}"
            )


def _refuse_several(values: list[str] | list[int], column: str, among: str) -> None:
    if len(values) > 1:
        raise InputError(
            f"The column '{column}' has {len(values)} values among {among}: {', '.join(map(repr, values))}. They would be "
            f'drawn over each other. Draw one at a time: plot_curves(frame[frame["{column}"] == {values[0]!r}]); or each with a '
            f"label of its own, {_LABELLED}."
        )


def _refuse_repeats(table: pd.DataFrame) -> None:
    repeated = table[table.duplicated([*CURVE_KEYS, "layer"], keep=False)]
    if repeated.empty:
        return
    first = repeated.iloc[0]
    same = (repeated[[*CURVE_KEYS, "layer"]] == first[[*CURVE_KEYS, "layer"]]).all(axis=1)
    rows = repeated[same]
    where = (
        f"{first['anchor']} of {first['dataset']} with {first['model']}, layer {first['layer']}, control {first['control']}"
    )
    for column in ("window", "seed", "run_id"):
        values = rows[column].unique().tolist()
        if len(values) > 1:
            _refuse_several(values, column, f"the rows of one point ({where})")
    raise InputError(
        f"One point has {len(rows)} different values ({where}). Keep one row per point, or give each run a label, {_LABELLED}."
    )


def _refuse_orphans(table: pd.DataFrame) -> None:
    """A control is read against its curve; alone it would look like one."""
    keys = CURVE_KEYS[:-1]
    curves = set(table.loc[table["control"] == "none", keys].itertuples(index=False, name=None))
    for row in table.loc[table["control"] != "none", [*keys, "control"]].itertuples(index=False, name=None):
        if row[:-1] not in curves:
            model, _, dataset, _, anchor, pathway = row[:6]
            raise InputError(
                f"The control '{row[-1]}' of {pathway or anchor}, {dataset}, {model} has no curve beside it (no row with "
                "control 'none'). Add that curve's rows, or pass controls=False."
            )
