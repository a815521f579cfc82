"""Compare estimates of edges with their exact effects."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from anchorlens.errors import InputError
from anchorlens.protocols.edges.edge_result import EdgeResult


def compare_methods(
    exact: EdgeResult, estimates: "EdgeResult | Sequence[EdgeResult]", *, top: int = 20
) -> pd.DataFrame:
    """Return how well estimates of edges rank them, beside the exact effects.

    Mean effects over pairs are compared, of the edges that both sweeps have.

    Examples:
        >>> options = {"senders": "mlps", "receivers": "logits"}
        >>> exact = al.edge_sweep(model, pairs, **options)  # doctest: +SKIP
        >>> fast = al.edge_sweep(model, pairs, method="attribution", **options)  # doctest: +SKIP
        >>> al.compare_methods(exact, fast, top=10)  # doctest: +SKIP

    Args:
        exact: Sweep with ``method="exact"``.
        estimates: Sweep with ``attribution`` or ``attribution_ig``, or several, of the same model,
            metric and direction.
        top: Number of edges with the largest exact effects that should be found.

    Returns:
        One row per estimate: ``method``, ``n`` (edges), ``rank_correlation`` (Spearman's, of the
        sizes of the effects), ``missed`` (of the exact ``top``, those that are not among the
        ``top`` of the estimate), ``sign_errors`` (of the exact ``top``, those whose estimate has
        another sign) and ``median_ratio`` (estimate / exact over the exact ``top``).

    Raises:
        InputError: If a sweep is not of edges, the first one is not exact, or they differ in model,
            metric, direction or data.
    """
    listed = [estimates] if isinstance(estimates, EdgeResult) else list(estimates)
    for one in (exact, *listed):
        if not isinstance(one, EdgeResult):
            raise InputError(f"{one!r}: not an edge sweep. Give results of al.edge_sweep.")
    if exact.record["config"]["method"] != "exact":
        raise InputError(
            "exact: measured by attribution. Give the sweep with method='exact' first."
        )
    rows: list[dict[str, object]] = []
    for estimate in listed:
        for name in ("model", "dataset", "metric", "is_denoising"):
            own, other = getattr(estimate, name), getattr(exact, name)
            if own != other:
                raise InputError(f"The sweeps differ in {name}: {own} and {other}. Compare alike.")
        values = _means(exact).to_frame("exact").join(_means(estimate).rename("found"), how="inner")
        if len(values) < 2:
            raise InputError("The sweeps share fewer than two edges. Measure the same edges.")
        sizes = values.abs()
        best = sizes["exact"].nlargest(top).index
        found = sizes["found"].nlargest(top).index
        chosen = values.loc[best]
        rows.append(
            {
                "method": estimate.record["config"]["method"],
                "n": len(values),
                "rank_correlation": sizes["exact"].rank().corr(sizes["found"].rank()),
                "missed": len(best.difference(found)),
                "sign_errors": int((chosen["exact"] * chosen["found"] < 0).sum()),
                "median_ratio": float(np.median(chosen["found"] / chosen["exact"])),
            }
        )
    return pd.DataFrame(rows)


def _means(result: EdgeResult) -> pd.Series:
    """Return the mean effect of every edge and place."""
    samples = result.samples(all_columns=True)
    return samples[samples["control"] == "none"].groupby("anchor", sort=False)["effect"].mean()
