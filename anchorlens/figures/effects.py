"""Contrasts of any kind of result become one checked table.

The table has the schema of ``effects.parquet``: one row per layer, quantity and control, ``value`` with both of its intervals. Only
contrasts that the figure can draw are kept (:data:`~anchorlens.figures.words.CONTRASTS`), and only those whose curves it draws.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import pandas as pd

from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures.extras import CUTS
from anchorlens.figures.table import CurveSource, labelled, numbers
from anchorlens.figures.words import CONTRASTS
from anchorlens.kinds import described
from anchorlens.vocabulary import SETTINGS

_OF_DELTA = ("delta_all", "own_change", "less_null")
_FEW = 10  # questions below which nothing is said
OWNER = ["model", "part", "dataset", "protocol", "anchor", *SETTINGS]
"""Whose contrast it is: the same columns as those of the curves above it."""

_PLACE = [*OWNER, "quantity", "control", "layer"]
_REQUIRED = ("model", "dataset", "protocol", "layer", "quantity", "control", "value", "ci_low", "ci_high", "n")
_NUMBERS = ("layer", "value", "ci_low", "ci_high", "sim_low", "sim_high", "n")

Effects: TypeAlias = pd.DataFrame | Sequence[pd.DataFrame] | Mapping[str, pd.DataFrame | Sequence[pd.DataFrame]]


@runtime_checkable
class EffectSource(CurveSource, Protocol):
    """A result that can give its contrasts too, such as a sweep's."""

    def effects(self) -> pd.DataFrame:
        """One row per layer, quantity and control."""
        ...


def gather_effects(
    results: object, effects: object, curves: pd.DataFrame, contrasts: bool | str, controls: bool | Sequence[str]
) -> pd.DataFrame:
    """The contrasts to draw below the curves.

    Args:
        results: What the curves came from; results with a method ``effects()`` give their own.
        effects: Frames of further contrasts, such as ``effects.parquet`` of a run.
        curves: Points as ``gather`` gives them.
        contrasts: Whether they are wanted, or the name of one that must be there.
        controls: Which controls are drawn, as in ``gather``.

    Returns:
        Columns ``model dataset protocol anchor``, settings, ``quantity control layer value ci_low ci_high sim_low sim_high n``,
        ``leading`` (bool: the control that the quantity is read against; the others are drawn thin) and ``excludes_zero`` (bool: by
        the simultaneous interval, of ten questions, with signal and beyond rounding). Without a row where there is nothing to draw.

    Raises:
        InputError: a frame that is none, lacks columns or says two things of one point; a contrast that is not there.
    """
    nothing = pd.DataFrame(columns=[*_PLACE, *_NUMBERS[1:], "leading", "excludes_zero"])
    if contrasts is False:
        return nothing
    if not isinstance(contrasts, bool) and contrasts not in CONTRASTS:
        known = did_you_mean(str(contrasts), CONTRASTS)
        raise InputError(f"contrasts={contrasts!r} is neither True, False nor the name of a contrast. {known}")
    given = [(label, frame) for label, one in labelled(results).items() for frame in _of_results(one)]
    given += [(label, frame) for label, one in labelled(effects).items() for frame in _given(one)]
    found = [frame for label, one in given if len(frame := _checked(one, curves, label))]
    table = pd.concat(found, ignore_index=True).drop_duplicates(ignore_index=True) if found else nothing
    there = [name for name in CONTRASTS if name in set(table["quantity"])]
    if not isinstance(contrasts, bool) and contrasts not in there:
        has = (
            f"They hold {', '.join(there)}."
            if there
            else "They hold none: an older version wrote them, or they are curves alone."
        )
        raise InputError(f"There is no contrast called {contrasts!r} in these results. {has}")
    if not there:
        return nothing
    _refuse_repeats(table)
    outside = ((table["sim_low"] > 0) | (table["sim_high"] < 0)) & table["value"].notna() & _can_be_told(table, curves)
    marked = table.assign(leading=_leading(table), excludes_zero=outside)
    return marked[marked["leading"] | _kept(marked, controls)].reset_index(drop=True)


def _of_results(results: object) -> Iterator[pd.DataFrame]:
    if isinstance(results, EffectSource):
        frame, own = results.effects(), results.curves(controls=False)
        # A result is one run: its curves say with which settings.
        settings = {name: own[name].iloc[0] for name in SETTINGS if name in own.columns and own[name].nunique() == 1}
        yield frame.assign(**{name: value for name, value in settings.items() if name not in frame.columns})
    elif isinstance(results, Sequence) and not isinstance(results, str | bytes):
        for one in results:
            yield from _of_results(one)


def _given(effects: object) -> Sequence[object]:
    if effects is None:
        return []
    if isinstance(effects, Sequence) and not isinstance(effects, str | bytes):
        return effects
    return [effects]


def _checked(frame: object, curves: pd.DataFrame, label: str) -> pd.DataFrame:
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"effects= takes the frame that effects() gives, or a list of these; got {described(frame)}.")
    missing = [name for name in _REQUIRED if name not in frame.columns]
    if missing:
        raise InputError(
            f"The effects frame lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}. "
            "Pass the frame that effects() gives, or the table effects.parquet of a run."
        )
    known = frame[frame["quantity"].isin(list(CONTRASTS))]
    if "anchor" not in frame.columns:  # before version 5 a contrast did not say whose it is, nor for all layers at once
        known = known.iloc[:0].assign(anchor="")
    names = [
        "model",
        "dataset",
        "protocol",
        "anchor",
        *(name for name in SETTINGS if name in frame.columns),
        "quantity",
        "control",
    ]
    table = known[names].astype(object).where(known[names].notna(), "").map(str)
    for name in _NUMBERS:
        table[name] = numbers(known[name], "effects") if name in known.columns else float("nan")
    table["layer"] = table["layer"].astype(int)
    return _with_owner(table.assign(part=label) if label else table, curves)


def _with_owner(table: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Contrasts whose curves are drawn, each with the settings of these."""
    owners = curves.loc[curves["control"] == "none", OWNER].drop_duplicates()
    said = [name for name in OWNER if name in table.columns]
    several = owners[owners.duplicated(said)].merge(table[said].drop_duplicates(), on=said)
    if len(several):
        first = several.iloc[0]
        raise InputError(
            f"The curves of {first['anchor']} of {first['dataset']} with {first['model']} are of several runs, and the effects "
            f"frame does not say to which its rows belong. Pass the results themselves, or add the columns {', '.join(SETTINGS)}."
        )
    return table.merge(owners, on=said)[[*_PLACE, *_NUMBERS[1:]]]


def _refuse_repeats(table: pd.DataFrame) -> None:
    repeated = table[table.duplicated(_PLACE)]
    if len(repeated):
        first = repeated.iloc[0]
        raise InputError(
            f"The effects hold two values of one point ({first['quantity']} against {first['control']}, {first['anchor']} of "
            f"{first['dataset']} with {first['model']}, layer {first['layer']}). Keep one run of each."
        )


def _can_be_told(table: pd.DataFrame, curves: pd.DataFrame) -> pd.Series:
    """Whether a point may be said to stand at all: ten questions, signal at its layer, and more than rounding (for points of ΔP)."""
    own = curves[curves["control"] == "none"]
    by = own.groupby([*OWNER, "layer"], sort=False)[["no_signal", "noise_floor"]].max().reset_index()
    beside = table[[*OWNER, "layer"]].merge(by, on=[*OWNER, "layer"], how="left")
    silent = beside["no_signal"].fillna(value=False).astype(bool).to_numpy()
    floor = beside["noise_floor"].fillna(0.0).to_numpy()
    rounding = table["quantity"].isin(_OF_DELTA).to_numpy() & (table["value"].abs().to_numpy() <= floor)
    return pd.Series(~silent & ~rounding & (table["n"] >= _FEW).to_numpy(), index=table.index)


def _leading(table: pd.DataFrame) -> pd.Series:
    """Whether a row's control is the one that its quantity is read against."""

    def preferred(rows: pd.DataFrame) -> str:
        there, wanted = sorted(rows["control"].unique()), CONTRASTS[str(rows["quantity"].iloc[0])].controls
        return next((name for name in wanted if name in there), there[0])

    keys = [*OWNER, "quantity"]
    chosen = {key: preferred(rows) for key, rows in table.groupby(keys, sort=False)}
    own = table[keys].itertuples(index=False, name=None)
    return pd.Series([chosen[key] == control for key, control in zip(own, table["control"], strict=True)], index=table.index)


def _kept(table: pd.DataFrame, controls: bool | Sequence[str]) -> pd.Series:
    if isinstance(controls, bool):
        return controls & ~table["control"].isin(list(CUTS))
    return table["control"].isin([controls] if isinstance(controls, str) else list(controls))
