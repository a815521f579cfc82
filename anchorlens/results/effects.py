"""Recompute the effect of samples from their values before and after."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from anchorlens.constants import POINTS, TRUTH_READOUTS, P
from anchorlens.statistics.delta import delta_p

Array = npt.NDArray[np.float64]


def recompute_effects(
    samples: pd.DataFrame, examples: pd.DataFrame, config: Mapping[str, Any]
) -> Array:
    """Return the effect of every sample as the measuring code computes it.

    Args:
        samples: Samples of one sweep.
        examples: Inputs of the sweep, whose labels a truth readout needs.
        config: Configuration of the sweep, as in run.json.

    Returns:
        Value after minus value before, in percentage points if they are probabilities; of a truth
        readout the change of π (:func:`~anchorlens.statistics.delta.delta_p`).
    """
    before = samples["value_before"].to_numpy(dtype=np.float64)
    after = samples["value_after"].to_numpy(dtype=np.float64)
    effects = np.where(samples["unit"] == POINTS, 100.0, 1.0) * (after - before)
    kind = config.get("delta_kind")
    if config.get("readout") in TRUTH_READOUTS and kind is not None:
        of_p = (samples["metric"] == P).to_numpy(dtype=bool)
        events = (
            samples["example_id"]
            .map(event_of_rows(examples, config["readout"]))
            .to_numpy(dtype=np.float64)
        )
        effects[of_p] = delta_p(before[of_p], after[of_p], events[of_p], kind)
    return effects


def event_of_rows(examples: pd.DataFrame, readout: str) -> dict[str, float]:
    """Return row id -> 1 if the event of P is the case, else 0: a false answer for ``probe``, a
    true one for ``p_true``.
    """
    base = examples[examples["role"] == "base"]
    false = base["label"].to_numpy(dtype=np.float64)
    return dict(zip(base["example_id"], 1 - false if readout == "p_true" else false, strict=True))
