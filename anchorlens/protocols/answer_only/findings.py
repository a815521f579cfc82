"""What an answer-only sweep shows: contrasts with the control, one row of numbers, and words."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from anchorlens.protocols.answer_only.inputs import OTHER
from anchorlens.results.pathways import PathwayResult
from anchorlens.runs.schema import FLIP, P
from anchorlens.statistics.pathways import ALL, A, Q, quantity_frame

# Questions that a group needs before anything is said of it.
_ENOUGH = 10


class Fact(NamedTuple):
    """A value with its interval."""

    value: float
    low: float
    high: float


def contrasts(result: PathwayResult) -> pd.DataFrame:
    """At each layer ``delta_all``, ``flip_rate`` and ``p_after`` less those of the control, paired by row, and the AUCs.

    ``p_after`` is the mean P(hallucination) after the change, in points. Take an answer that is once true and once false, both rows
    predicted right, and one P after the change for both: the sum of their ΔP is the difference of their clean P, whatever P became,
    and exactly one of them flips. So with balanced answers ``delta_all`` and ``flip_rate`` lie near 0 for any two inputs that carry
    no label; ``p_after`` tells such inputs apart.
    """
    frames: list[pd.DataFrame] = []
    for name, quantity in (("delta_all", P), ("flip_rate", FLIP), ("p_after", P)):
        own, other = (result.tables(quantity)[control] for control in ("none", OTHER))
        gap = 100 * (own.after - other.after) if name == "p_after" else own.delta - other.delta
        frames.append(quantity_frame(result.layers, name, OTHER, *result.draws.means(gap.T, ~np.isnan(gap.T))))
    # The control has the clean AUC of the measurement: they share the clean input.
    aucs = [frame[(frame["quantity"] != "auc") | (frame["control"] == "none")] for frame in result.auc_frames()]
    return result.named([*frames, *(frame for frame in aucs if len(frame))])


def summary(result: PathwayResult) -> pd.DataFrame:
    """One row at k*: AUCs, mean ΔP by pathway, flips in percent and mean P beside those of the control, contrasts with intervals."""
    return pd.DataFrame([_numbers(result)])


def _numbers(result: PathwayResult) -> dict[str, Any]:
    layer = result.shown_layer
    at, by = result.layers.index(layer), _facts(result, layer)
    record: dict[str, Any] = {
        "model": result.model, "dataset": result.dataset, "layer": layer, "auc": by["auc", "none"].value,
        "auc_answer_only": by["auc_knocked_out", "none"].value,
    }  # fmt: skip
    for name, short in ((Q, "q"), (A, "a"), (ALL, "all")):
        group = result.groups()["none"][name]
        record |= {f"n_{short}": int(group.n[at]), short: float(group.mean[at])}
    record["all_other_question"] = float(result.groups()[OTHER][ALL].mean[at])
    for control, suffix in (("none", ""), (OTHER, f"_{OTHER}")):
        record[f"flips{suffix}"] = float(result.groups(FLIP)[control][ALL].mean[at])
    clean = result.tables()["none"].before[at]
    record["p_before"] = float(clean[~np.isnan(clean)].mean())
    for control, suffix in (("none", ""), (OTHER, f"_{OTHER}")):
        after = result.tables()[control].after[at]
        record[f"p_after{suffix}"] = float(after[~np.isnan(after)].mean())
    for name, column in (("delta_all", "delta_all"), ("flip_rate", "flip_rate"), ("p_after", "p_difference")):
        fact = by[name, OTHER]
        record |= {column: fact.value, f"{column}_low": fact.low, f"{column}_high": fact.high}
    return record


def words(result: PathwayResult) -> str:
    """One paragraph: what the missing question does and a wrong one does not, then what only describes."""
    here, by = _numbers(result), _facts(result, result.shown_layer)
    given = result.record["config"]["answers"] == "given"
    if here["n_all"] < _ENOUGH:
        return f"Nothing is said: {here['n_all']} questions were measured, and {_ENOUGH} are needed."
    parts = [] if by["auc", "none"].low > 0.5 else ["No signal: nothing here speaks of truth."]
    parts.append(_finding(by["p_after", OTHER], here))
    delta = by["delta_all", OTHER]
    said = f"Mean ΔP {here['all']:+.1f} against {here[f'all_{OTHER}']:+.1f} ({_said(delta)})"
    said += f", flips {here['flips']:.0f} against {here[f'flips_{OTHER}']:.0f} %"
    parts.append(said + (": in balanced answers predicted right, both follow from the clean P." if given else "."))
    if min(here["n_q"], here["n_a"]) >= _ENOUGH:
        groups = f"{Q} {here['q']:+.1f} (n {here['n_q']}), {A} {here['a']:+.1f} (n {here['n_a']})"
        parts.append(f"By pathway (selected by a flip): {groups}.")
    return " ".join([*parts, _check(by, given=given)])


def _finding(fact: Fact, here: Mapping[str, Any]) -> str:
    """Where P(hallucination) goes; a difference that is not shown is called so."""
    means = (
        f"At k* = {here['layer']} P(hallucination) is {here['p_before']:.2f} clean, {here['p_after']:.2f} without a question and "
        f"{here[f'p_after_{OTHER}']:.2f} after another row's"
    )
    if fact.low <= 0 <= fact.high:
        return f"{means}: a difference is not shown; the data allow {fact.low:+.1f} .. {fact.high:+.1f} points."
    return f"{means}: difference {_said(fact)} points."


def _said(fact: Fact) -> str:
    """A difference with its interval, in points."""
    return f"{fact.value:+.1f} [{fact.low:+.1f}, {fact.high:+.1f}]"


def _check(by: Mapping[tuple[str, str], Fact], *, given: bool) -> str:
    """AUC before and after; that of the answer alone is a check where given answers are balanced."""
    clean, alone = by["auc", "none"], by["auc_knocked_out", "none"]
    said = f"AUC {clean.value:.2f}, answer only {alone.value:.2f} [{alone.low:.2f}, {alone.high:.2f}]"
    if not (alone.low > 0.5 or alone.high < 0.5):
        return f"{said}."
    return f"{said}: beware, it excludes 0.5" + (" although answers are balanced." if given else ": the answer alone tells.")


def _facts(result: PathwayResult, layer: int) -> dict[tuple[str, str], Fact]:
    effects = result.effects()
    here = effects.loc[effects["layer"] == layer, ["quantity", "control", "value", "ci_low", "ci_high"]]
    return {(quantity, control): Fact(*numbers) for quantity, control, *numbers in here.itertuples(index=False)}


__all__ = ["contrasts", "summary", "words"]
