"""Convert samples to arrays: mean effect by control, anchor, layer and example, with or without
labels.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.errors import InputError
from anchorlens.runs.schema import leading_metric

if TYPE_CHECKING:
    import xarray


@runtime_checkable
class Labels(Protocol):
    """Axis labels and provenance of a result."""

    @property
    def anchors(self) -> tuple[str, ...]: ...
    @property
    def layers(self) -> tuple[int, ...]: ...
    @property
    def example_ids(self) -> tuple[str, ...]: ...
    @property
    def run_id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def dataset(self) -> str: ...
    @property
    def protocol(self) -> Any: ...


def mean_effect(
    samples: pd.DataFrame,
    controls: Sequence[str],
    anchors: Sequence[str],
    layers: Sequence[int],
    example_ids: Sequence[str],
) -> npt.NDArray[np.float64]:
    """Return the mean effect of the leading metric over donors, [control anchor layer example]; NaN
    without samples.
    """
    axes = [controls, anchors, layers, example_ids]
    own = samples[
        (samples["metric"] == leading_metric(samples)) & samples["control"].isin(controls)
    ]
    means = own.groupby(["control", "anchor", "layer", "example_id"], sort=False)["effect"].mean()
    values = means.reindex(pd.MultiIndex.from_product(axes)).to_numpy(dtype=np.float64)
    return values.reshape([len(axis) for axis in axes]).copy()


def make_dataarray(
    result: Labels, samples: pd.DataFrame, examples: pd.DataFrame
) -> "xarray.DataArray":
    """Return the mean effect of a result with its labels; see
    :meth:`anchorlens.SweepResult.to_xarray`.

    Raises:
        InputError: If xarray is not installed.
    """
    if find_spec("xarray") is None:
        raise InputError(
            "to_xarray needs xarray, which is not installed. Install it with pip install"
            " 'anchorlens[labelled]'."
        )
    import xarray

    controls = list(
        dict.fromkeys(samples.loc[samples["metric"] == leading_metric(samples), "control"])
    )
    base = examples[examples["role"] == "base"].set_index("example_id")["question_id"]
    return xarray.DataArray(
        mean_effect(samples, controls, result.anchors, result.layers, result.example_ids),
        dims=("control", "anchor", "layer", "example"),
        coords={
            "control": controls,
            "anchor": list(result.anchors),
            "layer": list(result.layers),
            "example": list(result.example_ids),
            "question_id": ("example", base.reindex(list(result.example_ids)).to_numpy(dtype=str)),
        },
        name="effect",
        attrs={
            "run_id": result.run_id,
            "model": result.model,
            "dataset": result.dataset,
            "protocol": result.protocol.name,
            "metric": leading_metric(samples),
            "units": str(samples["unit"].iloc[0]),
        },
    )
