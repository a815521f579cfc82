"""Collect curve points and contrasts from results of any kind into checked tables.

Ambiguous results (two readouts under one label, the same point twice) raise an error.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pandas as pd

from anchorlens.constants import LOGIT_DIFF, MIN_QUESTIONS_FOR_CLAIM, NULL_CONTROLS, SETTINGS, P
from anchorlens.display import short_repr
from anchorlens.errors import InputError, did_you_mean
from anchorlens.figures.controls import leading_control
from anchorlens.figures.hover import CONTRASTS, contrast_axis
from anchorlens.figures.labels import CURVE, PATHWAYS
from anchorlens.figures.palette import display_dataset
from anchorlens.missing_values import without_nulls

_TEXT = ("model", "dataset", "protocol", "anchor", "control")
_NUMBERS = ("layer", "effect", "ci_low", "ci_high", "p_before", "n")
# Columns that a frame may lack.
_TEXT_IF_KNOWN = {"metric": P} | dict.fromkeys(
    ("pathway", "site", "direction", "donor_rule", "knockout_mode", "readout", "delta_kind", "unit", "probe_site", *SETTINGS), ""
)
_NUMBERS_IF_KNOWN = (
    "window", "sim_low", "sim_high", "n_effective", "auc", "auc_low", "auc_high", "noise_floor", "frac_null_incomplete",
    "qa_text_auc", "qa_text_auc_low", "position",
)  # fmt: skip
_LABELLED = "plot_curves({'first': a, 'second': b}), in a shell --label first --label second"
REQUIRED = (*_TEXT, *_NUMBERS)
CURVE_KEYS = [*CURVE, "control"]
# Columns that change the meaning of ΔP; one y axis cannot show two values of them.
_ONE_PER_PROTOCOL = ("readout", "delta_kind", "direction", "donor_rule", "knockout_mode", "site", "probe_site")
_ENDS = ["ci_low", "ci_high", "sim_low", "sim_high"]


@runtime_checkable
class CurveSource(Protocol):
    """Result with a method ``curves()``, such as a sweep."""

    def curves(self, *, controls: bool = ...) -> pd.DataFrame: ...


@runtime_checkable
class MetricSource(Protocol):
    """Result whose ``curves(metric=...)`` can compute a further metric on request, such as a sweep."""

    @property
    def run_id(self) -> str: ...
    def curves(self, *, controls: bool = ..., metric: str | None = ...) -> pd.DataFrame: ...


CurveResult: TypeAlias = pd.DataFrame | CurveSource
CurveResults: TypeAlias = CurveResult | Sequence[CurveResult] | Mapping[str, CurveResult | Sequence[CurveResult]]
"""Argument of ``plot_curves``; the keys of a mapping are labels, each with its own panels."""


def gather(
    results: object, controls: bool | Sequence[str], metric: str | None = None, anchors: Sequence[str] | None = None
) -> pd.DataFrame:
    """Collect all points of ``results`` into one table.

    Args:
        results: A curves frame, a :class:`CurveSource`, a sequence of these, or a mapping from labels to these.
        controls: If True, keep the leading control of each protocol. Or names of the controls to keep.
        metric: Metric of the rows to keep. If None, ``p`` if available, else the first.
        anchors: Anchors to keep. If None, all.

    Returns:
        Columns ``REQUIRED``, the optional columns, ``part`` (label), ``no_signal`` (bool: ``probe_above_chance`` is False) and
        ``is_noise`` (bool: the value is within the noise floor), in order of appearance. Unknown texts are ``""``, unknown numbers
        and intervals of fewer than ten questions NaN; ``frac_null_incomplete`` is set for nulls only. Duplicate rows are dropped.

    Raises:
        InputError: If there is no point, or the results are incomplete or ambiguous.
    """
    given = [
        (label, _frame_of(one, controls is not False, metric)) for label, own in by_label(results).items() for one in _flatten(own)
    ]
    tables = [_checked(frame).assign(part=label) for label, frame in given if len(frame)]
    if not tables:
        raise InputError("plot_curves got no point: every frame is empty. Pass a sweep, or frames from its curves().")
    table = without_nulls(pd.concat(tables, ignore_index=True)).drop_duplicates(ignore_index=True)
    there = table["metric"].unique().tolist()
    if metric is None:
        metric = P if P in there else there[0]
    if metric not in there:
        raise InputError(f"metric={metric!r}: not in these results. {did_you_mean(str(metric), there)}", argument="metric")
    table = table[table["metric"] == metric]
    if anchors is not None:
        table = table[_named_in(table["anchor"], anchors, "anchors")]
    table = table[_is_kept_control(table, controls)].reset_index(drop=True)
    _refuse_mixtures(table)
    _refuse_repeats(table)
    _refuse_orphans(table)
    frac_null_incomplete = table.groupby([*CURVE, "layer"], sort=False)["frac_null_incomplete"].transform("max")
    return table.assign(frac_null_incomplete=frac_null_incomplete.where(table["control"].isin(list(NULL_CONTROLS.values()))))


def without_unsplit(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the unsplit curves (pathway ``All``) of results whose pathways are drawn; contrasts are over all rows too."""
    keys = pd.MultiIndex.from_frame(table[OWNER])
    return table[(table["pathway"] != "All") | ~keys.isin(keys[table["pathway"].isin(PATHWAYS)])].reset_index(drop=True)


def by_label(results: object) -> Mapping[str, object]:
    """Return results by label; without a mapping the label is ""."""
    if not isinstance(results, Mapping):
        return {"": results}
    for label in results:
        if not isinstance(label, str) or not label.strip():
            raise InputError(f"label {label!r}: must be a text that is not empty. Use, for example, {{'qa': first}}.")
    return results


def by_dataset(table: pd.DataFrame) -> pd.DataFrame:
    """Return ``table`` with a panel for each data set."""
    shown = table["dataset"].map(display_dataset)
    return table.assign(part=shown.where(table["part"] == "", table["part"] + ": " + shown))


def _flatten(results: object) -> list[object]:
    if isinstance(results, Sequence) and not isinstance(results, str | bytes):
        return [part for one in results for part in _flatten(one)]
    return [results]


def _frame_of(result: object, controls: bool, metric: str | None) -> pd.DataFrame:
    if metric == LOGIT_DIFF and isinstance(result, MetricSource):
        return result.curves(controls=controls, metric=metric)
    if isinstance(result, pd.DataFrame):
        return result
    if isinstance(result, CurveSource):
        return result.curves(controls=controls)
    raise InputError(
        f"results: plot_curves takes curves frames and results with a method curves(), not {type(result).__name__}. "
        "Pass a sweep, its curves(controls=True), or a list of these."
    )


def _checked(frame: pd.DataFrame) -> pd.DataFrame:
    require_columns(frame, REQUIRED, "curves")
    table = pd.DataFrame({name: _texts(frame[name]) for name in _TEXT})
    for name in _TEXT:
        if (table[name] == "").any():
            raise InputError(
                f"The column '{name}' of the curves frame has missing values. Read a CSV file with keep_default_na=False for the "
                "text columns, because pandas reads the word 'null' as a missing value."
            )
    nothing = pd.Series(None, index=frame.index, dtype=object)
    for name, unknown in _TEXT_IF_KNOWN.items():
        table[name] = _texts(frame.get(name, nothing), unknown)
    for name in (*_NUMBERS, *_NUMBERS_IF_KNOWN):
        table[name] = numbers(frame[name]) if name in frame.columns else float("nan")
    if not bool(((table["layer"] >= 0) & (table["layer"] % 1 == 0)).all()):
        raise InputError("The column 'layer' of the curves frame must hold whole numbers from 0. Correct or drop the other rows.")
    table["layer"] = table["layer"].astype(int)
    for name in ("run_id", "seed"):  # as objects, because messages quote the values of the frame
        column = frame.get(name, nothing)
        table[name] = column.astype(object).where(column.notna(), "")
    by_construction = frame.get("by_construction", nothing)
    table["by_construction"] = by_construction.where(by_construction.notna(), other=False).map(bool).astype(bool)
    table["noise_floor"] = table["noise_floor"].where(table["metric"] == P)
    table["is_noise"] = table["effect"].abs() <= table["noise_floor"]
    # As text, because CSV files hold the words True and False.
    table["no_signal"] = frame.get("probe_above_chance", nothing).map(str) == "False"
    return _with_intervals(table)


def _texts(column: pd.Series, unknown: str = "") -> pd.Series:
    # Grouping and comparing is faster for object columns than for arrow strings.
    return column.astype(object).where(column.notna(), unknown).map(str).astype(object)


def require_columns(frame: pd.DataFrame, names: Sequence[str], kind: str) -> None:
    """Raise if a frame of a kind (``curves`` or ``contrasts``) lacks columns."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise InputError(
            f"The {kind} frame lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}. "
            f"Pass the frame that {kind}() returns, or the table {kind}.parquet of a run."
        )


def numbers(column: pd.Series, frame: str = "curves") -> pd.Series:
    """Return a column as floats; raise for infinite values and texts."""
    try:
        found = pd.to_numeric(column).astype(float)
    except (TypeError, ValueError) as error:
        raise InputError(f"The column '{column.name}' of the {frame} frame must hold numbers: {error}. Convert it first.") from error
    if bool(np.isinf(found).any()):
        raise InputError(f"The column '{column.name}' of the {frame} frame holds an infinite value. Use NaN for a missing one.")
    return found


def _named_in(column: pd.Series, names: str | Sequence[str], argument: str) -> pd.Series:
    """Return whether each value is one of ``names``; raise if one of them is no value of ``column`` (null: no value)."""
    wanted, present = [names] if isinstance(names, str) else list(names), list(column.dropna().unique())
    for name in wanted:
        if name not in present:
            hint = did_you_mean(name, present) if present else "These results have none."
            raise InputError(f"{argument}={name!r}: not in these results. {hint}", argument=argument)
    return column.isin(wanted)


def _is_kept_control(table: pd.DataFrame, controls: bool | Sequence[str]) -> pd.Series:
    """Return which rows are curves, or controls to draw."""
    names = table["control"].mask(table["control"] == "none")
    if isinstance(controls, bool):
        by_protocol = names.groupby([table["part"], table["protocol"]], sort=False)
        leading = by_protocol.transform(lambda own: leading_control(list(own.dropna().unique())))
        return names.isna() | (controls & (names == leading))
    return names.isna() | _named_in(names, controls, "controls")


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
            f"The column '{column}' has {len(values)} values among {among}: {', '.join(map(repr, values))}. Their "
            f'curves would overlap. Draw one at a time, plot_curves(frame[frame["{column}"] == {values[0]!r}]), or each with a '
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
        f"One point has {len(rows)} different values ({where}). Keep one row per point, or give each run a label, {_LABELLED}."
    )


def _refuse_orphans(table: pd.DataFrame) -> None:
    """Raise if a control has no curve."""
    is_curve = table["control"] == "none"
    curves = pd.MultiIndex.from_frame(table.loc[is_curve, CURVE].drop_duplicates())
    orphans = table[~is_curve & ~pd.MultiIndex.from_frame(table[CURVE]).isin(curves)]
    if len(orphans):
        first = orphans.iloc[0]
        raise InputError(
            f"The control '{first['control']}' of {first['pathway'] or first['anchor']}, {first['dataset']}, {first['model']} "
            "has no curve (no row with control 'none'). Add the rows of the curve, or pass controls=False."
        )


OWNER = ["model", "part", "dataset", "protocol", "anchor", *SETTINGS]
_PLACE = [*OWNER, "quantity", "control", "layer"]
_CONTRAST_COLUMNS = ("model", "dataset", "protocol", "anchor", "layer", "quantity", "control", "value", "ci_low", "ci_high", "n")
_CONTRAST_NUMBERS = ("layer", "value", *_ENDS, "n", "n_effective")
_MARKS = {"claimed": False, "shaded": False, "has_findings": False}
# Quantity of the finding on the layers at which all contrasts stand.
_ALL_CONTRASTS = "all_contrasts"

ContrastTables: TypeAlias = pd.DataFrame | Sequence[pd.DataFrame] | Mapping[str, pd.DataFrame | Sequence[pd.DataFrame]]


@runtime_checkable
class ContrastSource(CurveSource, Protocol):
    """Result with methods ``curves()`` and ``contrasts()``, such as a sweep."""

    def contrasts(self) -> pd.DataFrame: ...


@runtime_checkable
class FindingSource(Protocol):
    """Result with findings, whose ``claims`` are the statements that a figure marks."""

    @property
    def findings(self) -> Any: ...


def gather_contrasts(
    results: object, contrast_tables: object, curves: pd.DataFrame, contrasts: bool | str, controls: bool | Sequence[str]
) -> pd.DataFrame:
    """Collect the contrasts to draw below the curves.

    Args:
        results: Argument of ``plot_curves``; results with a method ``contrasts()`` contribute their contrasts, and the layers of
            their findings.
        contrast_tables: Frames with further contrasts.
        curves: Table from :func:`gather`.
        contrasts: Whether to draw contrasts, or the name of a contrast or null that must exist.
        controls: As in :func:`gather`.

    Returns:
        Columns ``model dataset protocol anchor``, settings, ``quantity control layer value ci_low ci_high sim_low sim_high n
        n_effective``, ``view`` (display name of quantity and control) and, from the findings: ``claimed`` (the layer belongs to a
        claim about the quantity), ``shaded`` (all contrasts stand there) and ``has_findings``. Empty if nothing is drawn.
    """
    nothing = pd.DataFrame(columns=[*_PLACE, *_CONTRAST_NUMBERS[1:], *_MARKS, "view"])
    if contrasts is False:
        return nothing
    sources = [(label, one) for label, own in by_label(results).items() for one in _flatten(own)]
    given: list[tuple[str, object]] = [(label, _with_claims(one)) for label, one in sources if isinstance(one, ContrastSource)]
    more = by_label([] if contrast_tables is None else contrast_tables)
    given += [(label, one) for label, own in more.items() for one in _flatten(own)]
    found = [frame for label, one in given if len(frame := _checked_contrasts(one, curves, label))]
    table = pd.concat(found, ignore_index=True).drop_duplicates(ignore_index=True) if found else nothing
    there = [name for name in CONTRASTS if name in set(table["quantity"])]
    there += [name for name in NULL_CONTROLS.values() if name in set(table["control"])]
    if not isinstance(contrasts, bool) and contrasts not in there:
        known = did_you_mean(contrasts, there) if there else "They are curves without contrasts."
        raise InputError(f"contrasts={contrasts!r}: not in these results. {known}", argument="contrasts")
    if table.empty:
        return nothing
    _refuse_repeated_contrasts(table)
    views = [contrast_axis(quantity, control) for quantity, control in zip(table["quantity"], table["control"], strict=True)]
    return table.assign(view=views)[_is_drawn(table, controls)].reset_index(drop=True)


def _with_claims(result: ContrastSource) -> pd.DataFrame:
    """Return the contrasts of a result with the layers of its findings marked."""
    frame = result.contrasts()
    if not isinstance(result, FindingSource):
        return frame
    marked = frame.assign(claimed=False, shaded=False, has_findings=True)
    for one in result.findings.claims:
        inside = marked["layer"].isin(one.layers)
        if one.quantity == _ALL_CONTRASTS:
            marked["shaded"] |= inside
            continue
        same = (marked["quantity"] == one.quantity) & (marked["control"].fillna("none") == one.control)
        marked["claimed"] |= inside & same & (marked["anchor"].eq(one.anchor) if one.anchor else True)
    return marked


def _checked_contrasts(frame: object, curves: pd.DataFrame, label: str) -> pd.DataFrame:
    if not isinstance(frame, pd.DataFrame):
        raise InputError(
            f"contrast_tables={short_repr(frame)}: give the frame that contrasts() returns, or a list of these.",
            argument="contrast_tables",
        )
    require_columns(frame, _CONTRAST_COLUMNS, "contrasts")
    known = frame[frame["quantity"].isin(list(CONTRASTS))]
    names = [name for name in (*_CONTRAST_COLUMNS[:4], *SETTINGS, "quantity", "control") if name in known.columns]
    table = known[names].astype(object).where(known[names].notna(), "").map(str).astype(object)
    for name in _CONTRAST_NUMBERS:
        table[name] = numbers(known[name], "contrasts") if name in known.columns else float("nan")
    for name, unknown in _MARKS.items():
        table[name] = known.get(name, unknown)
    table["layer"] = table["layer"].astype(int)
    return _with_owner(_with_intervals(table).assign(**{"part": label} if label else {}), curves)


def _with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without the intervals of fewer than ten questions."""
    return table.assign(**{name: table[name].where(table["n"] >= MIN_QUESTIONS_FOR_CLAIM) for name in _ENDS})


def _with_owner(table: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Return the contrasts whose curves are drawn, with the settings of the curves."""
    owners = curves.loc[curves["control"] == "none", OWNER].drop_duplicates()
    said = [name for name in OWNER if name in table.columns]
    several = owners[owners.duplicated(said)].merge(table[said].drop_duplicates(), on=said)
    if len(several):
        first = several.iloc[0]
        raise InputError(
            f"The curves of {first['anchor']} of {first['dataset']} with {first['model']} are of several runs, and the contrasts "
            f"frame has no column to match them. Pass the results, or add the columns {', '.join(SETTINGS)}."
        )
    return table.merge(owners, on=said)[[*_PLACE, *_CONTRAST_NUMBERS[1:], *_MARKS]]


def _refuse_repeated_contrasts(table: pd.DataFrame) -> None:
    repeated = table[table.duplicated(_PLACE)]
    if len(repeated):
        first = repeated.iloc[0]
        raise InputError(
            f"contrast_tables has two values of one point ({first['quantity']} against {first['control']}, {first['anchor']} of "
            f"{first['dataset']} with {first['model']}, layer {first['layer']}). Keep one run of each."
        )


def _is_drawn(table: pd.DataFrame, controls: bool | Sequence[str]) -> pd.Series:
    """Return whether the control of each row is the leading one of its quantity, a null, or named."""
    named = [] if isinstance(controls, bool) else [controls] if isinstance(controls, str) else list(controls)
    drawn = table["control"].isin([*named, *NULL_CONTROLS.values()])
    for (*_, quantity), rows in table.groupby([*OWNER, "quantity"], sort=False):
        drawn[rows.index] |= rows["control"] == leading_control(sorted(rows["control"].unique()), CONTRASTS[str(quantity)].controls)
    return drawn
