"""Compare estimates of patches or edges with their exact effects."""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from anchorlens.errors import InputError
from anchorlens.protocols.patch.patch_result import PatchResult

_CELL = ["anchor", "layer"]


def compare_methods(
    exact: PatchResult,
    estimates: "PatchResult | Sequence[PatchResult]",
    *,
    top: int = 20,
    layers: Collection[int] | None = None,
) -> pd.DataFrame:
    """Return how well estimates of a grid or of edges rank its cells, beside the exact effects.

    Mean effects over pairs are compared, of the cells that both sweeps have and whose values do not
    follow by construction.

    Examples:
        >>> import anchorlens as al
        >>> model = "smollm2-135m-instruct"
        >>> pairs = al.load_pairs("ioi-pairs", limit=4)
        >>> exact = al.patch_sweep(model, pairs, site="z", by="head")  # doctest: +SKIP
        >>> fast = al.patch_sweep(  # doctest: +SKIP
        ...     model, pairs, site="z", by="head", method="attribution"
        ... )
        >>> al.compare_methods(exact, fast, top=10)  # doctest: +SKIP

    Args:
        exact: Patch sweep or edge sweep with ``method="exact"``.
        estimates: Sweep by attribution, or several, of the same kind, model, data, metric,
            direction and site.
        top: Number of cells with the largest exact effects that should be found.
        layers: Layers whose cells are compared; of edges, those of the receivers. If None, all.

    Returns:
        One row per estimate: ``method``, ``n`` (cells), ``rank_correlation`` (Spearman's, of the
        sizes of the effects), ``missed`` (of the exact ``top``, those that are not among the
        ``top`` of the estimate), ``sign_errors`` (of the exact ``top``, those whose estimate has
        another sign) and ``median_ratio`` (estimate / exact over the exact ``top``).

    Raises:
        InputError: If a sweep is neither of patches nor of edges, the first one is not exact, or
            they differ in kind, model, metric, direction, data, site or places.
    """
    listed = [estimates] if isinstance(estimates, PatchResult) else list(estimates)
    for one in (exact, *listed):
        if not isinstance(one, PatchResult):
            raise InputError(
                f"{one!r}: neither a patch sweep nor an edge sweep. Give results of al.patch_sweep"
                " or of al.edge_sweep."
            )
    if exact.is_estimate:
        raise InputError(
            "exact: measured by attribution. Give the sweep with method='exact' first."
        )
    rows: list[dict[str, object]] = []
    for estimate in listed:
        for name, own in _describe(estimate).items():
            other = _describe(exact)[name]
            if own != other:
                raise InputError(f"The sweeps differ in {name}: {own} and {other}. Compare alike.")
        values = pd.DataFrame({"exact": _means(exact), "found": _means(estimate)}).dropna()
        if layers is not None:
            values = values[values.index.isin(list(layers), level="layer")]
        if len(values) < 2:
            raise InputError(
                f"The sweeps share fewer than two {exact.cell_word}s. Measure the same ones."
            )
        sizes = values.abs()
        best = sizes["exact"].nlargest(top).index
        found = sizes["found"].nlargest(top).index
        chosen = values.loc[best]
        rows.append(
            {
                "method": estimate.method,
                "n": len(values),
                "rank_correlation": sizes["exact"].rank().corr(sizes["found"].rank()),
                "missed": len(best.difference(found)),
                "sign_errors": int((chosen["exact"] * chosen["found"] < 0).sum()),
                "median_ratio": float(np.median(chosen["found"] / chosen["exact"])),
            }
        )
    return pd.DataFrame(rows)


def _describe(result: PatchResult) -> dict[str, object]:
    """Return what must be the same in compared sweeps."""
    config = result.record["config"]
    alike = {name: getattr(result, name) for name in ("model", "dataset", "metric", "by")}
    return {
        "protocol": result.protocol.name,
        **alike,
        "direction": config["direction"],
        "site": config.get("site"),
        "window": config.get("window"),
    }


def _means(result: PatchResult) -> pd.Series:
    """Return the mean effect of every cell that does not follow by construction."""
    samples = result.samples(all_columns=True)
    is_own = (samples["control"] == "none") & ~samples["by_construction"].astype(bool)
    return samples[is_own].groupby(_CELL, sort=False)["effect"].mean()
