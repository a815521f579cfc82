"""What an answer-only sweep shows: contrasts with the control, one row of numbers, and words."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from anchorlens.protocols.answer_only.inputs import OTHER
from anchorlens.results.facts import FEW, Fact, place
from anchorlens.results.pathways import PathwayResult, auc_frames
from anchorlens.results.verdict import beware
from anchorlens.runs.schema import FLIP, P
from anchorlens.statistics.contrasts import Estimate, mean_of
from anchorlens.statistics.pathways import ALL, A, Q, quantity_frame


def contrasts(result: PathwayResult) -> pd.DataFrame:
    """At each layer ``delta_all``, ``flip_rate`` and ``p_after`` less those of the control, paired by row, and the AUCs.

    ``p_after`` is the mean P(hallucination) after the change, in points. Take an answer that is once true and once false, both rows
    predicted right, and one P after the change for both: the sum of their ΔP is the difference of their clean P, whatever P became,
    and exactly one of them flips. So with balanced answers ``delta_all`` and ``flip_rate`` lie near 0 for any two inputs that carry
    no label; ``p_after`` tells such inputs apart.
    """
    found: list[tuple[str, str, Estimate]] = []
    for name, quantity in (("delta_all", P), ("flip_rate", FLIP), ("p_after", P)):
        own, other = (result.tables(quantity)[control] for control in ("none", OTHER))
        gap = 100 * (own.after - other.after) if name == "p_after" else own.delta - other.delta
        found.append((name, OTHER, mean_of(gap, result.draws)))
    frames = [quantity_frame(result.layers, *one, rate=one[0] == "flip_rate") for one in found]
    return pd.concat([*frames, *auc_frames(result)], ignore_index=True).assign(anchor=result.anchors[0])


def summary(result: PathwayResult) -> pd.DataFrame:
    """One row at k*: AUCs, mean ΔP by pathway, flips in percent and mean P beside those of the control, contrasts with intervals."""
    return pd.DataFrame([_numbers(result)])


def _numbers(result: PathwayResult) -> dict[str, Any]:
    layer = result.shown_layer
    at, by = result.layers.index(layer), result.facts(layer)
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
    here, by = _numbers(result), result.facts(result.shown_layer)
    given = result.record["config"]["answers"] == "given"
    if here["n_all"] < FEW:
        return f"Nothing is said: {here['n_all']} questions were measured, and {FEW} are needed."
    leak = beware(result.record["probe"], by)
    parts = [leak] if leak else []
    parts += [] if by["auc", "none"].low > 0.5 else ["No signal: nothing here speaks of truth."]
    parts.append(_finding(by["p_after", OTHER], here, place(here["layer"], result.k_star)))
    delta = by["delta_all", OTHER]
    said = f"Mean ΔP {here['all']:+.1f} against {here[f'all_{OTHER}']:+.1f} ({delta.said()})"
    said += f", flips {here['flips']:.0f} against {here[f'flips_{OTHER}']:.0f} %"
    parts.append(said + (": in balanced answers predicted right, both follow from the clean P." if given else "."))
    if min(here["n_q"], here["n_a"]) >= FEW:
        groups = f"{Q} {here['q']:+.1f} (n {here['n_q']}), {A} {here['a']:+.1f} (n {here['n_a']})"
        parts.append(f"By pathway (selected by a flip): {groups}.")
    return " ".join([*parts, _check(by, given=given)])


def _finding(fact: Fact, here: Mapping[str, Any], where: str) -> str:
    """Where P(hallucination) goes; a difference that is not shown is called so."""
    means = (
        f"At {where} P(hallucination) is {here['p_before']:.2f} clean, {here['p_after']:.2f} without a question and "
        f"{here[f'p_after_{OTHER}']:.2f} after another row's"
    )
    if not fact.off_zero:
        return f"{means}: a difference is not shown; the data allow {fact.allows()} points."
    return f"{means}: difference {fact.said()} points."


def _check(by: Mapping[tuple[str, str], Fact], *, given: bool) -> str:
    """AUC before and after; that of the answer alone is a check where given answers are balanced."""
    clean, alone = by["auc", "none"], by["auc_knocked_out", "none"]
    said = f"AUC {clean.value:.2f}, answer only {alone.said(2, sign=False)}"
    if not (alone.low > 0.5 or alone.high < 0.5):
        return f"{said}."
    return f"{said}: beware, it excludes 0.5" + (" although answers are balanced." if given else ": the answer alone tells.")


__all__ = ["contrasts", "summary", "words"]
