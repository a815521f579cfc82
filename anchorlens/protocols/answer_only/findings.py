"""What an answer-only sweep shows: contrasts with the control, one row of numbers, and words."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from anchorlens.protocols.probe_sweep.pathway_result import Array, PathwayResult, auc_frames, pathway_numbers
from anchorlens.results.facts import FEW, Fact, place
from anchorlens.results.findings import DESCRIPTION, OPEN, STANDS, Finding, Findings, nothing_claimed, text_warning
from anchorlens.runs.schema import FLIP, P
from anchorlens.statistics.contrasts import Estimate, mean_of
from anchorlens.statistics.pathways import ALL, A, Q, quantity_frame

OTHER = "other_question"
"""Control: the answer after another row's question."""


def contrasts(result: PathwayResult) -> pd.DataFrame:
    """At each layer ``delta_all``, ``flip_rate`` and ``p_after`` less those of the control, paired by row, and the AUCs.

    ``p_after`` is the mean P(hallucination) after the change, in points. Take an answer that is once true and once false, both rows
    predicted right, and one P after the change for both: the sum of their ΔP is the difference of their clean P, whatever P became,
    and exactly one of them flips. So with balanced answers ``delta_all`` and ``flip_rate`` lie near 0 for any two inputs that carry
    no label; ``p_after`` tells such inputs apart.
    """
    found: list[tuple[str, str, Estimate]] = []
    for name, metric in (("delta_all", P), ("flip_rate", FLIP), ("p_after", P)):
        own, other = (result.tables(metric)[control] for control in ("none", OTHER))
        gap = 100 * (own.after - other.after) if name == "p_after" else own.delta - other.delta
        found.append((name, OTHER, mean_of(gap, result.draws)))
    frames = [quantity_frame(result.layers, *one, rate=one[0] == "flip_rate") for one in found]
    return pd.concat([*frames, *auc_frames(result)], ignore_index=True).assign(anchor=result.anchors[0])


def summary(result: PathwayResult) -> pd.DataFrame:
    """One row at k*: AUCs, mean ΔP by pathway, flips in percent and mean P beside those of the control, contrasts with intervals."""
    return pd.DataFrame([_numbers(result)])


def _numbers(result: PathwayResult) -> dict[str, Any]:
    record = pathway_numbers(
        result,
        {"auc": ("auc", "none"), "auc_answer_only": ("auc_knocked_out", "none")},
        {"delta_all": ("delta_all", OTHER), "flip_rate": ("flip_rate", OTHER), "p_difference": ("p_after", OTHER)},
        {("", ""): (P, "none")},
    )
    at, tables = result.layers.index(result.shown_layer), result.tables()
    record["p_before"] = _mean(tables["none"].before[at])
    for control, suffix in (("none", ""), (OTHER, f"_{OTHER}")):
        record[f"all{suffix}"] = result.group_means()[control, ALL].mean
        record[f"flips{suffix}"] = result.group_means(FLIP)[control, ALL].mean
        record[f"p_after{suffix}"] = _mean(tables[control].after[at])
    return record


def _mean(values: Array) -> float:
    return float(values[~np.isnan(values)].mean())


def findings(result: PathwayResult) -> Findings:
    """Return what the missing question does and a wrong one does not, then what only describes."""
    here, by = _numbers(result), result.facts(result.shown_layer)
    gold = result.record["config"]["answers"] == "given"
    if here["n_all"] < FEW:
        return nothing_claimed(f"Nothing is said: {here['n_all']} questions were measured, and {FEW} are needed.")
    warnings = text_warning(result.record["probe"], by.get(("auc_beyond_text", "none")))
    parts = [] if by["auc", "none"].low > 0.5 else ["No signal: nothing here speaks of truth."]
    parts.append(_finding(by["p_after", OTHER], here, place(here["layer"], result.k_star)))
    delta = by["delta_all", OTHER]
    said = f"Mean ΔP {here['all']:+.1f} against {here[f'all_{OTHER}']:+.1f} ({delta.said()})"
    said += f", flips {here['flips']:.0f} against {here[f'flips_{OTHER}']:.0f} %"
    parts.append(said + (": in balanced answers predicted right, both follow from the clean P." if gold else "."))
    if min(here["n_q"], here["n_a"]) >= FEW:
        groups = f"{Q} {here['q']:+.1f} (n {here['n_q']}), {A} {here['a']:+.1f} (n {here['n_a']})"
        parts.append(f"By pathway (selected by a flip): {groups}.")
    text = " ".join([*parts, _check(by, given=gold)])
    statements = [
        Finding.of(name, _status(name, by[name, OTHER]), by[name, OTHER], layers=(here["layer"],), control=OTHER)
        for name in ("p_after", "delta_all", "flip_rate")
    ]
    return Findings(tuple(statements), text, warnings)


def _status(name: str, fact: Fact) -> str:
    """Return the status of a contrast; delta_all and flip_rate follow from the clean P of balanced answers."""
    if name != "p_after":
        return DESCRIPTION
    return STANDS if fact.off_zero else OPEN


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
