"""Collect the contrasts that are drawn below curves into one checked table."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pandas as pd

from anchorlens.constants import NULL_CONTROLS, SETTINGS
from anchorlens.display import short_repr
from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures.labels import leading_control
from anchorlens.figures.table import (
    ENDS,
    OWNER,
    by_label,
    flatten,
    numbers,
    require_columns,
    with_intervals,
)
from anchorlens.figures.traces import CONTRASTS, contrast_axis
from anchorlens.results.sweep import SweepResult

_PLACE = [*OWNER, "quantity", "control", "layer"]
_CONTRAST_COLUMNS = (
    "model",
    "dataset",
    "protocol",
    "anchor",
    "layer",
    "quantity",
    "control",
    "value",
    "ci_low",
    "ci_high",
    "n",
)
_CONTRAST_NUMBERS = ("layer", "value", *ENDS, "n", "n_clusters", "n_effective")
_MARKS = {"claimed": False, "shaded": False, "has_findings": False}
# Quantity of the finding on the layers at which all contrasts stand.
_ALL_CONTRASTS = "all_contrasts"

ContrastTables: TypeAlias = (
    pd.DataFrame | Sequence[pd.DataFrame] | Mapping[str, pd.DataFrame | Sequence[pd.DataFrame]]
)


def gather_contrasts(
    results: object,
    contrast_tables: object,
    curves: pd.DataFrame,
    contrasts: bool | str,
    controls: bool | Sequence[str],
) -> pd.DataFrame:
    """Collect the contrasts to draw below the curves.

    Args:
        results: Argument of ``plot_curves``; sweeps contribute their contrasts, and the layers of
            their findings.
        contrast_tables: Frames with further contrasts.
        curves: Table from :func:`gather`.
        contrasts: Whether to draw contrasts, or the name of a contrast or null that must exist.
        controls: As in :func:`gather`.

    Returns:
        Columns ``model dataset protocol anchor``, settings, ``quantity control layer value ci_low
        ci_high sim_low sim_high n n_effective``, ``view`` (display name of quantity and control)
        and, from the findings: ``claimed`` (the layer belongs to a claim about the quantity),
        ``shaded`` (all contrasts stand there) and ``has_findings``. Empty if nothing is drawn.
    """
    nothing = pd.DataFrame(columns=[*_PLACE, *_CONTRAST_NUMBERS[1:], *_MARKS, "view"])
    if contrasts is False:
        return nothing
    given: list[tuple[str, object]] = []
    for label, own in by_label(results).items():
        sweeps = [one for one in flatten(own) if isinstance(one, SweepResult)]
        given += [(label, _with_claims(sweep)) for sweep in sweeps]
    more = by_label([] if contrast_tables is None else contrast_tables)
    for label, own in more.items():
        given += [(label, one) for one in flatten(own)]
    found: list[pd.DataFrame] = []
    for label, one in given:
        frame = _checked_contrasts(one, curves, label)
        if len(frame):
            found.append(frame)
    table = (
        pd.concat(found, ignore_index=True).drop_duplicates(ignore_index=True) if found else nothing
    )
    there = [name for name in CONTRASTS if name in set(table["quantity"])]
    there += [name for name in NULL_CONTROLS.values() if name in set(table["control"])]
    if not isinstance(contrasts, bool) and contrasts not in there:
        known = did_you_mean(contrasts, there) if there else "They are curves without contrasts."
        raise InputError(
            f"contrasts={contrasts!r}: not in these results. {known}", argument="contrasts"
        )
    if table.empty:
        return nothing
    _refuse_repeated_contrasts(table)
    views = list(map(contrast_axis, table["quantity"], table["control"]))
    return table.assign(view=views)[_is_drawn(table, controls)].reset_index(drop=True)


def _with_claims(result: SweepResult) -> pd.DataFrame:
    """Return the contrasts of a result with the layers of its findings marked."""
    frame = result.contrasts()
    marked = frame.assign(claimed=False, shaded=False, has_findings=True)
    for one in result.findings.claims:
        inside = marked["layer"].isin(one.layers)
        if one.quantity == _ALL_CONTRASTS:
            marked["shaded"] |= inside
            continue
        same = (marked["quantity"] == one.quantity) & (
            marked["control"].fillna("none") == one.control
        )
        marked["claimed"] |= (
            inside & same & (marked["anchor"].eq(one.anchor) if one.anchor else True)
        )
    return marked


def _checked_contrasts(frame: object, curves: pd.DataFrame, label: str) -> pd.DataFrame:
    if not isinstance(frame, pd.DataFrame):
        raise InputError(
            f"contrast_tables={short_repr(frame)}: give the frame that contrasts() returns, or a"
            " list of these.",
            argument="contrast_tables",
        )
    require_columns(frame, _CONTRAST_COLUMNS, "contrasts")
    known = frame[frame["quantity"].isin(list(CONTRASTS))]
    columns = (*_CONTRAST_COLUMNS[:4], *SETTINGS, "quantity", "control")
    names = [name for name in columns if name in known.columns]
    table = known[names].astype(object).where(known[names].notna(), "").map(str).astype(object)
    for name in _CONTRAST_NUMBERS:
        table[name] = numbers(known[name], "contrasts") if name in known.columns else float("nan")
    table["n_clusters"] = table["n_clusters"].fillna(table["n"])
    for name, unknown in _MARKS.items():
        table[name] = known.get(name, unknown)
    table["layer"] = table["layer"].astype(int)
    return _with_owner(with_intervals(table).assign(**{"part": label} if label else {}), curves)


def _with_owner(table: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Return the contrasts whose curves are drawn, with the settings of the curves."""
    owners = curves.loc[curves["control"] == "none", OWNER].drop_duplicates()
    said = [name for name in OWNER if name in table.columns]
    several = owners[owners.duplicated(said)].merge(table[said].drop_duplicates(), on=said)
    if len(several):
        first = several.iloc[0]
        raise InputError(
            f"The curves of {first['anchor']} of {first['dataset']} with {first['model']} are of"
            " several runs, and the contrasts frame has no column to match them. Pass the results,"
            f" or add the columns {', '.join(SETTINGS)}."
        )
    return table.merge(owners, on=said)[[*_PLACE, *_CONTRAST_NUMBERS[1:], *_MARKS]]


def _refuse_repeated_contrasts(table: pd.DataFrame) -> None:
    repeated = table[table.duplicated(_PLACE)]
    if len(repeated):
        first = repeated.iloc[0]
        raise InputError(
            f"contrast_tables has two values of one point ({first['quantity']} against"
            f" {first['control']}, {first['anchor']} of {first['dataset']} with {first['model']},"
            f" layer {first['layer']}). Keep one run of each."
        )


def _is_drawn(table: pd.DataFrame, controls: bool | Sequence[str]) -> pd.Series:
    """Return whether the control of each row is the leading one of its quantity, a null, or
    named.
    """
    named = (
        []
        if isinstance(controls, bool)
        else [controls]
        if isinstance(controls, str)
        else list(controls)
    )
    drawn = table["control"].isin([*named, *NULL_CONTROLS.values()])
    for (*_, quantity), rows in table.groupby([*OWNER, "quantity"], sort=False):
        drawn[rows.index] |= rows["control"] == leading_control(
            sorted(rows["control"].unique()), CONTRASTS[str(quantity)].controls
        )
    return drawn
