"""Mark the layers of curves at which the findings of their results claim an effect."""

from collections.abc import Iterable

import pandas as pd

from anchorlens.constants import SETTINGS, P
from anchorlens.figures.labels import PATHWAYS
from anchorlens.figures.table import by_label, flatten
from anchorlens.results.findings import Finding, Findings
from anchorlens.results.sweep import SweepResult

# Columns that identify a run among the curves of a figure.
_RUN = ["part", "model", "dataset", "protocol", *SETTINGS]


def mark_claims(table: pd.DataFrame, results: object) -> pd.DataFrame:
    """Return a table of curves with the columns ``claimed``, ``has_findings`` and ``is_quick``.

    A layer is claimed where the findings claim an effect beyond every control of the anchor. Claims
    over all rows of a protocol with pathways are those of its Q-Anchored curve. Data frames have no
    findings, and findings are about ΔP only.

    Args:
        table: Table from :func:`~anchorlens.figures.table.gather`.
        results: Results from which it was gathered.
    """
    table = table.assign(claimed=False, has_findings=False, is_quick=False)
    is_curve = (table["control"] == "none") & (table["metric"] == P)
    for label, own in by_label(results).items():
        for result in flatten(own):
            if not isinstance(result, SweepResult):
                continue
            inside = _keys(table).isin(_keys(result.curves(all_columns=True).assign(part=label)))
            table.loc[inside, "has_findings"] = True
            table.loc[inside, "is_quick"] = result.is_quick
            for (anchor, pathway), rows in table[inside & is_curve].groupby(["anchor", "pathway"]):
                if pathway in ("", PATHWAYS[0], "All"):
                    layers = find_claimed_layers(result.findings, str(anchor))
                    table.loc[rows.index, "claimed"] = rows["layer"].isin(layers)
    return table


def _keys(curves: pd.DataFrame) -> pd.MultiIndex:
    """Return the run of each row of a table of curves."""
    columns = curves.reindex(columns=_RUN).astype(object)
    return pd.MultiIndex.from_frame(columns.where(columns.notna(), "").map(str))


def find_claimed_layers(findings: Findings, anchor: str) -> set[int]:
    """Return the layers at which an effect of an anchor is claimed beyond every control that the
    findings name.
    """
    statements = _of_anchor(findings.statements, anchor)
    claims = _of_anchor(findings.claims, anchor)
    found: set[int] | None = None
    for control in {one.control for one in statements} - {"none"}:
        layers: set[int] = set()
        for one in claims:
            if one.control == control:
                layers.update(one.layers)
        found = layers if found is None else found & layers
    return found or set()


def _of_anchor(statements: Iterable[Finding], anchor: str) -> list[Finding]:
    """Return the statements about an anchor; those without an anchor are about the only one."""
    return [one for one in statements if one.anchor in ("", anchor)]
