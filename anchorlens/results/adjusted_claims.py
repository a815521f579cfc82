"""Claims of several sweeps, adjusted over the sweeps by Holm's method (METHOD 5, "Several looks").

Knockouts, swaps and patch grids have p-values by sign flips of whole clusters
(:mod:`~anchorlens.statistics.sign_flips`). They alone claim nothing: the bands of a sweep claim,
and the adjustment can only take claims away.

Each of m sweeps applies the rule of a single sweep at level 0.05 / m. A sweep in which every claim
stands passes its share to the others: they have the level 0.05 / (m - 1), and so on.
"""

from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.errors import InputError
from anchorlens.results.estimates import LayerEstimate, format_layers, join_with_and
from anchorlens.results.findings import (
    ALPHA,
    CLAIMS,
    NOT_DETECTED,
    REVERSED,
    TOO_FEW,
    Findings,
    decimals,
)
from anchorlens.results.sweep import SweepResult
from anchorlens.statistics.bands import holm

_EFFECTS = (*CLAIMS, REVERSED)
_NAMES = ["run_id", "protocol", "model", "dataset"]
_COLUMNS = [
    "quantity",
    "anchor",
    "control",
    "layer",
    "layers",
    "value",
    "low",
    "high",
    "n",
    "p",
    "p_holm",
    "status_alone",
    "status",
]


def adjust_claims(results: Sequence[SweepResult]) -> pd.DataFrame:
    """Adjust the claims of several sweeps by Holm's method over sweeps, so that all hold jointly at
    95 %.

    Args:
        results: Sweeps of a study, a report or a comparison.

    Returns:
        One row per claim: ``run_id protocol model dataset quantity anchor control``; ``layer`` of
        the value (missing where none is named) and ``layers``, all for which the status is stated,
        such as ``8, 12, 16``; ``value low high n`` of the finding; ``p``
        (two-sided, adjusted over the contrasts of the sweep: those of a knockout, the anchors and
        layers of a swap, the grid of a patch sweep) and ``p_holm`` (over sweeps too);
        ``status_alone`` (in the sweep alone, by its bands) and ``status``: the same, but ``not
        detected`` where ``p_holm`` exceeds 0.05. A p-value alone claims nothing: no status becomes
        a claim. A single sweep is not adjusted.

    Examples:
        >>> import anchorlens as al
        >>> al.adjust_claims(al.load_run("runs/study"))  # doctest: +SKIP
    """
    named: list[tuple[dict[str, str], Findings]] = []
    every = [results] if isinstance(results, SweepResult) else results
    if isinstance(every, str | bytes) or not all(isinstance(one, SweepResult) for one in every):
        raise InputError(
            "results: give sweeps, such as those of al.load_run('runs/study').",
            argument="results",
        )
    for one in every:
        names = (one.run_id, one.protocol.name, one.model, one.dataset)
        named.append((dict(zip(_NAMES, names, strict=True)), one.findings))
    return adjust_findings(named)


def adjust_findings(sweeps: "Sequence[tuple[dict[str, str], Findings]]") -> pd.DataFrame:
    """Return the frame of :func:`adjust_claims`.

    ``sweeps``: names and findings of each sweep.
    """
    rows: list[dict[str, Any]] = []
    for names, findings in sweeps:
        for one in findings.statements:
            if one.p is None or one.status == TOO_FEW:
                continue
            numbers = {name: getattr(one, name) for name in ("value", "low", "high", "n", "p")}
            row: dict[str, Any] = {
                "quantity": one.quantity,
                "anchor": one.anchor,
                "control": one.control,
                "layer": one.layer,
                "layers": format_layers(one.layers),
                "status_alone": one.status,
            }
            rows.append(names | row | numbers)
    frame = pd.DataFrame(
        rows, columns=[*_NAMES, *(name for name in _COLUMNS if name not in ("p_holm", "status"))]
    )
    # A statement that names no layer, or has no value, has missing values there.
    types = {"layer": "Int64"} | dict.fromkeys(("value", "low", "high", "p"), "float64")
    frame = frame.astype(types)
    adjusted = _over_sweeps(frame)
    lost = frame["status_alone"].isin(_EFFECTS) & (adjusted > ALPHA) & (n_sweeps(frame) > 1)
    frame = frame.assign(p_holm=adjusted, status=frame["status_alone"].mask(lost, NOT_DETECTED))
    return frame[[*_NAMES, *_COLUMNS]]


def _over_sweeps(claims: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return the adjusted p-values: the smallest joint level at which each claim stands."""
    whole = (
        claims.groupby("run_id")["p"].max().sort_values(kind="stable")
    )  # level at which every claim of a sweep stands
    rank = {run_id: at for at, run_id in enumerate(whole.index)}
    reached = np.append(0.0, holm(whole))  # joint level at which 0, 1, 2, ... sweeps stand whole
    adjusted: list[float] = []
    for run_id, p in zip(claims["run_id"], claims["p"], strict=True):
        least = 1.0
        for done in range(rank[run_id] + 1):
            share = (len(whole) - done) * p  # the others pass their level to those left
            least = min(least, max(reached[done], share))
        adjusted.append(least)
    return np.array(adjusted, dtype=np.float64)


def n_sweeps(claims: pd.DataFrame) -> int:
    """Return the number of sweeps of a frame of claims."""
    return claims["run_id"].nunique()


def adjustment_text(claims: pd.DataFrame, results: Sequence[SweepResult] = ()) -> str:
    """Return sentences on what was adjusted: the claims of a frame, and those of ``results``
    without p-values, such as contrasts that were measured before they had any; empty for a single
    sweep.
    """
    sentences: list[str] = []
    if n_sweeps(claims) > 1:
        alone = int(claims["status_alone"].isin(_EFFECTS).sum())
        jointly = int(claims["status"].isin(_EFFECTS).sum())
        said = f"Adjusted by Holm over {n_sweeps(claims)} sweeps with {len(claims)} claims"
        sentences.append(
            f"{said}: {alone} stand in their sweep alone, {jointly} of them after the adjustment."
        )
    others = [one for one in results if one.run_id not in set(claims["run_id"])]
    unadjusted: list[SweepResult] = []
    silent: list[str] = []
    for one in others:
        if _claims_something(one.findings):
            unadjusted.append(one)
        else:
            silent.append(f"{one.protocol.name} of {one.dataset}")
    if sentences and silent:
        sentences.append(f"Not among them, because nothing is tested: {join_with_and(silent)}.")
    if unadjusted and len(results) > 1:
        kinds = ", ".join(dict.fromkeys(one.protocol.title for one in unadjusted))
        sentences.append(f"Not adjusted over sweeps: {kinds}.")
    return " ".join(sentences)


def _claims_something(findings: Findings) -> bool:
    return any(one.status in _EFFECTS for one in findings.statements)


def claim_rows(claims: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of a table of the claims that stand in their sweep alone; no rows for a
    single sweep.
    """
    shown = claims[claims["status_alone"].isin(_EFFECTS) & (n_sweeps(claims) > 1)]
    lost = f"{NOT_DETECTED} after Holm over {n_sweeps(claims)} sweeps"
    rows: list[list[str]] = []
    for one in shown.to_dict("records"):
        of = [name for name in (one["anchor"], one["control"]) if name and name != "none"]
        # The contrasts of a knockout have one control; those of swaps and grids have places.
        contrast = f"{one['quantity']} ({', '.join(of)})" if one["anchor"] else one["quantity"]
        value = ""
        if not isnan(one["value"]):
            fact = LayerEstimate(
                value=one["value"],
                low=one["low"],
                high=one["high"],
                sim_low=one["low"],
                sim_high=one["high"],
                n=one["n"],
                n_clusters=one["n"],
            )
            value = f"{fact.value:+.{fact.digits(decimals(one['quantity']))}f}"
        rows.append(
            [
                f"{one['protocol']}: {one['model']} on {one['dataset']}",
                contrast,
                "" if pd.isna(one["layer"]) else str(one["layer"]),
                value,
                one["layers"] if one["layers"] != "none" else "",
                _p(one["p"]),
                _p(one["p_holm"]),
                one["status"] if one["status"] == one["status_alone"] else lost,
            ]
        )
    return ["sweep", "contrast", "at layer", "value", "layers", "p", "p (Holm)", "status"], rows


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


__all__ = ["adjust_claims", "adjust_findings", "adjustment_text", "claim_rows"]
