"""Make the result of a sweep from its samples: the record of ``run.json`` and the tables."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd

from anchorlens.constants import POINTS
from anchorlens.models.adapter import Adapter, hook_fingerprints
from anchorlens.models.card import model_card
from anchorlens.prompts.sweep_context import SweepContext
from anchorlens.protocols.base import Measurement, SweepInputs
from anchorlens.protocols.specification import Specification
from anchorlens.results.sweep import SweepResult
from anchorlens.runs.provenance import model_record, run_id_of
from anchorlens.runs.schema import SAMPLE_COLUMNS, SLOT_TYPES, examples_frame, settings_of


def make_result(
    *,
    protocol: Measurement[Any, Any, Any],
    context: SweepContext,
    inputs: SweepInputs,
    spec: Specification,
    own_code: Mapping[str, str],
    samples: pd.DataFrame,
    details: Mapping[str, Any],
) -> SweepResult:
    """Make the result of a sweep.

    Args:
        protocol: Measurement of the sweep.
        context: Model and data set.
        inputs: Inputs of the measurement.
        spec: Specification with all arguments resolved.
        own_code: Argument -> fingerprint of a user function.
        samples: Measured rows of all shards.
        details: Entries of ``run.json`` on the measurement: environment, plan, checks and noise.
    """
    parts = inputs.record(spec)
    config = _config_of(protocol, context, spec, parts.pop("config", {}))
    if own_code:
        config["own_code"] = dict(own_code)
    card = record_of_model(context.adapter)
    data = context.data.record()
    run_id = run_id_of(config, card, data)
    reasons = Counter(row.reason for row in inputs.dropped)
    counts = parts.pop("counts", {}) | {"dropped": dict(reasons.most_common())}
    record = {"config": config, "model": card, "data": data, **details, "counts": counts, **parts}
    if context.clock is not None:
        record["clock"] = context.clock
    same: dict[str, Any] = {
        "run_id": run_id,
        "model": context.model_name,
        "dataset": context.data.name,
        "protocol": protocol.name,
        "seed": spec.seed,
        **settings_of(config),
        **spec.constant_columns(),
    }
    if "unit" not in samples:
        same["unit"] = POINTS
    whole = samples.assign(**same).reindex(columns=list(SAMPLE_COLUMNS)).astype(SLOT_TYPES)
    examples = examples_frame(
        run_id,
        context.data.name,
        context.prompt,
        inputs.table(),
        inputs.dropped,
        context.token_text,
    )
    result = protocol.analysis.result.make(protocol.analysis, whole, examples, record, run_id)
    return result.with_probes(inputs.all_probes)


def _config_of(
    protocol: Measurement[Any, Any, Any],
    context: SweepContext,
    spec: Specification,
    of_inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the entry ``config`` of ``run.json``: the arguments, as the sweep resolved them.

    ``of_inputs``: arguments that the inputs resolve.
    """
    resolved = {
        "layers": list(spec.layers_of(context.adapter.n_layers)),
        "prompt": context.prompt,
        "add_bos": context.add_bos,
    }
    if context.prompts_sha256 is not None:
        resolved["prompts_sha256"] = context.prompts_sha256
    return {
        "protocol": protocol.name,
        **spec.identity(),
        **resolved,
        **of_inputs,
    }


def record_of_model(adapter: Adapter) -> dict[str, object]:
    """Return the record of a model with the fingerprints of hooks that a user attached."""
    hooks = hook_fingerprints(adapter)
    return model_record(model_card(adapter.model)) | ({"hooks": hooks} if hooks else {})
